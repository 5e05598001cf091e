"""The time that ranks wait for each other in an exchange of gradients. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence


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
