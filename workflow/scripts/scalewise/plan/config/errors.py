"""Mistakes of a configuration, said so that the user can mend them at once."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    """One mistake: where it is, what it is, how to mend it.

    Args:
        place: Keys from the top of the configuration to the value.
        what: A clause that names the value and the limit it breaks ("is 6, but ...").
        cure: A sentence that says what to write instead.
        subject: Shown instead of the place, where the place itself is the mistake.
    """

    place: Place
    what: str
    cure: str
    subject: str | None = None

    def render(self, origin: str) -> str:
        """One line: ``config/experiments.yaml:12: experiments.digits.epochs is ... . Write ...``."""
        subject = key_path(self.place) if self.subject is None else self.subject
        said = f"{f'{_cut(subject)} ' if subject else ''}{_cut(self.what)}. {_cut(self.cure)}"
        return one_line(f"{origin}: {said}")


_BREAKS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Kinds of characters that end a line, steer a terminal or cannot be written to one."""


def one_line(text: str) -> str:
    """Text that stays on its line: characters that would do otherwise are spelled as Python spells them."""
    return "".join(ascii(char)[1:-1] if unicodedata.category(char) in _BREAKS else char for char in text)


def _cut(text: str) -> str:
    """Beginning and end of what a value without end makes endless."""
    return text if len(text) <= 1200 else f"{text[:800]} ... {text[-300:]}"


def safe_repr(value: object) -> str:
    """A value as Python writes it, also one that Python refuses to write."""
    try:
        return repr(value)
    except ValueError:
        return "a number of more than 4,300 digits"


class StudyError(Exception):
    """Every mistake of a configuration at once, one line each."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = list(lines)
        count = len(self.lines)
        heading = "1 mistake" if count == 1 else f"{count} mistakes"
        bullets = "\n".join(f"  - {line}" for line in self.lines)
        super().__init__(f"{heading} in the configuration, nothing was started:\n{bullets}")


class RefusedValueError(ValueError):
    """A value that cannot be used, found before it is known where in the configuration it stands.

    Args:
        what: A clause that names the value and the limit it breaks.
        cure: A sentence that says what to write instead.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}. {cure}")
        self.what = what
        self.cure = cure


def reject(what: str, cure: str) -> PydanticCustomError:
    """Make the error that a validator of a model raises: the user reads these words, at the value's place."""
    return PydanticCustomError("refused", "{what}", {"what": what, "cure": cure})


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or all of them when none is near."""
    known = sorted(known)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {near[0]!r}?"
    return name_all(known)


def name_all(known: Iterable[str]) -> str:
    """Every known word."""
    return f"Known: {', '.join(sorted(known))}."
