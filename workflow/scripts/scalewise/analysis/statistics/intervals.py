"""Intervals of medians that assume no distribution: from ranks of the repeats.

With three repeats no 95 % interval exists. The widest that the data carry is given instead, with the
confidence that it really has. With more, the interval has the confidence asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.95

ENOUGH_REPEATS = 3
"""Repeats below which next to nothing is known of their scatter: with 2 against 2, t may be 12.7."""


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


def welch_error(parts: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Standard error of a difference of means, and its degrees of freedom (Welch, Biometrika 34, 1947).

    Args:
        parts: The variance of each mean, and the number of values that it rests on, two or more.

    Returns:
        Both; where nothing scatters the freedom is that of all values together.
    """
    squared = sum(part for part, _ in parts)
    weights = sum(part**2 / (n - 1) for part, n in parts)
    return math.sqrt(squared), squared**2 / weights if weights else float(sum(n - 1 for _, n in parts))
