"""1,000 simulated studies with skewed noise: 95 % intervals cover the truth in 93 to 98 % of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from scalewise.analysis.statistics.intervals import median_interval
from scalewise.analysis.statistics.ratios import ratio_interval, ratio_of

STUDIES = 1000
LEAST, MOST = 0.93, 0.98
"""Three binomial standard errors are 0.02; of steep, skewed noise t says less than it knows."""

Draw = Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]

NOISE: dict[str, tuple[Draw, float]] = {
    "slightly skewed": (lambda generator, shape: generator.lognormal(0, 0.05, shape), 1.0),
    "lognormal": (lambda generator, shape: generator.lognormal(0, 1, shape), 1.0),
    "shifted exponential": (
        lambda generator, shape: 1 + 0.1 * generator.exponential(1, shape),
        1 + 0.1 * math.log(2),
    ),
    "shifted gamma, steep": (
        lambda generator, shape: 1 + generator.gamma(0.5, 1, shape),
        1 + stats.gamma(0.5).median(),
    ),
}
"""Seconds of a run where it should take 1, and their true median."""


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("n", [6, 7, 8, 10, 20])
def test_the_stated_median_is_the_true_one_in_95_of_100_studies(n: int, noise: str) -> None:
    draw, true_median = NOISE[noise]
    covered = 0
    for seconds in draw(np.random.default_rng(20260103), (STUDIES, n)):
        interval = median_interval(seconds.tolist())
        assert interval.confidence == 0.95
        covered += interval.low <= true_median <= interval.high
    assert LEAST <= covered / STUDIES <= MOST


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("m", "n"), [(3, 3), (3, 5), (6, 6), (10, 10), (5, 10), (21, 20)])
def test_the_stated_speedup_is_the_true_one_in_95_of_100_studies(m: int, n: int, noise: str) -> None:
    draw, _ = NOISE[noise]
    generator = np.random.default_rng(20260104)
    true_speedup, covered = 3.6, 0
    for slow, fast in zip(draw(generator, (STUDIES, n)), draw(generator, (STUDIES, m)), strict=True):
        interval = ratio_interval((true_speedup / fast).tolist(), (1 / slow).tolist())
        assert interval.confidence == 0.95
        covered += interval.low <= true_speedup <= interval.high
    assert LEAST <= covered / STUDIES <= MOST


@pytest.mark.parametrize("noise", NOISE)
def test_the_median_of_three_repeats_is_covered_as_often_as_stated(noise: str) -> None:
    draw, true_median = NOISE[noise]
    covered = 0
    for seconds in draw(np.random.default_rng(20260105), (STUDIES, 3)):
        interval = median_interval(seconds.tolist())
        assert interval.confidence == 0.75
        covered += interval.low <= true_median <= interval.high
    assert covered / STUDIES == pytest.approx(0.75, abs=0.04)


def test_three_runs_that_scatter_ten_times_as_much_as_twenty_others_are_covered_too() -> None:
    """By the ranks of all pairwise ratios, 95 % stated were 76 %."""
    generator = np.random.default_rng(20260106)
    truth, covered, called = 1.9, 0, 0
    for few, many in zip(
        generator.lognormal(0, 0.10, (STUDIES, 3)), generator.lognormal(0, 0.01, (STUDIES, 20)), strict=True
    ):
        interval = ratio_interval((truth * few).tolist(), many.tolist())
        covered += interval.low <= truth <= interval.high
        equal = ratio_of(few.tolist(), many.tolist())
        assert equal is not None
        called += equal.p_above() <= 0.05
    assert interval.confidence == 0.95
    assert covered / STUDIES >= 0.93
    assert called / STUDIES <= 0.07
