"""What makes steps slow, by the runs of a point: the cause, who is slow, and what idle devices wait for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pytest
from scipy.stats import ttest_ind
from tests.slowdowns import sentences, slowdown_of
from tests.truth.causes import FOUND, cause_rates
from tests.unit.analysis.planted_tables import ONLY, PARTS, make_runs

from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks
from scalewise.analysis.bottlenecks.losses import difference_of_means
from scalewise.analysis.bottlenecks.time_parts import LOADER, STRAGGLER
from scalewise.analysis.bottlenecks.utilization import (
    CAUSES,
    LAUNCH,
    cause_at,
    cause_text,
    flags,
    likely_cause,
)
from scalewise.analysis.scaling import scaling_table


def study(parts: Mapping[int, Sequence[float]], **columns: Any) -> pd.DataFrame:
    """Runs whose steps divide so: device count -> compute, communication, loader, straggler, no jitter."""
    runs = make_runs({(ONLY, devices): [100.0] * 3 for devices in parts})
    divided = [(*values, 0.0)[: len(PARTS)] for values in parts.values()]
    for column, values in zip(PARTS, zip(*divided, strict=True), strict=True):
        runs[column] = runs["devices"].map(dict(zip(parts, values, strict=True)))
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    return runs.assign(**columns)


def study_of(
    factors: Mapping[int, Sequence[float]], others: Mapping[int, Mapping[str, Any]] | None = None
) -> pd.DataFrame:
    """Runs by device count: a factor of the computing for each run, and the other parts in seconds."""
    runs = make_runs({(ONLY, devices): [100.0] * len(each) for devices, each in factors.items()})
    runs[PARTS] = 0.0
    for devices, each in factors.items():
        here = runs["devices"] == devices
        runs.loc[here, "compute_seconds"] = [factor / devices for factor in each]
        for column, values in (others or {}).get(devices, {}).items():
            runs.loc[here, column] = values
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    return runs


def causes(runs: pd.DataFrame) -> list[tuple[int, str]]:
    found = find_bottlenecks(scaling_table(runs), runs)
    return [(int(limit.point["devices"]), limit.cause) for _, limit in found if limit]


EVEN = [1.0, 1.01, 0.99]
SMALL = {"communication_seconds": 0.009, "loader_seconds": 0.008, "straggler_seconds": 0.005}
LATE = study_of({2: EVEN, 8: [2.0, 2.02, 1.98]})


@pytest.mark.parametrize(
    ("runs", "mode", "named", "not_named"),
    [
        (study({1: (1.0, 0, 0, 0), 2: (0.5, 0.01, 0.02, 0.01)}), "strong", "7 % of each step", "most of it"),
        (study({1: (1.0, 0, 0, 0), 4: (0.9, 0.1, 0, 0)}), "strong", "75 %, slower computing", ""),
        (study({1: (1.0, 0, 0, 0), 4: (1.02, 0.05, 0, 0)}), "weak", "7 %", "most of it"),
        (study({1: (1.0, 0, 0, 0), 4: (1.5, 0.05, 0, 0)}), "weak", "35 %, slower computing", ""),
        (study({1: (1.0, 0, 0, 0), 4: (0.2, 0.1, 0, 0)}), "strong", "communication takes 33 %", ""),
        (study_of({1: [0.9, 1.0, 1.1], 4: [1.0, 1.15, 1.3]}), "strong", "may take 13 %, (-", "most of it"),
        (study_of({1: EVEN, 4: [1.14, 1.15, 1.16]}), "strong", "13 %, slower computing", "may take"),
        (study_of({1: EVEN, 8: EVEN}, {8: {"jitter_seconds": 0.03}}), "strong", "19 %, uneven ranks", "hook"),
        (study_of({1: EVEN, 8: EVEN}, {8: {"jitter_seconds": 0.005, "communication_seconds": 0.05}}),
         "strong", "communication", "uneven"),
        (study_of({1: EVEN, 8: [1.08, 1.07, 1.09]}, {8: SMALL}), "strong", "20 %, no single cause", ""),
        (pd.concat([make_runs({(ONLY, 1): ["out-of-memory"] * 3}), LATE], ignore_index=True), "strong",
         "50 %, slower computing", ""),
    ],
    ids=["it scales", "computing does not shrink", "weak and even", "weak and slower", "faster computing",
         "the scatter explains it", "it does not", "jitter", "little jitter", "many small ones",
         "no run on fewer devices"],
)  # fmt: skip
def test_a_cause_is_named_by_its_share_if_the_runs_show_it(
    runs: pd.DataFrame, mode: str, named: str, not_named: str
) -> None:
    words = sentences(runs, mode)[0]
    assert all(each in words for each in named.split(", "))
    assert not not_named or not_named not in words


def test_where_jitter_was_not_recorded_the_communication_says_what_it_may_hold() -> None:
    runs = study_of({1: EVEN, 8: EVEN}, {8: {"communication_seconds": 0.05}})
    assert len(sentences(runs)) == 1
    assert "do not separate" in sentences(runs.assign(jitter_seconds=math.nan))[1]


def test_communication_is_named_with_what_is_lost_and_the_line_to_write() -> None:
    runs = study({1: (1.0, 0, 0, 0), 4: (0.25, 0.12, 0, 0.01), 8: (0.125, 0.14, 0, 0.01)})
    found, others = slowdown_of(runs)
    assert (found.devices, "55 %" in found.sentence, "communication" in found.sentence) == (8, True, True)
    assert found.advice.startswith("Exchange gradients less often: double the batch size")
    assert found.paste == "global_batch_size: 512"
    assert slowdown_of(runs, sweep={"global_batch_size": [256, 512]})[0].paste == ""
    assert [("4 devices, 34 %" in other) for other in others] == [True]


def test_a_bar_has_the_parts_of_a_step_as_means_over_the_runs_so_that_they_sum() -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.2, 0.0, 0.05, 0.05)})
    # the median is 0.06
    runs.loc[runs["devices"] == 8, "communication_seconds"] = [0.05, 0.06, 0.19]
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    found, _ = slowdown_of(runs)
    assert {part["name"]: round(part["share"], 4) for part in found.parts} == {
        "computing": 0.3125,
        "slower computing": 0.1875,
        "communication": 0.25,
        "waiting for data": 0.125,
        "one slow rank": 0.125,
    }
    assert sum(part["seconds"] for part in found.parts) == pytest.approx(found.step_seconds)
    point = scaling_table(runs).iloc[-1]
    assert point["communication_seconds"] == pytest.approx(0.1)
    assert sum(point[part] for part in PARTS) == pytest.approx(point["step_seconds"])


@pytest.mark.parametrize(("chosen", "devices"), [(1, 4), (2, 4), (4, 4), (8, 8), (16, 8), (None, 8)], ids=str)
def test_the_bar_is_of_the_answer_or_the_next_count_that_loses_time(chosen: int | None, devices: int) -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0, 0, 0), 4: (0.25, 0.1, 0, 0), 8: (0.125, 0.1, 0, 0)})
    assert slowdown_of(runs, chosen=chosen)[0].devices == devices


@pytest.mark.parametrize(
    ("loader", "advice", "paste"),
    [
        ("workers", "Load data with more CPUs", "cpus_per_device: 2"),
        ("resident", "larger batches", "global_batch_size: 512"),
    ],
)
def test_advice_on_a_slow_loader_is_for_that_loader(loader: str, advice: str, paste: str) -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.125, 0.01, 0.1, 0)}, loader=loader)
    found, _ = slowdown_of(runs)
    assert "waiting for data" in found.sentence
    assert advice in found.advice
    assert found.paste == paste


def test_a_series_is_named_if_there_are_several() -> None:
    runs = study({1: (1.0, 0, 0, 0), 8: (0.125, 0.1, 0, 0)})
    both = pd.concat([runs.assign(series="hook-none"), runs.assign(series="hook-fp16")])
    first, second = sentences(both)
    assert "8 devices with hook-none, 44 %" in first
    assert "8 devices with hook-fp16, 44 %" in second
    found, _ = slowdown_of(runs.assign(series="hook-none"))
    assert found.where == "8 devices with hook-none"
    assert found.sentence.startswith("On 8 devices, ")


@pytest.mark.parametrize(
    ("communication", "check", "named"),
    [(0.05, 0.07, []), (0.05, 0.03, []), (0.05, 0.2, ["50.0 ms", "200 ms"]),
     pytest.param(0.01, 0.03, [], id="thrice as much, but little of the step")],
)  # fmt: skip
def test_two_measurements_of_the_communication_that_disagree_are_both_given(
    communication: float, check: float, named: list[str]
) -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.05, 0, 0)})
    runs["communication_seconds"] = communication
    others = slowdown_of(runs.assign(crosscheck_communication_seconds=runs["devices"].map({2: check})))[1]
    assert len(others) == bool(named)
    assert all(each in others[0] for each in named)


def test_communication_in_doubt_is_not_named_if_one_of_its_measurements_is_small() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.3, 0, 0.15)})
    assert "communication" in sentences(runs)[0]
    checked = runs.assign(crosscheck_communication_seconds=runs["devices"].map({2: 0.01}))
    disturbed, doubt = sentences(checked)
    assert "one slow rank" in disturbed
    assert "uncertain" in doubt


# --- intervals ----------------------------------------------------------------------------------------


def test_more_points_have_wider_intervals_so_that_a_study_invents_no_more() -> None:
    factors = dict.fromkeys((1, 2, 4, 8, 16), EVEN)
    few = study_of(factors | {16: [1.25, 1.3, 1.35]})
    many = study_of(factors | dict.fromkeys((3, 5, 6, 7), EVEN) | {16: [1.25, 1.3, 1.35]})
    ends = []
    for runs in (few, many):
        limits = [limit for _, limit in find_bottlenecks(scaling_table(runs), runs) if limit]
        ends.append(limits[0].share.low)
    assert ends[1] < ends[0]


def test_one_odd_run_makes_no_cause() -> None:
    assert causes(study_of({1: EVEN, 4: EVEN}, {4: {"loader_seconds": [0.0, 0.0, 0.4]}})) == []


def test_a_single_run_shows_what_it_waited_but_not_what_its_computing_lost() -> None:
    assert causes(study_of({1: [1.0], 4: [1.0]}, {4: {"loader_seconds": 0.1}})) == [(4, LOADER)]
    runs = study_of({1: [1.0], 4: [1.5]})
    assert causes(runs) == []
    (said,) = sentences(runs)
    assert "may take 33 %" in said


def test_the_interval_of_a_difference_is_welchs() -> None:
    sample, reference = [1.3, 1.1, 1.7], [0.9, 0.91, 0.92, 0.95]
    found = difference_of_means(sample, reference)
    expected = ttest_ind(sample, reference, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    halved = difference_of_means(sample, [2 * value for value in reference], 0.5)
    assert (halved.low, halved.high) == pytest.approx((expected.low, expected.high))
    assert math.isnan(difference_of_means([1.0], reference).low)


def test_losses_sum_to_what_the_efficiency_lacks() -> None:
    runs = study_of({1: [1.0] * 3, 8: [1.08] * 3}, {1: {"loader_seconds": 0.05}, 8: SMALL})
    (said,) = sentences(runs)
    base, point = (runs[runs["devices"] == devices]["step_seconds"].mean() for devices in (1, 8))
    assert f"On 8 devices, {100 - 100 * base / (8 * point):.0f} % of each step is lost" in said


def test_a_wait_that_the_baseline_has_too_is_no_loss_of_scaling() -> None:
    half = {devices: {"loader_seconds": 0.5 / devices} for devices in (1, 4)}
    alike, own = sentences(study_of({1: EVEN, 4: EVEN}, half))
    assert own.endswith("The efficiency does not show it.")
    assert "waiting for data takes 33 % of each step. The efficiency does not show it: 1 device" in alike
    half[4] = {"loader_seconds": 0.5}
    worse, _ = sentences(study_of({1: EVEN, 4: EVEN}, half))
    assert "50 %" in worse
    assert "efficiency" not in worse


# --- who is slow --------------------------------------------------------------------------------------


TWO_NODES = {"slowest_host": "node1", "nodes": 2, "hosts": "node0, node1"}


def slowed(devices: int, repeats: int, **columns: Any) -> pd.DataFrame:
    """A study in which one rank is slower than the others on the most devices."""
    runs = study_of(
        {1: EVEN, devices: [1.0] * repeats},
        {devices: {"straggler_seconds": [(0.5 + 0.01 * repeat) / devices for repeat in range(repeats)]}},
    )
    here = runs["devices"] == devices
    for column, values in columns.items():
        runs[column] = runs.get(column, pd.Series(None, index=runs.index, dtype=object))
        runs.loc[here, column] = values
    return runs


@pytest.mark.parametrize(
    ("devices", "columns", "said"),
    [
        (8, {"slowest_rank": [3, 3, 3]}, "most of it to waiting for rank 3 on node0. Check what else"),
        (8, {"slowest_rank": [3, 3, 3], "nodes": 2}, "waiting for rank 3 on node0. Leave node0 out"),
        (4, {"slowest_rank": [3, 3, 3]}, "in all 3 runs, which chance does in 6.2 % of studies"),
        (2, {"slowest_rank": [1, 1, 1]}, "in all 3 runs, which chance does in 25 % of studies"),
        (2, {"slowest_rank": [1] * 6}, "most of it to waiting for rank 1 on node0. Check what else"),
        (8, {"slowest_rank": [3, 3, 5]}, "waiting for one slow rank. It is not the same rank in all runs."),
        (8, {"slowest_rank": [3, 3, 5, 3, 3, 3]}, "rank 3 on node0. It is slow in 5 of 6 runs"),
        (8, {"slowest_rank": [3]}, "waiting for rank 3 on node0 takes 33 % of each step. Check"),
        (8, {"slowest_rank": [0] * 3, "slowest_host": ["node0", "node3", "node5"], "nodes": 2},
         "waiting for rank 0. It is slow on every node"),
        (8, TWO_NODES | {"slowest_rank": [4, 6, 5], "slow_host": "node1"}, "node node1. Leave node1 out"),
        (8, TWO_NODES | {"slowest_rank": [4, 1, 5], "slow_host": ""}, "not the same rank in all"),
        (8, TWO_NODES | {"slowest_rank": [4, 6, 5], "slow_host": ["", "", "node1"]},
         "not the same rank in all"),
    ],
    ids=["8^-2", "on one of two nodes", "4^-2", "2^-2", "2^-5", "two of three", "5 of 6", "a single run",
         "on every node", "all ranks of a node", "by turns", "all ranks of a node in one run"],
)  # fmt: skip
def test_a_rank_or_node_is_named_if_chance_would_hardly_pick_it_so_often(
    devices: int, columns: dict[str, Any], said: str
) -> None:
    usual = {"slowest_host": "node0", "nodes": 1}
    (sentence,) = sentences(slowed(devices, len(columns["slowest_rank"]), **usual | columns))
    assert said in sentence


def test_a_slow_node_that_takes_part_in_some_runs_is_named_with_what_it_costs_there() -> None:
    runs = slowed(
        8, 4, slowest_rank=[4, 6, 1, 2], slowest_host=["node1", "node1", "node0", "node2"],
        slow_host=["node1", "node1", None, None], nodes=2,
        hosts=["node0, node1", "node1, node2", "node0, node2", "node2, node3"],
    )  # fmt: skip
    late = (runs["devices"] == 8) & (runs["slow_host"] != "node1")
    runs.loc[late, "straggler_seconds"] = 0.001
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    (said,) = sentences(runs)
    assert "node node1 slows the 2 of 4 runs that it takes part in: 34 %" in said
    assert causes(runs) == [(8, STRAGGLER)]


# --- idle devices --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("busy", "wait", "communication", "cause"),
    [
        (0.4, 0.31, 0.29, "loader"),
        (0.4, 0.29, 0.31, "communication"),
        (0.1, 0.3, 0.2, "launch"),  # 0.4 of the time is explained by neither
        (0.2, 0.7, None, "loader"),
        (0.2, 0.05, None, "communication unknown"),
        (0.2, 0.05, math.nan, "communication unknown"),
    ],
)
def test_the_cause_is_what_explains_most_of_the_idle_time(
    busy: float, wait: float, communication: float | None, cause: str
) -> None:
    assert likely_cause(busy, wait, communication) == cause


def test_advice_is_for_the_loader_that_is_used() -> None:
    assert "use the resident loader" in cause_text("loader", "workers")
    assert "use the resident loader" not in cause_text("loader", "resident")
    assert "no_sync" in cause_text("communication", "program")


def flagged(runs: pd.DataFrame) -> list[str]:
    return list(flags(scaling_table(runs)))


def test_points_that_were_under_half_busy_are_named_with_cause_and_fix() -> None:
    runs = make_runs({(ONLY, devices): [100.0, 101.0, 102.0] for devices in (1, 2, 4)})
    assert flagged(runs.assign(mean_utilization=0.5)) == []
    assert flagged(runs.assign(mean_utilization=None)) == [], "unknown"
    runs.loc[runs["devices"] == 2, ["mean_utilization", "communication_fraction"]] = 0.41
    runs.loc[runs["devices"] == 4, ["mean_utilization", "communication_fraction"]] = [
        [0.31, 0.5],
        [0.33, 0.5],
        [0.9, 0.1],  # one busy repeat is not the median
    ]
    (flag,) = flagged(runs)
    assert "59 % on 2 devices, 67 % on 4 devices" in flag
    assert flag.endswith(cause_text("communication", "resident"))
    one, two = flagged(runs[runs["devices"] < 4].assign(mean_utilization=0.2, communication_fraction=None))
    assert one.endswith(CAUSES[LAUNCH]), "one device waits for no other"
    assert two.endswith(CAUSES["communication unknown"])


def test_idle_devices_are_not_guessed_about_if_the_parts_of_their_steps_are_known() -> None:
    runs = study({1: (1.0, 0, 0, 0), 2: (0.5, 0.4, 0, 0)}, mean_utilization=0.2)
    one, two = (point for _, point in scaling_table(runs).iterrows())
    assert cause_at(one) == CAUSES[LAUNCH]
    assert cause_at(two) == ""
    assert cause_at(two.drop(PARTS)) != ""


def test_each_cause_is_named_once_with_its_series() -> None:
    points = {(f"cpus-per-device-{cpus}", devices): [100.0] for cpus in (1, 2, 4) for devices in (1, 2, 4)}
    runs = make_runs(points, loader="workers", mean_utilization=0.25, loader_wait_fraction=0.6)
    runs.loc[runs["series"] == "cpus-per-device-4", "loader_wait_fraction"] = 0.01
    first, second = flagged(runs)
    assert "75 % on 1 device with cpus-per-device-1, 75 % on" in first
    assert first.endswith(cause_text("loader", "workers"))
    assert second.endswith(CAUSES[LAUNCH])
    assert "75 % on 4 devices with cpus-per-device-4" in second
    (all_points,) = flagged(runs.assign(loader_wait_fraction=0.6))
    assert "and at 3 more points" in all_points


# --- how often planted causes are found, and others invented --------------------------------------------


@pytest.mark.parametrize("cause", FOUND)
def test_a_cause_of_15_percent_is_found_by_three_runs_that_scatter_by_3_percent(cause: str) -> None:
    assert cause_rates([cause], 1, scatters=(0.03,), repeats=(3,))["rate"].tolist() == [1.0]


@pytest.mark.parametrize("truth", ["nothing lost", "jitter of 25 % a step", "another slow rank in each run"])
@pytest.mark.slow
def test_causes_are_hardly_ever_invented(truth: str) -> None:
    """In 1 of 4 studies at most; ``python -m tests.truth`` draws 40 for each."""
    assert cause_rates([truth], 4, scatters=(0.03,), repeats=(3,))["rate"].max() <= 1 / 4
