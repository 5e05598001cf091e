"""Mistakes of a configuration, each with its place, its value and its fix."""

from __future__ import annotations

import difflib
import json
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from math import ceil, floor
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

Place = tuple[str | int, ...]
"""Keys from the top of the YAML to a value: ``("experiments", "digits", "devices", 0)``."""

MOST_LINES = 40
"""Most mistakes in one message."""

_BREAKS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that end a line, control a terminal or cannot be printed."""

_KINDS = {
    "int": ("a whole number", "Write a whole number, such as 4."),
    "float": ("a number", "Write a number, such as 0.1."),
    "bool": ("true or false", "Write true or false, without quotes."),
    "string": ("text", "Write one text, in quotes."),
    "list": ("a list", "Write a list, such as [1, 2]."),
    "dict": ("a mapping of keys to values", "Indent its keys on the lines below it."),
    "model": ("a mapping of keys to values", "Indent its keys on the lines below it."),
}
"""Name of each of pydantic's types, and how to write a value of it."""

_RELATIONS = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}


def key_path(place: Place) -> str:
    """``("experiments", "a", "devices", 0)`` -> ``experiments.a.devices[0]``."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


@dataclass(frozen=True)
class Problem:
    """One mistake: its place, its text and its fix.

    Args:
        place: Keys from the top of the configuration to the value.
        text: A clause that names the value and the limit it breaks ("is 6, but ...").
        fix: A sentence that says what to write instead.
        subject: Shown instead of the place, if the place itself is the mistake.
        origin: File and line, of a mistake in another file than those of the study.
    """

    place: Place
    text: str
    fix: str
    subject: str | None = None
    origin: str | None = None

    def render(self, origin: str) -> str:
        """Write one line: ``config/experiments.yaml:12: experiments.digits.epochs is ... . Write ...``."""
        subject = key_path(self.place) if self.subject is None else self.subject
        message = f"{f'{_cut(subject)} ' if subject else ''}{_cut(self.text)}. {_cut(self.fix)}"
        return one_line(f"{self.origin or origin}: {message}")


def one_line(text: str) -> str:
    """Return text that stays on its line: line breaks and control characters are escaped as in Python."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _BREAKS else char for char in text)


def _cut(text: str) -> str:
    """Return the beginning and the end of a text that is too long for a message."""
    return text if len(text) <= 1200 else f"{text[:800]} ... {text[-300:]}"


def format_value(value: object) -> str:
    """Format a value for a message: text in quotes as in Python, booleans and dates as in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    try:
        return repr(value)
    except ValueError:
        return "a number of more than 4,300 digits"


class StudyError(Exception):
    """All mistakes of a configuration, one line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        count = len(self.lines)
        heading = "1 mistake" if count == 1 else f"{count:,} mistakes"
        shown = self.lines[:MOST_LINES]
        more = [f"... and {count - MOST_LINES:,} more"] if count > MOST_LINES else []
        bullets = "\n".join(f"  - {line}" for line in (*shown, *more))
        super().__init__(f"{heading} in the configuration. Nothing was started.\n{bullets}")


class RefusedValueError(ValueError):
    """A value that cannot be used; the caller adds its place in the configuration.

    Args:
        text: A clause that names the value and the limit it breaks.
        fix: A sentence that says what to write instead.
    """

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(f"{text}. {fix}")
        self.text = text
        self.fix = fix


def reject(text: str, fix: str) -> PydanticCustomError:
    """Make the error that a validator of a model raises; its text is shown at the value's place."""
    return PydanticCustomError("refused", "{text}", {"text": text, "fix": fix})


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Suggest the nearest known word, or list all of them if none is as near as ``cutoff``, from 0 to 1."""
    known = sorted(known)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=cutoff)
    if near:
        return f"Did you mean {near[0]!r}?"
    return name_all(known)


def name_all(known: Iterable[str]) -> str:
    """List every known word."""
    return f"Known: {', '.join(sorted(known))}."


def problems_of(
    error: ValidationError, place: Place, model: type[BaseModel], values: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem for each value that pydantic refuses.

    Args:
        error: Raised by ``model``.
        place: The validated mapping's place in the YAML.
        model: The model, with the known keys at each place.
        values: The mapping that was validated.
    """
    details = [(_keys(detail, values), detail) for detail in error.errors(include_url=False)]
    misspelled = {
        (*keys[:-1], near)
        for keys, detail in details
        if detail["type"] == "extra_forbidden"
        for near in difflib.get_close_matches(str(keys[-1]), _known_fields(keys, model), n=1)
    }
    for keys, same in groupby(details, key=lambda each: each[0]):
        findings = [detail for _, detail in same]
        if findings[0]["type"] != "missing" or keys not in misspelled:
            yield Problem((*place, *keys), *_text_and_fix(findings, keys, model))


