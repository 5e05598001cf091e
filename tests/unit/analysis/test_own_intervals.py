"""What a report says of runs that their own intervals ended, and of how much more they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted_tables import make_runs

from scalewise.analysis.comparison.own_intervals import own_interval_notes
from scalewise.analysis.tables import collect
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.records import OwnInterval


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
    assert note.startswith(
        "3 of 4 runs ended before their most steps, after 110 to 240 measured steps: half the width of a "
        "run's own 95 % interval was 0.4 to 0.99 % of its throughput by then. 1 made all their 500 steps, "
        "which left 2.3 %. Such an interval tells how well one run is known, and does not hold between runs"
    )


def test_runs_of_a_fixed_number_of_steps_and_older_tables_have_no_such_sentence() -> None:
    assert own_interval_notes(rows([1000, 1001], ended_by=None)) == []
    assert own_interval_notes(rows([1000, 1001]).drop(columns=["ended_by", "steady"])) == []


def test_scatter_beyond_the_runs_own_intervals_is_told_with_both_values() -> None:
    _, note = own_interval_notes(rows([990, 1000, 1011]))
    assert note.startswith("3 runs on 8 devices agree within themselves to 0.4 % (half the width")
    assert "but differ by 2.1 % from the slowest to the fastest: hosts, clocks or neighbours" in note


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
    write_run(tmp_path / "runs", "d1.r1", rate=1000.0, own_interval=own)
    write_run(tmp_path / "runs", "d2.r1", rate=2000.0)
    runs = collect("study", experiment(repeats=1), tmp_path / "runs").runs
    first, second = runs.to_dict("records")
    assert first["own_half_width_fraction"] == 0.008
    assert (first["warmed_up_steps"], first["steady"], first["ended_by"]) == (35, True, "interval")
    assert pd.isna(second["own_half_width_fraction"])
    assert pd.isna(second["ended_by"])
    assert first["measured_steps"] == second["measured_steps"] > 0
