"""The figures of a run from the windows and steps of its ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scalewise.records import Window

WINDOW_STEPS = 50
"""Most steps between two synchronisations of the device."""
LATEST_WINDOWS = 100
"""Windows whose pace is told while the training runs: adding them up costs nothing that could be measured."""


def slowest(windows_by_rank: Sequence[Sequence[Window]]) -> list[Window]:
    """The windows of the run: a step is done when its slowest rank has done it."""
    return [
        max(same_steps, key=lambda window: window.seconds)
        for same_steps in zip(*windows_by_rank, strict=True)
    ]


def slowest_part(seconds: Sequence[float | None]) -> float | None:
    """The longest of the ranks' times; None where one of them is not known."""
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None


def throughput(windows: Sequence[Window]) -> float | None:
    """Samples per second of the measured windows: all samples over all seconds.

    This is the harmonic mean of the windows' rates, weighted by their samples. None stands for no
    measured window.
    """
    measured = [window for window in windows if not window.warmup]
    seconds = sum(window.seconds for window in measured)
    if not seconds:
        return None
    return sum(window.samples for window in measured) / seconds


def latest_rate(windows: Sequence[Window]) -> float | None:
    """Samples per second of the latest measured windows, for those who look on while the training runs."""
    return throughput(windows[-LATEST_WINDOWS:])


def quantile(values: Sequence[float], fraction: float) -> float:
    """The nearest-rank quantile of the values; 0 for none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(math.ceil(fraction * len(ordered)), 1) - 1]
