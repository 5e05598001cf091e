"""The point of a series that a rule prefers, and what the runs cannot tell about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from scalewise.analysis.comparison.gains import Gains, Measure, Point
from scalewise.analysis.decision.walk import NONE, Indices, Mask, is_shown, walk
from scalewise.analysis.statistics import ROUNDING, Ratio, runs_to_narrow, runs_to_tell
from scalewise.plan.config.experiment import DecisionRule

KNOWN_WITHIN = 1.25
"""Factor by which the ends of the interval of a clear answer's gain may differ."""

MOST_ADVISED = 20
"""More repeats of each point than these are not advised: the two points are too close to tell apart."""

Verdict = Literal["shown", "not worth it", "open"]

Kind = Literal["more", "fewer", "knee", "efficient", "inefficient", "gain"]


def verdict(ratio: Ratio, threshold: float) -> Verdict:
    """Whether the 95 % interval of a ratio lies above a threshold, below it, or holds it."""
    if is_shown(ratio.at_least, threshold):
        return "shown"
    return "not worth it" if ratio.at_most < threshold * (1 - ROUNDING) else "open"


@dataclass(frozen=True)
class OpenQuestion:
    """Two device counts between which the runs cannot tell, or a gain that they do not tell well enough.

    Args:
        kind: ``more``: whether more devices than the chosen ones are worth having; ``fewer``: whether fewer
            would do as well; ``knee``: which of the two is the knee; ``efficient``: whether the chosen ones
            are efficient enough; ``inefficient``: whether more devices are not; ``gain``: how large the gain
            of the chosen ones is.
        devices: The count that the question is about.
        than: The count that it is held against; of an efficiency, that of the best baseline.
        ratio: Speed of the larger of the two over that of the smaller.
        threshold: Ratio from which on the larger count is the better one, or efficient enough; of a gain,
            ``KNOWN_WITHIN``.
    """

    kind: Kind
    devices: int
    than: int
    ratio: Ratio
    threshold: float

    @property
    def runs_needed(self) -> int | None:
        """Runs of each side that would tell; None if too many."""
        plan = runs_to_narrow if self.kind == "gain" else runs_to_tell
        return plan(self.ratio, self.threshold)


@dataclass(frozen=True)
class Choice:
    """A point, and the questions about it that are open."""

    point: pd.Series
    open_questions: Sequence[OpenQuestion]


def choose(
    points: pd.DataFrame,
    rule: DecisionRule,
    compared: Gains,
    measure: Measure,
) -> Choice | None:
    """Return the point of one series that the rule prefers, by ``walk``.

    Args:
        points: The points of one series, output of ``evaluate``.
        rule: The criteria.
        compared: The ratios of all pairs of points.
        measure: Quantity that is compared.

    Returns:
        The choice; None if every point misses a criterion.
    """
    pairs = _Pairs(points, rule, compared, measure)

    def is_worth_it(index: int, last: Indices) -> Mask:
        taken = int(last[0])
        return np.array([taken != NONE and pairs.verdict(index, taken) == "shown"])

    found = walk(rule, pairs.met[None], points["power"].to_numpy(dtype=np.float64)[None], is_worth_it)
    best = int(found.index[0])
    if best == NONE:
        return None
    steps = np.flatnonzero(found.steps[0]).tolist()
    # with a deadline, speeds are not compared
    return Choice(points.iloc[best], list(pairs.questions(best, steps)) if steps else [])


