"""Values of a configuration before a model has looked at them: plain ones, and those that cannot be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewise.plan.config.errors import Place, Problem, spelled
from scalewise.plan.config.settings import DEFAULT, SWEEPABLE_WITH_DEFAULT

MOST = 2**63 - 1
"""Largest whole number that every program and file here holds."""


def to_plain(value: Any) -> Any:
    """Ordinary dicts and lists in place of the loader's own types, without what is reported below."""
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items() if isinstance(key, str)}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return None if too_large(value) else value


def too_large(value: object) -> tuple[str, str] | None:
    """Return the problem and the fix of a whole number that no record can hold; None for other values."""
    if isinstance(value, int) and abs(value) > MOST:
        return f"is {spelled(value)}, a whole number beyond {MOST}", "Write a smaller number."
    return None


def no_value(place: Place) -> Problem:
    """Make the problem of a key, or of an element of a list, without a value."""
    if place == ("experiments",):
        return Problem(place, "is empty", "Add an experiment below it.")
    if len(place) == 2 and place[0] == "experiments":
        return Problem(
            place, "is empty", f"Indent its keys below it, or write `{place[1]}: {{}}` to use defaults only."
        )
    if place[-3:-2] == ("sweep",) and place[-2] in SWEEPABLE_WITH_DEFAULT:
        return Problem(place, "has no value", f"Write {DEFAULT} for what {place[-2]} is when it is left out.")
    return Problem(place, "has no value", "Give it one, or leave the key out for its default.")


def unusable_values(value: Any, place: Place) -> Iterator[Problem]:
    """Find keys without a value and whole numbers that no record can hold."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from unusable_values(item, (*place, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from unusable_values(item, (*place, index))
    elif value is None:
        yield no_value(place)
    elif found := too_large(value):
        yield Problem(place, *found)


def non_string_keys(value: Any, place: Place) -> Iterator[Problem]:
    """Find keys that are not text, for a configuration that has no file to read them from."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = (*place, spelled(key) if isinstance(key, int) else str(key))
            if not isinstance(key, str):
                kind = type(key).__name__
                yield Problem(here, f"is a key that YAML reads as {kind}, not as text", "Put it in quotes.")
            yield from non_string_keys(item, here)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from non_string_keys(item, (*place, index))
