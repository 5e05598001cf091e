"""Mistakes of a configuration: pydantic's or a check's message, with place, value and the nearest key."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

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
    """

    place: Place
    text: str
    fix: str = ""

    def render(self, origin: str) -> str:
        """Write one line: ``config/experiments.yaml:12: experiments.digits.epochs: Input should be ...``."""
        joint = "" if not self.place else ": " if self.text[:1].isupper() else " "
        return one_line(
            f"{origin}: {_cut(key_path(self.place))}{joint}{_cut(self.text)}. {_cut(self.fix)}"
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
    """A value that cannot be used; validators raise it, and the caller adds its place in the configuration.

    Args:
        text: A clause that names the value and the limit it breaks.
        fix: A sentence that says what to write instead.
    """

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(f"{text}. {fix}")
        self.text = text
        self.fix = fix

    def at(self, place: Place) -> Problem:
        """Return the mistake at a place."""
        return Problem(place, self.text, self.fix)


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Suggest the nearest known word, or list all of them if they are few."""
    known = sorted(known)
    if near := difflib.get_close_matches(str(word).lower(), known, n=1):
        return f"Did you mean {near[0]!r}?"
    return f"Known: {', '.join(known)}." if len(known) <= MOST_WORDS else ""


def unknown(name: str, known: Iterable[str]) -> RefusedValueError:
    """Make the error of a dataset or a model that the built-in training does not have."""
    fix = f"{did_you_mean(name, known)} Train your own with a program (`program:`)."
    return RefusedValueError(f"is {name!r}, which is not known", fix)


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
        first, here = details[0], (*place, *keys)
        refusal = first.get("ctx", {}).get("error")
        if isinstance(refusal, RefusedValueError):
            yield refusal.at(here)
        elif first["type"] == "missing":
            yield Problem(here, first["msg"])
        else:
            # one finding for each type that the value may have
            messages = dict.fromkeys(each["msg"] for each in details)
            text = " or ".join(messages).replace(" or Input should be ", " or ")
            is_extra = first["type"] == "extra_forbidden"
            fix = did_you_mean(keys[-1], _known_keys(keys, model)) if is_extra else ""
            yield Problem(here, f"{text} (is {shown(first['input'])})", fix)


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
    for part in keys[:-1]:
        # a part that is no field is an index, or a name of the user's choice
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return model.model_fields


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """``Target | None`` -> ``Target``."""
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
