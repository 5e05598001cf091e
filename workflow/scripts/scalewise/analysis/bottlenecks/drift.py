"""Whether a run kept its rate while it was measured, or got faster or slower. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from scalewise.analysis.statistics import ENOUGH_REPEATS, geometric_interval, ratio_interval
from scalewise.plan.config.shape import count_devices
from scalewise.records import Window

FEWEST_WINDOWS = 9
"""Measured windows from which on a drift is looked for: three in each third."""

DRIFT = 0.05
"""Change of the rate, beyond the noise of its windows, that is said."""


def drift(windows: Sequence[Window]) -> dict[str, float]:
    """``window_spread`` and ``drift`` of a run, as far as its windows carry them.

    ``window_spread`` is half the width of the interval of the windows' mean rate, over that rate; from 3
    measured windows on. ``drift`` is the rate of the last third of the measured windows over that of the
    first, ``drift_low`` and ``drift_high`` are its bounds by the rates of the single windows; from
    ``FEWEST_WINDOWS`` on. The rate of a third is all its samples over all its seconds, the harmonic mean of
    its windows' rates weighted by samples. Windows follow each other, so their interval says how evenly a run
    went, not how far another run may lie from it.

    Args:
        windows: All windows of the run, warm-up included.
    """
    measured = [window for window in windows if not window.warmup and window.seconds > 0]
    rates = [window.samples / window.seconds for window in measured]
    found: dict[str, float] = {}
    if len(rates) >= ENOUGH_REPEATS:
        found["window_spread"] = geometric_interval(rates).half_width_fraction
    if len(rates) >= FEWEST_WINDOWS:
        third = len(rates) // 3
        bounds = ratio_interval(rates[-third:], rates[:third])  # thirds of 3 windows or more
        found |= {
            "drift": _rate(measured[-third:]) / _rate(measured[:third]),
            "drift_low": bounds.low,
            "drift_high": bounds.high,
        }
    return found


def drift_flags(runs: pd.DataFrame) -> list[str]:
    """A sentence for each device count where most runs got faster, or slower, while they were measured.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
    """
    return list(_flags(runs[runs["outcome"] == "completed"]))


def _flags(done: pd.DataFrame) -> Iterator[str]:
    several = done["series"].nunique() > 1
    for _, point in done.groupby(["series", "devices"], sort=False):
        series = f" ({point['series'].iloc[0]})" if several else ""
        where = f"on {count_devices(int(point['devices'].iloc[0]))}{series}"
        faster = point[point["drift_low"] > 1 + DRIFT]
        slower = point[point["drift_high"] < 1 - DRIFT]
        # one run in many does so by chance
        if 2 * len(faster) > len(point):
            yield (
                f"{len(faster)} of {len(point)} runs {where} still got faster while they were measured: the "
                f"last third of the steps ran at {faster['drift'].median():.2f}x the rate of the first. "
                "Raise warmup_steps."
            )
        if 2 * len(slower) > len(point):
            yield (
                f"{len(slower)} of {len(point)} runs {where} got slower while they were measured: the last "
                f"third of the steps ran at {slower['drift'].median():.2f}x the rate of the first. Look for "
                "heat and for other programs in utilization.csv, and train for longer to measure the rate "
                "that lasts."
            )


def _rate(windows: Sequence[Window]) -> float:
    return sum(window.samples for window in windows) / sum(window.seconds for window in windows)
