"""Disturbed and unsteady runs and efficiencies above 1, planted as records and followed to the answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted import at, concluded, make_runs

from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.disturbed import disturbance, set_apart
from scalewise.analysis.judge_round import judge_round
from scalewise.analysis.study import Analysis
from scalewise.config.experiment import Experiment
from scalewise.plan.run_definition import canonical_json
from scalewise.records import GpuLimits

Measured = tuple[float, Mapping[str, Any]]
"""Samples/s of a run, and what else its record has."""


def busy(runs: Sequence[tuple[float, float]]) -> list[Measured]:
    """Return runs while other processes took a share of the CPUs."""
    return [(rate, {"other_cpu_fraction": share}) for rate, share in runs]


BUSY = [(2505.0, 0.30), (716.0, 0.90), (1372.0, 0.82)]
QUIET_1 = busy([(rate, 0.02) for rate in (2510.0, 2500.0, 2520.0)])
QUIET_2 = busy([(rate, 0.03) for rate in (4720.0, 4700.0, 4710.0)])


def study_of(points: Mapping[int, Sequence[Measured]], **keys: Any) -> Experiment:
    usual = {"repeats": max(map(len, points.values())), "decision": {"min_efficiency": 0.6}}
    return experiment(**{"scaling": "strong", "devices": list(points)} | usual | keys)


def found(tmp_path: Path, points: Mapping[int, Sequence[Measured]], **keys: Any) -> Analysis:
    for devices, runs in points.items():
        for repeat, (rate, measured) in enumerate(runs, start=1):
            write_run(tmp_path / "runs", f"d{devices}.r{repeat}", rate=rate, **measured)
    return concluded(tmp_path, study_of(points, **keys))


def above_1(analysis: Analysis) -> str:
    cautions = [each for each, _ in analysis.answer.cautions]
    return next((each for each in cautions if each.startswith("The efficiency")), "")


def test_an_answer_from_a_busy_machine_is_doubtful_and_its_first_reason_is_that(tmp_path: Path) -> None:
    analysis = found(tmp_path, {1: busy(BUSY), 2: QUIET_2})

    answer = analysis.answer
    assert answer.certainty == "doubtful"
    assert "disturbed runs, 3 of 6" in answer.reason
    assert "d1.r1 (other processes took 30 % of the CPUs)" in answer.reason
    assert "cli.py redo --disturbed" in answer.command
    assert analysis.runs["outcome"].eq("completed").all()
    assert analysis.scaling["n_disturbed"].tolist() == [3, 0]
    # 4710 over the geometric mean of 2505, 1372 and 716 is 3.48: an efficiency of 1.74
    assert at(analysis, 2)["parallel_efficiency"] == pytest.approx(1.74, abs=5e-3)


def test_a_disturbed_run_is_set_apart_if_its_point_has_others(tmp_path: Path) -> None:
    analysis = found(tmp_path, {1: [*QUIET_1, *busy([(716.0, 0.90)])], 2: [*QUIET_2, (4715.0, {})]})

    row = at(analysis, 1)
    assert (row["n"], row["n_failed"], row["n_set_apart"], row["n_left_out"]) == (3, 0, 1, 0)
    assert row["throughput_samples_per_second"] == pytest.approx(2510.0, rel=1e-4)
    assert "1 of 4 runs were disturbed and are set apart" in row["note"]
    (apart,) = (run for _, run in analysis.runs.iterrows() if run["outcome"] == "disturbed")
    assert (apart["run"], apart["reason"]) == ("d1.r4", "other processes took 90 % of the CPUs")
    assert any("d1.r4" in each for each, _ in analysis.answer.cautions)


HEAT = "rank 0: throttled in 3 samples: heat"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"other_cpu_fraction": None, "other_jobs": None, "throttled": None, "monitor_note": None}, ""),
        ({"other_cpu_fraction": 0.099, "other_jobs": 0, "throttled": False}, ""),
        ({"other_cpu_fraction": 0.25}, "other processes took 25 % of the CPUs"),
        ({"other_jobs": 1}, "1 other job on its nodes"),
        ({"other_jobs": 3, "throttled": True}, "3 other jobs on its nodes, lowered clocks"),
        ({"other_jobs": 3, "study_jobs": 2}, "3 other jobs on its nodes (2 of this study)"),
        ({"other_jobs": 1, "study_jobs": 0}, "1 other job on its nodes (not of this study)"),
        ({"throttled": True, "monitor_note": f"NVML gives no energy; {HEAT}"}, f"lowered clocks ({HEAT})"),
    ],
)
def test_each_measured_disturbance_is_named(record: dict[str, Any], text: str) -> None:
    assert disturbance(record) == text


@pytest.mark.parametrize(
    ("columns", "apart"),
    [
        ({"disturbance": ["", "", "load"]}, [2]),
        # shared files that many devices make slow are the cost of scaling
        ({"loader_wait_fraction": [0.02, 0.02, 0.45]}, []),
        ({"disturbance": ["", "load", "load"], "outcome": [OTHER_CONDITIONS, "completed", "completed"]}, []),
    ],
    ids=["a busy machine", "slow files", "the quiet run is not comparable"],
)
def test_a_run_is_set_apart_if_it_was_disturbed_and_comparable_others_of_its_point_were_not(
    columns: dict[str, Any], apart: list[int]
) -> None:
    runs = make_runs({("a", 1): [100.0] * 3}, **{"disturbance": ""} | columns)
    assert runs.index[set_apart(runs)["outcome"] == "disturbed"].tolist() == apart


# --- measured again -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "requested"), [(QUIET_1, 3), ([*QUIET_1[:2], *busy([(716.0, 0.9)])], 4), (busy(BUSY), 6)]
)
def test_disturbed_runs_are_measured_again(tmp_path: Path, runs: Sequence[Measured], requested: int) -> None:
    points, grows = {1: runs, 2: QUIET_2}, {"repeats": {"min": 3, "max": 10}}
    found(tmp_path, points, **grows)
    spec = study_of(points, **grows).model_dump(mode="json")
    definition = canonical_json({"name": "study", "spec": spec})
    judged = judge_round(definition, 1, tmp_path)
    assert judged.requested["d1"] == requested


# --- efficiency above 1 -------------------------------------------------------------------------------

A100 = {1: 1622.0, 2: 5181.0, 4: 10386.0, 8: 19282.0, 16: 33197.0}
"""Tokens/s at one global batch, published."""
FULL = {
    "peak_memory_bytes": 39_500_000_000,
    "origin": {"gpu_limits": [GpuLimits(memory_bytes=42_900_000_000)]},
}


def published(**of_baseline: Any) -> dict[int, list[Measured]]:
    return {devices: [(rate, of_baseline if devices == 1 else {})] for devices, rate in A100.items()}


def repeated(one: Sequence[float], two: Sequence[float]) -> dict[int, list[Measured]]:
    return {1: [(rate, {}) for rate in one], 2: [(rate, {}) for rate in two]}


@pytest.mark.parametrize(
    ("points", "facts"),
    [
        (published(), ["(1.28)", "fit a cache"]),
        (published(**FULL), ["92.1 % of its memory", "`accumulation_steps`"]),
        (repeated((970.0, 1000.0, 1030.0), (1980.0, 2020.0, 2060.0)), []),
    ],
    ids=["unexplained", "a baseline short of memory", "hardly above 1"],
)  # fmt: skip
def test_an_efficiency_above_1_is_explained_and_leaves_the_answer_unclear(
    tmp_path: Path, points: Mapping[int, Sequence[Measured]], facts: list[str]
) -> None:
    analysis = found(tmp_path, points)
    assert all(fact in above_1(analysis) for fact in facts)
    assert bool(above_1(analysis)) == bool(facts)
    assert not facts or analysis.answer.certainty != "clear"
