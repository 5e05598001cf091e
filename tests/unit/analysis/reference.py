"""The statistics of the decision by scipy only, to compare its figures with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def welch_bounds(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """The interval of the ratio of two samples, by Welch's t on logarithms."""
    found = stats.ttest_ind(np.log(above), np.log(below), equal_var=False).confidence_interval(0.95)
    return float(np.exp(found.low)), float(np.exp(found.high))


def welch_p(above: Sequence[float], below: Sequence[float]) -> float:
    """The one-sided p value that the first sample is larger, by Welch's t on logarithms."""
    found = stats.ttest_ind(np.log(above), np.log(below), equal_var=False, alternative="greater")
    return float(found.pvalue)


def ratio_bounds(
    above: Sequence[float], below: Sequence[float], *others: Sequence[float]
) -> tuple[float, float]:
    """The interval of the ratio of two points of a study, without blocks.

    A variance borrows one degree of freedom from the median of all points' variances, and never falls.
    """
    lead, error, freedom = _borrowed(above, below, others)
    reach = stats.t.ppf(0.975, freedom) * error
    return float(np.exp(lead - reach)), float(np.exp(lead + reach))


def ratio_p(above: Sequence[float], below: Sequence[float], *others: Sequence[float]) -> float:
    """The one-sided p value that the first point is larger."""
    lead, error, freedom = _borrowed(above, below, others)
    return float(stats.t.sf(lead / error, freedom))


def _borrowed(
    above: Sequence[float], below: Sequence[float], others: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    known = [(len(each) - 1, np.var(np.log(each), ddof=1)) for each in (above, below, *others)]
    of_all = np.median([variance / (stats.chi2.median(free) / free) for free, variance in known])
    parts = [
        (max(variance, (free * variance + of_all) / (free + 1)) / (free + 1), free + 1)
        for free, variance in known[:2]
    ]
    squared = sum(part for part, _ in parts)
    freedom = squared**2 / sum(part**2 / free for part, free in parts)
    return float(np.mean(np.log(above)) - np.mean(np.log(below))), float(np.sqrt(squared)), float(freedom)


def next_bound(values: Sequence[float]) -> float:
    """The value that 95 % of further ones stay below, by Student's t on logarithms."""
    logs = np.log(values)
    error = logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs))
    return float(np.exp(stats.t.ppf(0.95, len(logs) - 1, loc=logs.mean(), scale=error)))
