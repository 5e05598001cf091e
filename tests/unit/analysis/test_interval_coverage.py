"""1,000 simulated studies with skewed noise: 95 % intervals cover the truth in 93 to 98 % of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from scalewise.analysis.statistics.intervals import geometric_interval
from scalewise.analysis.statistics.ratios import ratio_interval, ratio_of

STUDIES = 1000
LEAST, MOST = 0.93, 0.98
"""Three binomial standard errors are 0.02; of steep, skewed noise t says less than it knows."""

Draw = Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]

NOISE: dict[str, Draw] = {
    "slightly skewed": lambda generator, shape: generator.lognormal(0, 0.05, shape),
    "lognormal": lambda generator, shape: generator.lognormal(0, 1, shape),
    "shifted exponential": lambda generator, shape: 1 + 0.1 * generator.exponential(1, shape),
    "shifted gamma, steep": lambda generator, shape: 1 + generator.gamma(0.5, 1, shape),
}
"""Seconds of a run."""


@pytest.mark.parametrize("n", [2, 3, 6, 20])
def test_the_stated_time_is_the_true_one_in_95_of_100_studies_with_lognormal_noise(n: int) -> None:
    covered = 0
    for seconds in np.random.default_rng(20260103).lognormal(0, 0.1, (STUDIES, n)):
        interval = geometric_interval(seconds.tolist())
        covered += interval.low <= 1 <= interval.high
    assert LEAST <= covered / STUDIES <= MOST


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize(("m", "n"), [(3, 3), (3, 5), (6, 6), (10, 10), (5, 10), (21, 20)])
def test_the_stated_speedup_is_the_true_one_in_95_of_100_studies(m: int, n: int, noise: str) -> None:
    draw = NOISE[noise]
    generator = np.random.default_rng(20260104)
    true_speedup, covered = 3.6, 0
    for slow, fast in zip(draw(generator, (STUDIES, n)), draw(generator, (STUDIES, m)), strict=True):
        interval = ratio_interval((true_speedup / fast).tolist(), (1 / slow).tolist())
        covered += interval.low <= true_speedup <= interval.high
    assert LEAST <= covered / STUDIES <= MOST


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
    assert covered / STUDIES >= 0.93
    assert called / STUDIES <= 0.07
