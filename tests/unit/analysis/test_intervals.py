"""Means and ratios, their 95 % intervals and p values: against scipy, by hand, and in simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.unit.analysis.reference import next_bound, welch_bounds, welch_p

from scalewise.analysis.statistics import (
    ASSUMED_SCATTER,
    Interval,
    Ratio,
    difference_of,
    geometric_interval,
    holm,
    mean_interval,
    next_value_bound,
    paired_ratio,
    ratio_interval,
    ratio_of,
    runs_to_narrow,
    runs_to_tell,
)


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
    for found in (mean_interval(few), geometric_interval(few)):
        assert found.n == n
        assert math.isnan(found.low)
        assert math.isnan(found.high)
    for found in (ratio_interval(few, many), ratio_interval(many, few)):
        assert found.n == n
        assert math.isnan(found.low)
        assert math.isnan(found.high)


def test_a_single_value_has_no_interval() -> None:
    for single in (mean_interval([3.0]), geometric_interval([3.0])):
        assert single.estimate == pytest.approx(3.0)
        assert math.isnan(single.low)
        assert math.isnan(single.high)
        assert single.half_width_fraction == math.inf
        assert single.as_dict()["low"] is None


def test_the_difference_of_two_means_has_welchs_interval() -> None:
    one, other = [0.93, 0.94, 0.95, 0.99], [0.90, 0.91, 0.93]
    found = difference_of(mean_interval(one), mean_interval(other))
    expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_a_multiple_keeps_its_width_and_half_the_width_is_a_share_of_the_estimate() -> None:
    assert Interval(4.0, 2.0, 8.0, 3).scaled(0.25) == Interval(1.0, 0.5, 2.0, 3)
    assert Interval(100.0, 98.0, 104.0, 3).half_width_fraction == pytest.approx(0.03)


FAST, SLOW = [190.0, 200.0, 212.0], [98.0, 100.0, 105.0, 99.0]


def ratio(numerator: list[float], denominator: list[float]) -> Ratio:
    found = ratio_of(numerator, denominator)
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


def test_the_estimate_is_the_ratio_of_geometric_means_in_the_middle_of_its_bounds() -> None:
    """The other way round all are inverse, and the unit does not matter."""
    there, back = ratio_interval(FAST, SLOW), ratio_interval(SLOW, FAST)
    assert there.estimate == pytest.approx(stats.gmean(FAST) / stats.gmean(SLOW))
    assert there.estimate == pytest.approx(math.sqrt(there.low * there.high))
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
    scaled = ratio([3e9 * rate for rate in FAST], [3e9 * rate for rate in SLOW])
    assert (scaled.at_least, scaled.at_most) == pytest.approx((there.low, there.high))


def test_equal_runs_are_not_faster_and_a_lead_without_scatter_is_certain() -> None:
    equal = ratio([100.0] * 3, [100.0] * 3)
    assert (equal.at_least, equal.at_most, equal.p_above()) == (1.0, 1.0, 0.5)
    ahead = ratio([106.0] * 3, [100.0] * 3)
    assert (ahead.p_above(1.05), ahead.p_above(1.06), ahead.p_above(1.07)) == (0.0, 0.5, 1.0)


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
    interval = found.interval()
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert interval.n == 1
    z = math.log(1.2) / (ASSUMED_SCATTER * math.sqrt(2))
    assert found.p_above() == pytest.approx(stats.norm.sf(z))


def test_without_a_run_there_is_no_ratio() -> None:
    assert ratio_of([], [1.0, 2.0]) is None
    assert ratio_of([1.0], []) is None
    assert paired_ratio([]) is None
    assert paired_ratio([(2.0, 1.0)]) is None


def test_pairs_are_compared_by_students_t_on_the_logarithms_of_their_ratios() -> None:
    pairs = [(190.0, 98.0), (200.0, 101.0), (230.0, 118.0), (150.0, 80.0)]
    found = paired_ratio(pairs)
    assert found is not None
    leads = [math.log(above / below) for above, below in pairs]
    bounds = stats.ttest_1samp(leads, 0).confidence_interval(0.95)
    assert (found.at_least, found.at_most) == pytest.approx(np.exp(bounds))
    assert found.p_above(1.9) == pytest.approx(
        stats.ttest_1samp(leads, math.log(1.9), alternative="greater").pvalue
    )
    assert found.n == 4
    assert found.estimate == pytest.approx(stats.gmean([above / below for above, below in pairs]))


def test_holms_adjusted_p_values_by_hand() -> None:
    """Of four: the least times 4, the next times 3, and never less than the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    first, unknown, second = holm([0.02, math.nan, 0.03])
    assert [first, second] == pytest.approx([0.04, 0.04])
    assert math.isnan(unknown)


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


def power(n: int, distance: float, scatter: float) -> float:
    """Return how often n runs of each side show a lead, by the noncentral t distribution."""
    freedom = 2 * (n - 1)
    return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, distance / (scatter * math.sqrt(2 / n))))


@pytest.mark.parametrize(
    ("found", "threshold", "scatter"),
    [
        (Ratio(0.06, 0.03 * math.sqrt(2 / 3), 4.0, 3), 1.02, 0.03),
        (Ratio(0.12, 0.05, 2.0, 2), 1.02, 0.05),
        (ratio_of([110.0], [100.0]), 1.05, ASSUMED_SCATTER),
    ],
    ids=["three runs", "two runs", "single runs, by the assumed scatter"],
)
def test_so_many_runs_are_planned_as_show_the_same_lead_in_80_of_100_studies(
    found: Ratio, threshold: float, scatter: float
) -> None:
    distance = math.log(found.estimate / threshold)
    enough = min(n for n in range(2, 101) if power(n, distance, scatter) >= 0.8)
    assert runs_to_tell(found, threshold) == enough > found.n


def test_a_tie_is_not_settled_by_a_hundred_runs() -> None:
    assert runs_to_tell(Ratio(math.log(1.05), 0.02, 4.0, 3), 1.05) is None


def test_so_many_runs_are_planned_as_make_the_interval_narrow_if_they_scatter_as_before() -> None:
    scatter = 0.1
    planned = runs_to_narrow(Ratio(0.7, scatter * math.sqrt(2 / 3), 4.0, 3), math.exp(0.23))
    widths = {n: 2 * stats.t.ppf(0.975, 2 * (n - 1)) * scatter * math.sqrt(2 / n) for n in range(4, 101)}
    assert planned == min(n for n, width in widths.items() if width <= 0.23)


# --- coverage in simulated studies: python -m tests.truth has other noise, sizes and scatters -----------

STUDIES = 1000


def test_the_stated_speedup_is_the_true_one_in_95_of_100_studies() -> None:
    generator, truth = np.random.default_rng(20260104), 3.6
    intervals = [
        ratio_interval((truth * fast).tolist(), slow.tolist())
        for fast, slow in zip(
            generator.lognormal(0, 0.05, (STUDIES, 3)),
            generator.lognormal(0, 0.05, (STUDIES, 5)),
            strict=True,
        )
    ]
    # three binomial standard errors are 0.02
    assert 0.93 <= sum(each.low <= truth <= each.high for each in intervals) / STUDIES <= 0.97


def test_the_next_run_keeps_its_bound_in_95_of_100_studies() -> None:
    """The slowest of three runs is kept by 3 of 4."""
    logs = np.random.default_rng(3).normal(0, 0.03, (STUDIES, 4))
    kept = sum(next_value_bound(np.exp(row[:-1]).tolist()) >= math.exp(row[-1]) for row in logs)
    assert kept / STUDIES == pytest.approx(0.95, abs=0.02)
