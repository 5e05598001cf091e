"""Numbers with their units, as sentences and tables say them."""

from __future__ import annotations

import math


def counted(number: str, unit: str) -> str:
    """``1 minute``, ``42.3 minutes``."""
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


def devices_text(count: int) -> str:
    """``1 device``, ``4 devices``."""
    return counted(str(count), "device")


def factor(value: float) -> str:
    """A ratio in three digits, two of them after the point below 10: ``3.60``, ``12.3``, ``123``."""
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def three_digits(value: float) -> str:
    """A measured value in three significant digits, without an exponent: ``0.0123``, ``4.20``, ``1,230``."""
    if math.isnan(value):
        return "unknown"
    if abs(value) >= 99.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}"


def as_given(value: float) -> str:
    """A value as the user wrote it: ``60``, ``0.5``."""
    return f"{value:,.10g}"


def told_apart(value: float, limit: float) -> tuple[str, str]:
    """Both to two places, or to as many as show the whole limit and a difference: ``0.698``, ``0.700``.

    Args:
        value: what was measured.
        limit: what it is held against.
    """
    for places in range(2, 7):
        texts = f"{value:.{places}f}", f"{limit:.{places}f}"
        if texts[0] != texts[1] and math.isclose(float(texts[1]), limit):
            return texts
    return f"{value:.2f}", as_given(limit)
