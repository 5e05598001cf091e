"""Values of a configuration before a model has looked at them: plain ones, and those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewise.plan.config.errors import Place, Problem, shown
from scalewise.plan.config.settings import DEFAULT, SWEEPABLE_WITH_DEFAULT

MOST = 2**63 - 1
"""Largest whole number that every program and file here holds."""


def plain(value: Any) -> Any:
    """Ordinary dicts and lists in place of the loader's own types, without what is reported below."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items() if isinstance(key, str) and not beyond(key)}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if beyond(value) else value


def beyond(value: object) -> tuple[str, str] | None:
    """Say what keeps a value from standing in any record, and the cure; None for one that can."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"is {shown(value)}, a whole number beyond {MOST}", "Write a smaller number."
    if isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        return f"is {value!r}, with half a character in it", "Write the character itself."
    return None


def no_value(place: Place) -> Problem:
    """Make the problem of a key, or of an element of a list, without a value."""
    if place[-3:-2] == ("sweep",) and place[-2] in SWEEPABLE_WITH_DEFAULT:
        return Problem(place, "has no value", f"Write {DEFAULT} for what {place[-2]} is when it is left out.")
    return Problem(place, "has no value", "Give it one, or leave the key out for its default.")


def values_beyond(value: Any, place: Place) -> Iterator[Problem]:
    """Find keys and values that can stand in no record."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = (*place, str(key))
            if found := beyond(key):
                yield Problem(here, *found)
            yield from values_beyond(item, here)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from values_beyond(item, (*place, index))
    elif value is None:
        yield no_value(place)
    elif found := beyond(value):
        yield Problem(place, *found)


def odd_keys(value: Any, place: Place) -> Iterator[Problem]:
    """Find keys that are not text, for a configuration that has no file to read them from."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = (*place, shown(key) if isinstance(key, int) else str(key))
            if not isinstance(key, str):
                kind = type(key).__name__
                yield Problem(here, f"is a key that YAML reads as {kind}, not as text", "Put it in quotes.")
            yield from odd_keys(item, here)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from odd_keys(item, (*place, index))
