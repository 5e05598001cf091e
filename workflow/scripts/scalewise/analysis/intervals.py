"""Intervals that assume no distribution: from ranks of the repeats, exact for small samples.

With three repeats no 95 % interval exists. The widest that the data carry is given instead, with the
confidence that it really has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, median

CONFIDENCE = 0.95
EXACT_LIMIT = 40
"""Repeats of both samples up to which the rank-sum distribution is counted out."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds.

    Args:
        estimate: the value that is stated.
        low: lower bound.
        high: upper bound.
        confidence: probability that such an interval covers the true value; 0 for a single repeat.
        n: repeats it rests on; of a ratio, the smaller of the two samples.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    n: int

    def scaled(self, factor: float) -> Interval:
        """The interval of a multiple; the factor is positive."""
        return Interval(
            self.estimate * factor, self.low * factor, self.high * factor, self.confidence, self.n
        )


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median and the order statistics that bracket it.

    The number of values below the true median is binomial with 1/2 (Hoefler & Belli, SC'15, rule 6;
    Le Boudec, Performance Evaluation, 2010, section 2.2).

    Args:
        values: one for each repeat, at least one.
        confidence: to reach, if the sample is large enough.
    """
    ordered = sorted(values)
    n = len(ordered)
    chosen = 0
    while 2 * (chosen + 1) < n and _median_coverage(n, chosen + 1) >= confidence:
        chosen += 1
    coverage = _median_coverage(n, chosen)
    return Interval(median(ordered), ordered[chosen], ordered[n - 1 - chosen], coverage, n)


def _median_coverage(n: int, trim: int) -> float:
    """Probability that the median lies between the (trim+1)-th smallest and largest of n values."""
    outside = sum(math.comb(n, k) for k in range(trim + 1))
    return max(0.0, 1 - outside / 2.0 ** (n - 1))


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """The ratio of two medians, with the bounds of the rank-sum test turned round.

    The bounds are pairwise ratios, trimmed as the exact distribution of the Mann-Whitney statistic
    allows (Hodges & Lehmann 1963, on logarithms). Assumes that the two samples differ by a factor
    alone. Three against three repeats give 90 % by the smallest and largest ratio.

    Args:
        numerator: positive values, one for each repeat.
        denominator: likewise.
        confidence: to reach, if the samples are large enough.
    """
    ratios = sorted(top / bottom for top in numerator for bottom in denominator)
    chosen, coverage = _rank_sum_trim(len(numerator), len(denominator), confidence)
    estimate = median(numerator) / median(denominator)
    low, high = ratios[chosen], ratios[len(ratios) - 1 - chosen]
    n = min(len(numerator), len(denominator))
    return Interval(estimate, min(low, estimate), max(high, estimate), coverage, n)


def _rank_sum_trim(m: int, n: int, confidence: float) -> tuple[int, float]:
    """How many ratios may be left out at either end, and the coverage that remains.

    Exact for small samples, where it matters; by the normal approximation beyond.
    """
    if m + n > EXACT_LIMIT:
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        return max(math.floor(m * n / 2 - z * spread), 0), confidence
    orders = math.comb(m + n, m)
    tail, chosen, coverage = 0, 0, max(0.0, 1 - 2 / orders)
    for trim in range((m * n + 1) // 2):
        tail += _rank_sum_count(m, n, trim)
        if 1 - 2 * tail / orders < confidence:
            break
        chosen, coverage = trim, 1 - 2 * tail / orders
    return chosen, coverage


@cache
def _rank_sum_count(m: int, n: int, statistic: int) -> int:
    """Orders of m and n values with this Mann-Whitney statistic (Mann & Whitney 1947, recurrence)."""
    if statistic < 0:
        return 0
    if m == 0 or n == 0:
        return int(statistic == 0)
    return _rank_sum_count(m - 1, n, statistic - n) + _rank_sum_count(m, n - 1, statistic)
