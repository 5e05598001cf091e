"""The ratio of two samples of rates, and how well it is known.

Rates scatter by factors, so they are compared on logarithms, by Welch's t (Biometrika 34, 1947): the two
samples may differ in size and in scatter. That assumes that logarithms of repeats are about normal. Ranks
assume less, but three runs that scatter by 10 % against twenty that scatter by 1 % cover the truth in 76 %
of the studies by ranks that state 95 %, and no method by ranks does better with three. What the assumption
costs where it does not hold is simulated: ``python -m tests.truth``, docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, variance

from scipy.special import nctdtrinc, stdtr, stdtrit

from scalewise.analysis.statistics.intervals import (
    CONFIDENCE,
    ENOUGH_REPEATS,
    Interval,
    t_quantile,
    welch_error,
)

ASSUMED_SCATTER = 0.05
"""Standard deviation of logarithms that single runs are taken to have. Published repeats scatter by 0.3 to
0.6 % on GPUs of one cluster (DLPerf), CPU processes on a busy machine by up to 10 %."""

ROUNDING = 1e-9
"""Logarithms that differ by less are equal: sums round differently."""

POWER = 0.8
"""Share of the studies in which the planned repeats show a difference that is as large as it looks."""

MOST_PLANNED = 100
"""Repeats of a point beyond which none are planned."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of two samples of rates.

    Args:
        log_mean: Difference of the mean logarithms.
        standard_error: Standard error of ``log_mean``.
        freedom: Degrees of freedom of the standard error; infinite where the scatter was assumed.
        n: Runs of the smaller sample.
        assumed: The scatter was not measured, because both samples are single runs.
    """

    log_mean: float
    standard_error: float
    freedom: float
    n: int
    assumed: bool = False

    @property
    def estimate(self) -> float:
        """The ratio of the geometric means."""
        return math.exp(self.log_mean)

    @property
    def at_least(self) -> float:
        """Lower end of the 95 % interval, by the assumed scatter for single runs."""
        return math.exp(self.log_mean - self._reach)

    @property
    def at_most(self) -> float:
        """Upper end of the 95 % interval, by the assumed scatter for single runs."""
        return math.exp(self.log_mean + self._reach)

    @property
    def _reach(self) -> float:
        return t_quantile(self.freedom) * self.standard_error

    @property
    def scatter(self) -> float:
        """Standard error of the logarithm if each side had one run: it falls with the root of the runs."""
        return self.standard_error * math.sqrt(self.n)

    @property
    def freedom_per_run(self) -> int:
        """Degrees of freedom that one more run on each side adds: 1 or 2.

        2 for samples that scatter alike; 1 for pairs, and where one side has most of the scatter.
        """
        return 2 if self.assumed else min(max(round(self.freedom / max(self.n - 1, 1)), 1), 2)

    def interval(self) -> Interval:
        """The ratio with its 95 % interval, which needs ``ENOUGH_REPEATS`` runs on each side."""
        known = self.n >= ENOUGH_REPEATS
        low, high = (self.at_least, self.at_most) if known else (math.nan, math.nan)
        return Interval(self.estimate, low, high, self.n)

    def p_above(self, threshold: float = 1.0) -> float:
        """One-sided p value that the ratio lies above a threshold.

        How probable so large a lead would be, were the ratio the threshold itself: 0.5 if it is.
        """
        lead = self.log_mean - math.log(threshold)
        if self.standard_error == 0:
            return 0.5 if abs(lead) <= ROUNDING else float(lead < 0)
        return float(stdtr(self.freedom, -lead / self.standard_error))


def ratio_of(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio | None:
    """The ratio of two independent samples, by Welch's t on logarithms.

    A single run is taken to scatter as the other sample does, two single ones by ``ASSUMED_SCATTER``.

    Args:
        numerator: Positive rates, one for each run.
        denominator: Positive rates in the same unit.

    Returns:
        The ratio; None where a sample is empty.
    """
    if not numerator or not denominator:
        return None
    above, below = ([math.log(value) for value in side] for side in (numerator, denominator))
    lead, n = fmean(above) - fmean(below), min(len(above), len(below))
    scatters = [variance(side) for side in (above, below) if len(side) > 1]
    if not scatters:
        return Ratio(lead, ASSUMED_SCATTER * math.sqrt(2), math.inf, n, assumed=True)
    if len(scatters) == 1:
        error = math.sqrt(scatters[0] * (1 / len(above) + 1 / len(below)))
        return Ratio(lead, error, max(len(above), len(below)) - 1, n)
    error, freedom = welch_error([(variance(side) / len(side), len(side)) for side in (above, below)])
    return Ratio(lead, error, freedom, n)


def paired_ratio(pairs: Iterable[tuple[float, float]]) -> Ratio | None:
    """The ratio of two samples that were measured in pairs, by Student's t on the pairs' logarithms.

    What moves both sides of a pair, such as the hour, is not in its scatter.

    Args:
        pairs: Rates that belong together, the numerator's first.

    Returns:
        The ratio; None with fewer than two pairs.
    """
    found = list(pairs)
    if len(found) < 2:
        return None
    leads = [math.log(above / below) for above, below in found]
    error = math.sqrt(variance(leads) / len(leads))
    return Ratio(fmean(leads), error, len(leads) - 1, len(leads))


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """The ratio of two geometric means with its bounds, of samples of one or more positive values."""
    found = ratio_of(numerator, denominator)
    assert found is not None, "a sample without a run has no ratio"
    return found.interval()


def next_value_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """The value that one more run stays below with this confidence, by the t of its logarithm.

    Unlike the largest value so far it does not grow with the runs (Hahn & Meeker, Statistical Intervals,
    1991, section 4.7). Fewer than ``ENOUGH_REPEATS`` runs are taken to scatter by
    ``ASSUMED_SCATTER`` or more.

    Args:
        values: Positive, one for each run, at least one.
        confidence: One-sided.
    """
    logs = [math.log(value) for value in values]
    scatter, freedom = math.sqrt(variance(logs)) if len(logs) > 1 else 0.0, float(len(logs) - 1)
    if len(logs) < ENOUGH_REPEATS:
        scatter, freedom = max(scatter, ASSUMED_SCATTER), math.inf
    reach = float(stdtrit(freedom, confidence)) * scatter * math.sqrt(1 + 1 / len(logs))
    return math.exp(fmean(logs) + reach)


def holm(p_values: Sequence[float]) -> list[float]:
    """P values of tests that are made together, adjusted (Holm, Scandinavian Journal of Statistics 6, 1979).

    The chance that any of those at or below 0.05 is false is at most 0.05, however many there are. One that
    is not known stays so and does not count.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted, least = list(p_values), 0.0
    for rank, (p, index) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[index] = least
    return adjusted


