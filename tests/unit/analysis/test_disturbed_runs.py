"""Disturbed and unsteady runs and efficiencies above 1, planted as records and followed to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import OWN_INTERVAL, experiment, write_run
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.own_intervals import own_interval_notes
from scalewise.analysis.conclusion import Conclusion, conclude
from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.disturbed import disturbance, set_apart
from scalewise.analysis.memory import device_memory_bytes, smaller_batch_gain
from scalewise.analysis.rounds.judge_round import judge_round
from scalewise.analysis.rounds.repeats import in_place_of_disturbed
from scalewise.analysis.rounds.sentences import round_lines
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Experiment, Repeats
from scalewise.plan.runs.run_definition import NO_OPTIONS, canonical_json
from scalewise.records import GpuLimits, Pass, Window

Measured = tuple[float, Mapping[str, Any]]
"""Samples/s of a run, and what else its record has."""


def busy(runs: Sequence[tuple[float, float]], **more: Any) -> list[Measured]:
    """Return runs while other processes took a share of the CPUs."""
    return [(rate, {"other_cpu_fraction": share} | more) for rate, share in runs]


BUSY = [(2505.0, 0.30), (716.0, 0.90), (1372.0, 0.82)]
QUIET_1 = busy([(rate, 0.02) for rate in (2510.0, 2500.0, 2520.0)])
QUIET_2 = busy([(rate, 0.03) for rate in (4720.0, 4700.0, 4710.0)])


def study_of(points: Mapping[int, Sequence[Measured]], **keys: Any) -> Experiment:
    usual = {"repeats": max(map(len, points.values())), "decision": {"min_efficiency": 0.6}}
    return experiment(**{"scaling": "strong", "devices": list(points)} | usual | keys)


def concluded(tmp_path: Path, points: Mapping[int, Sequence[Measured]], **keys: Any) -> Conclusion:
    for devices, runs in points.items():
        for repeat, (rate, measured) in enumerate(runs, start=1):
            write_run(tmp_path / "study" / "runs", f"d{devices}.r{repeat}", rate=rate, **measured)
    spec = study_of(points, **keys)
    return conclude(AnalysisSpec("study", spec), collect("study", spec, tmp_path / "study" / "runs"))


def above_1(found: Conclusion) -> str:
    return next((each for each in found.decision.cautions if each.startswith("Efficiency is above 1")), "")


@pytest.mark.parametrize("job", [None, "7"], ids=["one machine", "Slurm"])
def test_an_answer_from_a_busy_machine_is_not_clear_and_its_first_reason_is_that(
    tmp_path: Path, job: str | None
) -> None:
    found = concluded(tmp_path, {1: busy(BUSY, origin={"slurm_job_id": job}), 2: QUIET_2})

    card = found.decision.card
    assert (card.certainty, card.reason) == ("Doubtful", "It rests on disturbed runs.")
    assert not found.decision.clear
    first = found.decision.cautions[0]
    assert first.startswith("The answer rests on 3 disturbed runs: ")
    assert "d1.r1 (other processes took 30 % of the CPUs), d1.r2 (other processes took 90 % of" in first
    assert "and 1 more, in runs.csv" in first
    assert "on a quiet machine" in first
    assert ("slurm.exclusive" in first) == (job is not None)
    assert found.runs["outcome"].eq("completed").all()
    assert found.scaling["n_disturbed"].tolist() == [3, 0]
    # 4710 over the geometric mean of 2505, 1372 and 716 is 3.48: an efficiency of 1.74
    assert above_1(found).startswith("Efficiency is above 1: 1.74 on 2 devices.")


def test_a_disturbed_run_is_set_apart_if_its_point_has_others(tmp_path: Path) -> None:
    found = concluded(tmp_path, {1: [*QUIET_1, *busy([(716.0, 0.90)])], 2: [*QUIET_2, (4715.0, {})]})

    (row,) = (row for _, row in found.scaling.iterrows() if row["devices"] == 1)
    assert (row["n"], row["n_failed"], row["n_set_apart"], row["n_not_comparable"]) == (3, 0, 1, 1)
    assert row["throughput_samples_per_second"] == pytest.approx(2510.0, rel=1e-4)
    assert row["note"] == "1 of 4 runs were disturbed and are set apart"
    (apart,) = (run for _, run in found.runs.iterrows() if run["outcome"] == "disturbed")
    assert (apart["run"], apart["reason"]) == ("d1.r4", "other processes took 90 % of the CPUs")
    assert found.decision.clear
    assert "set apart: d1.r4 (other processes took 90 % of the CPUs)" in found.decision.cautions[0]


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
    ("runs", "requested"),
    [
        (QUIET_1, 3),
        ([*QUIET_1[:2], *busy([(716.0, 0.9)])], 4),
        (busy(BUSY), 6),
    ],
)
def test_disturbed_runs_are_measured_again(tmp_path: Path, runs: Sequence[Measured], requested: int) -> None:
    points, grows = {1: runs, 2: QUIET_2}, {"repeats": {"min": 3, "max": 10}}
    concluded(tmp_path, points, **grows)
    spec = study_of(points, **grows).model_dump(mode="json")
    judged = judge_round(canonical_json({"name": "study", "spec": spec}), 1, tmp_path / "study")
    point = judged.points[0]
    assert (point.point, point.next_asked) == ("d1", requested)
    line = "study: d1: fewer than 3 of its 3 repeats were undisturbed"
    assert (point.verdict == "disturbed", round_lines(judged)[0].startswith(line)) == (requested > 3,) * 2


def test_a_machine_that_is_never_quiet_gets_each_run_twice_at_most() -> None:
    runs = make_runs({("a", 1): [100.0] * 6}).assign(disturbance="load")
    assert in_place_of_disturbed(runs, Repeats(min=3, max=10)) == 0
    assert in_place_of_disturbed(runs[:3], Repeats(min=3, max=4)) == 1
    assert in_place_of_disturbed(runs[:3].assign(disturbance=""), Repeats(min=3, max=4)) == 0


# --- efficiency above 1 -------------------------------------------------------------------------------

A100 = {1: 1622.0, 2: 5181.0, 4: 10386.0, 8: 19282.0, 16: 33197.0}
"""Tokens/s at one global batch, published."""
FULL = {
    "peak_memory_bytes": 39_500_000_000,
    "origin": {"gpu_limits": [GpuLimits(memory_bytes=42_900_000_000)]},
}
SMALLER_IS_FASTER = [
    Pass(batch_size=256, forward_seconds=0.1, backward_seconds=0.3),
    Pass(batch_size=128, forward_seconds=0.03, backward_seconds=0.09),
]


def published(**of_baseline: Any) -> dict[int, list[Measured]]:
    return {devices: [(rate, of_baseline if devices == 1 else {})] for devices, rate in A100.items()}


def repeated(one: Sequence[float], two: Sequence[float]) -> dict[int, list[Measured]]:
    return {1: [(rate, {}) for rate in one], 2: [(rate, {}) for rate in two]}


@pytest.mark.parametrize(
    ("points", "facts"),
    [
        (
            published(),
            ["1.60 on 2 devices, 1.60 on 4 devices, 1.49 on 8 devices, 1.28 on 16 devices.",
             "slow for a reason that its records do not show"],
        ),
        (published(**FULL), ["39.5 of 42.9 GB of memory", "`accumulation_steps`"]),
        (published(passes=SMALLER_IS_FASTER), ["1.67x the samples/s with a smaller batch"]),
        (
            repeated((1000.0, 800.0, 1250.0), (2850.0, 2200.0, 1700.0)),
            ["1.10 on 2 devices. Noise may explain it"],
        ),
        (repeated((970.0, 1000.0, 1030.0), (1980.0, 2020.0, 2060.0)), []),
    ],
    ids=["unexplained", "a baseline short of memory", "a baseline that a smaller batch speeds up", "noise",
         "hardly above 1"],
)  # fmt: skip
def test_an_efficiency_above_1_is_explained_and_leaves_the_answer_unclear(
    tmp_path: Path, points: Mapping[int, Sequence[Measured]], facts: list[str]
) -> None:
    found = concluded(tmp_path, points)
    assert all(fact in above_1(found) for fact in facts)
    assert bool(above_1(found)) == bool(facts) == (not found.decision.clear)


def test_memory_is_that_of_the_smallest_gpu_and_no_batch_is_smaller_than_the_smallest() -> None:
    limits = [GpuLimits(memory_bytes=80), None, GpuLimits(memory_bytes=40), GpuLimits()]
    assert device_memory_bytes(limits) == 40
    assert device_memory_bytes([None]) is None
    one = Pass(batch_size=8, forward_seconds=1, backward_seconds=1)
    assert smaller_batch_gain([]) is None
    assert smaller_batch_gain([one, one.model_copy(update={"batch_size": 16})]) is None


# --- steady within a run --------------------------------------------------------------------------------

SPEEDING_UP = [70, 72, 71, 80, 85, 90, 99, 100, 101]


def windows(rates: Sequence[float], warmup: int = 0) -> list[Window]:
    """Return windows of 100 samples at these rates."""
    return [
        Window(first_step=i, steps=1, samples=100, seconds=100 / rate, warmup=i < warmup)
        for i, rate in enumerate(rates)
    ]


def rows(rates: Sequence[float], devices: int = 8, **changed: Any) -> pd.DataFrame:
    """Return runs of one point with these rates, ended by an interval of 0.4 %."""
    measured = {"measured_steps": 110, "own_half_width_fraction": 0.004, "steady": True}
    return make_runs({(NO_OPTIONS, devices): rates}, **measured | {"ended_by": "interval"} | changed)


CUT = pd.concat(
    [
        rows(
            [1000, 1001, 999], measured_steps=[110, 134, 240], own_half_width_fraction=[0.004, 0.006, 0.0099]
        ),
        rows([1000], ended_by="steps", measured_steps=500, own_half_width_fraction=0.023),
    ]
)
UNSTEADY = rows([1000], ended_by="steps", steady=False, run="d8.r4")


@pytest.mark.parametrize(
    ("runs", "count", "facts"),
    [
        (CUT, 1, ["3 of 4 runs", "110 to 240 measured", "0.4 to 0.99 %", "all their 500 steps", "2.3 %"]),
        (rows([990, 1000, 1011]), 2, ["3 runs on 8 devices", "to 0.4 %", "differ by 2.1 %"]),
        # by intervals of 0.4 %, 2 runs differ by 7.43 or more in one study of 100
        (rows([996.2, 1003.8]), 2, ["2 runs on 8 devices"]),
        (rows([996.4, 1003.6]), 1, []),
        (rows([1000]), 1, []),
        (rows([990, 1000, 1011], own_half_width_fraction=0.02), 1, []),
        (pd.concat([rows([1000, 1001]), rows([500, 501], devices=4)]), 1, []),
        (pd.concat([rows([1000, 1001, 999]), UNSTEADY]), 2, ["1 of 4 runs never became steady", "(d8.r4)"]),
        (rows([1000, 1001], ended_by=None), 0, []),
        (rows([1000, 1001]).drop(columns=["ended_by", "steady"]), 0, []),
    ],
    ids=["steps and intervals of runs that were cut", "scatter beyond the runs' intervals", "of two runs",
         "scatter that they explain", "a single run", "scatter that wide ones explain", "two points",
         "never steady", "a fixed number of steps", "an older table"],
)  # fmt: skip
def test_runs_that_their_interval_ended_have_a_note(runs: pd.DataFrame, count: int, facts: list[str]) -> None:
    notes = own_interval_notes(runs)
    assert len(notes) == count
    assert all(fact in notes[-1] for fact in facts)


def test_the_table_of_runs_has_what_the_records_hold_of_steadiness(tmp_path: Path) -> None:
    write_run(tmp_path, "d1.r1", own_interval=OWN_INTERVAL, windows=windows(SPEEDING_UP))
    write_run(tmp_path, "d2.r1")
    first, second = collect("study", experiment(repeats=1), tmp_path).runs.to_dict("records")
    names = ("own_half_width_fraction", "warmed_up_steps", "steady", "ended_by", "measured_steps")
    assert [first[name] for name in names] == [0.008, 35, True, "interval", 9]
    assert pd.isna(second["own_half_width_fraction"])
    assert pd.isna(second["ended_by"])
