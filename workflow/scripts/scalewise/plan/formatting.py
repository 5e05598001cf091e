"""Format numbers with their units, lists and points for a reader: one function for each kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

MAX_COUNTS = 12
"""Most device counts in one line; of more, the first and the last are shown."""

MINUTE, HOUR, DAY = 60, 3600, 86400


# --- numbers --------------------------------------------------------------------------------------------


def format_3sig(value: float) -> str:
    """Format a measured value in three significant digits or more: ``0.0123``, ``4.20``, ``1,234``."""
    if math.isnan(value):
        return "unknown"
    if value == 0 or math.isinf(value) or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:,.{2 - math.floor(math.log10(abs(value)))}f}"


def cut(name: str, width: int) -> str:
    """Return a name, or its beginning and two points if it has more characters than a column."""
    return name if len(name) <= width else f"{name[: width - 2]}.."


def percent(fraction: float, places: int = 1) -> str:
    """Format a share with a number of places after the point: ``6.1 %``."""
    return f"{100 * fraction:.{places}f} %"


def duration_text(seconds: float) -> str:
    """Format a duration: ``40 s``, ``12 min``, ``3 h 20 min``, ``2 days 4 h``."""
    if seconds < 90:
        return f"{max(round(seconds), 0)} s"
    if seconds < 2 * HOUR:
        return f"{round(seconds / MINUTE)} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(round(seconds / MINUTE), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / HOUR), 24)
    return f"{days} days {hours} h" if hours else f"{days} days"


# --- words and places ------------------------------------------------------------------------------------


def pluralize(number: str, unit: str) -> str:
    """Write a number with its unit: ``1 minute``, ``42.3 minutes``."""
    return f"{number} {unit}" if number == "1" else f"{number} {unit}s"


def counts_text(counts: Sequence[int]) -> str:
    """List device counts: ``1, 2, 4, 8``; if many, the first and the last: ``1, 2, 4, 8, ..., 60, 64``."""
    shown = [str(count) for count in counts]
    if len(shown) > MAX_COUNTS:
        shown = [*shown[: MAX_COUNTS - 3], "...", *shown[-2:]]
    return ", ".join(shown)


def listed(words: Sequence[str]) -> str:
    """Join words: ``1``, ``1 and 4``, ``1, 4 and 8``; empty without any."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def shortened(lines: Sequence[str], most: int, rest: str) -> list[str]:
    """Return the first lines, and the number of the others.

    Args:
        lines: All lines.
        most: Number of lines to return.
        rest: Noun for the others, after ``... and 3``.
    """
    return [*lines[:most], *([f"... and {len(lines) - most} {rest}"] if len(lines) > most else [])]