def runs_to_tell(ratio: Ratio, threshold: float) -> int | None:
    """Return the runs on each side that show on which side of a threshold a ratio lies, with ``POWER``.

    Args:
        ratio: The ratio so far; the true one is taken to be equal, and later runs to scatter as these.
        threshold: Ratio to be told from.

    Returns:
        The number, more than there are now; None if it would be above ``MOST_PLANNED``.
    """
    return _planned(ratio, tellable_leads(ratio.freedom_per_run), abs(ratio.log_mean - math.log(threshold)))


def runs_to_narrow(ratio: Ratio, factor: float) -> int | None:
    """Return the runs on each side with which the ends of the interval differ by a factor at most.

    Args:
        ratio: The ratio so far; later runs are taken to scatter as these.
        factor: The upper end over the lower one.

    Returns:
        The number, more than there are now; None if it would be above ``MOST_PLANNED``.
    """
    return _planned(ratio, half_widths(ratio.freedom_per_run), math.log(factor) / 2)


def _planned(ratio: Ratio, distances: Sequence[float], distance: float) -> int | None:
    for n, each in enumerate(distances, start=2):
        if n > ratio.n and each * ratio.scatter <= distance:
            return n
    return None


@cache
def tellable_leads(freedom_per_run: int) -> tuple[float, ...]:
    """Return the smallest leads that 2 to ``MOST_PLANNED`` runs on each side show with ``POWER``.

    A lead is shown if its 95 % interval does not hold the threshold; t is then noncentral. The leads are
    logarithms, in units of ``Ratio.scatter``.
    """
    found = []
    for n in range(2, MOST_PLANNED + 1):
        freedom = freedom_per_run * (n - 1)
        noncentrality = float(nctdtrinc(freedom, 1 - POWER, stdtrit(freedom, (1 + CONFIDENCE) / 2)))
        found.append(float(f"{noncentrality / math.sqrt(n):.6g}"))
    return tuple(found)


@cache
def half_widths(freedom_per_run: int) -> tuple[float, ...]:
    """Return half the width of a 95 % interval of 2 to ``MOST_PLANNED`` runs on each side.

    It is that of the logarithm, in units of ``Ratio.scatter``.
    """
    return tuple(
        float(f"{float(stdtrit(freedom_per_run * (n - 1), (1 + CONFIDENCE) / 2)) / math.sqrt(n):.6g}")
        for n in range(2, MOST_PLANNED + 1)
    )
