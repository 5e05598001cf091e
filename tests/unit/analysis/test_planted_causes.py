"""Causes in studies whose truth is planted: how often they are found, and how often one is invented.

The whole table is `python -m tests.truth`; here are few draws of it, with fixed seeds.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom
from tests.truth.causes import FOUND, Truth, cause_rates, planted_runs


@pytest.mark.parametrize("cause", FOUND)
def test_a_cause_of_15_percent_is_found_by_three_runs_that_scatter_by_3_percent(cause: str) -> None:
    rates = cause_rates([cause], 5, scatters=(0.03,), repeats=(3,))
    assert rates["rate"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("truth", "scatter", "studies"),
    [
        ("nothing lost", 0.03, 8),
        ("nothing lost", 0.1, 40),
        ("jitter of 25 % a step", 0.03, 8),
        ("another slow rank in each run", 0.03, 25),
    ],
)
@pytest.mark.slow
def test_causes_are_not_invented_more_often_than_in_one_study_of_twenty(
    truth: str, scatter: float, studies: int
) -> None:
    rates = cause_rates([truth], studies, scatters=(scatter,), repeats=(3,))
    # so many draws cannot tell 5 % from a little more: they refuse what they have not seen in 95 % of cases
    assert studies * rates["rate"].max() <= binom.ppf(0.95, studies, 0.05)


def test_a_planted_share_is_the_share_that_is_measured() -> None:
    runs = planted_runs(Truth(communication=0.25), 0.0, 1, np.random.default_rng(1))
    most = runs[runs["devices"] == 16].iloc[0]
    assert most["communication_seconds"] / most["step_seconds"] == pytest.approx(0.2, rel=0.03)
    assert most["jitter_seconds"] < 0.03 * most["step_seconds"]
    jittery = planted_runs(Truth(jitter=0.25), 0.0, 1, np.random.default_rng(1)).iloc[-1]
    assert jittery["communication_seconds"] == pytest.approx(0.0, abs=1e-9)
    # the largest of 16 normal values lies 1.77 standard deviations above their mean
    assert jittery["jitter_seconds"] + jittery["straggler_seconds"] == pytest.approx(
        0.25 * 1.77 / 16, rel=0.25
    )
