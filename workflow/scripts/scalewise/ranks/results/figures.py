"""Figures of a run from its windows, and from the steps and exchanges of its ranks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.records import RankRecord, Window

WINDOW_STEPS = 50
"""Most steps of a window."""


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


def waiting_seconds(communication: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the mean time that each rank waits in a step for the last rank of that step.

    No rank can exchange before the last one comes, which does not wait: its communication, the least of that
    step, is the exchange itself. What the others take beyond it is waiting. The least of the ranks' means
    would be too long: if another rank is the last in each step, every rank's mean holds waiting.

    Args:
        communication: Seconds of the same steps on each rank.

    Returns:
        Seconds, one for each rank; None where no step is known, or not the same steps on all ranks.
    """
    if len({len(steps) for steps in communication}) != 1 or not communication[0]:
        return [None] * len(communication)
    exchange = [min(step) for step in zip(*communication, strict=True)]
    return [(sum(steps) - sum(exchange)) / len(exchange) for steps in communication]


def communication_fraction(ranks: Sequence[RankRecord], windows: Sequence[Window]) -> float | None:
    """Share of a step that is the exchange of gradients itself: no rank's delay is in it.

    A rank that is ahead waits for the others inside its own exchange. Where that waiting is not known, the
    rank whose exchange takes least stands for all.
    """
    counted = [
        rank.communication_seconds_per_step - (rank.waiting_seconds_per_step or 0.0)
        for rank in ranks
        if rank.communication_seconds_per_step is not None
    ]
    measured = [window for window in windows if not window.warmup]
    if len(counted) < len(ranks) or not measured:
        return None
    step_seconds = sum(window.seconds for window in measured) / sum(window.steps for window in measured)
    return min(max(min(counted), 0.0) / step_seconds, 1.0)
