"""Numbers and places in the words of sentences and tables, with their units."""

from __future__ import annotations

import math
import re

from scalewise.plan.config.shape import count_devices
from scalewise.plan.runs.runs import NO_OPTIONS

Goal = float | str
"""The goal that counts as trained: a test accuracy, a fraction; or a program's metric and limit, as text."""

_DEVICE = re.compile(r"(?<![\w`-])devices?(?![\w`-]|: ?[\[{])")

MAX_PLACES = 6
"""Points named in one sentence; scaling.csv has all."""


def pluralize(number: str, unit: str) -> str:
    """``1 minute``, ``42.3 minutes``."""
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


def name_devices(text: str, noun: str) -> str:
    """Return a sentence with its devices by what they are: ``4 GPUs`` for ``4 devices``.

    The unit device-hours and keys of the configuration, in backticks, stay.

    Args:
        text: A sentence of this package.
        noun: ``GPU``, ``CPU process`` or ``device``.
    """
    plural = count_devices(2, noun).removeprefix("2 ")
    return _DEVICE.sub(lambda found: plural if found[0].endswith("s") else noun, text)


def goal_text(goal: Goal) -> str:
    """``97.0 % accuracy``, ``val_loss=([0-9.]+) at most 2.9``."""
    return goal if isinstance(goal, str) else f"{percent(goal)} accuracy"


def point_text(devices: float, series: str) -> str:
    """``8 devices``, ``8 devices of bucket-view-on``."""
    where = count_devices(int(devices))
    return where if series == NO_OPTIONS else f"{where} of {series}"


def format_3sig(value: float) -> str:
    """A measured value in three significant digits, without an exponent: ``0.0123``, ``4.20``, ``1,230``."""
    if math.isnan(value):
        return "unknown"
    if abs(value) >= 99.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def percent(fraction: float, places: int = 1) -> str:
    """A share with as many places after the point: ``6.1 %``."""
    return f"{100 * fraction:.{places}f} %"


def percent_in_digits(fraction: float, digits: int = 2) -> str:
    """A share in significant digits: ``6.1 %``; whole numbers from 10 % on keep all their digits."""
    value = 100 * fraction
    return f"{value:.{digits}g} %" if value < 10 else percent(fraction, max(digits - 2, 0))


def format_exact(value: float) -> str:
    """A number the way the user wrote it: ``60``, ``0.5``."""
    return f"{value:,.10g}"


def as_in_yaml(value: object) -> str:
    """An option's value the way the user wrote it: ``true``, ``bf16``; ``default`` for null or NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "default"
    text = str(value)
    return text.lower() if text in {"True", "False"} else text


def format_distinct(value: float, limit: float) -> tuple[str, str]:
    """A measured value and its limit, to two places or as many as show the difference: ``0.698``, ``0.700``.

    The limit is never rounded.
    """
    for places in range(2, 7):
        texts = f"{value:.{places}f}", f"{limit:.{places}f}"
        if texts[0] != texts[1] and math.isclose(float(texts[1]), limit):
            return texts
    return f"{value:.2f}", format_exact(limit)
