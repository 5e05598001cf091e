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


def next_bound(values: Sequence[float]) -> float:
    """The value that 95 % of further ones stay below, by Student's t on logarithms."""
    logs = np.log(values)
    error = logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs))
    return float(np.exp(stats.t.ppf(0.95, len(logs) - 1, loc=logs.mean(), scale=error)))
