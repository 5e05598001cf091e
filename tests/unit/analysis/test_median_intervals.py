"""Intervals of medians cover what they say they cover, without assuming a distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scalewise.analysis.statistics.intervals import Interval, median_interval

TRIALS = 4000


@pytest.mark.parametrize(
    ("n", "low", "high", "confidence"),
    [(1, 10, 10, 0.0), (2, 10, 20, 1 - 2 / 4), (3, 10, 30, 1 - 2 / 8), (5, 10, 50, 1 - 2 / 32)],
)
def test_few_repeats_give_the_widest_interval_with_the_confidence_it_really_has(
    n: int, low: float, high: float, confidence: float
) -> None:
    values = [10.0 * rank for rank in range(n, 0, -1)]
    interval = median_interval(values)
    assert (interval.low, interval.high) == (low, high)
    assert interval.confidence == pytest.approx(confidence)
    assert interval.estimate == pytest.approx(10 * (n + 1) / 2)
    assert interval.n == n


@pytest.mark.parametrize(("n", "rank"), [(6, 1), (7, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6)])
def test_a_95_percent_median_lies_between_order_statistics_of_more_and_of_less_confidence(
    n: int, rank: int
) -> None:
    """The ranks are those of the binomial table: the outer pair covers 95 % or more, the next less."""
    interval = median_interval([float(value) for value in range(1, n + 1)])
    assert interval.confidence == 0.95
    assert rank < interval.low < rank + 1
    assert interval.high == pytest.approx(n + 1 - interval.low)


def test_six_repeats_are_narrowed_from_969_to_950_permille() -> None:
    """By hand: coverages 0.96875 and 0.78125, so a tenth of the way; weight 5 * 0.1 / (1 + 4 * 0.1)."""
    interval = median_interval([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    assert interval.low == pytest.approx(10 + 10 * 0.5 / 1.4)
    assert interval.high == pytest.approx(60 - 10 * 0.5 / 1.4)


def test_less_confidence_gives_a_narrower_interval() -> None:
    values = [float(value) for value in range(1, 10)]
    loose = median_interval(values, confidence=0.8)
    assert 3 < loose.low < 4
    assert 6 < loose.high < 7
    assert loose.confidence == 0.8


def test_thousands_of_windows_are_no_trouble() -> None:
    interval = median_interval([float(value) for value in range(1, 3001)])
    expected = 1.96 * math.sqrt(3000) / 2
    assert interval.high - interval.estimate == pytest.approx(expected, rel=0.01)


def test_one_wild_repeat_does_not_move_a_median_of_many() -> None:
    undisturbed_run = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    wild = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9e9])
    assert wild == undisturbed_run


@pytest.mark.parametrize("n", [3, 6, 9])
def test_medians_of_a_skewed_distribution_are_covered_as_often_as_stated(n: int) -> None:
    generator = np.random.default_rng(20260101)
    true_median = 1.0
    covered = 0
    stated = median_interval([1.0] * n).confidence
    for sample in generator.lognormal(0.0, 1.5, (TRIALS, n)):
        interval = median_interval(sample.tolist())
        covered += interval.low <= true_median <= interval.high
    assert covered / TRIALS == pytest.approx(stated, abs=0.03)


def test_a_multiple_keeps_its_confidence() -> None:
    assert Interval(4.0, 2.0, 8.0, 0.9, 3).scaled(0.25) == Interval(1.0, 0.5, 2.0, 0.9, 3)


def test_a_half_width_is_told_as_a_fraction_of_the_estimate() -> None:
    assert Interval(100.0, 98.0, 104.0, 0.9, 3).half_width_fraction == pytest.approx(0.03)


def test_a_single_repeat_is_never_narrow_enough() -> None:
    assert median_interval([100.0]).half_width_fraction == math.inf
