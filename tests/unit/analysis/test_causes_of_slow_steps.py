"""What makes steps slow, by the runs of a point: the part of the step, its share, and who is slow."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.unit.analysis.planted import ONLY, make_runs

from scalewise.analysis.causes import Cause, cause_of_answer, find_causes
from scalewise.analysis.laws import serial_fraction
from scalewise.analysis.steps import (
    COLUMNS,
    COMMUNICATION,
    COMPUTE,
    JITTER,
    LOADER,
    STEP_COLUMNS,
    STRAGGLER,
    split,
)
from scalewise.records import Window

PARTS = [*COLUMNS.values()]

EVEN = (1.0, 1.01, 0.99)


def study(
    computing: Mapping[int, Sequence[float]],
    waits: Mapping[int, Mapping[str, Any]] | None = None,
    **columns: Any,
) -> pd.DataFrame:
    """Return runs by device count: each run's computing over its ideal, and the other parts in s."""
    runs = make_runs({(ONLY, devices): [100.0] * len(each) for devices, each in computing.items()})
    runs = runs.sort_values(["devices", "repeat"], ignore_index=True)
    runs[PARTS] = 0.0
    for devices, each in computing.items():
        here = runs["devices"] == devices
        runs.loc[here, "compute_seconds"] = [factor / devices for factor in each]
        for part, seconds in (waits or {}).get(devices, {}).items():
            runs.loc[here, f"{part}_seconds"] = seconds
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    return runs.assign(**columns)


