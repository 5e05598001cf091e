"""Pydantic's findings, said in the words of the configuration: place, value, cure."""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scalewise.plan.config.errors import Place, Problem, did_you_mean, name_all, safe_repr
from scalewise.plan.config.experiment import (
    CHOSEN,
    COUNT,
    LEFT_OUT,
    LISTED,
    MAPPING,
    VALUE,
    AnyExperiment,
    Experiment,
    experiment_kind,
)
from scalewise.plan.config.program import NUMBER, WORD
from scalewise.plan.config.settings import STEP_COUNT, STEP_MAPPING

_KIND = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
}
_KINDS = {COUNT, MAPPING, LISTED, CHOSEN, VALUE, LEFT_OUT, NUMBER, WORD, STEP_COUNT, STEP_MAPPING}
FEW = 4
COMMANDS = ("arguments", "prepare")
"""Keys of a program whose words are a list, and which a shell would take as one text."""
_VARIANTS = {"constrained-int", "literal['auto']", "int", "str"}
"""Words that pydantic puts behind the place of a value that may be of several kinds."""


def problems_of(error: ValidationError, place: Place, model: type[BaseModel] = Experiment) -> list[Problem]:
    """One problem for each of pydantic's findings.

    Args:
        error: Raised by ``model``.
        place: The validated mapping's place in the YAML.
        model: Says which keys are known where.
    """
    details = error.errors(include_url=False)
    for detail in details:
        detail["loc"] = tuple(part for part in detail["loc"] if part not in _KINDS)
        if detail["loc"] and detail["loc"][-1] in _VARIANTS:
            detail["loc"] = detail["loc"][:-1]
    misspelt = {
        (*detail["loc"][:-1], near)
        for detail in details
        if detail["type"] == "extra_forbidden"
        for near in difflib.get_close_matches(str(detail["loc"][-1]), _known_keys(detail["loc"], model), n=1)
    }
    return [
        _problem(detail, place, model)
        for detail in details
        if not (detail["type"] == "missing" and detail["loc"] in misspelt)
    ]


def _problem(detail: ErrorDetails, place: Place, model: type[BaseModel]) -> Problem:
    kind, value = detail["type"], detail["input"]
    context = detail.get("ctx", {})
    here = place + tuple(detail["loc"])
    key = str(here[-1])
    if kind == "extra_forbidden":
        return Problem(here, "is not a known key", did_you_mean(key, _known_keys(detail["loc"], model)))
    if kind == "refused":
        return Problem(here, context["what"], context["cure"])
    if kind == "missing":
        return Problem(here, "is missing", f"Add `{key}:`. {_describe(detail['loc'], model)}".rstrip())
    if kind == "device_count":
        return Problem(here, detail["msg"], 'Write 4, or "2x2" for 2 nodes of 2 devices.')
    if kind == "literal_error":
        known = [word.strip().strip("'") for word in context["expected"].replace(" or ", ", ").split(",")]
        return Problem(here, f"is {safe_repr(value)}, which is not known here", _one_of(_short(value), known))
    if kind == "finite_number":
        return Problem(here, f"is {value}, not a finite number", "Write a number.")
    if kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}:
        limit = next(iter(context.values()))
        relation = kind.replace("_", " ").replace("than equal", "than or equal to")
        return Problem(
            here,
            f"is {safe_repr(value)}, but must be {relation} {limit}",
            f"Use a value {relation} {limit}.",
        )
    if kind == "too_short":
        return Problem(here, "is an empty list", "Give at least one value.")
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    if stem in _KIND:
        is_command = key in COMMANDS and isinstance(value, str)
        cure = f"Write {_list_of_words(value)}." if is_command else _retype(stem, value)
        return Problem(here, f"is {safe_repr(value)}, not {_KIND[stem]}", cure)
    return Problem(here, f"is {safe_repr(value)}: {detail['msg']}", "See config/README.md for what it takes.")


def _one_of(value: str, known: list[str]) -> str:
    """The nearest of many values; few are all named."""
    if len(known) <= FEW and not difflib.get_close_matches(value.lower(), known, n=1, cutoff=0.8):
        return name_all(known)
    return did_you_mean(value, known)


def _retype(kind: str, value: object) -> str:
    """Name what to write instead of a value of another type."""
    if kind == "list":
        single = isinstance(value, (int, float, str)) and (text := _short(value))
        return f"Write [{text}]." if single else "Write [1, 2]."
    if kind in {"dict", "model"}:
        return "Indent its keys on the lines below it."
    if kind == "bool":
        return "Write true or false, without quotes."
    if kind == "string":
        text = _short(value[0] if isinstance(value, list) and len(value) == 1 else value)
        return f'Write "{text}", in quotes.' if text else "Write a word, in quotes."
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return "Write a number, such as 4." if kind == "int" else "Write a number, such as 0.1."
        if number.is_integer() or (kind == "float" and math.isfinite(number)):
            meant: object = int(number) if kind == "int" else number
            return f"Write {meant} without quotes."
    if kind == "int" and isinstance(value, float) and math.isfinite(value):
        return f"Write {math.floor(value)} or {math.ceil(value)}."
    return "Write a whole number, such as 4." if kind == "int" else "Write a number, such as 0.1."


def _list_of_words(command: str) -> str:
    """The words of a command line as a list that can be pasted into YAML, each in quotes."""
    plain = command.replace("\\\n", " ")
    try:
        words = shlex.split(plain)
    except ValueError:  # a quote is left open
        words = plain.split()
    return json.dumps(words, ensure_ascii=False)


def _short(value: object) -> str:
    """A value as it may be repeated in a cure; empty for one that must not be."""
    text = value if isinstance(value, str) else safe_repr(value)
    return text if len(text) <= 60 and text.isprintable() else ""


def _known_keys(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The keys that are known beside the one at ``loc``."""
    return list(_known_fields(loc, model))


def _known_fields(loc: tuple[int | str, ...], model: type[BaseModel]) -> Mapping[str, FieldInfo]:
    known: Any = model
    for part in loc[:-1]:
        field = known.model_fields.get(part) if hasattr(known, "model_fields") else None
        known = _unwrap(field.annotation) if field else None
    fields: Mapping[str, FieldInfo] = getattr(known, "model_fields", model.model_fields)
    return fields


def _unwrap(annotation: Any) -> Any:
    """``Target | None`` -> ``Target``, and of several kinds the one that has keys."""
    kinds = [_unwrap(part) for part in getattr(annotation, "__args__", ()) if part is not type(None)]
    return next((kind for kind in kinds if hasattr(kind, "model_fields")), kinds[0] if kinds else annotation)


def _describe(loc: tuple[int | str, ...], model: type[BaseModel]) -> str:
    info = _known_fields(loc, model).get(str(loc[-1]))
    return info.description or "" if info else ""


def validate(values: Mapping[str, Any], place: Place) -> tuple[AnyExperiment | None, list[Problem]]:
    """The experiment, or what keeps the values from being one."""
    kind = experiment_kind(values)
    try:
        return kind.model_validate(values), []
    except ValidationError as error:
        return None, problems_of(error, place, kind)
