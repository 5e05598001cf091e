"""Mistakes of a configuration: pydantic's or a check's message, with place, value and the nearest key."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

Place = tuple[str | int, ...]
"""Keys from the top of the YAML to a value: ``("experiments", "digits", "devices", 0)``."""

MOST_LINES = 40
"""Most mistakes in one message."""

MOST_WORDS = 12
"""Most known words that a message lists if none is near."""

_BREAKS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of characters that end a line, control a terminal or cannot be printed."""


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


class Problem(NamedTuple):
    """One mistake.

    Args:
        place: Keys from the top of the configuration to the value.
        text: What is wrong, as a clause that follows the place ("is 6, but ...") or as a sentence with a
            capital letter; then what to write instead.
    """

    place: Place
    text: str

    def render(self, origin: str) -> str:
        """Write one line: ``config/experiments.yaml:12: experiments.digits.epochs: Input should be ...``."""
        joint = "" if not self.place else ": " if self.text[:1].isupper() else " "
        return one_line(f"{origin}: {_cut(key_path(self.place))}{joint}{_cut(self.text)}").rstrip()


def key_path(place: Place) -> str:
    """``("experiments", "a", "devices", 0)`` -> ``experiments.a.devices[0]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def one_line(text: str) -> str:
    """Return text that stays on its line: line breaks and control characters are escaped as in Python."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _BREAKS else char for char in text)


def _cut(text: str) -> str:
    """Return the beginning and the end of a text that is too long for a message."""
    return text if len(text) <= 1200 else f"{text[:800]} ... {text[-300:]}"


def shown(value: object) -> str:
    """Return a value as Python writes it, shortened."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of more than 4,300 digits"
    return text if len(text) <= 200 else f"{text[:150]} ... {text[-20:]}"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Suggest the nearest known word, or list all of them if they are few."""
    known = sorted(known)
    if near := difflib.get_close_matches(str(word).lower(), known, n=1):
        return f"Did you mean {near[0]!r}?"
    return f"Known: {', '.join(known)}." if 0 < len(known) <= MOST_WORDS else ""


def unknown(name: str, known: Iterable[str]) -> ValueError:
    """Make the error of a dataset or a model that the built-in training does not have."""
    fix = f"{did_you_mean(name, known)} Train your own with a program (`program:`)."
    return ValueError(f"is {name!r}, which is not known. {fix}")


def validated(
    model: type[Model], values: Mapping[str, Any], place: Place, problems: list[Problem]
) -> Model | None:
    """Return what a model makes of values; None after adding a problem for each value that it refuses.

    Args:
        model: The model.
        values: Keys and values of the YAML.
        place: Their place in it.
        problems: Receives the mistakes.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)
    by_keys: dict[Place, list[ErrorDetails]] = {}
    for detail in details:
        by_keys.setdefault(_keys(detail, values), []).append(detail)
    for keys, (first, *others) in by_keys.items():
        if first["type"] == "value_error":
            text = str(first["ctx"]["error"])
        elif first["type"] == "missing":
            text = f"{first['msg']}."
        else:
            # one message for each type that the value may have
            messages = dict.fromkeys(each["msg"] for each in (first, *others))
            text = f"{' or '.join(messages)} (is {shown(first['input'])}).".replace(
                " or Input should be ", " or "
            )
            if first["type"] == "extra_forbidden":
                text += f" {did_you_mean(keys[-1], _known_keys(keys, model))}"
        problems.append(Problem((*place, *keys), text))
    return None


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
    below = [
        (name, each) for name, field in model.model_fields.items() for each in _models_in(field.annotation)
    ]
    return [*model.model_fields, *(f"{name}.{key}" for name, each in below for key in each.model_fields)]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """``Target | None`` -> ``Target``."""
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
