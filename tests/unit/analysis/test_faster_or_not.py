"""Whether more devices are faster is told from chance, and few runs are not asked for more than they know."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from scalewise.analysis.statistics.significance import is_faster


@pytest.mark.parametrize(
    ("m", "n", "least"), [(3, 3, 1 / 20), (2, 3, 1 / 10), (1, 3, 1 / 4), (5, 5, 1 / 252), (2, 2, 1 / 6)]
)
def test_the_least_p_is_that_of_one_order_among_all(m: int, n: int, least: float) -> None:
    slow, fast = [100.0 + run for run in range(n)], [200.0 + run for run in range(m)]
    assert is_faster(fast, slow) == pytest.approx(least)
    assert is_faster(slow, fast) == 1.0


@pytest.mark.parametrize(("rates", "than"), [([200.0], [100.0]), ([], [100.0, 101.0]), ([100.0, 101.0], [])])
def test_one_run_each_shows_nothing(rates: list[float], than: list[float]) -> None:
    assert math.isnan(is_faster(rates, than))


def test_equal_runs_are_not_faster() -> None:
    assert is_faster([100.0, 100.0, 100.0], [100.0, 100.0, 100.0]) == 1.0


def test_the_unit_of_the_rates_does_not_matter() -> None:
    fast, slow = [0.11, 0.12, 0.10, 0.13], [0.10, 0.09, 0.11, 0.095]
    assert is_faster([3e9 * rate for rate in fast], [3e9 * rate for rate in slow]) == is_faster(fast, slow)


@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 6), (5, 5)])
def test_the_p_value_is_that_of_scipys_permutation_test(m: int, n: int) -> None:
    generator = np.random.default_rng(m * n)
    first, second = generator.lognormal(0.1, 0.2, m), generator.lognormal(0, 0.2, n)
    reference = stats.permutation_test(
        (np.log(first), np.log(second)),
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        alternative="greater",
        n_resamples=np.inf,
    )
    assert is_faster(first.tolist(), second.tolist()) == pytest.approx(reference.pvalue)


def test_chance_alone_is_called_faster_in_at_most_5_of_100_studies() -> None:
    generator = np.random.default_rng(20260106)
    studies = 2000
    called = sum(
        is_faster(generator.lognormal(0, 0.5, 4).tolist(), generator.lognormal(0, 0.5, 4).tolist()) <= 0.05
        for _ in range(studies)
    )
    # 3 of the 70 orders of 4 against 4 have p of 0.05 or less
    assert called / studies == pytest.approx(3 / 70, abs=0.012)


def test_many_runs_are_told_apart_by_drawn_divisions_the_same_way_every_time() -> None:
    generator = np.random.default_rng(20260107)
    slow, fast = generator.lognormal(0, 0.1, 15), generator.lognormal(0.03, 0.1, 15)
    p = is_faster(fast.tolist(), slow.tolist())
    normal = stats.ttest_ind(np.log(fast), np.log(slow), alternative="greater").pvalue
    assert p == pytest.approx(normal, rel=0.1)
    assert p == is_faster(fast.tolist(), slow.tolist())
    assert 0 < is_faster((fast * 100).tolist(), slow.tolist()) < 1e-4
