"""Means and ratios, their 95 % intervals and p values: against scipy, by hand, and in simulated studies."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from scalewise.analysis.statistics import (
    ASSUMED_SCATTER,
    Ratio,
    Sample,
    Scatter,
    Tries,
    geometric_interval,
    mean_interval,
    next_value_bound,
    ratio_of,
    scatter_of,
    target_ratio,
)


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


@pytest.mark.parametrize("n", [3, 10])
def test_a_mean_has_students_interval_and_a_geometric_one_that_of_the_logarithms(n: int) -> None:
    values = np.random.default_rng(n).normal(2, 0.3, n)
    found = mean_interval((values - 2).tolist())
    expected = stats.ttest_1samp(values - 2, 0).confidence_interval(0.95)
    assert (found.estimate, found.low, found.high) == pytest.approx((values.mean() - 2, *expected))
    found = geometric_interval(values.tolist())
    expected = np.exp(stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95))
    assert (found.estimate, found.low, found.high) == pytest.approx((stats.gmean(values), *expected))
    assert found.n == n


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_runs_have_no_interval(n: int) -> None:
    few, many = [100.0, 150.0][:n], [97.0, 100.0, 103.0]
    means = [mean_interval(few), geometric_interval(few)]
    for found in (*means, ratio(few, many).interval(), ratio(many, few).interval()):
        assert (found.n, math.isnan(found.low), math.isnan(found.high)) == (n, True, True)
    assert [each.estimate for each in means] == pytest.approx([np.mean(few), stats.gmean(few)])


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    found = ratio_of(Sample.of(numerator), Sample.of(denominator))
    assert found is not None
    return found


def drawn(seed: int, m: int, n: int) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(seed)
    return generator.lognormal(0.1, 0.2, m).tolist(), generator.lognormal(0, 0.02, n).tolist()


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 20), (10, 4)])
def test_bounds_and_p_values_are_those_of_welchs_test_on_logarithms(m: int, n: int) -> None:
    above, below = drawn(m * n, m, n)
    found = ratio(above, below)
    assert (found.at_least, found.at_most) == pytest.approx(welch_bounds(above, below))
    for threshold in (1.0, 1.3):
        shifted = np.divide(above, threshold).tolist()
        assert found.p_above(threshold) == pytest.approx(welch_p(shifted, below))
    assert found.n == min(m, n)


def test_a_single_run_is_taken_to_scatter_as_the_other_sample_does() -> None:
    found = ratio([200.0], [98.0, 100.0, 105.0])
    logs = np.log([98.0, 100.0, 105.0])
    error = logs.std(ddof=1) * math.sqrt(1 + 1 / 3)
    lead = math.log(200) - logs.mean()
    low, high = np.exp(stats.t.interval(0.95, 2, loc=lead, scale=error))
    assert (found.at_least, found.at_most) == pytest.approx((low, high))
    assert found.p_above() == pytest.approx(stats.t(2).sf(lead / error))


def test_two_single_runs_have_no_interval_but_a_test_by_an_assumed_scatter() -> None:
    found = ratio([120.0], [100.0])
    assert math.isnan(found.interval().low)
    z = math.log(1.2) / (ASSUMED_SCATTER * math.sqrt(2))
    assert found.p_above() == pytest.approx(stats.norm.sf(z))


def in_blocks(rates: Sequence[float]) -> Sample:
    return Sample.of(rates, range(1, len(rates) + 1))


PAIRS = [(190.0, 98.0), (200.0, 101.0), (230.0, 118.0), (150.0, 80.0)]


def test_runs_of_the_same_blocks_are_compared_in_pairs() -> None:
    above, below = (in_blocks(side) for side in zip(*PAIRS, strict=True))
    found = ratio_of(above, below)
    assert found is not None
    leads = [math.log(one / other) for one, other in PAIRS]
    bounds = stats.ttest_1samp(leads, 0).confidence_interval(0.95)
    assert (found.at_least, found.at_most) == pytest.approx(np.exp(bounds))
    p = stats.ttest_1samp(leads, math.log(1.9), alternative="greater").pvalue
    assert found.p_above(1.9) == pytest.approx(p)
    assert found.n == 4
    assert found.estimate == pytest.approx(stats.gmean([one / other for one, other in PAIRS]))


def test_a_point_borrows_one_degree_of_freedom_from_all_points_and_never_scatters_less() -> None:
    quiet, usual, loud = [100.0, 101.0, 99.0], [200.0, 206.0, 195.0], [400.0, 470.0, 350.0]
    scatter = scatter_of(map(Sample.of, (quiet, usual, loud)))
    variance = {rates[0]: np.var(np.log(rates), ddof=1) for rates in (quiet, usual, loud)}
    of_all = np.median([*variance.values()]) / (stats.chi2.median(2) / 2)
    for above, below in ((usual, quiet), (loud, quiet), (loud, usual)):
        parts = [max(own, (2 * own + of_all) / 3) / 3 for own in (variance[above[0]], variance[below[0]])]
        freedom = sum(parts) ** 2 / sum(part**2 / 3 for part in parts)
        lead, reach = np.log(stats.gmean(above) / stats.gmean(below)), stats.t.ppf(0.975, freedom)
        ends = [lead + sign * reach * np.sqrt(sum(parts)) for sign in (-1, 1)]
        found = ratio_of(Sample.of(above), Sample.of(below), scatter)
        assert found is not None
        assert (found.at_least, found.at_most) == pytest.approx(np.exp(ends))


SLOWED = [100.0, 101.0, 99.0, 100.5, 70.0, 99.5]


def test_a_run_that_stands_apart_may_leave_a_comparison_open_and_cannot_decide_it() -> None:
    above = [121.0, 120.0, 119.0, 120.5, 119.5, 120.2]
    found = ratio(above, SLOWED)
    without = ratio(above, [rate for rate in SLOWED if rate != 70.0])
    # the mean of all is in the interval, which begins at that of the usual runs
    assert found.at_least == pytest.approx(without.at_least)
    assert found.at_most == found.estimate == pytest.approx(stats.gmean(above) / stats.gmean(SLOWED))
    assert found.p_above(1.15) < 0.025
    assert found.p_above(1.23) == 0.5
    # two of six are no accident, and no interval without them is narrow
    often = ratio(above, [70.0, *SLOWED[1:]])
    assert (often.at_least, often.at_most) == pytest.approx(welch_bounds(above, [70.0, *SLOWED[1:]]))


# --- the time to a target -------------------------------------------------------------------------------


def test_a_point_that_rarely_reaches_the_target_is_shown_to_be_slow() -> None:
    """One of three runs in 100 s, against three of three in 16 s: 6.2 times as long without failures."""
    rarely = Tries(Sample.of([100.0]), failed=(150.0, 150.0))
    always = Tries(Sample.of([16.0, 16.1, 15.9]))
    found = target_ratio(rarely, always, Scatter(0.01**2))
    assert found is not None
    assert found.estimate == pytest.approx(4.0 * 100 / 16, rel=1e-3)
    assert found.at_least > 3.5
    assert found.p_above(1.05) < 0.01
    assert found.scaled(2.0).at_least == pytest.approx(2 * found.at_least)


def test_the_bound_of_the_next_value_by_hand() -> None:
    values = [100.0, 102.0, 98.0, 101.0]
    assert next_value_bound(values) == pytest.approx(next_bound(values))
    single = 100 * math.exp(stats.norm.ppf(0.95) * ASSUMED_SCATTER * math.sqrt(2))
    assert next_value_bound([100.0]) == pytest.approx(single)
    # two are taken to scatter by as much, or by more
    two = 100 * math.exp(stats.norm.ppf(0.95) * ASSUMED_SCATTER * math.sqrt(1.5))
    assert next_value_bound([100.0, 100.0]) == pytest.approx(two)
    apart = math.sqrt(100 * 150) * math.exp(
        stats.norm.ppf(0.95) * math.log(1.5) / math.sqrt(2) * math.sqrt(1.5)
    )
    assert next_value_bound([100.0, 150.0]) == pytest.approx(apart)


# --- coverage in simulated studies: python -m tests.truth has other noise -------------------------------
