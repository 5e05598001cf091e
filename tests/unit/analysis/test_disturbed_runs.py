"""Disturbed and unsteady runs and efficiencies above 1, planted as records and followed to the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import make_runs
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.bottlenecks.disturbances import disturbance, set_apart
from scalewise.analysis.bottlenecks.drift import drift, drift_flags
from scalewise.analysis.comparison.own_intervals import own_interval_notes
from scalewise.analysis.conclusion import Conclusion, conclude
from scalewise.analysis.decision.cautions import of_efficiency
from scalewise.analysis.decision.selection import candidates
from scalewise.analysis.memory import device_memory_bytes, smaller_batch_gain
from scalewise.analysis.rounds.judge_round import judge_round
from scalewise.analysis.rounds.repeats import in_place_of_disturbed
from scalewise.analysis.rounds.sentences import round_lines
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import DecisionRule, Experiment, Repeats
from scalewise.plan.runs.rounds import Round
from scalewise.plan.runs.run_definition import NO_OPTIONS, canonical_json
from scalewise.records import GpuLimits, OwnInterval, Pass, Window

Measured = tuple[float, Mapping[str, Any]]
"""Samples/s of a run, and what its monitor has measured."""

BUSY = [(2505.0, 0.30), (716.0, 0.90), (1372.0, 0.82)]
QUIET_1: list[Measured] = [(rate, {"other_cpu_fraction": 0.02}) for rate in (2510.0, 2500.0, 2520.0)]
QUIET_2: list[Measured] = [(rate, {"other_cpu_fraction": 0.03}) for rate in (4720.0, 4700.0, 4710.0)]


def busy(runs: Sequence[tuple[float, float]]) -> list[Measured]:
    return [(rate, {"other_cpu_fraction": share}) for rate, share in runs]


def study_of(points: Mapping[int, Sequence[Measured]], **keys: Any) -> Experiment:
    usual = {"repeats": max(map(len, points.values())), "decision": {"min_efficiency": 0.6}}
    return experiment(**{"scaling": "strong", "devices": list(points)} | usual | keys)


def concluded(
    tmp_path: Path, points: Mapping[int, Sequence[Measured]], slurm_job_id: str | None = None, **keys: Any
) -> Conclusion:
    for devices, runs in points.items():
        for repeat, (rate, measured) in enumerate(runs, start=1):
            name = f"d{devices}.r{repeat}"
            write_run(
                tmp_path / "study" / "runs",
                name,
                rate=rate,
                origin={"slurm_job_id": slurm_job_id},
                **measured,
            )
    spec = study_of(points, **keys)
    tables = collect("study", spec, tmp_path / "study" / "runs")
    return conclude(AnalysisSpec("study", spec), tables)


def above_1(found: Conclusion) -> str:
    (caution,) = (each for each in found.decision.cautions if each.startswith("Efficiency is above 1"))
    return caution


@pytest.mark.parametrize("job", [None, "7"], ids=["one machine", "Slurm"])
def test_advice_on_disturbed_runs_names_a_key_of_slurm_only_for_runs_of_slurm(
    tmp_path: Path, job: str | None
) -> None:
    first = concluded(tmp_path, {1: busy(BUSY), 2: QUIET_2}, slurm_job_id=job).decision.cautions[0]
    assert "on a quiet machine" in first
    assert ("slurm.exclusive" in first) == (job is not None)


def test_an_answer_that_rests_on_a_busy_machine_is_not_clear_and_says_so_first(
    tmp_path: Path,
) -> None:
    found = concluded(tmp_path, {1: busy(BUSY), 2: QUIET_2})

    card = found.decision.card
    assert (card.certainty, card.reason) == ("Doubtful", "It rests on disturbed runs.")
    assert not found.decision.clear
    first = found.decision.cautions[0]
    assert first.startswith("The answer rests on 3 disturbed runs: ")
    assert "d1.r1 (other processes took 30 % of the CPUs), d1.r2 (other processes took 90 % of" in first
    assert "and 1 more, in runs.csv" in first
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


def test_the_share_of_the_cpus_counts_from_a_tenth_on(tmp_path: Path) -> None:
    below = [(rate, {"other_cpu_fraction": 0.099}) for rate in (2510.0, 2500.0, 2520.0)]
    assert concluded(tmp_path, {1: below, 2: QUIET_2}).decision.cautions == []


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({}, ""),
        ({"other_cpu_fraction": None, "other_jobs": None, "throttled": None, "monitor_note": None}, ""),
        ({"other_cpu_fraction": 0.0, "other_jobs": 0, "throttled": False}, ""),
        ({"other_cpu_fraction": 0.25}, "other processes took 25 % of the CPUs"),
        ({"other_jobs": 1}, "1 other job on its nodes"),
        ({"other_jobs": 3, "throttled": True}, "3 other jobs on its nodes, lowered clocks"),
        (
            {"throttled": True, "monitor_note": "NVML gives no energy; rank 0: throttled in 3 samples: heat"},
            "lowered clocks (rank 0: throttled in 3 samples: heat)",
        ),
    ],
)
def test_whatever_is_measured_of_disturbances_is_said(record: dict[str, Any], text: str) -> None:
    assert disturbance(record) == text


@pytest.mark.parametrize(
    ("waits", "slow"),
    [
        ([0.02, 0.02, 0.35], [2]),
        ([0.02, 0.02, 0.13], []),
        # a loader that is too slow keeps all runs of a point waiting
        ([0.40, 0.45, 0.60], []),
        ([None, None, None], []),
    ],
)
def test_slow_files_show_by_a_wait_that_other_runs_of_the_point_lack(
    waits: list[float | None], slow: list[int]
) -> None:
    runs = make_runs({("a", 1): [100.0] * 3}).assign(
        loader_wait_fraction=pd.Series(waits, dtype=float), disturbance="", fingerprint="f"
    )
    assert runs.index[set_apart(runs)["outcome"] == "disturbed"].tolist() == slow


def test_a_quiet_run_under_other_conditions_takes_no_disturbed_runs_place() -> None:
    runs = make_runs({("a", 1): [100.0] * 3}).assign(
        disturbance=["", "load", "load"], fingerprint=["other", "f", "f"]
    )
    assert set_apart(runs)["outcome"].eq("completed").all()


# --- measured again -----------------------------------------------------------------------------------

GROWS: dict[str, Any] = {"repeats": {"min": 3, "max": 10}}


def judged(tmp_path: Path, points: Mapping[int, Sequence[Measured]]) -> Round:
    concluded(tmp_path, points, **GROWS)
    spec = study_of(points, **GROWS)
    definition = canonical_json({"name": "study", "spec": spec.model_dump(mode="json")})
    return judge_round(definition, 1, tmp_path / "study")


@pytest.mark.parametrize(
    ("runs", "asked"),
    [
        (QUIET_1, 3),
        ([*QUIET_1[:2], *busy([(716.0, 0.9)])], 4),
        ([*QUIET_1[:1], *busy([(716.0, 0.9), (1372.0, 0.82)])], 5),
        (busy(BUSY), 6),
    ],
)
def test_disturbed_runs_are_measured_again(tmp_path: Path, runs: Sequence[Measured], asked: int) -> None:
    found = judged(tmp_path, {1: runs, 2: QUIET_2})

    point = found.points[0]
    assert (point.point, point.next_asked) == ("d1", asked)
    if asked > 3:
        assert point.verdict == "disturbed"
        assert round_lines(found)[0].startswith("study: d1: fewer than 3 of its 3 repeats were undisturbed")


def test_a_machine_that_is_never_quiet_gets_each_run_twice_at_most() -> None:
    runs = make_runs({("a", 1): [100.0] * 6}).assign(disturbance="load")
    assert in_place_of_disturbed(runs, Repeats(min=3, max=10)) == 0
    assert in_place_of_disturbed(runs[:3], Repeats(min=3, max=4)) == 1
    assert in_place_of_disturbed(runs[:3].assign(disturbance=""), Repeats(min=3, max=4)) == 0


# --- efficiency above 1 -------------------------------------------------------------------------------

A100 = {1: 1622.0, 2: 5181.0, 4: 10386.0, 8: 19282.0, 16: 33197.0}
"""Tokens/s at one global batch, published."""


def single(rates: Mapping[int, float], **measured: Any) -> dict[int, list[Measured]]:
    return {devices: [(rate, measured)] for devices, rate in rates.items()}


def test_a_published_efficiency_of_1_6_is_not_clear(tmp_path: Path) -> None:
    found = concluded(tmp_path, single(A100))

    assert not found.decision.clear
    named = "1.60 on 2 devices, 1.60 on 4 devices, 1.49 on 8 devices, 1.28 on 16 devices."
    assert named in above_1(found)
    assert "slow for a reason that its records do not show" in above_1(found)


def test_an_efficiency_above_1_is_not_clear_also_if_its_interval_reaches_below(
    tmp_path: Path,
) -> None:
    rates = {1: (1000.0, 800.0, 1250.0), 2: (2850.0, 2200.0, 1700.0)}
    found = concluded(tmp_path, {devices: [(rate, {}) for rate in runs] for devices, runs in rates.items()})

    assert found.scaling["parallel_efficiency_low"].iloc[1] < 1
    assert not found.decision.clear
    assert "1.10 on 2 devices. Noise may explain it" in above_1(found)


def test_a_baseline_short_of_memory_is_recognized_by_its_peak(tmp_path: Path) -> None:
    found = concluded(tmp_path, single(A100))
    base = found.scaling["devices"] == 1
    scaling = found.scaling.assign(device_memory_bytes=42.9e9)
    scaling.loc[base, "peak_memory_bytes"] = 39.5e9

    ((_, caution),) = of_efficiency(candidates(scaling, DecisionRule(), found.compared)[0].points)
    assert "39.5 of 42.9 GB of memory" in caution
    assert "`accumulation_steps`" in caution


def test_a_baseline_short_of_memory_is_recognized_by_a_smaller_batch_that_is_faster(
    tmp_path: Path,
) -> None:
    passes = [
        Pass(batch_size=256, forward_seconds=0.1, backward_seconds=0.3),
        Pass(batch_size=128, forward_seconds=0.03, backward_seconds=0.09),
    ]
    points = single(A100)
    points[1] = [(1622.0, {"passes": passes})]

    assert "1.67x the samples/s with a smaller batch" in above_1(concluded(tmp_path, points))


def test_the_memory_of_the_smallest_gpu_counts() -> None:
    limits = [GpuLimits(memory_bytes=80), None, GpuLimits(memory_bytes=40), GpuLimits()]
    assert device_memory_bytes(limits) == 40
    assert device_memory_bytes([None]) is None


def test_a_run_whose_batch_is_the_smallest_has_no_smaller_batch() -> None:
    one = Pass(batch_size=8, forward_seconds=1, backward_seconds=1)
    assert smaller_batch_gain([]) is None
    assert smaller_batch_gain([one, one.model_copy(update={"batch_size": 16})]) is None


# --- steady within a run --------------------------------------------------------------------------------


STEADY = [100, 102, 98, 101, 99, 100, 103, 97, 100]
SPEEDING_UP = [70, 72, 71, 80, 85, 90, 99, 100, 101]


def windows(rates: Sequence[float], warmup: int = 0) -> list[Window]:
    """Windows of 100 samples at these rates."""
    return [
        Window(first_step=i, steps=1, samples=100, seconds=100 / rate, warmup=i < warmup)
        for i, rate in enumerate(rates)
    ]


def table(*runs: Sequence[float], devices: int = 2) -> pd.DataFrame:
    rows = [
        {"series": "all runs", "devices": devices, "outcome": "completed"} | drift(windows(r)) for r in runs
    ]
    return pd.DataFrame(rows)


def test_the_drift_is_the_last_thirds_rate_over_the_firsts_by_samples_over_seconds() -> None:
    found = drift(windows([50, 100, 100, 100, 100, 100, 100, 100, 200]))
    first, last = 300 / (2 + 1 + 1), 300 / (1 + 1 + 0.5)
    assert found["drift"] == pytest.approx(last / first)
    bounds = welch_bounds([100, 100, 200], [50, 100, 100])
    assert (found["drift_low"], found["drift_high"]) == pytest.approx(bounds)


def test_the_spread_of_windows_is_half_their_interval_over_the_mean() -> None:
    assert drift(windows([90, 100, 110]))["window_spread"] == pytest.approx(0.251943, rel=1e-4)


def test_warm_up_windows_count_for_nothing() -> None:
    assert drift(windows([1, *STEADY], warmup=1)) == drift(windows(STEADY))


@pytest.mark.parametrize("count", [0, 1, 2, 8])
def test_few_windows_carry_no_drift(count: int) -> None:
    found = drift(windows(SPEEDING_UP[:count]))
    assert found.keys() == ({"window_spread"} if count > 1 else set())


def test_runs_that_got_faster_ask_for_more_warm_up_and_slower_ones_are_told_apart() -> None:
    (faster,) = drift_flags(table(SPEEDING_UP, SPEEDING_UP, STEADY))
    for fact in ("2 of 3 runs on 2 devices", "1.41x the rate of the first", "Raise warmup_steps"):
        assert fact in faster
    (slower,) = drift_flags(table(SPEEDING_UP[::-1]))
    assert "1 of 1 runs on 2 devices got slower" in slower
    assert "heat" in slower


def test_steady_runs_few_windows_and_a_single_exception_are_not_flagged() -> None:
    assert drift_flags(table(STEADY, STEADY)) == []
    assert drift_flags(table(SPEEDING_UP, STEADY)) == []
    assert drift_flags(pd.DataFrame(columns=["outcome", "series", "devices", "drift_low"])) == []
    # within 5 %
    assert drift_flags(table([100, 100, 100, 102, 102, 102, 104, 104, 104])) == []


def rows(rates: Sequence[float], devices: int = 8, **changed: Any) -> pd.DataFrame:
    """Runs of one point with these rates, ended by an interval of 0.4 %."""
    measured = {"measured_steps": 110, "own_half_width_fraction": 0.004, "steady": True}
    return make_runs({(NO_OPTIONS, devices): rates}, **measured | {"ended_by": "interval"} | changed)


def test_the_runs_that_were_cut_are_counted_with_their_steps_and_intervals() -> None:
    early = rows([1000, 1001, 999])
    early["measured_steps"] = [110, 134, 240]
    early["own_half_width_fraction"] = [0.004, 0.006, 0.0099]
    late = rows([1000], ended_by="steps", measured_steps=500, own_half_width_fraction=0.023)
    (note,) = own_interval_notes(pd.concat([early, late]))
    facts = ("3 of 4 runs", "110 to 240 measured steps", "0.4 to 0.99 %", "all their 500 steps", "2.3 %")
    assert all(fact in note for fact in facts)


def test_runs_of_a_fixed_number_of_steps_and_older_tables_have_no_such_sentence() -> None:
    assert own_interval_notes(rows([1000, 1001], ended_by=None)) == []
    assert own_interval_notes(rows([1000, 1001]).drop(columns=["ended_by", "steady"])) == []


def test_scatter_beyond_the_runs_own_intervals_is_told_with_both_values() -> None:
    _, note = own_interval_notes(rows([990, 1000, 1011]))
    assert all(fact in note for fact in ("3 runs on 8 devices", "to 0.4 %", "differ by 2.1 %"))


def test_scatter_that_the_runs_own_intervals_explain_is_not_told() -> None:
    assert len(own_interval_notes(rows([998, 1000, 1002]))) == 1
    # a wide interval of each explains more
    assert len(own_interval_notes(rows([990, 1000, 1011], own_half_width_fraction=0.02))) == 1
    assert len(own_interval_notes(rows([1000]))) == 1


def test_points_are_not_thrown_together() -> None:
    assert len(own_interval_notes(pd.concat([rows([1000, 1001]), rows([500, 501], devices=4)]))) == 1


def test_runs_that_never_became_steady_are_named() -> None:
    unsteady = rows([1000], ended_by="steps", steady=False)
    unsteady["run"] = "d8.r4"
    _, note = own_interval_notes(pd.concat([rows([1000, 1001, 999]), unsteady]))
    assert note.startswith("1 of 4 runs never became steady")
    assert "(d8.r4)" in note


def test_the_table_of_runs_has_what_the_records_say(tmp_path: Path) -> None:
    own = OwnInterval(
        until_interval=0.01,
        half_width_fraction=0.008,
        confidence=0.95,
        windows=20,
        effective_windows=14.5,
        warmup_steps=35,
        steady=True,
        ended="interval",
    )
    write_run(tmp_path / "runs", "d1.r1", rate=1000.0, own_interval=own, windows=windows(SPEEDING_UP))
    write_run(tmp_path / "runs", "d2.r1", rate=2000.0)
    runs = collect("study", experiment(repeats=1), tmp_path / "runs").runs
    first, second = runs.to_dict("records")
    assert first["own_half_width_fraction"] == 0.008
    assert (first["warmed_up_steps"], first["steady"], first["ended_by"]) == (35, True, "interval")
    assert pd.isna(second["own_half_width_fraction"])
    assert pd.isna(second["ended_by"])
    assert first["measured_steps"] == 9
    steadiness = drift(windows(SPEEDING_UP))
    assert {key: first[key] for key in steadiness} == steadiness
