"""A cause is named where the runs of a point show it, on the rank or host that chance would hardly pick."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from scipy.stats import ttest_ind
from tests.planted_records import experiment, write_run
from tests.slowdowns import sentences
from tests.unit.analysis.planted_tables import ALONE, PARTS, make_runs

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks
from scalewise.analysis.bottlenecks.losses import difference_of_means
from scalewise.analysis.bottlenecks.time_parts import COMPUTE, LOADER, STRAGGLER
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.scaling import scaling_table
from scalewise.records import Window


def study_of(
    factors: Mapping[int, Sequence[float]], others: Mapping[int, Mapping[str, Any]] | None = None
) -> pd.DataFrame:
    """Runs by device count: a factor of the computing for each run, and the other parts in seconds."""
    runs = make_runs({(ALONE, devices): [100.0] * len(each) for devices, each in factors.items()})
    runs[PARTS] = 0.0
    for devices, each in factors.items():
        here = runs["devices"] == devices
        runs.loc[here, "compute_seconds"] = [factor / devices for factor in each]
        for column, values in (others or {}).get(devices, {}).items():
            runs.loc[here, column] = values
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    return runs


def causes(runs: pd.DataFrame) -> list[tuple[int, str]]:
    found = find_bottlenecks(scaling_table(runs, "strong"), runs)
    return [(int(limit.point["devices"]), limit.cause) for _, limit in found if limit]


EVEN = [1.0, 1.01, 0.99]


def test_compute_is_held_against_the_baseline_where_fewer_devices_are_out_of_memory() -> None:
    known = study_of({2: EVEN, 8: [2.0, 2.02, 1.98]})
    impossible = make_runs({(ALONE, 1): ["out-of-memory"] * 3})
    (said,) = sentences(pd.concat([impossible, known], ignore_index=True))
    assert said.startswith("On 8 devices, 50 % of each step is lost (4")
    assert "most of it to slower computing." in said


def test_jitter_is_named_with_its_own_advice() -> None:
    (said,) = sentences(study_of({1: EVEN, 8: EVEN}, {8: {"jitter_seconds": 0.03}}))
    assert said.startswith("On 8 devices, 19 % of each step is lost (")
    assert "most of it to waiting for uneven ranks. Give all ranks equal work in each step" in said
    assert "communication_hook" not in said


def test_where_jitter_was_not_recorded_the_communication_says_what_it_may_hold() -> None:
    runs = study_of({1: EVEN, 8: EVEN}, {8: {"communication_seconds": 0.05}})
    assert len(sentences(runs)) == 1
    _, said = sentences(runs.assign(jitter_seconds=math.nan))
    assert said == "The records do not separate waiting for late ranks from communication."


# --- intervals ----------------------------------------------------------------------------------------


def test_a_loss_that_the_scatter_of_the_runs_explains_is_not_named_but_said_with_its_interval() -> None:
    base = [0.9, 1.0, 1.1]
    (said,) = sentences(study_of({1: base, 4: [1.0, 1.15, 1.3]}))
    assert said.startswith("On 4 devices, slower computing may take 13 % of each step (-")
    assert said.endswith("More repeats would show it.")
    assert causes(study_of({1: EVEN, 4: [1.14, 1.15, 1.16]})) == [(4, COMPUTE)]


def test_more_points_have_wider_intervals_so_that_a_study_invents_no_more() -> None:
    factors = dict.fromkeys((1, 2, 4, 8, 16), EVEN)
    few = study_of(factors | {16: [1.25, 1.3, 1.35]})
    many = study_of(factors | dict.fromkeys((3, 5, 6, 7), EVEN) | {16: [1.25, 1.3, 1.35]})
    ends = []
    for runs in (few, many):
        limits = [limit for _, limit in find_bottlenecks(scaling_table(runs, "strong"), runs) if limit]
        ends.append(limits[0].share.low)
    assert ends[1] < ends[0]


def test_one_odd_run_makes_no_cause() -> None:
    assert causes(study_of({1: EVEN, 4: EVEN}, {4: {"loader_seconds": [0.0, 0.0, 0.4]}})) == []


def test_a_single_run_shows_what_it_waited_but_not_what_its_computing_lost() -> None:
    assert causes(study_of({1: [1.0], 4: [1.0]}, {4: {"loader_seconds": 0.1}})) == [(4, LOADER)]
    runs = study_of({1: [1.0], 4: [1.5]})
    assert causes(runs) == []
    (said,) = sentences(runs)
    assert said == ("On 4 devices, slower computing may take 33 % of each step. One run cannot show it.")


def test_the_interval_of_a_difference_is_welchs() -> None:
    sample, reference = [1.3, 1.1, 1.7], [0.9, 0.91, 0.92, 0.95]
    found = difference_of_means(sample, reference)
    expected = ttest_ind(sample, reference, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    halved = difference_of_means(sample, [2 * value for value in reference], 0.5)
    assert (halved.low, halved.high) == pytest.approx((expected.low, expected.high))
    assert math.isnan(difference_of_means([1.0], reference).low)


def test_small_losses_that_add_up_are_told_together() -> None:
    small = {"communication_seconds": 0.009, "loader_seconds": 0.008, "straggler_seconds": 0.005}
    (said,) = sentences(study_of({1: EVEN, 8: [1.08, 1.07, 1.09]}, {8: small}))
    assert said.startswith("On 8 devices, 20 % of each step is lost (")
    assert "with no single cause. A larger batch size reduces most of this." in said


def test_losses_sum_to_what_the_efficiency_lacks() -> None:
    small = {"communication_seconds": 0.009, "loader_seconds": 0.008, "straggler_seconds": 0.005}
    runs = study_of({1: [1.0] * 3, 8: [1.08] * 3}, {1: {"loader_seconds": 0.05}, 8: small})
    (said,) = sentences(runs)
    base, point = (runs[runs["devices"] == devices]["step_seconds"].mean() for devices in (1, 8))
    assert f"On 8 devices, {100 - 100 * base / (8 * point):.0f} % of each step is lost" in said


def test_a_wait_that_the_baseline_has_too_is_told_from_what_stops_scaling() -> None:
    half = {devices: {"loader_seconds": 0.5 / devices} for devices in (1, 4)}
    alike, own = sentences(study_of({1: EVEN, 4: EVEN}, half))
    assert own == "On 1 device, waiting for data takes 33 % of each step. The efficiency does not show it."
    assert alike.startswith(
        "On 4 devices, waiting for data takes 33 % of each step. The efficiency does not show it: 1 device "
        "waited alike."
    )
    half[4] = {"loader_seconds": 0.5}
    worse, _ = sentences(study_of({1: EVEN, 4: EVEN}, half))
    assert worse.startswith("On 4 devices, 50 % of each step is lost (")
    assert "efficiency" not in worse


# --- who is slow --------------------------------------------------------------------------------------


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
    ("devices", "ranks", "said"),
    [
        pytest.param(8, [3, 3, 3], "most of it to waiting for rank 3 on node0. Check what else", id="8^-2"),
        pytest.param(4, [3, 3, 3], "in all 3 runs, which chance does in 6.2 % of studies", id="4^-2"),
        pytest.param(2, [1, 1, 1], "in all 3 runs, which chance does in 25 % of studies", id="2^-2"),
        pytest.param(2, [1] * 6, "most of it to waiting for rank 1 on node0. Check what else", id="2^-5"),
        pytest.param(8, [3, 3, 5], "It is not the same rank in all runs", id="two of three"),
        pytest.param(8, [3, 3, 5, 3, 3, 3], "rank 3 on node0. It is slow in 5 of 6 runs", id="5 of 6"),
        pytest.param(8, [3], "waiting for rank 3 on node0 takes 33 % of each step. Check", id="a single run"),
    ],
)  # fmt: skip
def test_a_rank_is_named_where_chance_would_hardly_pick_it_so_often(
    devices: int, ranks: list[int], said: str
) -> None:
    runs = slowed(devices, len(ranks), slowest_rank=ranks, slowest_host="node0", nodes=1)
    (sentence,) = sentences(runs)
    assert said in sentence


def test_a_rank_that_is_slow_on_every_node_is_not_blamed_on_one() -> None:
    hosts = ["node0", "node3", "node5"]
    (said,) = sentences(slowed(8, 3, slowest_rank=0, slowest_host=hosts, nodes=2))
    assert "most of it to waiting for rank 0. It is slow on every node: check whether its share" in said


def test_a_node_is_named_where_all_its_ranks_are_slow_whichever_is_the_slowest() -> None:
    runs = slowed(
        8, 3, slowest_rank=[4, 6, 5], slowest_host="node1", slow_host="node1", nodes=2,
        hosts="node0, node1",
    )  # fmt: skip
    (said,) = sentences(runs)
    assert said.startswith("On 8 devices, 34 % of each step is lost (")
    assert said.endswith("most of it to waiting for node node1. Leave node1 out, or ask the site.")
    (of_a_few,) = sentences(runs.assign(slow_host=["", "", "", "", "", "node1"]))
    assert "not the same rank in all runs" in of_a_few


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
    assert said.startswith(
        "On 8 devices, node node1 slows the 2 of 4 runs that it takes part in: 34 % of each step is lost ("
    )
    assert causes(runs) == [(8, STRAGGLER)]


def test_hosts_that_are_slow_by_turns_are_not_named() -> None:
    runs = slowed(
        8, 4, slowest_rank=[4, 1, 5, 2], slowest_host=["node1", "node0", "node1", "node0"], nodes=2,
        hosts="node0, node1",
    )  # fmt: skip
    (said,) = sentences(runs)
    assert "not the same rank in all runs" in said


# --- start-up -----------------------------------------------------------------------------------------


def test_start_up_stands_by_itself_in_the_decision(tmp_path: Path) -> None:
    window = Window(first_step=0, steps=1, samples=256, seconds=0.25, warmup=False)
    for devices in (1, 2):
        write_run(
            tmp_path / "runs", f"d{devices}.r1", rate=1000.0 * devices, windows=[window],
            origin={"ended_at": "2026-01-01T00:00:10+00:00"},
        )  # fmt: skip
    spec = experiment(repeats=1)
    compute(AnalysisSpec("study", spec), tmp_path / "runs", tmp_path)
    decision = json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))
    (said,) = decision["startup"]
    assert said.startswith("Start-up takes 41 % of a run on 1 device and 41 % on 2 devices.")
    assert not any("Start-up" in sentence for sentence in decision["limits"])


def test_jitter_needs_no_cause_where_it_is_small() -> None:
    runs = study_of({1: EVEN, 8: EVEN}, {8: {"jitter_seconds": 0.005, "communication_seconds": 0.05}})
    assert causes(runs) == [(8, "communication")]
    assert "uneven" not in " ".join(sentences(runs))
