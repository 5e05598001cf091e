"""Numbers and lists in the words of the terminal, the plan and the report."""

from __future__ import annotations

import math
from collections.abc import Sequence


def digits(value: float, significant: int = 2) -> str:
    """A positive number with as many significant digits, never with an exponent."""
    if value <= 0:
        return f"{value:g}"
    decimals = max(significant - 1 - math.floor(math.log10(value)), 0)
    return f"{value:.{decimals}f}"


def share_text(share: float) -> str:
    """``14 %``, ``3.1 %``, ``104 %``."""
    return f"{digits(100 * share)} %"


def hours_text(hours: float) -> str:
    """Device-hours in three digits, those from 100 on whole: ``0.0312``, ``14.2``, ``1,230``."""
    return f"{hours:,.0f}" if hours >= 99.95 else digits(hours, 3)


def format_ratio(value: float) -> str:
    """A ratio in three digits, two of them after the point below 10: ``3.60``, ``12.3``, ``123``."""
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def listed(words: Sequence[str]) -> str:
    """``1``, ``1 and 4``, ``1, 4 and 8``; empty without any."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
