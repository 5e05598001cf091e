"""From run folders on disk to tables, a decision and a report: what is there, and why the rest is not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.experiment_tables import compute
from scalewise.analysis.tables import RUN_COLUMNS, collect
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.runs.runs import series_name
from scalewise.records import EPOCHS, RANKS, SUMMARY


def with_target(**changed: Any) -> Experiment:
    return experiment(**{"repeats": 2, "target": {"accuracy": 0.9}} | changed)


def test_a_run_of_earlier_settings_is_not_pooled_with_the_others(tmp_path: Path) -> None:
    write_run(tmp_path, "d2.r1")
    changed = with_target(devices=[2], repeats=1, learning_rate=0.5)
    (row,) = collect("study", changed, tmp_path).runs.to_dict("records")
    assert row["outcome"] == "out of date"
    assert pd.isna(row["throughput_samples_per_second"])


def test_a_completed_run_brings_its_figures(tmp_path: Path) -> None:
    write_run(tmp_path, "d2.r1", rate=1234.5)
    runs = collect("study", with_target(devices=[2], repeats=1), tmp_path).runs
    assert list(runs.columns) == RUN_COLUMNS
    (row,) = runs.to_dict("records")
    assert (row["experiment"], row["run"], row["series"]) == ("study", "d2.r1", "all runs")
    assert (row["devices"], row["nodes"], row["devices_per_node"], row["repeat"]) == (2, 1, 2, 1)
    assert (row["batch_size_per_device"], row["global_batch_size"]) == (128, 256)
    assert (row["outcome"], row["reason"]) == ("completed", "")
    assert row["throughput_samples_per_second"] == 1234.5
    assert row["train_seconds"] == 1 + 2 + 3
    assert (row["final_accuracy"], row["best_accuracy"]) == (0.98, 0.98)
    assert row["peak_memory_bytes"] == 700_000_002
    assert row["wall_seconds"] == 90
    assert row["device_hours"] == pytest.approx(90 * 2 / 3600)
    assert (row["imports_seconds"], row["model_seconds"]) == (2.0, 1.25)
    assert (row["device_name"], row["hosts"], row["commit"]) == ("CPU process", "node1", "abc123")


def test_what_the_monitor_saw_is_beside_the_figures_of_the_run(tmp_path: Path) -> None:
    write_run(
        tmp_path,
        "d2.r1",
        mean_utilization=0.4,
        lowest_utilization=0.3,
        energy_joules=512.0,
        throttled=True,
        communication_fraction=0.5,
        loader="workers",
        monitor_note="rank 1: hot",
    )
    write_run(tmp_path, "d2.r2")
    watched, unwatched = collect("study", with_target(devices=[2]), tmp_path).runs.to_dict("records")
    assert (watched["mean_utilization"], watched["lowest_utilization"]) == (0.4, 0.3)
    assert (watched["energy_joules"], watched["samples_per_joule"]) == (512.0, 256 / 512)
    assert (watched["throttled"], watched["communication_fraction"]) == (True, 0.5)
    assert (watched["loader"], watched["monitor_note"]) == ("workers", "rank 1: hot")
    for column in ("mean_utilization", "energy_joules", "samples_per_joule", "throttled"):
        assert pd.isna(unwatched[column]), column


def test_devices_that_waited_are_said_beside_the_decision(tmp_path: Path) -> None:
    for devices in (1, 2):
        for repeat in (1, 2):
            write_run(tmp_path / "runs", f"d{devices}.r{repeat}", mean_utilization=0.3, loader="workers")
    compute(AnalysisSpec("study", with_target()), tmp_path / "runs", tmp_path)
    cautions = json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))["cautions"]
    assert any(
        "70 % on 1 device" in caution and "pieces of work are too short" in caution for caution in cautions
    )


@pytest.mark.parametrize(
    ("accuracies", "seconds", "epoch"),
    [
        ((0.5, 0.89, 0.95), 1 + 2 + 3, 3),
        ((0.9, 0.8, 0.95), 1, 1),  # the first epoch that reaches it counts
        ((0.5, 0.95, 0.95), 1 + 2, 2),
        ((0.5, 0.6, 0.7), None, None),
    ],
)
def test_time_to_accuracy_is_training_time_until_the_first_epoch_that_reaches_it(
    tmp_path: Path,
    accuracies: tuple[float, ...],
    seconds: float | None,
    epoch: int | None,
) -> None:
    write_run(tmp_path, "d1.r1", accuracies=accuracies)
    spec = with_target(devices=[1], repeats=1)
    assert (
        collect("study", experiment(devices=[1], repeats=1), tmp_path).runs["epochs_to_accuracy"].isna().all()
    )
    (row,) = collect("study", spec, tmp_path).runs.to_dict("records")
    if seconds is None:
        assert pd.isna(row["time_to_accuracy_seconds"])
        assert pd.isna(row["epochs_to_accuracy"])
    else:
        assert row["time_to_accuracy_seconds"] == seconds
        assert row["epochs_to_accuracy"] == epoch


def test_every_planned_run_has_a_row_with_its_outcome_and_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "d1.r1")
    write_run(tmp_path, "d1.r2", "diverged", accuracies=(0.1,))
    write_run(tmp_path, "d1.r3", "out-of-memory")
    write_run(tmp_path, "d2.r1", "failed")
    write_run(tmp_path, "d2.r2", "timed-out")
    tables = collect("study", with_target(repeats=3), tmp_path)
    columns = ["outcome", "reason", "devices", "repeat"]
    found = {row["run"]: [row[column] for column in columns] for row in tables.runs.to_dict("records")}
    assert found["d1.r1"] == ["completed", "", 1, 1]
    assert found["d1.r2"] == ["diverged", "why d1.r2 is diverged", 1, 2]
    assert found["d1.r3"] == ["out-of-memory", "why d1.r3 is out-of-memory", 1, 3]
    assert found["d2.r1"] == ["failed", "why d2.r1 failed", 2, 1]
    assert found["d2.r2"] == ["timed-out", "why d2.r2 timed-out", 2, 2]
    assert found["d2.r3"] == ["not run yet", "", 2, 3]
    assert tables.epochs["run"].tolist() == ["d1.r1"] * 3 + ["d1.r2"]
    assert len(tables.origins) == 2


def test_folders_of_runs_that_are_no_longer_planned_are_left_alone(tmp_path: Path) -> None:
    write_run(tmp_path, "d1.r1")
    write_run(tmp_path, "d4.r1")
    write_run(tmp_path, "d1.bucket-view-on.r1")
    damaged = write_run(tmp_path, "d8.r1")
    (damaged / SUMMARY).write_text("{", encoding="utf-8")
    tables = collect("study", with_target(devices=[1], repeats=1), tmp_path)
    assert tables.runs["run"].tolist() == ["d1.r1"]
    assert set(tables.epochs["run"]) == {"d1.r1"}


def test_swept_options_are_columns_and_name_the_series(tmp_path: Path) -> None:
    spec = with_target(devices=[1], repeats=1, sweep={"gradient_as_bucket_view": [False, True]})
    write_run(tmp_path, "d1.bucket-view-on.r1", options={"gradient_as_bucket_view": True})
    runs = collect("study", spec, tmp_path).runs
    assert runs["series"].tolist() == ["bucket-view-off", "bucket-view-on"]
    assert runs["gradient_as_bucket_view"].tolist() == [False, True]
    assert runs["outcome"].tolist() == ["not run yet", "completed"]
    assert series_name(()) == "all runs"


def test_a_forced_shape_counts_its_devices_before_it_has_run(tmp_path: Path) -> None:
    runs = collect("study", with_target(devices=[1, "2x2"], repeats=1), tmp_path).runs
    assert runs["devices"].tolist() == [1, 4]
    assert runs["run"].tolist() == ["d1.r1", "d2x2.r1"]


def _edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        before = (folder / name).read_text(encoding="utf-8")
        assert change(before) != before
        (folder / name).write_text(change(before), encoding="utf-8")

    return edit


def _number(key: str, value: str) -> Callable[[Path], None]:
    return _edit(SUMMARY, lambda text: re.sub(rf'"{key}": [^,\n]*', f'"{key}": {value}', text))


def _pipe(folder: Path) -> None:
    (folder / SUMMARY).unlink()
    os.mkfifo(folder / SUMMARY)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(SUMMARY, _edit(SUMMARY, lambda _: ""), id="empty summary"),
        pytest.param(SUMMARY, _edit(SUMMARY, lambda _: "[" * 100_000), id="nested without end"),
        pytest.param(SUMMARY, _pipe, id="named pipe"),
        *(
            pytest.param(SUMMARY, _number("throughput_samples_per_second", value), id=f"throughput {value}")
            for value in ("NaN", "-5", "0", "1e400", "1e300", "1e-300", '"fast"')
        ),
        pytest.param(SUMMARY, _number("final_accuracy", "7"), id="accuracy"),
        pytest.param(SUMMARY, _number("ended_at", '"2026-01-01T00:01:30"'), id="no zone"),
        pytest.param(SUMMARY, _number("ended_at", '"2025-12-31T23:00:00+00:00"'), id="clock set back"),
        pytest.param(SUMMARY, _number("ended_at", '"soon"'), id="no time"),
        pytest.param(SUMMARY, _number("run", '"d1.r1"'), id="of another run"),
        pytest.param(EPOCHS, lambda folder: (folder / EPOCHS).unlink(), id="missing epochs"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda _: "\0\1"), id="binary epochs"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text.splitlines()[0] + "\n"), id="header alone"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: "\n".join(text.splitlines()[:-1])), id="cut epochs"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text[:-9]), id="cut within a row"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text.replace("0.98", "0.97")), id="other accuracy"),
        pytest.param(EPOCHS, _edit(EPOCHS, lambda text: text.replace("\n2,", "\n2,-")), id="negative time"),
        pytest.param(RANKS, _edit(RANKS, lambda text: "\n".join(text.splitlines()[:-1])), id="cut ranks"),
    ],
)
def test_a_damaged_run_is_left_out_and_named_with_its_fix(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    for run in ("d1.r1", "d1.r2", "d2.r1", "d2.r2"):
        write_run(tmp_path / "runs", run, rate=1000.0 * int(run[1]))
    damage(tmp_path / "runs" / "d2.r2")
    compute(AnalysisSpec("study", with_target()), tmp_path / "runs", tmp_path)
    runs = pd.read_csv(tmp_path / "runs.csv")
    assert runs["outcome"].tolist() == ["completed"] * 3 + ["unreadable"]
    assert pd.isna(runs["throughput_samples_per_second"].iloc[3])
    decision = json.loads((tmp_path / "decision.json").read_text(encoding="utf-8"))
    (caution,) = [caution for caution in decision["cautions"] if "is left out: " in caution]
    assert str(tmp_path / "runs" / "d2.r2" / name) in caution
    assert "Delete " in caution
    scaling = pd.read_csv(tmp_path / "scaling.csv")
    assert scaling["n"].tolist() == [2, 1]


def test_equal_records_make_equal_tables(tmp_path: Path) -> None:
    made = []
    for name in ("first", "second"):
        folder = tmp_path / name
        for devices in (1, 2):
            write_run(folder / "runs", f"d{devices}.r1", rate=900.0 * devices)
        compute(AnalysisSpec("study", with_target(repeats=1)), folder / "runs", folder / "out")
        made.append({path.name: path.read_bytes() for path in (folder / "out").iterdir()})
    assert made[0] == made[1]
    assert {"runs.csv", "scaling.csv", "decision.json"} <= made[0].keys()
