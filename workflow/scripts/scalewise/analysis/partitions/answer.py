"""The best point by time, cost, energy and soonest end, and what the runs show of the other points.

The best point is the one with the least mean. That it is chosen by the same runs which then compare it needs
no correction: the chance that any point is called better though another is as good is largest if two points
are equal, and then it is that of one two-sided test (Gutmann & Maymin, Annals of Statistics 15, 1987).
``python -m tests.truth`` simulates it, docs/statistics.md has the rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scalewise.analysis.comparison.gains import SIGNIFICANCE
from scalewise.analysis.decision.choice import MOST_ADVISED, Verdict, verdict
from scalewise.analysis.partitions.points import AIMS, Aim, PartitionPoints, Place
from scalewise.analysis.statistics import ENOUGH_REPEATS, ROUNDING, Ratio, holm, runs_to_tell

Status = Literal["clear", "equal", "likely", "cannot tell", "unknown"]
"""``equal``: shown to differ by less than is worth having. ``likely``: ``clear`` or ``equal`` by fewer than
``ENOUGH_REPEATS`` runs of a point."""

DECIDED = ("clear", "equal", "likely")

SECOND: dict[Aim, Aim] = {"time": "cost", "cost": "time", "energy": "time", "soonest": "cost"}
"""The aim by which one of several points is chosen that are equal by the first one."""


@dataclass(frozen=True)
class Rival:
    """A point in comparison with the best one.

    Args:
        place: The point.
        ratio: Amount of this point over that of the best one.
        state: Whether the best point is shown to need less by a difference worth having, ``not worth it`` if
            neither of the two is, and ``open`` otherwise.
    """

    place: Place
    ratio: Ratio
    state: Verdict


@dataclass(frozen=True)
class AimAnswer:
    """The best point by one aim.

    Args:
        aim: The aim.
        best: The point; None if no point has a known amount.
        rivals: The other points with a known amount, the least mean first.
        min_gain: Least difference that is worth having, a fraction.
        unknown: Partitions of which no point has a known amount.
        least: The point with the least mean, if it is not ``best`` but shown to need no less by a difference
            worth having; else None.
    """

    aim: Aim
    best: Place | None = None
    rivals: Sequence[Rival] = ()
    min_gain: float = 0.0
    unknown: Sequence[str] = ()
    least: Rival | None = None

    @property
    def partition_status(self) -> Status:
        """Whether the partition of the best point is shown to be the best."""
        if self.best is None or self.unknown:
            return "unknown" if self.best is None else "cannot tell"
        return _status([rival for rival in self.rivals if rival.place.partition != self.best.partition])

    @property
    def count_status(self) -> Status:
        """Whether the best point is shown to be the best of its partition."""
        if self.best is None:
            return "unknown"
        return _status([rival for rival in self.rivals if rival.place.partition == self.best.partition])

    @property
    def open_places(self) -> list[Place]:
        """The points that may be as good as the best one, or better: of other partitions if any is."""
        found = [rival.place for rival in self.rivals if rival.state == "open"]
        others = [place for place in found if self.best and place.partition != self.best.partition]
        return others or found

    @property
    def runner_up(self) -> Rival | None:
        """The rival of another partition that matters most: an open one, else the one with the least mean."""
        others = [
            rival for rival in self.rivals if self.best and rival.place.partition != self.best.partition
        ]
        return next((rival for rival in others if rival.state == "open"), next(iter(others), None))

    @property
    def repeats_needed(self) -> int | None:
        """Runs of each point that would tell what is open; None if too many, or if nothing is open."""
        found = [
            runs_to_tell(rival.ratio, 1 + self.min_gain)
            for rival in self.rivals
            if rival.place in self.open_places
        ]
        known = [runs for runs in found if runs is not None]
        most = max(known, default=0)
        return most if found and len(known) == len(found) and most <= MOST_ADVISED else None


def _status(rivals: Sequence[Rival]) -> Status:
    states = {rival.state for rival in rivals}
    if "open" not in states and any(rival.ratio.n < ENOUGH_REPEATS for rival in rivals):
        return "likely"
    return "cannot tell" if "open" in states else "equal" if "not worth it" in states else "clear"


@dataclass(frozen=True)
class PartitionAnswer:
    """The answer across partitions.

    Args:
        points: The points of all partitions.
        aims: The best point by each aim that is known.
        dominated: Points that are shown to be worse by time or cost and to be no better by the other, each
            with the point that is better.
        by: The aim that decides; None if the user gave none.
    """

    points: PartitionPoints
    aims: dict[Aim, AimAnswer]
    dominated: dict[Place, Place] = field(default_factory=dict)
    by: Aim | None = None


def answer(points: PartitionPoints, by: Aim | None = None) -> PartitionAnswer:
    """Return the best points of all partitions.

    Args:
        points: Output of ``collect_points``.
        by: The aim that decides; None to answer by all.
    """
    found = {aim: _best(points, aim) for aim in AIMS}
    known = {aim: each for aim, each in found.items() if each.best is not None or aim == by}
    return PartitionAnswer(points, known, dict(_dominated(points)), by)


def state_of(ratio: Ratio, min_gain: float) -> Verdict:
    """Return what is shown of the amount of a point over that of the best one; see ``Rival``."""
    found = verdict(ratio, 1 + min_gain)
    if found == "not worth it" and ratio.at_least < (1 - ROUNDING) / (1 + min_gain):
        return "open"
    return found


def _best(points: PartitionPoints, aim: Aim) -> AimAnswer:
    means = {
        place: interval.estimate
        for place in points.candidates
        if (interval := points.points[place].interval(aim)) is not None
    }
    if not means:
        return AimAnswer(aim)
    order = sorted(means, key=means.__getitem__)
    equal = [order[0], *_equal(points, aim, order[0], order[1:])]
    best = min(equal, key=lambda place: _mean(points, place, SECOND[aim]))
    rivals = [
        Rival(place, ratio, state_of(ratio, points.min_gain))
        for place in order
        if (ratio := points.ratio(aim, place, best)) is not None
    ]
    measured = {place.partition for place in points.candidates}
    unknown = sorted(measured - {place.partition for place in means})
    least = next((rival for rival in rivals if rival.place == order[0]), None)
    return AimAnswer(aim, best, rivals, points.min_gain, unknown, least)


def _equal(points: PartitionPoints, aim: Aim, least: Place, others: Sequence[Place]) -> Iterator[Place]:
    """Yield the points that are shown to need no more than the least one by a difference worth having.

    One of them is chosen by another aim, so the p values are adjusted for their number (Holm).
    """
    ratios = {place: ratio for place in others if (ratio := points.ratio(aim, place, least)) is not None}
    p_values = [1 - ratio.p_above(1 + points.min_gain) for ratio in ratios.values()]
    for (place, ratio), p in zip(ratios.items(), holm(p_values), strict=True):
        if p <= SIGNIFICANCE and state_of(ratio, points.min_gain) == "not worth it":
            yield place


def _mean(points: PartitionPoints, place: Place, aim: Aim) -> float:
    interval = points.points[place].interval(aim)
    return math.inf if interval is None else interval.estimate


def _dominated(points: PartitionPoints) -> Iterator[tuple[Place, Place]]:
    """Yield each point that another one dominates, by time and cost, with that point.

    The other one is shown to be better by one of the two, by a difference worth having, and not to be worse
    by as much by the other.
    """
    places = list(points.points)
    worth = 1 + points.min_gain
    for place in places:
        for better in places:
            ratios = [points.ratio(aim, place, better) for aim in ("time", "cost")]
            if None in ratios:
                continue
            ends = [ratio.at_least for ratio in ratios if ratio is not None]
            if max(ends) > worth * (1 + ROUNDING) and min(ends) >= (1 - ROUNDING) / worth:
                yield place, better
                break