def _keys(detail: ErrorDetails, value: Any) -> Place:
    """Return the keys to a value, without the names that pydantic gives the types that it may have."""
    keys: list[str | int] = []
    for part in detail["loc"]:
        if part in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(part, int):
            value = value[part]
        elif detail["type"] != "missing":
            continue
        keys.append(part)
    return tuple(keys)


def _text_and_fix(details: list[ErrorDetails], keys: Place, model: type[BaseModel]) -> tuple[str, str]:
    """Return what is wrong with a value and the fix, from one finding for each type that it may have."""
    # a broken limit is more precise than a type that does not match
    details = [each for each in details if not _is_of_type(each)] or details
    kind, value, context = details[0]["type"], details[0]["input"], details[0].get("ctx", {})
    if kind == "extra_forbidden":
        return "is not a known key", did_you_mean(str(keys[-1]), _known_fields(keys, model))
    if kind == "refused":
        return context["text"], context["fix"]
    if kind == "missing":
        description = getattr(_known_fields(keys, model).get(str(keys[-1])), "description", None)
        return "is missing", f"Add `{keys[-1]}:`. {description or ''}".rstrip()
    if kind == "finite_number":
        return f"is {value}, not a finite number", "Write a number."
    if kind in _RELATIONS:
        return _out_of_bounds(kind, value, next(iter(context.values())))
    if kind == "too_short":
        return f"is an empty {'list' if isinstance(value, list) else 'mapping'}", "Give at least one value."
    if not _is_of_type(details[0]):
        return f"is {format_value(value)}: {details[0]['msg']}", "See config/README.md for possible values."
    words = [word for each in details for word in _words(each)]
    types = [_KINDS[_stem(each)] for each in details if _stem(each) in _KINDS]
    # a few words: a list of all helps more than a distant suggestion
    fix = did_you_mean(value if isinstance(value, str) else format_value(value), words, cutoff=0.8)
    if not types:
        return f"is {format_value(value)}, which is not known here", fix
    *others, last = [name for name, _ in types] + words
    text = f"is {format_value(value)}, not {', '.join(others)}{' or ' if others else ''}{last}"
    is_misspelled = bool(difflib.get_close_matches(str(value), words, n=1))
    return text, fix if is_misspelled else _how_to_write(_stem(details[0]), value, types[0][1])


def _stem(detail: ErrorDetails) -> str:
    return detail["type"].removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")


def _words(detail: ErrorDetails) -> list[str]:
    """Return the possible words from a finding on a value that must be one of them."""
    return re.findall("'(.*?)'", detail["ctx"]["expected"]) if detail["type"] == "literal_error" else []


def _is_of_type(detail: ErrorDetails) -> bool:
    return detail["type"] == "literal_error" or _stem(detail) in _KINDS


def _out_of_bounds(kind: str, value: Any, limit: float) -> tuple[str, str]:
    relation, number = _RELATIONS[kind], f"{limit:.15g}"
    text = f"is {format_value(value)}, but must be {relation} {number}"
    if kind.startswith("less") and limit <= 1 < value <= 100:
        return text, "It is a fraction: 0.97 is 97 %."
    if kind == "greater_than" and isinstance(limit, int):
        return text, f"Use {limit + 1} or more."
    return text, f"Use {number} or more." if relation == "at least" else f"Use {relation} {number}."


def _how_to_write(kind: str, value: object, otherwise: str) -> str:
    """Return what to write instead of a value of another type, if the value shows it."""
    short = value if isinstance(value, str) else format_value(value)
    if len(short) > 200 or not short.isprintable() or isinstance(value, dict):
        return otherwise
    if kind == "list" and isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError:  # a quote is not closed
            words = value.split()
        return f"Write {json.dumps(words, ensure_ascii=False)}."
    if kind == "list":
        return f"Write [{short}]."
    if kind == "string" and not isinstance(value, list):
        return f'Write "{short}" in quotes.'
    if kind == "int" and isinstance(value, float) and abs(value) < 1e15:
        return f"Write {' or '.join(str(each) for each in sorted({floor(value), ceil(value)}))}."
    number = r"[-+]?\d+" if kind == "int" else r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]\d+)?"
    if kind in {"int", "float"} and isinstance(value, str) and re.fullmatch(number, short, re.ASCII):
        return f"Write {short} without quotes."
    return otherwise


def _known_fields(keys: Place, model: type[BaseModel]) -> Mapping[str, Any]:
    """Return the fields that may stand next to the last of the keys."""
    known: Any = model
    for part in keys[:-1]:
        # a part that is no field is an index, or a name of the user's choice
        if field := getattr(known, "model_fields", {}).get(part):
            known = _model_in(field.annotation)
    fields: Mapping[str, Any] = getattr(known, "model_fields", model.model_fields)
    return fields


def _model_in(annotation: Any) -> Any:
    """``Target | None`` -> ``Target``; None if there is no model."""
    if hasattr(annotation, "model_fields"):
        return annotation
    parts = map(_model_in, getattr(annotation, "__args__", ()))
    return next((part for part in parts if part is not None), None)
