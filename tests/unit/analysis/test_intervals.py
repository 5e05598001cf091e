"""Means and their 95 % intervals, against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from scalewise.analysis.statistics.intervals import (
    Interval,
    difference_of,
    geometric_interval,
    mean_interval,
)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_a_mean_has_students_interval_and_a_geometric_one_that_of_the_logarithms(n: int) -> None:
    values = np.random.default_rng(n).normal(2, 0.3, n)
    found = mean_interval((values - 2).tolist())
    expected = stats.ttest_1samp(values - 2, 0).confidence_interval(0.95)
    assert (found.estimate, found.low, found.high) == pytest.approx((values.mean() - 2, *expected))
    found = geometric_interval(values.tolist())
    expected = np.exp(stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95))
    assert (found.estimate, found.low, found.high) == pytest.approx((stats.gmean(values), *expected))
    assert found.n == n


def test_a_single_value_has_no_interval() -> None:
    for alone in (mean_interval([3.0]), geometric_interval([3.0])):
        assert alone.estimate == pytest.approx(3.0)
        assert math.isnan(alone.low)
        assert math.isnan(alone.high)
        assert alone.half_width_fraction == math.inf
        assert alone.as_dict()["low"] is None


def test_the_difference_of_two_means_has_welchs_interval() -> None:
    one, other = [0.93, 0.94, 0.95, 0.99], [0.90, 0.91, 0.93]
    found = difference_of(mean_interval(one), mean_interval(other))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_a_multiple_keeps_its_width() -> None:
    assert Interval(4.0, 2.0, 8.0, 3).scaled(0.25) == Interval(1.0, 0.5, 2.0, 3)


def test_half_the_width_is_read_as_a_share_of_the_estimate() -> None:
    assert Interval(100.0, 98.0, 104.0, 3).half_width_fraction == pytest.approx(0.03)
