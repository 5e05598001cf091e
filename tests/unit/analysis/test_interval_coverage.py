"""1,000 simulated studies with skewed noise: 95 % intervals cover the truth in 93 to 97 % of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from scalewise.analysis.statistics.intervals import median_interval, ratio_interval

STUDIES = 1000
LEAST, MOST = 0.93, 0.97

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
@pytest.mark.parametrize(("m", "n"), [(4, 4), (3, 5), (5, 5), (6, 6), (10, 10), (5, 10), (21, 20)])
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
def test_three_repeats_cover_as_often_as_they_say(noise: str) -> None:
    draw, true_median = NOISE[noise]
    generator = np.random.default_rng(20260105)
    medians = ratios = 0
    for seconds, others in zip(draw(generator, (STUDIES, 3)), draw(generator, (STUDIES, 3)), strict=True):
        median, ratio = median_interval(seconds.tolist()), ratio_interval(seconds.tolist(), others.tolist())
        assert median.confidence == 0.75
        assert ratio.confidence == pytest.approx(0.9)
        medians += median.low <= true_median <= median.high
        ratios += ratio.low <= 1 <= ratio.high
    assert medians / STUDIES == pytest.approx(0.75, abs=0.04)
    assert ratios / STUDIES == pytest.approx(0.9, abs=0.03)
