"""Means of repeats with their 95 % intervals, by Student's t.

Rates and times scatter by factors: their geometric mean is stated, and t is of the logarithms. What may be
zero or negative has an arithmetic mean. Fewer than ``ENOUGH_REPEATS`` values have no interval: its bounds are
NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

CONFIDENCE = 0.95

ENOUGH_REPEATS = 3
"""Repeats below which next to nothing is known of their scatter: with 2 against 2, t may be 12.7."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds.

    Args:
        estimate: The value that is stated.
        low: Lower bound; NaN if unknown, as that of fewer than ``ENOUGH_REPEATS`` runs.
        high: Upper bound, likewise.
        n: Repeats it rests on; of a ratio, the smaller of the two samples.
    """

    estimate: float
    low: float
    high: float
    n: int

    @property
    def half_width_fraction(self) -> float:
        """Half the width over the estimate: 0.03 is read as "give or take 3 %".

        Infinite without an interval, and around an estimate of 0.
        """
        if math.isnan(self.low) or self.estimate == 0:
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
        return Interval(self.estimate * factor, self.low * factor, self.high * factor, self.n)


def geometric_interval(values: Sequence[float]) -> Interval:
    """Return the geometric mean of rates or times, by t on logarithms.

    Args:
        values: One for each repeat, at least one; positive.
    """
    if len(values) == 1:
        return Interval(values[0], math.nan, math.nan, 1)  # to the last digit
    logs = mean_interval([math.log(value) for value in values])
    return Interval(math.exp(logs.estimate), math.exp(logs.low), math.exp(logs.high), logs.n)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the arithmetic mean of values that may be zero or negative, by t.

    Args:
        values: One for each repeat, at least one.
    """
    mean, n = fmean(values), len(values)
    if n < ENOUGH_REPEATS:
        return Interval(mean, math.nan, math.nan, n)
    half = t_quantile(n - 1) * math.sqrt(variance(values) / n)
    return Interval(mean, mean - half, mean + half, n)


def difference_of(one: Interval, other: Interval) -> Interval:
    """Return the difference of two means that ``mean_interval`` gave, by Welch's t.

    Each has ``ENOUGH_REPEATS`` values or more. One end of an interval may have been cut off at a limit.
    """
    halves = [max(each.high - each.estimate, each.estimate - each.low) for each in (one, other)]
    parts = [(half / t_quantile(each.n - 1), each.n) for half, each in zip(halves, (one, other), strict=True)]
    error, freedom = welch_error([(half**2, n) for half, n in parts])
    estimate, half = one.estimate - other.estimate, t_quantile(freedom) * error
    return Interval(estimate, estimate - half, estimate + half, min(one.n, other.n))


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """Return half the width of Student's central interval, in standard errors."""
    # takes 0.3 s to load, and the display may end before there are two runs
    from scipy.special import stdtrit  # noqa: PLC0415

    return float(stdtrit(freedom, (1 + confidence) / 2))


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
