"""Mistakes of a configuration, each with its place, its value and its fix."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date

from pydantic_core import PydanticCustomError

Place = tuple[str | int, ...]
"""Keys from the top of the YAML to a value: ``("experiments", "digits", "devices", 0)``."""


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
    """One mistake: where it is, what it is, how to fix it.

    Args:
        place: Keys from the top of the configuration to the value.
        what: A clause that names the value and the limit it breaks ("is 6, but ...").
        fix: A sentence that says what to write instead.
        subject: Shown instead of the place, where the place itself is the mistake.
    """

    place: Place
    what: str
    fix: str
    subject: str | None = None

    def render(self, origin: str) -> str:
        """One line: ``config/experiments.yaml:12: experiments.digits.epochs is ... . Write ...``."""
        subject = key_path(self.place) if self.subject is None else self.subject
        message = f"{f'{_cut(subject)} ' if subject else ''}{_cut(self.what)}. {_cut(self.fix)}"
        return one_line(f"{origin}: {message}")


_BREAKS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Kinds of characters that end a line, steer a terminal or cannot be written to one."""


def one_line(text: str) -> str:
    """Return text that stays on its line: line breaks and control characters are escaped as in Python."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _BREAKS else char for char in text)


def _cut(text: str) -> str:
    """Return the beginning and the end of a text that is too long for a message."""
    return text if len(text) <= 1200 else f"{text[:800]} ... {text[-300:]}"


MOST_LINES = 40
"""Mistakes that are shown at once; the first ones are enough to begin with."""


def spelled(value: object) -> str:
    """Spell a value for a message: text in quotes as in Python, booleans and dates as in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(spelled, value))}]"
    try:
        return repr(value)
    except ValueError:
        return "a number of more than 4,300 digits"


class StudyError(Exception):
    """Every mistake of a configuration at once, one line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        count = len(self.lines)
        heading = "1 mistake" if count == 1 else f"{count:,} mistakes"
        shown = self.lines[:MOST_LINES]
        more = [f"... and {count - MOST_LINES:,} more"] if count > MOST_LINES else []
        bullets = "\n".join(f"  - {line}" for line in (*shown, *more))
        super().__init__(f"{heading} in the configuration. Nothing was started.\n{bullets}")


class RefusedValueError(ValueError):
    """A value that cannot be used; its place in the configuration is added later.

    Args:
        what: A clause that names the value and the limit it breaks.
        fix: A sentence that says what to write instead.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}. {fix}")
        self.what = what
        self.fix = fix


def reject(what: str, fix: str) -> PydanticCustomError:
    """Make the error that a validator of a model raises; its text is shown at the value's place."""
    return PydanticCustomError("refused", "{what}", {"what": what, "fix": fix})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word, or list all of them if none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    return name_all(known)


def name_all(known: Iterable[str]) -> str:
    """List every known word."""
    return f"Known: {', '.join(sorted(known))}."