def rows_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return what causes read of scaling.csv: the points of each series with its baseline."""
    points = runs[["series", "devices"]].drop_duplicates()
    return points.assign(baseline_devices=points.groupby("series")["devices"].transform("min"))


def causes(runs: pd.DataFrame, mode: str = "strong") -> list[Cause]:
    return find_causes(runs, rows_of(runs), mode, "GPU")


SMALL = {COMMUNICATION: 0.009, LOADER: 0.008, STRAGGLER: 0.005}


@pytest.mark.parametrize(
    ("runs", "mode", "part", "share"),
    [
        (study({1: EVEN, 2: EVEN}, {2: {COMMUNICATION: 0.01, LOADER: 0.02}}), "strong", None, 0.0),
        # 1.0 s on 1 are 0.25 s on 4, and what takes 0.75 s of 0.9 s is lost
        (study({1: EVEN, 4: [3.6] * 3}), "strong", COMPUTE, 0.65 / 0.9),
        (study({1: EVEN, 4: [4.08] * 3}), "weak", None, 0.0),
        (study({1: EVEN, 4: [6.0] * 3}, {4: {LOADER: 0.05}}), "weak", COMPUTE, 0.5 / 1.55),
        (study({1: EVEN, 4: EVEN}, {4: {COMMUNICATION: 0.1, JITTER: 0.04}}), "strong", COMMUNICATION,
         0.1 / 0.39),
        (study({1: EVEN, 4: EVEN}, {1: {LOADER: 0.2}, 4: {LOADER: 0.15}}), "strong", LOADER, 0.1 / 0.4),
        (study({1: EVEN, 8: EVEN}, {8: {JITTER: 0.03}}), "strong", JITTER, 0.03 / 0.155),
        (study({1: [0.9, 1.0, 1.1], 4: [1.0, 1.15, 1.3]}), "strong", None, 0.0),
        (study({1: EVEN, 8: [1.08, 1.07, 1.09]}, {8: SMALL}), "strong", "", 0.032 / 0.157),
        (study({1: EVEN, 4: EVEN}, {4: {LOADER: [0.0, 0.0, 0.4]}}), "strong", None, 0.0),
    ],
    ids=["it scales", "computing does not shrink", "weak and even", "weak and slower", "communication",
         "beyond what the baseline waits", "jitter", "the scatter explains it", "many small parts",
         "one odd run"],
)  # fmt: skip
def test_the_part_that_grew_most_beyond_the_baselines_step_is_named_with_its_share(
    runs: pd.DataFrame, mode: str, part: str | None, share: float
) -> None:
    found = causes(runs, mode)
    beyond = [cause for cause in found if cause.devices > 1]
    assert [cause.part for cause in beyond] == ([] if part is None else [part])
    for cause in beyond:
        assert cause.share.estimate == pytest.approx(share, rel=1e-3)
        assert cause.share.low <= cause.share.estimate <= cause.share.high
        assert f"{100 * share:.0f} %" in cause.sentence


def test_a_wait_that_the_baseline_has_too_is_no_loss_of_scaling() -> None:
    waits = {devices: {LOADER: 0.5 / devices} for devices in (1, 4)}
    base, point = causes(study({1: EVEN, 4: EVEN}, waits))
    assert (base.part, point.part) == (LOADER, LOADER)
    assert point.share.estimate == pytest.approx(1 / 3, rel=1e-2)
    assert "efficiency does not show it" in point.sentence
    assert "efficiency" not in base.sentence


@pytest.mark.parametrize(
    ("loader", "waits", "mode", "advice"),
    [
        ("workers", LOADER, "strong", ["cpus_per_device", "resident loader"]),
        ("resident", LOADER, "weak", ["double batch_size_per_device"]),
        ("program", LOADER, "strong", ["workers of the program's DataLoader"]),
        ("workers", COMMUNICATION, "strong", ["double global_batch_size", "communication_hook"]),
        ("program", COMMUNICATION, "weak", ["double batch_size_per_device", "no_sync"]),
    ],
)
def test_one_advice_fits_the_loader_and_the_kind_of_scaling(
    loader: str, waits: str, mode: str, advice: list[str]
) -> None:
    factor = 8 if mode == "weak" else 1
    runs = study({1: EVEN, 8: [factor * each for each in EVEN]}, {8: {waits: 0.2 * factor}}, loader=loader)
    (cause,) = causes(runs, mode)
    assert all(each in cause.advice for each in advice)


def test_the_cause_is_of_the_answer_or_of_the_next_count_that_loses_time() -> None:
    runs = study(dict.fromkeys((1, 2, 4, 8), EVEN), {4: {COMMUNICATION: 0.1}, 8: {COMMUNICATION: 0.1}})
    found = causes(runs)
    chosen = {devices: cause_of_answer(found, devices) for devices in (1, 2, 4, 8, 16, None)}
    assert {devices: cause and cause.devices for devices, cause in chosen.items()} == {
        1: 4, 2: 4, 4: 4, 8: 8, 16: None, None: 8,
    }  # fmt: skip


# --- who is slow --------------------------------------------------------------------------------------

TWO_NODES = {"nodes": 2, "hosts": "node0, node1"}


def slowed(**columns: Any) -> pd.DataFrame:
    """Return a study in which one rank is slower than the others in each run on 8 devices."""
    repeats = len(columns["slowest_rank"])
    lost = [(0.5 + 0.01 * repeat) / 8 for repeat in range(repeats)]
    runs = study({1: EVEN, 8: [1.0] * repeats}, {8: {STRAGGLER: lost}})
    usual = {"slowest_host": "node0", "nodes": 1, "hosts": "node0"}
    rows = [dict.fromkeys(usual | columns)] * 3 + [
        {name: each[row] if isinstance(each, list) else each for name, each in (usual | columns).items()}
        for row in range(repeats)
    ]
    return runs.drop(columns=[*usual], errors="ignore").join(pd.DataFrame(rows, index=runs.index))


@pytest.mark.parametrize(
    ("columns", "rank", "host", "advice"),
    [
        ({"slowest_rank": [3, 3, 3]}, 3, "node0", "Look for other programs on node0"),
        (TWO_NODES | {"slowest_rank": [3, 3, 3]}, 3, "node0", "Leave node0 out"),
        (TWO_NODES | {"slowest_rank": [0] * 3, "slowest_host": ["node0", "node3", "node5"]}, 0, None,
         "the rank's share of the work"),
        ({"slowest_rank": [3, 3, 5]}, None, None, "not the same rank in all runs"),
        (TWO_NODES | {"slowest_rank": [4, 6, 5], "slow_host": "node1"}, None, "node1", "Leave node1 out"),
        (TWO_NODES | {"slowest_rank": [4, 6, 5], "slow_host": ["", "", "node1"]}, None, None, "not the same"),
    ],
    ids=["a rank", "on one of two nodes", "on every node", "by turns", "a node", "a node in one run"],
)  # fmt: skip
def test_a_rank_or_node_is_named_if_it_is_slow_in_all_runs(
    columns: dict[str, Any], rank: int | None, host: str | None, advice: str
) -> None:
    (cause,) = causes(slowed(**columns))
    assert (cause.part, cause.rank, cause.host) == (STRAGGLER, rank, host)
    assert advice in cause.advice


def test_a_slow_node_that_takes_part_in_some_runs_is_named_with_what_it_costs_there() -> None:
    runs = slowed(
        slowest_rank=[4, 6, 1, 2], slowest_host=["node1", "node1", "node0", "node2"],
        slow_host=["node1", "node1", None, None], nodes=2,
        hosts=["node0, node1", "node1, node2", "node0, node2", "node2, node3"],
    )  # fmt: skip
    quick = (runs["devices"] == 8) & (runs["slow_host"] != "node1")
    runs.loc[quick, "straggler_seconds"] = 0.001
    runs["step_seconds"] = runs[PARTS].sum(axis=1)
    (cause,) = causes(runs)
    assert (cause.host, cause.rank, round(cause.share.estimate, 2)) == ("node1", None, 0.34)


# --- the parts of a step -------------------------------------------------------------------------------


def windows(step_seconds: float) -> list[Window]:
    """Ten measured steps, after a slow warm-up that must not count."""
    warm_up = Window(first_step=0, steps=5, samples=5, seconds=100.0, warmup=True)
    return [warm_up, Window(first_step=5, steps=10, samples=10, seconds=10 * step_seconds, warmup=False)]


def ranks(
    communication: Sequence[float],
    loader: Sequence[float] | None = None,
    waiting: Sequence[float] | None = None,
) -> pd.DataFrame:
    """As ranks.csv gives them; seconds of a step, over ten steps. Where nothing else is said, ranks wait for
    the one whose exchange takes least."""
    count = len(communication)
    return pd.DataFrame(
        {
            "rank": range(count),
            "host": [f"node{rank // 2}" for rank in range(count)],
            "loader_wait_seconds": [10 * seconds for seconds in loader or [0.0] * count],
            "communication_seconds_per_step": communication,
            "waiting_seconds_per_step": waiting or [each - min(communication) for each in communication],
        }
    )


def assert_sums(found: Mapping[Any, Any]) -> None:
    assert sum(found[part] for part in PARTS) == pytest.approx(found["step_seconds"])
    assert all(found[part] >= 0 for part in PARTS)


@pytest.mark.parametrize(
    ("measured", "parts", "slowest"),
    [
        ({"communication": [0.2] * 4, "loader": [0.1] * 4}, [0.7, 0.2, 0.1, 0.0, 0.0], None),
        ({"communication": [0.5, 0.5, 0.5, 0.1]}, [0.5, 0.1, 0.0, 0.4, 0.0], (3, "node1")),
        ({"communication": [0.1, 0.5]}, [0.5, 0.1, 0.0, 0.4, 0.0], (0, "node0")),
        ({"communication": [0.3, 0.4] * 2, "waiting": [0.25, 0.35] * 2}, [0.6, 0.05, 0.0, 0.1, 0.25], None),
        ({"communication": [0.1, 0.5], "loader": [0.4, 0.0]}, [0.5, 0.1, 0.4, 0.0, 0.0], None),
        ({"communication": [0.01], "loader": [0.2]}, [0.8, 0.0, 0.2, 0.0, 0.0], None),
        ({"communication": [math.nan]}, [1.0, 0.0, 0.0, 0.0, 0.0], None),
        ({"communication": [1.4, 1.6], "loader": [0.1, 1.2]}, None, None),
    ],
    ids=["balanced", "the rank that waits for no other is slow", "of two ranks", "jitter that all wait for",
         "late by its loader", "one device", "one device, nothing counted", "more counted than the step"],
)  # fmt: skip
def test_the_parts_of_a_step_sum_to_it(
    measured: dict[str, list[float]], parts: list[float] | None, slowest: tuple[int, str] | None
) -> None:
    found = split(windows(1.0), ranks(**measured))
    assert found["step_seconds"] == pytest.approx(1.0)
    assert_sums(found)
    assert parts is None or [found[part] for part in PARTS] == pytest.approx(parts)
    if slowest:
        assert (found["slowest_rank"], found["slowest_host"]) == slowest
    if len(measured["communication"]) == 1:
        assert math.isnan(found["slowest_rank"])


def test_what_was_not_measured_is_unknown() -> None:
    found = split(windows(1.0), ranks([math.nan, math.nan], loader=[0.1, 0.3]))
    assert found["step_seconds"] == pytest.approx(1.0)
    assert found["loader_seconds"] == pytest.approx(0.3)
    unknown = set(STEP_COLUMNS) - {"step_seconds", "loader_seconds", "slowest_host", "slow_host"}
    assert all(math.isnan(found[column]) for column in unknown)
    assert math.isnan(split(windows(1.0)[:1], ranks([0.1, 0.1]))["step_seconds"])
    # jitter that is unknown is in the communication
    found = split(windows(1.0), ranks([0.1, 0.5], waiting=[math.nan] * 2))
    assert_sums(found | {"jitter_seconds": 0.0})
    assert math.isnan(found["jitter_seconds"])


# --- the serial fraction -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scaling", "serial", "rate"),
    [
        ("strong", 0.04, lambda n: 1 / (0.04 + 0.96 / n)),
        ("strong", 0.0, lambda n: n),
        ("weak", 0.15, lambda n: n - 0.15 * (n - 1)),
    ],
    ids=["strong", "ideal", "weak"],
)
def test_the_interval_covers_the_planted_fraction(
    scaling: str, serial: float, rate: Callable[[float], float]
) -> None:
    covered = 0
    for seed in range(200):
        scatter = np.random.default_rng(seed).lognormal(0, 0.02, (4, 3))
        rates = {n: (1000 * rate(n) * row).tolist() for n, row in zip((1, 2, 4, 8), scatter, strict=True)}
        found = serial_fraction(rates, scaling)
        assert found is not None
        assert 0 <= found.low <= found.estimate <= found.high <= 1
        covered += found.low <= serial + 1e-9 and serial <= found.high
    # with 95 % in truth, 180 or fewer come by in one study of 500
    assert covered >= 180


@pytest.mark.parametrize(
    "rates",
    [{}, {1: [100.0] * 9, 2: [190.0] * 9}, {1: [99.0, 100.0], 2: [190.0, 191.0], 4: [370.0, 371.0], 8: []}],
    ids=["nothing", "two device counts", "two repeats"],
)
def test_too_few_device_counts_or_repeats_give_none(rates: dict[int, list[float]]) -> None:
    assert serial_fraction(rates, "strong") is None