class _Pairs:
    """The pairs of points of one series, by their places in the table.

    Args:
        points: Output of ``evaluate``, fewest devices first.
        rule: The criteria.
        compared: The ratios of all pairs of points.
        measure: Quantity that is compared.
    """

    def __init__(self, points: pd.DataFrame, rule: DecisionRule, compared: Gains, measure: Measure) -> None:
        self.series, self.rows = str(points["series"].iloc[0]), [point for _, point in points.iterrows()]
        self.devices = [int(devices) for devices in points["devices"]]
        self.met = np.array([not misses for misses in points["misses"]], dtype=bool)
        self.rule, self.compared, self.measure = rule, compared, measure
        self.worth = 1 + rule.min_gain

    def ratio(self, more: int, fewer: int) -> Ratio | None:
        """Return how many times the speed of the second place the first one has; None if unknown."""
        return self._over(more, (self.series, self.devices[fewer]))

    def verdict(self, more: int, fewer: int) -> Verdict:
        """Return whether more devices are worth having."""
        ratio = self.ratio(more, fewer)
        if ratio is None:
            return "open"
        found = verdict(ratio, self.worth)
        # if more runs fail to reach the target, their time rests on luck
        unreached = self.measure == "time to target" and self._share(more) < self._share(fewer)
        return "open" if found == "shown" and unreached else found

    def questions(self, best: int, steps: Sequence[int]) -> Iterator[OpenQuestion]:
        """Yield what the runs do not show of the chosen point.

        Args:
            best: Place of the chosen point.
            steps: Places of the points that were taken.
        """
        met = np.flatnonzero(self.met).tolist()
        for place in met:
            # if the knee lies before the last point that was taken, more devices than that do not matter
            if place > best == steps[-1] and self.verdict(place, best) == "open":
                yield from self._question("more", place, best, self.ratio(place, best), self.worth)
        for place in met:
            if place < best and place not in steps and self.verdict(best, place) != "shown":
                yield from self._question("fewer", place, best, self.ratio(best, place), self.worth)
        for place in met if self.rule.without_criterion else ():
            # power is speed^2 / devices: the larger count has more beyond the root of the devices' ratio
            fewer, more = sorted((place, best))
            threshold, ratio = math.sqrt(self.devices[more] / self.devices[fewer]), self.ratio(more, fewer)
            if ratio is not None and verdict(ratio, threshold) == "open":
                yield from self._question("knee", place, best, ratio, threshold)
        if self.rule.min_efficiency is not None:
            yield from self._efficiencies(best, self.rule.min_efficiency)
        base = int(self.rows[best]["gain_base"])
        gain = self._over(best, (self.series, base))
        if gain is not None and gain.at_most > KNOWN_WITHIN * gain.at_least:
            yield OpenQuestion("gain", self.devices[best], base, gain, KNOWN_WITHIN)

    def _efficiencies(self, best: int, least: float) -> Iterator[OpenQuestion]:
        """Yield points if it is not shown on which side of the required efficiency they lie."""
        series, base = str(self.rows[best]["best_baseline"]), int(self.rows[best]["best_baseline_devices"])
        for place in range(best, len(self.rows)):
            threshold, chosen = least * self.devices[place] / base, place == best
            # a point that meets it to the digit is efficient enough: further off than equal logarithms
            ratio = self._over(place, (series, base))
            if ratio is None:
                continue
            found = verdict(ratio, threshold * (1 - 2 * ROUNDING))
            if chosen and found != "shown":
                yield OpenQuestion("efficient", self.devices[place], base, ratio, threshold)
            efficient = self.rows[place]["efficiency_to_best"] >= least - ROUNDING
            out = efficient or "not worth it" in {found, self.verdict(place, best)}
            if not chosen and not out:
                yield OpenQuestion("inefficient", self.devices[place], base, ratio, threshold)

    def _question(
        self, kind: Kind, place: int, other: int, ratio: Ratio | None, threshold: float
    ) -> Iterator[OpenQuestion]:
        if ratio is not None:
            yield OpenQuestion(kind, self.devices[place], self.devices[other], ratio, threshold)

    def _over(self, place: int, than: Point) -> Ratio | None:
        return self.compared.of(self.measure, (self.series, self.devices[place]), than)

    def _share(self, place: int) -> float:
        return float(self.rows[place]["n_reached"]) / float(self.rows[place]["n"])
