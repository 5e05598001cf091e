"""Event files for TensorBoard, from the records of runs that have ended: no training knows of them.

A run that failed before it could leave a summary has none.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from scalewise.analysis.analysis_spec import THROUGHPUT, UNREADABLE
from scalewise.plan.runs.training_program import steps_per_epoch
from scalewise.records import EPOCHS, RECORD, Measurements, RecordError, RunRecord, read_run

EVENT_FILES = "tensorboard"
"""The folder of an experiment's event files, one folder a run below it."""

TRAIN_LOSS = "loss/train"
MEASURED_THROUGHPUT = f"measured/{THROUGHPUT}"
METRIC = "metric"
DEFINITION = "definition"

OF_AN_EPOCH = {
    TRAIN_LOSS: "train_loss",
    "loss/test": "test_loss",
    "accuracy": "test_accuracy",
    "learning_rate": "learning_rate",
    THROUGHPUT: "samples_per_second",
}
"""The tags of an epoch, with their columns in epochs.csv."""

PARTS_OF_AN_EPOCH = ("train_seconds", "evaluation_seconds")


class Scalar(NamedTuple):
    """A number that belongs to one step of a run.

    Args:
        seconds: Time of training and evaluation until then; other parts of the run in between are left out.
        step: Optimizer steps done.
    """

    tag: str
    value: float
    step: int
    seconds: float


def write_event_files(runs: Path, folder: Path) -> None:
    """Write the event file of every run in the table of runs that has left records.

    A run whose records are damaged, as the table says, has none. Runs on several partitions have a folder for
    each partition.

    Args:
        runs: The table.
        folder: Results of the experiment.

    Raises:
        RecordError: A record is damaged.
    """
    shutil.rmtree(folder / EVENT_FILES, ignore_errors=True)
    (folder / EVENT_FILES).mkdir()
    for row in _read_rows(runs):
        partition, run = row["partition"], row["run"]
        of_partition = folder.with_name(f"{folder.name}@{partition}") if partition else folder
        records = of_partition / "runs" / run
        if row["outcome"] != UNREADABLE and (records / RECORD).exists():
            with SummaryWriter(str(folder / EVENT_FILES / partition / run)) as writer:
                _write_run(writer, records, read_run(records))


def _write_run(writer: SummaryWriter, records: Path, summary: RunRecord) -> None:
    run, origin, measured = summary.definition, summary.provenance, summary.measurements
    began = datetime.fromisoformat(origin.started_at).timestamp() if origin else 0.0
    shown = {"outcome": summary.outcome, "reason": summary.reason, **run.model_dump(mode="json")}
    # Markdown takes indented lines for code
    lines = json.dumps(shown, indent=2).splitlines()
    writer.add_text(DEFINITION, "\n".join(f"    {line}" for line in lines), 0, began)
    varied: dict[str, bool | float | str] = {
        "devices": run.shape.world_size,
        "nodes": run.shape.nodes,
        "batch_size_per_device": run.batch_size_per_device,
        "global_batch_size": run.global_batch_size,
        **{key: each if isinstance(each, (int, float)) else str(each) for key, each in run.options.items()},
    }
    rate = None if measured is None else measured.throughput_samples_per_second
    found = {} if rate is None else {MEASURED_THROUGHPUT: rate}
    last = measured.windows[-1] if measured is not None and measured.windows else None
    # in the run's own folder, and not in one below it
    writer.add_hparams(varied, found, run_name=".", global_step=last and last.first_step + last.steps)
    if measured is None:
        return
    # the first step is part of the training
    startup = measured.startup.model_dump(exclude={"first_step_seconds"})
    began += sum(seconds or 0.0 for seconds in startup.values())
    for each in sorted(_scalars(records, summary, measured), key=lambda each: each.step):
        writer.add_scalar(each.tag, each.value, each.step, began + each.seconds)


def _scalars(records: Path, summary: RunRecord, measured: Measurements) -> Iterator[Scalar]:
    """Yield the values of every epoch; of a run that knows none the throughput of every measured window.

    Of a program also the losses and the metric.
    """
    windows = measured.windows
    steps = [0, *(window.first_step + window.steps for window in windows)]
    seconds = [0.0, *accumulate(window.seconds for window in windows)]
    if epochs := _read_rows(records / EPOCHS):
        length = steps_per_epoch(summary.definition) or steps[-1] // len(epochs)
        spent = accumulate(sum(float(row[part] or 0) for part in PARTS_OF_AN_EPOCH) for row in epochs)
        for row, until in zip(epochs, spent, strict=True):
            for tag, column in OF_AN_EPOCH.items():
                if row[column]:  # a program may not tell it
                    yield Scalar(tag, float(row[column]), int(row["epoch"]) * length, until)
    else:
        for window, step, until in zip(windows, steps[1:], seconds[1:], strict=True):
            if not window.warmup:
                yield Scalar(THROUGHPUT, window.samples / window.seconds, step, until)
        if (program := measured.program) is not None:
            for step, loss in program.losses:
                if loss is not None:
                    yield Scalar(TRAIN_LOSS, loss, step, float(np.interp(step, steps, seconds)))
            for reading in program.metric:
                yield Scalar(METRIC, reading.value, reading.step, reading.seconds)


def _read_rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path}: cannot be read ({error}). Delete the folder and run snakemake again."
        ) from error
