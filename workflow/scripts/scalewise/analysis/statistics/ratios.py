"""The ratio of two samples of rates, and how well it is known.

Rates scatter by factors, so they are compared on logarithms, by Welch's t (Biometrika 34, 1947): the two
samples may differ in size and in scatter. That assumes that logarithms of repeats are about normal. Ranks
assume less, but three runs that scatter by 10 % against twenty that scatter by 1 % cover the truth in 76 %
of the studies by ranks that state 95 %, and no method by ranks does better with three. What the assumption
costs where it does not hold is simulated: ``python benchmarks/run.py truth``, docs/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from scipy.special import stdtr, stdtrit

from scalewise.analysis.statistics.intervals import CONFIDENCE, Interval, welch_error

ASSUMED_SCATTER = 0.05
"""Standard deviation of logarithms that single runs are taken to have. Published repeats scatter by 0.3 to
0.6 % on GPUs of one cluster (DLPerf), CPU processes on a busy machine by up to 10 %."""

ROUNDING = 1e-9
"""Logarithms that differ by less are equal: sums round differently."""


@dataclass(frozen=True)
class Ratio:
    """The ratio of two samples of rates.

    Args:
        estimate: Ratio of the medians.
        log_mean: Difference of the mean logarithms.
        standard_error: Standard error of ``log_mean``.
        freedom: Degrees of freedom of the standard error; infinite where the scatter was assumed.
        n: Runs of the smaller sample.
        assumed: The scatter was not measured, because both samples are single runs.
    """

    estimate: float
    log_mean: float
    standard_error: float
    freedom: float
    n: int
    assumed: bool = False

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """The ratio with its bounds; single runs have none, and a confidence of 0."""
        if self.assumed:
            return Interval(self.estimate, self.estimate, self.estimate, 0.0, self.n)
        low, high = self.bounds(confidence)
        return Interval(self.estimate, low, high, confidence, self.n)

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Lowest and highest ratio that agree with the runs, the assumed scatter of single ones included."""
        reach = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.standard_error
        # the medians' ratio may lie outside where one run is far from the others
        low, high = math.exp(self.log_mean - reach), math.exp(self.log_mean + reach)
        return min(low, self.estimate), max(high, self.estimate)

    def p_above(self, threshold: float = 1.0) -> float:
        """One-sided p value that the ratio lies above a threshold.

        How probable so large a lead would be, were the ratio the threshold itself.
        """
        lead = self.log_mean - math.log(threshold)
        if self.standard_error == 0:
            return 0.0 if lead > ROUNDING else 1.0
        return float(stdtr(self.freedom, -lead / self.standard_error))


def ratio_of(
    numerator: Sequence[float], denominator: Sequence[float], spread: float | None = None
) -> Ratio | None:
    """The ratio of two independent samples, by Welch's t on logarithms.

    A single run is taken to scatter as the other sample does, two single ones as ``spread`` says.

    Args:
        numerator: Positive rates, one for each run.
        denominator: Positive rates in the same unit.
        spread: Standard deviation of the logarithms of single runs; by default ``ASSUMED_SCATTER``.

    Returns:
        The ratio; None where a sample is empty.
    """
    if not numerator or not denominator:
        return None
    above, below = ([math.log(value) for value in side] for side in (numerator, denominator))
    estimate, lead = median(numerator) / median(denominator), fmean(above) - fmean(below)
    n = min(len(above), len(below))
    scatters = [variance(side) for side in (above, below) if len(side) > 1]
    if not scatters:
        error = (ASSUMED_SCATTER if spread is None else spread) * math.sqrt(2)
        return Ratio(estimate, lead, error, math.inf, n, assumed=True)
    if len(scatters) == 1:
        error = math.sqrt(scatters[0] * (1 / len(above) + 1 / len(below)))
        return Ratio(estimate, lead, error, max(len(above), len(below)) - 1, n)
    error, freedom = welch_error([(variance(side) / len(side), len(side)) for side in (above, below)])
    return Ratio(estimate, lead, error, freedom, n)


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
    return Ratio(math.exp(median(leads)), fmean(leads), error, len(leads) - 1, len(leads))


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """The ratio of two medians with its bounds; both samples hold a run or more, of positive values."""
    found = ratio_of(numerator, denominator)
    assert found is not None, "a sample without a run has no ratio"
    return found.interval(confidence)


def next_value_bound(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """The value that one more run stays below with this confidence, by the t of its logarithm.

    Unlike the largest value so far it does not grow with the runs (Hahn & Meeker, Statistical Intervals,
    1991, section 4.7). A single run is taken to scatter by ``ASSUMED_SCATTER``.

    Args:
        values: Positive, one for each run, at least one.
        confidence: One-sided.
    """
    logs = [math.log(value) for value in values]
    scatter = math.sqrt(variance(logs)) if len(logs) > 1 else ASSUMED_SCATTER
    freedom = len(logs) - 1 if len(logs) > 1 else math.inf
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


def runs_to_tell(ratio: Ratio, threshold: float, confidence: float = CONFIDENCE) -> int | None:
    """Runs on each side with which a lead as it stands would be clear of a threshold, one-sided.

    Args:
        ratio: The ratio so far.
        threshold: Ratio to be told from.
        confidence: One-sided.

    Returns:
        The number, more than there are now; None where it would be above 100.
    """
    distance = abs(ratio.log_mean - math.log(threshold))
    scatter = ratio.standard_error * math.sqrt(ratio.n)
    for n in range(ratio.n + 1, 101):
        # both sides grow, and so does what is known of their scatter, which then is assumed no more
        known = 2.0 if ratio.assumed else max(ratio.freedom, 1.0) / max(ratio.n - 1, 1)
        freedom = known * (n - 1)
        if float(stdtrit(freedom, confidence)) * scatter / math.sqrt(n) <= distance:
            return n
    return None
