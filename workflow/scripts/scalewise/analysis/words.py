"""Words and numbers of an answer: the only module that forms intervals, times, costs and names of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from scalewise.analysis.analysis_spec import Goal
from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval
from scalewise.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, listed, percent

__all__ = ["count_devices", "format_3sig", "listed", "percent"]

MINUTE, HOUR = 60.0, 3600.0

SMALLEST_COST = 1e-9
"""Costs below it are those of free devices, which a number near 0 stands for."""

Form = Callable[[float], str]


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


def points_text(points: float) -> str:
    """Format percentage points in one or two digits: ``0.06 points``, ``0.3 points``, ``5.0 points``."""
    return f"{points:.1f} points" if points >= 1 else f"{points:.2g} points"


def goal_text(goal: Goal) -> str:
    """Write a goal: ``97.0 % accuracy``, ``val_loss=([-+0-9.eE]+) at most 2.9``."""
    return goal if isinstance(goal, str) else f"{percent(goal)} accuracy"


def as_in_yaml(value: object) -> str:
    """Format an option's value as in the configuration: ``true``, ``bf16``; ``default`` for null or NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "default"
    text = str(value)
    return text.lower() if text in {"True", "False"} else text


def two_places(value: float) -> str:
    """Format an efficiency: ``0.71``."""
    return f"{value:.2f}"


def interval_text(value: Interval, form: Form, unit: str = "", values: Sequence[float] = ()) -> str:
    """Format an estimate with its 95 % interval: ``1.64x (1.03 to 2.16)``.

    Args:
        value: The estimate; without bounds if they are unknown.
        form: Formats a number.
        unit: Follows the estimate.
        values: The runs' own values, which are stated if two runs have no interval.
    """
    text = f"{form(value.estimate)}{unit}"
    if not math.isnan(value.low) and form(value.low) != form(value.high):
        return f"{text} ({form(value.low)} to {form(value.high)})"
    if len(values) == 2 and value.n < ENOUGH_REPEATS:
        return f"{text} (2 runs: {form(min(values))} and {form(max(values))})"
    return text


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds of the unit in which a time is stated, and its name: s, min or h."""
    if seconds < 2 * MINUTE:
        return 1.0, "s"
    return (MINUTE, "min") if seconds < 2 * HOUR else (HOUR, "h")


def time_text(seconds: Interval, values: Sequence[float] = ()) -> str:
    """Format a time in the unit that gives 1 to 999: ``42.3 s``, ``12.1 min (11.8 to 12.4)``."""
    factor, unit = time_unit(seconds.estimate)
    return interval_text(
        seconds.scaled(1 / factor), format_3sig, f" {unit}", [each / factor for each in values]
    )


def seconds_text(seconds: float) -> str:
    """Format a time without an interval."""
    factor, unit = time_unit(seconds)
    return f"{format_3sig(seconds / factor)} {unit}"


def cost_text(device_hours: Interval, unit: str = "device-hours", noun: str = "device") -> str:
    """Format a cost: ``10.3 GPU-minutes``, or ``0.335 price units`` by the site file.

    Args:
        device_hours: Device-hours, or the cost in another unit.
        unit: ``device-hours``, ``price`` or ``billing``.
        noun: Name of a device in one word.
    """
    if unit != "device-hours" and device_hours.estimate < SMALLEST_COST:
        return f"0 {unit} units"
    if unit != "device-hours":
        return interval_text(device_hours, format_3sig, f" {unit} units")
    factor, name = time_unit(device_hours.estimate * HOUR)
    kind = {"s": "seconds", "min": "minutes", "h": "hours"}[name]
    return interval_text(device_hours.scaled(HOUR / factor), format_3sig, f" {noun}-{kind}")


def energy_text(kwh: Interval) -> str:
    """Format an energy: ``12.3 Wh``, ``4.20 kWh``."""
    if kwh.estimate < 1:
        return interval_text(kwh.scaled(1000), format_3sig, " Wh")
    return interval_text(kwh, format_3sig, " kWh")


def place_text(devices: int, series: str, partition: str, noun: str, *, only: bool) -> str:
    """Name a candidate: ``4 GPUs with bucket-view-on, on a100``.

    Args:
        devices: Number of devices.
        series: Name of its options.
        partition: Name of the partition; empty without several.
        noun: Name of a device.
        only: Whether there is one series only, whose name says nothing.
    """
    options = "" if only else f" with {series}"
    return f"{count_devices(devices, noun)}{options}{f' on {partition}' if partition else ''}"


def counts_text(counts: Sequence[int], noun: str) -> str:
    """List device counts: ``2, 4 and 8 GPUs``."""
    number = count_devices(max(counts), noun)
    return f"{listed([*map(str, counts)])} {number.partition(' ')[2]}"


def runs_text(numbers: Mapping[str, int]) -> str:
    """Count outcomes: ``1 timed-out, 2 failed``."""
    return ", ".join(f"{number} {outcome}" for outcome, number in numbers.items())


def optional(value: float) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
