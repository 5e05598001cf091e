"""Intervals that assume no distribution: from ranks of the repeats.

With three repeats no 95 % interval exists. The widest that the data carry is given instead, with the
confidence that it really has. With more, the interval has the confidence asked for.
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
        estimate: The value that is stated.
        low: Lower bound.
        high: Upper bound.
        confidence: Probability that such an interval covers the true value; 0 for a single repeat.
        n: Repeats it rests on; of a ratio, the smaller of the two samples.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    n: int

    @property
    def half_width_fraction(self) -> float:
        """Half the width over the estimate: 0.03 is read as "give or take 3 %".

        Infinite for a single repeat, which says nothing about its own spread, and around an estimate of 0.
        """
        if self.confidence == 0 or self.estimate == 0:
            return math.inf
        return (self.high - self.low) / 2 / abs(self.estimate)

    def as_columns(self, name: str) -> dict[str, float]:
        """The columns of a table that hold the interval: ``{name}``, ``{name}_low`` and ``{name}_high``."""
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}

    def as_dict(self) -> dict[str, float | None]:
        """Estimate and bounds for JSON, which has no infinity: None stands for it."""
        values = {"estimate": self.estimate, "low": self.low, "high": self.high}
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    def scaled(self, factor: float) -> Interval:
        """The interval of a multiple; the factor is positive."""
        return Interval(
            self.estimate * factor, self.low * factor, self.high * factor, self.confidence, self.n
        )


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median, with bounds between the order statistics that bracket it.

    The number of values below the true median is binomial with 1/2 (Hoefler & Belli, SC'15, rule 6;
    Le Boudec, Performance Evaluation, 2010, section 2.2), so order statistics give few confidences, far
    apart: of 7 values 98.4 % or 87.5 %. Bounds between two neighbours give the one asked for, with a weight
    that depends little on the distribution (Hettmansperger & Sheather, Statistics & Probability Letters 4,
    1986). 95 % needs 6 values; fewer give their smallest and largest, with the confidence of that.

    Args:
        values: One for each repeat, at least one.
        confidence: Confidence to reach, if the sample is large enough.
    """
    ordered = sorted(values)
    n = len(ordered)
    # half of what lies outside, counted in outcomes of n throws of a coin: exact for any n
    outside, ways, trim = 1, 1, 0
    wide = _median_coverage(n, outside)
    if wide < confidence:
        return Interval(median(ordered), ordered[0], ordered[-1], wide, n)
    while True:
        ways = ways * (n - trim) // (trim + 1)
        outside += ways
        narrow = _median_coverage(n, outside)
        if narrow < confidence:
            break
        wide, trim = narrow, trim + 1
    share = (wide - confidence) / (wide - narrow)
    depth = trim + 1
    weight = (n - depth) * share / (depth + (n - 2 * depth) * share)
    low = ordered[trim] + weight * (ordered[trim + 1] - ordered[trim])
    high = ordered[-1 - trim] - weight * (ordered[-1 - trim] - ordered[-2 - trim])
    return Interval(median(ordered), low, high, confidence, n)


def _median_coverage(n: int, outside: int) -> float:
    """Probability of all but twice so many of the 2**n ways in which n values fall about their median."""
    return max(0.0, 1 - outside / (1 << (n - 1)))


def ratio_interval(
    numerator: Sequence[float], denominator: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """The ratio of two medians, with the bounds of the rank-sum test turned round.

    The bounds are pairwise ratios, trimmed as the exact distribution of the Mann-Whitney statistic allows
    (Hodges & Lehmann 1963, on logarithms), and between two neighbouring ones so that the confidence asked
    for is the one given. 95 % needs 4 against 4 repeats, or 3 against 5; three against three give 90 % by
    the smallest and largest ratio.

    Assumes that the two samples differ by a factor alone. Where one scatters three times as much as the
    other, 95 % become about 93 %; ten times, about 90 % (and the 90 % of three against three about 80 %).

    Args:
        numerator: Positive values, one for each repeat.
        denominator: Positive values, one for each repeat.
        confidence: Confidence to reach, if the samples are large enough.
    """
    ratios = sorted(top / bottom for top in numerator for bottom in denominator)
    trim, weight, coverage = _rank_sum_trim(len(numerator), len(denominator), confidence)
    estimate = median(numerator) / median(denominator)
    inner = min(trim + 1, len(ratios) - 1)
    low = ratios[trim] * (ratios[inner] / ratios[trim]) ** weight
    high = ratios[-1 - trim] * (ratios[-1 - inner] / ratios[-1 - trim]) ** weight
    n = min(len(numerator), len(denominator))
    return Interval(estimate, min(low, estimate), max(high, estimate), coverage, n)


def _rank_sum_trim(m: int, n: int, confidence: float) -> tuple[int, float, float]:
    """Ratios to leave out at either end, the share of the way to the next one, and the coverage reached.

    Exact for small samples, where it matters; by the normal approximation beyond.
    """
    if m + n > EXACT_LIMIT:
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        exact = max(m * n / 2 - z * spread - 0.5, 0.0)
        return int(exact), exact % 1, confidence
    orders = math.comb(m + n, m)
    tail = _rank_sum_count(m, n, 0)
    wide = max(0.0, 1 - 2 * tail / orders)
    if wide < confidence:
        return 0, 0.0, wide
    for trim in range(1, m * n):
        tail += _rank_sum_count(m, n, trim)
        narrow = 1 - 2 * tail / orders
        if narrow < confidence:
            return trim - 1, (wide - confidence) / (wide - narrow), confidence
        wide = narrow
    raise AssertionError("an interval without any ratio in it has no confidence left")


@cache
def _rank_sum_count(m: int, n: int, statistic: int) -> int:
    """Orders of m and n values with this Mann-Whitney statistic (Mann & Whitney 1947, recurrence)."""
    if statistic < 0:
        return 0
    if m == 0 or n == 0:
        return int(statistic == 0)
    return _rank_sum_count(m - 1, n, statistic - n) + _rank_sum_count(m, n - 1, statistic)
