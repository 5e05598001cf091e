"""Mistakes of a configuration: pydantic's or a check's message, with place, value and the nearest key."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

Place = tuple[str | int, ...]
"""Keys from the top of the YAML to a value: ``("experiments", "digits", "devices", 0)``."""

MOST_LINES = 40
"""Most mistakes in one message."""

MOST_WORDS = 12
"""Most known words that a message lists if none is near."""

_BREAKS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that end a line, control a terminal or cannot be printed."""


def key_path(place: Place) -> str:
    """``("experiments", "a", "devices", 0)`` -> ``experiments.a.devices[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


@dataclass(frozen=True)
class Problem:
    """One mistake.

    Args:
        place: Keys from the top of the configuration to the value.
        text: A clause that follows the place ("is 6, but ..."), or a sentence with a capital letter.
        fix: A sentence that says what to write instead; may be empty.
        subject: Shown instead of the place, if the place itself is the mistake.
        origin: File and line, of a mistake in another file than those of the study.
    """

    place: Place
    text: str
    fix: str = ""
    subject: str | None = None
    origin: str | None = None

    def render(self, origin: str) -> str:
        """Write one line: ``config/experiments.yaml:12: experiments.digits.epochs: Input should be ...``."""
        subject = key_path(self.place) if self.subject is None else self.subject
        joint = "" if not subject else ": " if self.text[:1].isupper() else " "
        return one_line(
            f"{self.origin or origin}: {_cut(subject)}{joint}{_cut(self.text)}. {_cut(self.fix)}"
        ).rstrip()


def one_line(text: str) -> str:
    """Return text that stays on its line: line breaks and control characters are escaped as in Python."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _BREAKS else char for char in text)


def _cut(text: str) -> str:
    """Return the beginning and the end of a text that is too long for a message."""
    return text if len(text) <= 1200 else f"{text[:800]} ... {text[-300:]}"


class UserError(Exception):
    """An error that the user can fix; the message says how."""


class StudyError(SystemExit):
    """All mistakes of a configuration, one line each: ends the process, as nothing can go on without it."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        count = len(self.lines)
        heading = "1 mistake" if count == 1 else f"{count:,} mistakes"
        more = [f"... and {count - MOST_LINES:,} more"] if count > MOST_LINES else []
        bullets = "\n".join(f"  - {line}" for line in (*self.lines[:MOST_LINES], *more))
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


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Suggest the nearest known word, or list all of them if they are few."""
    known = sorted(known)
    if near := difflib.get_close_matches(str(word).lower(), known, n=1):
        return f"Did you mean {near[0]!r}?"
    return name_all(known) if len(known) <= MOST_WORDS else ""


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
    found: dict[Place, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        found.setdefault(_keys(detail, values), []).append(detail)
    for keys, details in found.items():
        first = details[0]
        if first["type"] == "refused":
            yield Problem((*place, *keys), first["ctx"]["text"], first["ctx"]["fix"])
        elif first["type"] == "missing":
            yield Problem((*place, *keys), first["msg"])
        else:
            # one finding for each type that the value may have
            messages = list(dict.fromkeys(each["msg"] for each in details))
            text = " or ".join(
                [messages[0], *(each.removeprefix("Input should be ") for each in messages[1:])]
            )
            unknown = first["type"] == "extra_forbidden"
            fix = did_you_mean(keys[-1], _known_keys(keys, model)) if unknown else ""
            yield Problem((*place, *keys), f"{text} (is {shown(first['input'])})", fix)


def shown(value: object) -> str:
    """Return a value as Python writes it, shortened."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,300 digits"
    return text if len(text) <= 200 else f"{text[:150]} ... {text[-20:]}"


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


def _known_keys(keys: Place, model: type[BaseModel]) -> Iterable[str]:
    """Return the keys that may stand next to the last of the keys."""
    known: Any = model
    for part in keys[:-1]:
        # a part that is no field is an index, or a name of the user's choice
        if field := getattr(known, "model_fields", {}).get(part):
            known = _model_in(field.annotation)
    return getattr(known, "model_fields", {}) or ()


def _model_in(annotation: Any) -> Any:
    """``Target | None`` -> ``Target``; None if there is no model."""
    if hasattr(annotation, "model_fields"):
        return annotation
    parts = map(_model_in, getattr(annotation, "__args__", ()))
    return next((part for part in parts if part is not None), None)
