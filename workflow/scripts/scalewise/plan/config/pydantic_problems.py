"""Pydantic's findings in the terms of the configuration: place, value, fix."""

from __future__ import annotations

import difflib
import json
import math
import shlex
from collections.abc import Mapping
from datetime import date
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from scalewise.plan.config.errors import Place, Problem, did_you_mean, name_all, spelled
from scalewise.plan.config.experiment import (
    LEFT_OUT,
    VALUE,
    AnyExperiment,
    Experiment,
    experiment_kind,
)
from scalewise.plan.config.program import NUMBER, WORD

_KIND = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
}
_KINDS = {VALUE, LEFT_OUT, NUMBER, WORD}
_RELATIONS = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}
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
        return Problem(here, context["what"], context["fix"])
    if kind == "missing":
        return Problem(here, "is missing", f"Add `{key}:`. {_describe(detail['loc'], model)}".rstrip())
    if kind == "device_count":
        return Problem(here, detail["msg"], 'Write 4, or "2x2" for 2 nodes of 2 devices.')
    if kind == "literal_error":
        known = [word.strip().strip("'") for word in context["expected"].replace(" or ", ", ").split(",")]
        return Problem(here, f"is {spelled(value)}, which is not known here", _one_of(_short(value), known))
    if kind == "finite_number":
        return Problem(here, f"is {value}, not a finite number", "Write a number.")
    if kind in _RELATIONS:
        return _out_of_bounds(here, kind, value, next(iter(context.values())))
    if kind == "too_short":
        return Problem(here, "is an empty list", "Give at least one value.")
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    if stem in _KIND:
        if key in COMMANDS and isinstance(value, str):
            return Problem(
                here,
                f"is {spelled(value)}, not {_KIND[stem]}",
                f"Write one word per item: {_list_of_words(key, value)}.",
            )
        if stem == "string" and isinstance(value, date):
            return Problem(here, f"is {value}, which YAML reads as a date", f'Write "{value}" in quotes.')
        return Problem(here, f"is {spelled(value)}, not {_KIND[stem]}", _retype(stem, value))
    return Problem(here, f"is {spelled(value)}: {detail['msg']}", "See config/README.md for what it takes.")


def _out_of_bounds(here: Place, kind: str, value: object, limit: float) -> Problem:
    """Make the problem of a number beyond a limit; a percentage in place of a fraction is named as such."""
    relation, number = _RELATIONS[kind], _plain(limit)
    what = f"is {spelled(value)}, but must be {relation} {number}"
    if kind.startswith("less") and limit <= 1 and (fraction := _as_fraction(value, limit)):
        return Problem(here, what, _write_fraction(fraction))
    if kind == "greater_than" and isinstance(limit, int):
        return Problem(here, what, f"Use {limit + 1} or more.")
    return Problem(
        here, what, f"Use {number} or more." if relation == "at least" else f"Use {relation} {number}."
    )


def _one_of(value: str, known: list[str]) -> str:
    """Suggest the nearest of many values, or list all if they are few."""
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
        text = _as_text(value)
        return f'Write "{text}" in quotes.' if text else "Write one text, in quotes."
    if isinstance(value, str) and kind == "float" and (fraction := _as_fraction(value.strip())):
        return _write_fraction(fraction)
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return "Write a number, such as 4." if kind == "int" else "Write a number, such as 0.1."
        if number.is_integer() or (kind == "float" and math.isfinite(number)):
            meant: object = int(number) if kind == "int" else number
            return f"Write {meant} without quotes."
    if kind == "int" and isinstance(value, float) and math.isfinite(value):
        below, above = math.floor(value), math.ceil(value)
        return f"Write {below}." if below == above else f"Write {below} or {above}."
    return "Write a whole number, such as 4." if kind == "int" else "Write a number, such as 0.1."


def _as_fraction(value: object, limit: float = 1.0) -> float | None:
    """Return the fraction that a percentage means, such as 0.97 for 97 or "97%"; None if it means none."""
    if isinstance(value, str) and value.endswith("%"):
        try:
            value = float(value.removesuffix("%"))
        except ValueError:
            return None
    elif isinstance(value, bool) or not isinstance(value, (int, float)) or (value <= 1 and limit >= 1):
        return None
    fraction = float(f"{value / 100:.6g}")
    return fraction if 0 < fraction <= limit else None


def _plain(limit: float) -> str:
    """Write a limit as it can be copied into YAML."""
    return str(limit) if isinstance(limit, int) else f"{limit:.15g}"


def _write_fraction(fraction: float) -> str:
    return f"It is a fraction: write {fraction:g}."


def _as_text(value: object) -> str:
    """Return the text that a value of another type most likely means; empty if that is unclear."""
    if isinstance(value, list) and len(value) == 1:
        return _as_text(value[0])
    if isinstance(value, dict) and len(value) == 1:  # a text with a colon and a space in it
        parts = [_as_text(part) for pair in value.items() for part in pair]
        return ": ".join(parts) if all(parts) else ""
    return "" if isinstance(value, (list, dict, bytes)) else _short(value)


def _list_of_words(key: str, command: str) -> str:
    """Return the words of a command line as a list that can be pasted into YAML, each in quotes."""
    plain = command.replace("\\\n", " ")
    try:
        words = shlex.split(plain)
    except ValueError:  # a quote is left open
        words = plain.split()
    if (
        key == "prepare"
        and words[:1] in (["python"], ["python3"])
        and words[1:2]
        and words[1].endswith(".py")
    ):
        words = words[1:]  # a Python file is started with the Python of the ranks
    return json.dumps(words, ensure_ascii=False)


def _short(value: object) -> str:
    """Return a value as it may be repeated in a fix; empty for one that must not be."""
    text = value if isinstance(value, str) else spelled(value)
    return text if len(text) <= 60 and text.isprintable() else ""


def _known_keys(loc: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """Return the keys that may stand at the level of ``loc``."""
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
