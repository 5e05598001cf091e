"""The answers that possible speeds would give: the walk of ``scalewise.analysis.decision``, for many at once.

Speeds are taken for known, so nothing is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scalewise.analysis.decision.walk import Answers, Array, Indices, Mask, is_shown, missed, walk
from scalewise.plan.config.experiment import DecisionRule


@dataclass(frozen=True)
class RunTimes:
    """The length of a whole run, by its speed.

    Args:
        fixed_seconds: Time beside the training, such as start-up.
        work: Samples of a run; shape (counts,).
        billed: Devices that are paid; shape (counts,).
        queue_seconds: Usual wait; shape (counts,).
        next_over_median: A bound of the next run's length over the usual one; deadlines are judged by it.
    """

    fixed_seconds: float
    work: Array
    billed: Array
    queue_seconds: Array
    next_over_median: float = 1.0

    def among(self, indices: Sequence[int]) -> RunTimes:
        """The lengths of runs on some of the counts."""
        kept = list(indices)
        return replace(
            self, work=self.work[kept], billed=self.billed[kept], queue_seconds=self.queue_seconds[kept]
        )

    def seconds(self, log_speeds: Array) -> Array:
        """Seconds of a run from its start to its end; shape (..., counts)."""
        return np.asarray(self.fixed_seconds + self.work / np.exp(log_speeds))

    def device_hours(self, log_speeds: Array) -> Array:
        """Device-hours of a run, as billed; shape (..., counts)."""
        return self.seconds(log_speeds) * self.billed / 3600

    def done_seconds(self, log_speeds: Array) -> Array:
        """Bound of the seconds from a run's submission to its end; shape (..., counts)."""
        return self.queue_seconds + self.seconds(log_speeds) * self.next_over_median


def answers(
    log_speeds: Array,
    devices: Array,
    rule: DecisionRule,
    times: RunTimes,
    only: Mask | None = None,
) -> Answers:
    """The counts that the rule prefers.

    Args:
        log_speeds: Logarithms of possible speeds; shape (draws, counts).
        devices: Candidates, the baseline first; shape (counts,).
        rule: The criteria.
        times: Lengths of whole runs, by which a deadline and device-hours are judged.
        only: Counts that may be the answer; shape (counts,). By default all.
    """
    speeds = np.exp(log_speeds - log_speeds[:, :1])
    efficiency, draw = speeds * devices[0] / devices, np.arange(len(speeds))
    met = np.ones(speeds.shape, dtype=bool) if only is None else np.tile(only, (len(speeds), 1))
    quantities = {
        "efficiency_to_best": efficiency,
        "done_minutes": times.done_seconds(log_speeds) / 60,
        "device_hours": times.device_hours(log_speeds),
    }
    for misses in missed(rule, quantities).values():
        met &= ~misses

    def is_worth_it(index: int, last: Indices) -> Mask:
        return np.asarray(is_shown(speeds[:, index] / speeds[draw, last], 1 + rule.min_gain))

    return walk(rule, met, speeds * efficiency, is_worth_it)
