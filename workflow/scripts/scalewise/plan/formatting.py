"""Format numbers with their units, lists and points for a reader: one function for each kind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from scalewise.config.shape import count_devices

Goal = float | str
"""Goal of a training: a test accuracy, as a fraction, or a program's metric and limit, as text."""

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


def format_ratio(value: float) -> str:
    """Format a ratio in three digits, at most two of them after the point: ``3.60``, ``12.3``, ``123``."""
    if value < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def format_exact(value: float) -> str:
    """Format a number as in the configuration: ``60``, ``0.5``."""
    return f"{value:,.10g}"


def format_distinct(value: float, limit: float) -> tuple[str, str]:
    """Format a value and its limit, to two places or as many as show the difference: ``0.698``, ``0.700``.

    The limit is never rounded.
    """
    for places in range(2, 7):
        texts = f"{value:.{places}f}", f"{limit:.{places}f}"
        if texts[0] != texts[1] and math.isclose(float(texts[1]), limit):
            return texts
    return f"{value:.2f}", format_exact(limit)


def percent(fraction: float, places: int = 1) -> str:
    """Format a share with a number of places after the point: ``6.1 %``."""
    return f"{100 * fraction:.{places}f} %"


def points_text(points: float) -> str:
    """Format percentage points in one or two digits: ``0.06 points``, ``0.3 points``, ``5.0 points``."""
    return f"{points:.1f} points" if points >= 1 else f"{points:.2g} points"


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


def goal_text(goal: Goal) -> str:
    """Write a goal: ``97.0 % accuracy``, ``val_loss=([-+0-9.eE]+) at most 2.9``."""
    return goal if isinstance(goal, str) else f"{percent(goal)} accuracy"


def counts_listed(counts: Iterable[int], noun: str) -> str:
    """List device counts in a sentence, in order: ``1, 2 and 4 GPUs``."""
    *fewer, last = sorted(counts)
    return listed([*map(str, fewer), count_devices(last, noun)])


def counts_text(counts: Sequence[int]) -> str:
    """List device counts: ``1, 2, 4, 8``; if many, the first and the last: ``1, 2, 4, 8, ..., 60, 64``."""
    shown = [str(count) for count in counts]
    if len(shown) > MAX_COUNTS:
        shown = [*shown[: MAX_COUNTS - 3], "...", *shown[-2:]]
    return ", ".join(shown)


def as_in_yaml(value: object) -> str:
    """Format an option's value as in the configuration: ``true``, ``bf16``; ``default`` for null or NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "default"
    text = str(value)
    return text.lower() if text in {"True", "False"} else text


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
