"""The point of a series that a rule prefers, and what the runs cannot tell about it.

More devices are taken only where they are shown to be faster than fewer by a gain worth having. Counts are
walked through from few to many: one is held against the last that was shown to be worth its devices, which
is the fastest so far as far as the runs can tell. Held against the next smaller count alone, a dip would
make the count after it look like a gain; against the fastest of a dense grid, no count would ever be far
enough from its neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from scalewise.analysis.comparison.gains import Gains, Measure
from scalewise.analysis.statistics.ratios import ROUNDING, Ratio, runs_to_narrow, runs_to_tell
from scalewise.plan.config.experiment import DecisionRule

KNOWN_WITHIN = 1.25
"""Factor by which the ends of the interval of a clear answer's gain may differ."""

MOST_ADVISED = 20
"""More repeats of each point than these are not advised: the two points are too close to tell apart."""

Verdict = Literal["shown", "not worth it", "open"]


def verdict(ratio: Ratio, threshold: float) -> Verdict:
    """Whether the 95 % interval of a ratio lies above a threshold, below it, or holds it."""
    if ratio.at_least > threshold * (1 + ROUNDING):
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

    kind: Literal["more", "fewer", "knee", "efficient", "inefficient", "gain"]
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
    """The point of one series that the rule prefers among those that miss nothing.

    With a deadline, the fewest devices; with device-hours or an efficiency, the most that are shown to be
    worth having; else the knee among those.

    Args:
        points: The points of one series, output of ``evaluate``.
        rule: The criteria.
        compared: The ratios of all pairs of points.
        measure: Quantity that is compared.
    """
    met = points.loc[[not misses for misses in points["misses"]]]
    if met.empty:
        return None
    if rule.deadline_minutes is not None:
        faster = met[met["outrun_by"] == 0]
        return None if faster.empty else Choice(faster.iloc[0], [])
    pairs = _Pairs(str(met["series"].iloc[0]), compared, measure, 1 + rule.min_gain)
    steps = [met.iloc[0]]
    for _, point in met.iloc[1:].iterrows():
        if not point["outrun_by"] and pairs.verdict(point, steps[-1]) == "shown":
            steps.append(point)
    if rule.without_criterion:
        best = max(steps, key=lambda point: (float(point["power"]), -int(point["devices"])))
    else:
        best = steps[-1]
    found = [*pairs.beyond(best, met, steps), *pairs.below(best, met, steps)]
    if rule.without_criterion:
        found += pairs.knees(best, met)
    if rule.min_efficiency is not None:
        found += pairs.efficiencies(best, points, rule.min_efficiency)
    found += pairs.gain(best)
    return Choice(best, found)


@dataclass(frozen=True)
class _Pairs:
    series: str
    compared: Gains
    measure: Measure
    worth: float

    def ratio(self, more: pd.Series, fewer: pd.Series) -> Ratio | None:
        above, below = ((self.series, int(point["devices"])) for point in (more, fewer))
        return self.compared.of(self.measure, above, below)

    def verdict(self, more: pd.Series, fewer: pd.Series) -> Verdict:
        ratio = self.ratio(more, fewer)
        if ratio is None:
            return "open"
        found = verdict(ratio, self.worth)
        # where more runs fail to reach the target, their time rests on luck
        unreached = self.measure == "time to target" and _share(more) < _share(fewer)
        return "open" if found == "shown" and unreached else found

    def beyond(
        self, best: pd.Series, met: pd.DataFrame, steps: Sequence[pd.Series]
    ) -> Iterator[OpenQuestion]:
        """More devices than the last that were shown to be worth having."""
        last = steps[-1]
        if int(best["devices"]) != int(last["devices"]):
            return  # the knee lies before it
        for _, point in met[met["devices"] > last["devices"]].iterrows():
            ratio = self.ratio(point, last)
            if ratio is not None and self.verdict(point, last) == "open":
                yield OpenQuestion("more", int(point["devices"]), int(last["devices"]), ratio, self.worth)

    def below(self, best: pd.Series, met: pd.DataFrame, steps: Sequence[pd.Series]) -> Iterator[OpenQuestion]:
        """Fewer devices that may be as fast, though they were not shown to be worth having themselves."""
        shown = {int(point["devices"]) for point in steps}
        for _, point in met[met["devices"] < best["devices"]].iterrows():
            ratio = self.ratio(best, point)
            if int(point["devices"]) in shown or ratio is None:
                continue
            if self.verdict(best, point) != "shown":
                yield OpenQuestion("fewer", int(point["devices"]), int(best["devices"]), ratio, self.worth)

    def knees(self, best: pd.Series, met: pd.DataFrame) -> Iterator[OpenQuestion]:
        """Points whose speedup x efficiency may be as large.

        Power is speed^2 / devices, so the larger count has more of it where it is faster by more than the
        root of the devices' ratio.
        """
        for _, point in met.iterrows():
            fewer, more = sorted((point, best), key=lambda each: int(each["devices"]))
            ratio = self.ratio(more, fewer)
            if ratio is None:
                continue
            threshold = math.sqrt(more["devices"] / fewer["devices"])
            if verdict(ratio, threshold) == "open":
                yield OpenQuestion("knee", int(point["devices"]), int(best["devices"]), ratio, threshold)

    def efficiencies(self, best: pd.Series, points: pd.DataFrame, least: float) -> Iterator[OpenQuestion]:
        """Points of which it is not shown on which side of the efficiency asked for they lie."""
        reference = (str(best["best_baseline"]), int(best["best_baseline_devices"]))
        for _, point in points[points["devices"] >= best["devices"]].iterrows():
            devices = int(point["devices"])
            ratio = self.compared.of(self.measure, (self.series, devices), reference)
            if ratio is None or point["outrun_by"]:
                continue
            threshold, chosen = least * devices / reference[1], devices == int(best["devices"])
            # what meets it to the digit is enough: further off than logarithms that count as equal
            found = verdict(ratio, threshold * (1 - 2 * ROUNDING))
            efficient = point["gain_efficiency"] >= least - ROUNDING
            if (chosen and found != "shown") or (not efficient and found != "not worth it"):
                kind: Literal["efficient", "inefficient"] = "efficient" if chosen else "inefficient"
                yield OpenQuestion(kind, devices, reference[1], ratio, threshold)

    def gain(self, best: pd.Series) -> Iterator[OpenQuestion]:
        """The gain over the baseline, if its interval is too wide."""
        devices, base = int(best["devices"]), int(best["gain_base"])
        ratio = self.compared.of(self.measure, (self.series, devices), (self.series, base))
        if ratio is not None and ratio.at_most > KNOWN_WITHIN * ratio.at_least:
            yield OpenQuestion("gain", devices, base, ratio, KNOWN_WITHIN)


def _share(point: pd.Series) -> float:
    return float(point["n_reached"]) / float(point["n"])
