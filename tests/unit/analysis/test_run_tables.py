"""From run folders on disk to tables and an answer: what is there, and why the rest is not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.planted_records import experiment, write_run
from tests.unit.analysis.planted import at, concluded

from scalewise.analysis.runs import RUN_COLUMNS, collect
from scalewise.config.experiment import Experiment
from scalewise.records import EPOCHS, RANKS, RECORD


def with_target(**changed: Any) -> Experiment:
    return experiment(**{"repeats": 2, "target": {"accuracy": 0.9}} | changed)


def test_a_completed_run_brings_its_figures_and_what_the_monitor_saw(tmp_path: Path) -> None:
    seen: dict[str, Any] = {
        "mean_utilization": 0.4, "lowest_utilization": 0.3, "energy_joules": 512.0, "throttled": True,
        "communication_fraction": 0.5, "loader": "workers", "monitor_note": "rank 1: hot",
    }  # fmt: skip
    write_run(tmp_path, "d2.r1", rate=1234.5, **seen)
    write_run(tmp_path, "d2.r2")
    runs = collect("study", with_target(devices=[2]), tmp_path).runs
    assert list(runs.columns) == RUN_COLUMNS
    row, unwatched = runs.to_dict("records")
    assert (row["run"], row["series"], row["nodes"], row["devices_per_node"]) == ("d2.r1", "all runs", 1, 2)
    assert (unwatched["outcome"], unwatched["reason"]) == ("completed", "")
    assert row["outcome"] == "disturbed"
    assert "lowered clocks" in row["reason"]
    assert row["throughput_samples_per_second"] == 1234.5
    assert (row["train_seconds"], row["wall_seconds"]) == (1 + 2 + 3, 90)
    assert row["device_hours"] == pytest.approx(90 * 2 / 3600)
    assert (row["device_name"], row["hosts"], row["commit"]) == ("CPU process", "node1", "abc123")
    assert {column: row[column] for column in seen} == seen
    assert row["samples_per_joule"] == 256 / 512
    for column in ("mean_utilization", "energy_joules", "samples_per_joule", "throttled"):
        assert pd.isna(unwatched[column]), column


def test_time_to_accuracy_is_training_time_until_the_first_epoch_that_reaches_it(tmp_path: Path) -> None:
    curves = [(0.5, 0.89, 0.95), (0.9, 0.8, 0.95), (0.5, 0.95, 0.95), (0.5, 0.6, 0.7)]
    for repeat, accuracies in enumerate(curves, start=1):
        write_run(tmp_path, f"d1.r{repeat}", accuracies=accuracies)
    runs = collect("study", with_target(devices=[1], repeats=4), tmp_path).runs
    columns = ["time_to_accuracy_seconds", "epochs_to_accuracy"]
    assert runs.loc[:2, columns].to_numpy().tolist() == [[1 + 2 + 3, 3], [1, 1], [1 + 2, 2]]
    assert runs.loc[3, columns].isna().all()
    without = collect("study", experiment(devices=[1], repeats=1), tmp_path).runs
    assert without["epochs_to_accuracy"].isna().all()


def test_every_planned_run_has_a_row_with_its_outcome_and_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "d1.r1")
    write_run(tmp_path, "d1.r2", "diverged", accuracies=(0.1,))
    write_run(tmp_path, "d1.r3", "out-of-memory")
    write_run(tmp_path, "d2.r1", "failed")
    write_run(tmp_path, "d2.r2", "timed-out")
    tables = collect("study", with_target(repeats=3), tmp_path)
    assert tables.runs[["run", "outcome", "reason", "devices", "repeat"]].to_numpy().tolist() == [
        ["d1.r1", "completed", "", 1, 1],
        ["d1.r2", "diverged", "why d1.r2 is diverged", 1, 2],
        ["d1.r3", "out-of-memory", "why d1.r3 is out-of-memory", 1, 3],
        ["d2.r1", "failed", "why d2.r1 failed", 2, 1],
        ["d2.r2", "timed-out", "why d2.r2 timed-out", 2, 2],
        ["d2.r3", "not run yet", "", 2, 3],
    ]
    assert tables.epochs["run"].tolist() == ["d1.r1"] * 3 + ["d1.r2"]
    assert len(tables.origins) == 2


def _edit(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        before = (folder / name).read_text(encoding="utf-8")
        assert change(before) != before
        (folder / name).write_text(change(before), encoding="utf-8")

    return edit


def _number(key: str, value: str) -> Callable[[Path], None]:
    return _edit(RECORD, lambda text: re.sub(rf'"{key}": [^,\n]*', f'"{key}": {value}', text))


def _pipe(folder: Path) -> None:
    (folder / RECORD).unlink()
    os.mkfifo(folder / RECORD)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param(RECORD, _edit(RECORD, lambda _: ""), id="empty summary"),
        pytest.param(RECORD, _edit(RECORD, lambda _: "[" * 100_000), id="nested without end"),
        pytest.param(RECORD, _pipe, id="named pipe"),
        *(
            pytest.param(RECORD, _number("throughput_samples_per_second", value), id=f"throughput {value}")
            for value in ("NaN", "-5", "0", "1e400", "1e300", "1e-300", '"fast"')
        ),
        pytest.param(RECORD, _number("final_accuracy", "7"), id="accuracy"),
        pytest.param(RECORD, _number("ended_at", '"2026-01-01T00:01:30"'), id="no zone"),
        pytest.param(RECORD, _number("ended_at", '"2025-12-31T23:00:00+00:00"'), id="clock set back"),
        pytest.param(RECORD, _number("ended_at", '"soon"'), id="no time"),
        pytest.param(RECORD, _number("run", '"d1.r1"'), id="of another run"),
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
    write_run(tmp_path, "d2.r1")
    damage(write_run(tmp_path, "d2.r2"))
    row, damaged = collect("study", with_target(devices=[2]), tmp_path).runs.to_dict("records")
    assert (row["outcome"], damaged["outcome"]) == ("completed", "unreadable")
    assert pd.isna(damaged["throughput_samples_per_second"])
    assert str(tmp_path / "d2.r2" / name) in damaged["reason"]
    assert "Delete " in damaged["reason"]


# --- runs that resumed from a checkpoint ----------------------------------------------------------------


def test_a_resumed_run_has_no_wall_time_and_memory_to_compare_but_keeps_its_throughput(
    tmp_path: Path,
) -> None:
    for repeat in (1, 2, 3):
        known: dict[str, Any] = {"from_step": 300} if repeat == 1 else {}
        write_run(tmp_path / "runs", f"d2.r{repeat}", rate=2000.0, energy_joules=512.0, **known)
    spec = experiment(devices=[2])
    resumed, *others = collect("study", spec, tmp_path / "runs").runs.to_dict("records")
    assert [row["resumed"] for row in (resumed, *others)] == [1, 0, 0]
    # the process that read the checkpoint had other memory
    assert all(pd.isna(resumed[column]) for column in ("wall_seconds", "device_hours", "peak_memory_bytes"))
    assert resumed["peak_memory_kind"] == "process peak RSS, evaluation included"
    assert resumed["throughput_samples_per_second"] == 2000.0
    assert resumed["final_accuracy"] == 0.98
    assert (resumed["energy_joules"], resumed["samples_per_joule"]) == (512, 0.5)
    assert [(row["wall_seconds"], row["device_hours"]) for row in others] == [(90, 90 * 2 / 3600)] * 2
    point = at(concluded(tmp_path, spec), 2)
    assert point["peak_memory_bytes"] == others[0]["peak_memory_bytes"] > 0
