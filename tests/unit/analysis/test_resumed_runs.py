"""What a report makes of runs that were cut off and went on from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.report_page import cells

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.bottlenecks.resumption import resumed_text, resumption_notes
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.page import write_report
from scalewise.analysis.scaling import scaling_table
from scalewise.analysis.tables import Tables, collect
from scalewise.plan.config.experiment import Experiment
from scalewise.records import EPOCHS, SUMMARY, Resumption

TWICE = Resumption(starts=3, resumed_at_steps=[120, 300], lost_steps=14, unmeasured_steps=20)
ONCE = Resumption(starts=2, resumed_at_steps=[40])
RESTARTED = Resumption(starts=2, lost_steps=7)
"""It failed before its first checkpoint: what counts was done in one go."""


def study(folder: Path, resumed: Mapping[str, Resumption]) -> Tables:
    """Three runs on one device and three on two, some of them resumed, each of 90 s by its clock."""
    for devices in (1, 2):
        for repeat in (1, 2, 3):
            run = f"d{devices}.r{repeat}"
            known: dict[str, Any] = {"resumption": resumed[run]} if run in resumed else {}
            write_run(folder / "runs", run, rate=1000.0 * devices, energy_joules=512.0, **known)
    return collect("study", experiment(), folder / "runs")


def row_of(tables: Tables, run: str) -> dict[str, Any]:
    (row,) = tables.runs[tables.runs["run"] == run].to_dict("records")
    return {str(key): value for key, value in row.items()}


def test_the_table_of_runs_says_how_often_a_run_was_started_and_what_it_did_twice(tmp_path: Path) -> None:
    tables = study(tmp_path, {"d2.r1": TWICE, "d2.r2": RESTARTED})
    columns = ("starts", "resumes", "lost_steps")
    assert [row_of(tables, "d2.r1")[column] for column in columns] == [3, 2, 14]
    assert [row_of(tables, "d2.r2")[column] for column in columns] == [2, 0, 7]
    assert [row_of(tables, "d2.r3")[column] for column in columns] == [1, 0, 0]


def test_a_run_that_was_resumed_has_no_wall_time_to_compare_but_keeps_its_throughput(tmp_path: Path) -> None:
    tables = study(tmp_path, {"d2.r1": TWICE, "d2.r2": RESTARTED})
    of_whole = ["wall_seconds", "device_hours"]
    resumed = row_of(tables, "d2.r1")
    assert all(pd.isna(resumed[column]) for column in of_whole)
    assert resumed["throughput_samples_per_second"] == 2000.0
    assert resumed["final_accuracy"] == 0.98
    assert (resumed["energy_joules"], resumed["samples_per_joule"]) == (512, 0.5)
    for run in ("d2.r2", "d2.r3"):
        assert [row_of(tables, run)[column] for column in of_whole] == [90, 90 * 2 / 3600], run


def test_the_memory_of_a_process_that_read_a_checkpoint_is_not_that_of_a_training(tmp_path: Path) -> None:
    tables = study(tmp_path, {"d2.r1": TWICE, "d2.r2": RESTARTED})
    assert row_of(tables, "d2.r1")["peak_memory_kind"] == "process peak RSS, evaluation included"
    assert pd.isna(row_of(tables, "d2.r1")["peak_memory_bytes"])
    assert row_of(tables, "d2.r2")["peak_memory_bytes"] > 0
    point = scaling_table(tables.runs, "strong", tables.conditions).set_index("devices").loc[2]
    assert point["peak_memory_bytes"] == row_of(tables, "d2.r3")["peak_memory_bytes"]


def test_walls_of_a_point_are_those_of_its_undisturbed_runs(tmp_path: Path) -> None:
    tables = study(tmp_path, {"d2.r1": TWICE})
    # what its last start took is far from what a whole run takes
    summary = tmp_path / "runs" / "d2.r1" / SUMMARY
    summary.write_text(summary.read_text().replace("00:01:30", "01:00:00"), encoding="utf-8")
    tables = collect("study", experiment(), tmp_path / "runs")
    point = scaling_table(tables.runs, "strong", tables.conditions).set_index("devices").loc[2]
    assert (point["wall_seconds"], point["wall_seconds_next"]) == (90, pytest.approx(90))
    assert (point["n"], point["wall_n"]) == (3, 2)
    assert point["speedup"] == pytest.approx(2)


def test_a_resumed_run_reached_the_target_in_so_many_epochs_and_in_no_time_to_compare(tmp_path: Path) -> None:
    study(tmp_path, {"d2.r1": TWICE, "d2.r2": RESTARTED})
    # seconds of the renewed warm-up, which no undisturbed run has
    epochs = tmp_path / "runs" / "d2.r1" / EPOCHS
    epochs.write_text(epochs.read_text(encoding="utf-8").replace("\n2,2.0,", "\n2,20.0,"), encoding="utf-8")
    tables = collect("study", experiment(target={"accuracy": 0.9}), tmp_path / "runs")
    resumed, undisturbed = row_of(tables, "d2.r1"), row_of(tables, "d2.r2")
    assert pd.isna(resumed["time_to_accuracy_seconds"])
    assert resumed["epochs_to_accuracy"] == 2
    assert (undisturbed["time_to_accuracy_seconds"], undisturbed["epochs_to_accuracy"]) == (3, 2)
    table = scaling_table(tables.runs, "strong", tables.conditions).set_index("devices")
    assert table["n_reached"].tolist() == [3, 3]
    seconds = [table.loc[2, f"time_to_accuracy_seconds{end}"] for end in ("", "_low", "_high")]
    assert seconds == pytest.approx([3, 3, 3])
    assert table.loc[2, "statistical_efficiency"] == 1


def decided(folder: Path, spec: Experiment) -> dict[str, Any]:
    compute(AnalysisSpec("study", spec), folder / "runs", folder)
    found: dict[str, Any] = json.loads((folder / "decision.json").read_text(encoding="utf-8"))
    return found


def test_a_deadline_is_not_judged_by_runs_that_were_all_cut_off(tmp_path: Path) -> None:
    spec = experiment(decision={"deadline_minutes": 1})
    study(tmp_path, {f"d2.r{repeat}": ONCE for repeat in (1, 2, 3)})
    decision = decided(tmp_path, spec)
    assert decision["devices"] is None
    assert "1 device: up to 1.50 minutes" in decision["card"]["reason"]
    assert decision["card"]["reason"].endswith("; unknown for 2 devices.")
    (note,) = (line for line in decision["cautions"] if "resumed from a checkpoint" in line)
    assert note.endswith("No uninterrupted run is left at 2 devices.")
    reason = decided(tmp_path, experiment(decision={"max_device_hours": 0.01}))["card"]["reason"]
    assert "1 device: 0.0250 device-hours" in reason
    assert reason.endswith("; unknown for 2 devices.")
    spec = experiment(decision={"deadline_minutes": 2})
    assert decided(tmp_path, spec)["devices"] == 1


@pytest.mark.slow
def test_the_report_says_which_runs_were_resumed_and_what_that_leaves_out(tmp_path: Path) -> None:
    study(tmp_path / "study", {"d2.r1": TWICE, "d1.r3": ONCE})
    (note,) = (line for line in decided(tmp_path / "study", experiment())["cautions"] if "checkpoint" in line)
    assert (
        "2 of 6 runs resumed from a checkpoint: d1.r3 (once, no step done again), d2.r1 (2 times, 14" in note
    )
    results = ExperimentResults.read(AnalysisSpec("study", experiment()), tmp_path / "study", title="Study")
    draw(results)
    page = tmp_path / "report.html"
    write_report([results], page)
    html = page.read_text(encoding="utf-8")
    assert html.count(f"<p>{note}</p>") == 1
    rows = cells(html, "Runs: 6 completed")
    after = rows[next(index for index, row in enumerate(rows) if row.startswith("|d2.r1|")) + 1]
    assert "Resumed 2 times, 14 steps done again." in after
    assert sum("Resumed" in row for row in rows) == 2


def test_many_resumed_runs_are_counted_and_the_first_named() -> None:
    (note,) = resumption_notes(table([("completed", ONCE)] * 8 + [("diverged", ONCE)]))
    assert note.startswith("8 of 8 runs resumed from a checkpoint: run 0 (once, no step done again), ")
    assert " and 2 more, in runs.csv. " in note
    assert resumed_text(1, 1) == "once, 1 step done again"
    runs = table([("completed", ONCE)] * 2).assign(series=["zero1", "fsdp"])
    (note,) = resumption_notes(runs)
    assert note.endswith("2 devices of zero1, 2 devices of fsdp.")
    undisturbed = table([("completed", RESTARTED)])
    assert resumption_notes(undisturbed) == []
    older = undisturbed.drop(columns=["resumes", "lost_steps", "checkpoint_problems"])
    assert resumption_notes(older) == []


def test_a_checkpoint_that_could_not_be_written_is_said_once_for_all_runs() -> None:
    full = Resumption(problems=["checkpoints: No space left on device"] * 2)
    damaged = Resumption(problems=["step-000000120: other sha256"])
    _, note = resumption_notes(table([("completed", full), ("completed", damaged), ("completed", ONCE)]))
    assert note.startswith("2 of 3 runs ")
    assert note.endswith(": checkpoints: No space left on device, and 1 other in runs.csv.")
    (alone,) = resumption_notes(table([("diverged", damaged)]))
    assert alone.startswith("1 of 1 run ")
    assert alone.endswith(": step-000000120: other sha256.")


def table(runs: Sequence[tuple[str, Resumption]]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "run": f"run {number}",
            "series": "all runs",
            "devices": 2,
            "outcome": outcome,
            "resumes": len(resumption.resumed_at_steps),
            "lost_steps": resumption.lost_steps,
            "checkpoint_problems": "; ".join(dict.fromkeys(resumption.problems)),
        }
        for number, (outcome, resumption) in enumerate(runs)
    )
