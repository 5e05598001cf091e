"""Whether a run kept its rate while it was measured, and how well its own interval tells its throughput."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import make_runs
from tests.unit.analysis.reference import welch_bounds

from scalewise.analysis.bottlenecks.drift import drift, drift_flags
from scalewise.analysis.comparison.own_intervals import own_interval_notes
from scalewise.analysis.tables import collect
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.records import OwnInterval, Window

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
