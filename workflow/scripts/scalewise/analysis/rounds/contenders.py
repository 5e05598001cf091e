"""The chance that a partition gives the answer across partitions, from all speeds that are still possible.

Each partition of a comparison chooses its device counts by itself. It is measured no further when its own
answer can hardly beat those of the other partitions by the gain worth having: neither in time, nor in cost,
nor in the time until it is done with the wait in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from scalewise.analysis.decision.walk import NONE, Array, Indices
from scalewise.analysis.rounds.likely_answers import RunTimes, answers
from scalewise.analysis.rounds.possible_speeds import PossibleSpeeds
from scalewise.plan.config.experiment import DecisionRule

Aim = Literal["time", "cost", "soonest"]
AIMS: tuple[Aim, ...] = ("time", "cost", "soonest")


@dataclass(frozen=True)
class Contender:
    """A partition with what a training takes there, in equally probable draws of its speeds.

    Args:
        takes: Seconds of the answer, cost of the cheapest count that misses no criterion, and seconds of the
            answer with the wait in the queue; of the best series, and infinite in a draw without an answer.
            Shape (draws,) each.
    """

    takes: dict[Aim, Array]

    @classmethod
    def of(
        cls, series: Sequence[tuple[PossibleSpeeds, DecisionRule]], price: float, work: float | None
    ) -> Contender:
        """Draw the answers of a partition.

        Args:
            series: Possible speeds of each series of the experiment, and its criteria.
            price: Price of a billed device for one hour.
            work: Samples of the training that is compared; None where runs are no whole trainings, of which
                the speeds alone are compared.
        """
        best: dict[Aim, Array] = {}
        for speeds, rule in series:
            given = answers(speeds.log_speeds, speeds.model.devices, rule, speeds.times)
            times = _same_work(speeds.times, work)
            seconds = times.seconds(speeds.log_speeds)
            hours = np.where(given.met, times.device_hours(speeds.log_speeds), np.inf)
            quantities: dict[Aim, Array] = {
                "time": _at(given.index, seconds),
                "cost": hours.min(axis=1) * price,
                "soonest": _at(given.index, seconds + times.queue_seconds),
            }
            for aim, values in quantities.items():
                best[aim] = np.minimum(best.get(aim, values), values)
        return cls(best)


def _at(index: Indices, values: Array) -> Array:
    """Return the value of each draw at its answer; infinite where there is none."""
    return np.where(index == NONE, np.inf, values[np.arange(len(index)), index])


def chance_to_win(place: int, contenders: Sequence[Contender], aims: Sequence[Aim], min_gain: float) -> float:
    """Return the chance that a partition beats all others by a gain, in the aim where that is largest.

    The partition that leads in an aim, by the median, is the answer there unless another beats it: 1.

    Args:
        place: Index of the partition.
        contenders: All partitions of the comparison whose baseline was measured.
        aims: Quantities by which the best partition is judged.
        min_gain: The least gain worth having.
    """
    chances = []
    for aim in aims:
        takes = [each.takes[aim] for each in contenders]
        medians = [float(np.median(each)) for each in takes]
        if place == int(np.argmin(medians)):
            return 1.0
        others = np.minimum.reduce([each for index, each in enumerate(takes) if index != place])
        chances.append(float(np.mean(takes[place] * (1 + min_gain) < others)))
    return max(chances)


def _same_work(times: RunTimes, work: float | None) -> RunTimes:
    """Return the lengths of runs that all train the same work."""
    fixed = 0.0 if work is None else times.fixed_seconds
    return replace(times, fixed_seconds=fixed, work=np.full(len(times.work), 1.0 if work is None else work))
