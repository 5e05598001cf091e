"""A study that asks for TensorBoard's files gets them from its records, without another training."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.workflow.conftest import FinishedStudy

from scalewise.analysis.event_files import EVENT_FILE, write_event_files
from scalewise.records import SUMMARY, read_summary

COLUMNS = {
    "loss/train": "train_loss",
    "loss/test": "test_loss",
    "accuracy": "test_accuracy",
    "learning_rate": "learning_rate",
    "throughput_samples_per_second": "samples_per_second",
}
"""What users find under each tag."""

DIGITS = 1437
"""Samples of scikit-learn's digits that are trained on in an epoch."""


def test_tensorboard_reads_just_the_epochs_that_the_records_hold(study: FinishedStudy) -> None:
    strong = study.results / "strong"
    runs = sorted(path.name for path in (strong / "runs").iterdir())
    assert sorted(path.name for path in (strong / "tensorboard").iterdir() if path.is_dir()) == runs
    for run in runs:
        shown = EventAccumulator(str(strong / "tensorboard" / run)).Reload()
        epochs = pd.read_csv(strong / "runs" / run / "epochs.csv")
        steps = -(-DIGITS // 256)
        for tag, column in COLUMNS.items():
            scalars = shown.Scalars(tag)
            assert [scalar.step for scalar in scalars] == [steps, 2 * steps]
            # event files hold numbers of 32 bits
            assert [scalar.value for scalar in scalars] == list(epochs[column].astype(np.float32))
        first, second = shown.Scalars("accuracy")
        took = epochs["train_seconds"] + epochs["evaluation_seconds"]
        assert abs(second.wall_time - first.wall_time - took[1]) < 1e-3

        measured = read_summary(strong / "runs" / run).measurements
        assert measured is not None
        (scalar,) = shown.Scalars("measured/throughput_samples_per_second")
        assert scalar.value == np.float32(measured.throughput_samples_per_second or 0.0)
        assert scalar.step == 2 * steps


def test_the_same_records_make_the_same_files(study: FinishedStudy, tmp_path: Path) -> None:
    strong = study.results / "strong"
    shutil.copytree(strong / "runs", tmp_path / "runs")
    write_event_files(strong / "runs.csv", tmp_path)
    written = sorted((tmp_path / "tensorboard").glob("*/*"))
    assert [path.name for path in written] == [EVENT_FILE] * 2
    for path in written:
        assert path.read_bytes() == (strong / path.relative_to(tmp_path)).read_bytes()


def test_of_runs_of_which_some_have_failed_the_others_are_written(
    study: FinishedStudy, tmp_path: Path
) -> None:
    strong = study.results / "strong"
    shutil.copytree(strong / "runs", tmp_path / "runs")
    failed, completed = sorted(tmp_path.glob("runs/*"))
    (failed / SUMMARY).unlink()
    write_event_files(strong / "runs.csv", tmp_path)
    assert [path.parent.name for path in tmp_path.glob("tensorboard/*/*")] == [completed.name]
