"""Runs that tell no epochs, or nothing at all, in TensorBoard."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
from tests.planted_records import STEPS, leave_result, program_experiment, run_record, write_program_run
from tests.small_runs import definition

from scalewise.analysis.event_files import EVENT_FILES, write_event_files
from scalewise.records import EPOCHS, EpochRecord, RecordError, read_run, write_rows


def shown(folder: Path, run: str = "d1.r1") -> EventAccumulator:
    """What TensorBoard reads of one run after its file was written."""
    (folder / "runs.csv").write_text(f"partition,run,outcome\n,{run},completed\n,d2.r9,not run yet\n")
    write_event_files(folder / "runs.csv", folder)
    assert [path.name for path in (folder / EVENT_FILES).iterdir()] == [run]
    return EventAccumulator(str(folder / EVENT_FILES / run)).Reload()


def start_of(board: EventAccumulator) -> Any:
    """A run's line in TensorBoard's table of hyperparameters."""
    content = board.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    return metadata.parse_session_start_info_plugin_data(content)


def test_a_program_shows_its_losses_and_throughput_against_its_steps(tmp_path: Path) -> None:
    readings = [{"seconds": 9.5, "step": 5, "value": 3.25}, {"seconds": 10.0, "step": 10, "value": 2.5}]
    write_program_run(tmp_path / "runs", "d1.r1", program_experiment(), 0.1, program={"metric": readings})
    summary = read_run(tmp_path / "runs" / "d1.r1")
    assert summary.measurements is not None
    assert summary.measurements.program is not None
    board = shown(tmp_path)

    losses = summary.measurements.program.losses
    assert [(scalar.step, scalar.value) for scalar in board.Scalars("loss/train")] == [
        (step, np.float32(loss)) for step, loss in losses
    ]
    windows = [window for window in summary.measurements.windows if not window.warmup]
    assert [(scalar.step, scalar.value) for scalar in board.Scalars("throughput_samples_per_second")] == [
        (window.first_step + window.steps, np.float32(window.samples / window.seconds)) for window in windows
    ]
    assert [(scalar.step, scalar.value) for scalar in board.Scalars("metric")] == [(5, 3.25), (10, 2.5)]
    (measured,) = board.Scalars("measured/throughput_samples_per_second")
    assert (measured.step, measured.value) == (STEPS + 2, 160.0)
    # the warm-up takes 9 seconds for 2 steps, the steps after it 0.1 seconds each
    assert losses[1][0] == 4
    began, later, *_ = (scalar.wall_time for scalar in board.Scalars("loss/train"))
    assert later - began == pytest.approx(9.2, abs=1e-3)


def test_a_damaged_table_is_named_with_the_fix(tmp_path: Path) -> None:
    write_program_run(tmp_path / "runs", "d1.r1", program_experiment(), 0.1)
    (tmp_path / "runs" / "d1.r1" / EPOCHS).unlink()
    with pytest.raises(RecordError, match=r"epochs\.csv: cannot be read .* Delete the folder"):
        shown(tmp_path)


def test_a_run_shows_its_hyperparameters_and_its_definition(tmp_path: Path) -> None:
    options = {"argument.lr": 0.1, "compile": True, "argument.data": "<b>&`x`"}
    spec = program_experiment(argument={"lr": 0.1, "data": "x"})
    write_program_run(tmp_path / "runs", "d2.some.r3", spec, 0.1, options=options)
    board = shown(tmp_path, "d2.some.r3")

    start = start_of(board)
    values = {key: getattr(value, value.WhichOneof("kind")) for key, value in start.hparams.items()}
    shape = {"devices": 2, "nodes": 1, "batch_size_per_device": 16, "global_batch_size": 32}
    assert values == shape | options
    (text,) = board.Tensors("definition/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    # Markdown takes such lines for code: nothing in them becomes markup
    assert all(line.startswith("    ") for line in lines)
    assert json.loads("\n".join(lines))["options"] == options


def test_a_run_that_ended_before_its_first_step_shows_why(tmp_path: Path) -> None:
    lost = {"outcome": "out-of-memory", "reason": "rank 0 on a had no room", "provenance": None}
    leave_result(tmp_path / "runs" / "d1.r1", run_record(definition(), **lost))
    board = shown(tmp_path)

    assert board.Tags()["scalars"] == []
    (text,) = board.Tensors("definition/text_summary")
    assert b"rank 0 on a had no room" in text.tensor_proto.string_val[0]


def test_a_training_that_diverged_shows_where(tmp_path: Path) -> None:
    run = write_program_run(tmp_path / "runs", "d1.r1", program_experiment(), 0.1)
    rates = {"samples_per_second": 160.0, "test_accuracy": 0.1, "learning_rate": 9.0}
    rows = [
        EpochRecord(number, 1.0, 0.5, train_loss=loss, test_loss=loss, **rates)
        for number, loss in ((1, 2.5), (2, math.nan))
    ]
    write_rows(run / EPOCHS, EpochRecord, rows)
    first, second = shown(tmp_path).Scalars("loss/test")
    assert (first.value, second.wall_time - first.wall_time) == (2.5, 1.5)
    assert math.isnan(second.value)


def test_of_a_programs_epochs_the_columns_that_it_writes_are_shown(tmp_path: Path) -> None:
    rows = [
        EpochRecord(number, None, None, None, loss, None, None, None) for number, loss in ((1, 2.5), (2, 1.5))
    ]
    write_program_run(tmp_path / "runs", "d1.r1", program_experiment(), 0.1, epochs=rows)
    board = shown(tmp_path)
    assert "accuracy" not in board.Tags()["scalars"]
    # 22 steps, as many in each epoch
    assert [(scalar.step, scalar.value) for scalar in board.Scalars("loss/train")] == [(11, 2.5), (22, 1.5)]
