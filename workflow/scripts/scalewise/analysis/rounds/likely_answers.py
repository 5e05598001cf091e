"""The answers that possible speeds would give: the rule of ``scalewise.analysis.decision``, for many at once.

What a point is held against is the same as there: its criteria, and the last of fewer devices that was worth
having. Speeds are taken for known, so nothing is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from scalewise.analysis.rounds.overhead_model import Array
from scalewise.analysis.statistics.ratios import ROUNDING
from scalewise.plan.config.experiment import DecisionRule

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

NONE = -1
"""The index of an answer that no count gives."""


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


@dataclass(frozen=True)
class Answers:
    """The answer to each possibility, and the counts that were worth having on the way to it.

    Args:
        index: Index of the count that the rule prefers, or ``NONE``; shape (draws,).
        steps: Counts that were worth more than those before them; shape (draws, counts).
    """

    index: Indices
    steps: Mask


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
        only: Counts that may be the answer or stand before it; shape (counts,). By default all.
    """
    draws, counts = log_speeds.shape
    speeds = np.exp(log_speeds - log_speeds[:, :1])
    met = np.ones((draws, counts), dtype=bool) if only is None else np.tile(only, (draws, 1))
    fastest_of_fewer = np.zeros(draws)
    for index in range(counts):
        outrun = speeds[:, index] <= fastest_of_fewer
        if only is None or only[index]:
            fastest_of_fewer = np.maximum(fastest_of_fewer, speeds[:, index])
        met[:, index] &= ~outrun
    if rule.min_efficiency is not None:
        met &= speeds * devices[0] / devices >= rule.min_efficiency - ROUNDING
    if rule.max_device_hours is not None:
        met &= times.device_hours(log_speeds) <= rule.max_device_hours + ROUNDING
    if rule.deadline_minutes is not None:
        met &= times.done_seconds(log_speeds) / 60 <= rule.deadline_minutes + ROUNDING
        first = np.where(met.any(axis=1), met.argmax(axis=1), NONE)
        return Answers(first, np.zeros_like(met))
    worth = 1 + rule.min_gain
    steps = np.zeros_like(met)
    last, best = np.full(draws, NONE), np.full(draws, NONE)
    last_speed, best_power = np.zeros(draws), np.zeros(draws)
    for index in range(counts):
        step = met[:, index] & ((last == NONE) | (speeds[:, index] > last_speed * worth))
        steps[:, index] = step
        last = np.where(step, index, last)
        last_speed = np.where(step, speeds[:, index], last_speed)
        power = speeds[:, index] ** 2 / devices[index]
        better = step & (power > best_power)
        best, best_power = np.where(better, index, best), np.where(better, power, best_power)
    return Answers(best if rule.without_criterion else last, steps)
