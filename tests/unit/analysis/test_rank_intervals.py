"""Intervals cover what they say they cover, without assuming a distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from scalewise.analysis.intervals import Interval, median_interval, ratio_interval

TRIALS = 4000


@pytest.mark.parametrize(
    ("n", "low", "high", "confidence"),
    [
        (1, 10, 10, 0.0),
        (2, 10, 20, 1 - 2 / 4),
        (3, 10, 30, 1 - 2 / 8),
        (5, 10, 50, 1 - 2 / 32),
        (6, 10, 60, 1 - 2 / 64),
        (8, 10, 80, 1 - 2 / 256),
        (9, 20, 80, 1 - 2 * (1 + 9) / 512),
        (10, 20, 90, 1 - 2 * (1 + 10) / 1024),
        (12, 30, 100, 1 - 2 * (1 + 12 + 66) / 4096),
    ],
)
def test_a_median_is_bracketed_by_order_statistics_of_known_confidence(
    n: int, low: float, high: float, confidence: float
) -> None:
    values = [10.0 * rank for rank in range(n, 0, -1)]
    interval = median_interval(values)
    assert (interval.low, interval.high) == (low, high)
    assert interval.confidence == pytest.approx(confidence)
    assert interval.estimate == pytest.approx(10 * (n + 1) / 2)
    assert interval.n == n


def test_less_confidence_gives_a_narrower_interval() -> None:
    values = [float(value) for value in range(1, 10)]
    loose = median_interval(values, confidence=0.8)
    assert (loose.low, loose.high) == (3.0, 7.0)
    assert loose.confidence == pytest.approx(1 - 2 * (1 + 9 + 36) / 512)


def test_one_wild_repeat_does_not_move_a_median_of_many() -> None:
    calm = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    wild = median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9e9])
    assert wild == calm


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


def test_three_repeats_against_three_give_all_nine_ratios_at_ninety_percent() -> None:
    top, bottom = [190.0, 200.0, 212.0], [98.0, 100.0, 105.0]
    interval = ratio_interval(top, bottom)
    ratios = [a / b for a in top for b in bottom]
    assert (interval.low, interval.high) == (min(ratios), max(ratios))
    assert interval.confidence == pytest.approx(0.9)
    assert interval.estimate == 2.0
    assert interval.n == 3


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 3), (2, 3), (4, 4), (5, 4), (6, 6)])
def test_the_confidence_of_a_ratio_is_that_of_every_possible_order(m: int, n: int) -> None:
    """Exact by enumeration: which of the m + n ranks the numerator takes, all equally likely."""
    interval = ratio_interval([2.0**rank for rank in range(m)], [3.0**rank for rank in range(n)])
    ratios = sorted(2.0**a / 3.0**b for a in range(m) for b in range(n))
    trim = ratios.index(interval.low)
    assert interval.high == ratios[-1 - trim]
    inside = 0
    for taken in itertools.combinations(range(m + n), m):
        others = [rank for rank in range(m + n) if rank not in taken]
        above = sum(a > b for a in taken for b in others)
        inside += trim < above < m * n - trim
    assert interval.confidence == pytest.approx(inside / math.comb(m + n, m))


@pytest.mark.parametrize(("n", "stated"), [(3, 0.9), (4, 1 - 2 / 70), (6, 1 - 2 * 19 / 924)])
def test_a_ratio_is_narrowed_as_far_as_the_confidence_allows(n: int, stated: float) -> None:
    interval = ratio_interval([1.0] * n, [1.0] * n)
    assert interval.confidence == pytest.approx(stated)


@pytest.mark.parametrize("n", [3, 6, 9])
def test_ratios_of_skewed_samples_are_covered_as_often_as_stated(n: int) -> None:
    generator = np.random.default_rng(20260102)
    factor, covered, stated = 1.7, 0, 0.0
    for _ in range(TRIALS):
        bottom = generator.lognormal(0.0, 1.0, n)
        top = factor * generator.lognormal(0.0, 1.0, n)
        interval = ratio_interval(top.tolist(), bottom.tolist())
        covered += interval.low <= factor <= interval.high
        stated = interval.confidence
    assert covered / TRIALS == pytest.approx(stated, abs=0.03)


@pytest.mark.parametrize("seed", range(20))
def test_a_ratio_lies_within_its_own_bounds_and_inverts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    top, bottom = generator.lognormal(0, 2, 7).tolist(), generator.lognormal(0, 2, 5).tolist()
    there, back = ratio_interval(top, bottom), ratio_interval(bottom, top)
    assert there.low <= there.estimate <= there.high
    assert back.low == pytest.approx(1 / there.high)
    assert back.high == pytest.approx(1 / there.low)
    assert back.confidence == there.confidence
    assert there.n == 5


def test_a_multiple_keeps_its_confidence() -> None:
    assert Interval(4.0, 2.0, 8.0, 0.9, 3).scaled(0.25) == Interval(1.0, 0.5, 2.0, 0.9, 3)
