"""Exchange of gradients: its share of a step, and how long ranks wait for each other. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.records import RankRecord, Window


def waiting_seconds(communication: Sequence[Sequence[float]]) -> list[float | None]:
    """The mean time that each rank waits in a step for the rank that is the last in that step.

    Nobody can exchange before the last rank comes: it waits for nobody, and its communication, the least of
    that step, is the exchange itself. What the others take beyond it is waiting. The least of the ranks'
    means would not do: where another rank is the last in each step, every rank's mean holds waiting.

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
