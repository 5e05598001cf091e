"""Event files for TensorBoard, from the records of runs that have ended: no training knows of them.

A run that failed before it could leave a summary has none.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SourceMetadata
from tensorboard.compat.proto.summary_pb2 import Summary as EventSummary
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import STATUS_FAILURE, STATUS_SUCCESS
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.plugins.text import metadata as text
from tensorboard.summary.writer.record_writer import RecordWriter

from scalewise.analysis.analysis_spec import UNREADABLE
from scalewise.plan.runs.run_definition import parse_run_name
from scalewise.records import (
    EPOCHS,
    RANKS,
    SUMMARY,
    Measurements,
    RecordError,
    RunRecord,
    Startup,
    read_summary,
    replaced_whole,
)

EVENT_FILES = "tensorboard"
"""The folder of an experiment's event files, one folder a run below it."""

EVENT_FILE = "events.out.tfevents.scalewise"
"""TensorBoard knows a file by the first three words. Its own writers go on with time, host and process."""

THROUGHPUT = "throughput_samples_per_second"
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


@dataclass(frozen=True)
class Point:
    """Numbers that belong to one step of a run.

    Args:
        seconds: Time of training and evaluation until then; other parts of the run in between are left out.
        step: Optimizer steps done.
        values: Scalars by their tags.
    """

    seconds: float
    step: int
    values: Mapping[str, float]


def write_event_files(runs: Path, folder: Path) -> None:
    """Write the event file of every run in the table of runs that has left records.

    The same records make the same bytes. A run whose records are damaged, as the table says, has none.

    Args:
        runs: The table.
        folder: Results of the experiment.

    Raises:
        RecordError: A record is damaged.
    """
    (folder / EVENT_FILES).mkdir(exist_ok=True)
    for run in (row["run"] for row in _read_rows(runs) if row["outcome"] != UNREADABLE):
        records = folder / "runs" / run
        if (records / SUMMARY).exists():
            target = folder / EVENT_FILES / run / EVENT_FILE
            target.parent.mkdir(exist_ok=True)
            _write(target, list(events(records)))


def events(records: Path) -> Iterator[Event]:
    """A run for TensorBoard: its definition, its hyperparameters and its scalars.

    Args:
        records: Folder of the run.

    Raises:
        RecordError: A record is damaged.
    """
    summary = read_summary(records)
    measured, origin = summary.measurements, summary.provenance
    started, ended = (
        datetime.fromisoformat(when).timestamp() if when else 0.0
        for when in ((origin.started_at, origin.ended_at) if origin else ("", ""))
    )
    yield Event(
        wall_time=started, file_version="brain.Event:2", source_metadata=SourceMetadata(writer="scalewise")
    )
    described = [_text(summary), _session_start(summary, started)]
    yield Event(wall_time=started, summary=EventSummary(value=described))
    if measured is not None:
        begun = started + _startup_seconds(measured.startup)
        for point in sorted(_points(records, measured, summary), key=lambda point: point.step):
            scalars = [EventSummary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
            wall_time = begun + point.seconds
            yield Event(wall_time=wall_time, step=point.step, summary=EventSummary(value=scalars))
    yield Event(wall_time=ended, summary=EventSummary(value=[_session_end(summary, ended)]))


def _points(records: Path, measured: Measurements, summary: RunRecord) -> Iterator[Point]:
    epochs = _read_rows(records / EPOCHS)
    if epochs:
        samples = sum(int(rank["train_samples"]) for rank in _read_rows(records / RANKS))
        yield from _points_of_epochs(epochs, math.ceil(samples / summary.definition.global_batch_size))
    else:
        yield from _points_of_windows(measured)
    last = measured.windows[-1] if measured.windows else None
    if last is not None and measured.throughput_samples_per_second is not None:
        whole = measured.train_seconds + (measured.evaluation_seconds or 0.0)
        found = {MEASURED_THROUGHPUT: measured.throughput_samples_per_second}
        yield Point(whole, last.first_step + last.steps, found)


def _points_of_epochs(epochs: Sequence[Mapping[str, str]], steps_per_epoch: int) -> Iterator[Point]:
    """One point for each row of epochs.csv, at the last step of its epoch."""
    spent = accumulate(float(row["train_seconds"]) + float(row["evaluation_seconds"]) for row in epochs)
    for row, seconds in zip(epochs, spent, strict=True):
        values = {tag: float(row[column]) for tag, column in OF_AN_EPOCH.items()}
        yield Point(seconds, int(row["epoch"]) * steps_per_epoch, values)


def _points_of_windows(measured: Measurements) -> Iterator[Point]:
    """Yield the throughput of every measured window; of a program the losses and the metric, too.

    A run that is ended by steps tells no more, nor does one whose epochs its program alone knows.
    """
    windows = measured.windows
    steps = [0, *(window.first_step + window.steps for window in windows)]
    seconds = [0.0, *accumulate(window.seconds for window in windows)]
    for window, step, spent in zip(windows, steps[1:], seconds[1:], strict=True):
        if not window.warmup:
            yield Point(spent, step, {THROUGHPUT: window.samples / window.seconds})
    if (program := measured.program) is None:
        return
    for step, loss in program.losses:
        if loss is None:
            continue
        yield Point(float(np.interp(step, steps, seconds)), step, {TRAIN_LOSS: loss})
    for reading in program.metric:
        yield Point(reading.seconds, reading.step, {METRIC: reading.value})


def _startup_seconds(startup: Startup) -> float:
    """Seconds before the first step, which itself is part of the training."""
    parts = startup.model_dump(exclude={"first_step_seconds"})
    return sum(seconds or 0.0 for seconds in parts.values())


def _text(summary: RunRecord) -> EventSummary.Value:
    """The run's definition as TensorBoard's text tab shows it."""
    origin = summary.provenance
    shown: dict[str, Any] = {"outcome": summary.outcome, "reason": summary.reason}
    if origin is not None:
        shown |= {"hosts": origin.hosts, "devices": origin.devices, "commit": origin.commit}
    shown |= summary.definition.model_dump()
    # Markdown takes indented lines for code, and nothing in them for its own
    lines = json.dumps(shown, indent=2).splitlines()
    return EventSummary.Value(
        tag=DEFINITION,
        metadata=text.create_summary_metadata("", ""),
        tensor=TensorProto(
            dtype=DT_STRING,
            string_val=["\n".join(f"    {line}" for line in lines).encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )


def _session_start(summary: RunRecord, started: float) -> EventSummary.Value:
    """The values in which runs differ, for the table of hyperparameters; repeats are one group there."""
    run = summary.definition
    shape = run.shape
    differing: dict[str, Any] = {
        "devices": shape.world_size,
        "nodes": shape.nodes,
        "batch_size_per_device": run.batch_size_per_device,
        "global_batch_size": run.global_batch_size,
    }
    group = f"{run.experiment}/{parse_run_name(run.run)[0]}"
    start = SessionStartInfo(group_name=group, start_time_secs=started)
    for key, value in (differing | run.options).items():
        if isinstance(value, bool):
            start.hparams[key].bool_value = value
        elif isinstance(value, (int, float)):
            start.hparams[key].number_value = value
        else:
            start.hparams[key].string_value = str(value)
    return _hparams(hparams.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start))


def _session_end(summary: RunRecord, ended: float) -> EventSummary.Value:
    status = STATUS_SUCCESS if summary.outcome == "completed" else STATUS_FAILURE
    end = SessionEndInfo(status=status, end_time_secs=ended)
    return _hparams(hparams.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end))


def _hparams(tag: str, content: HParamsPluginData) -> EventSummary.Value:
    # the package's own function leaves the order of a map to chance
    data = SummaryMetadata.PluginData(
        plugin_name=hparams.PLUGIN_NAME, content=content.SerializeToString(deterministic=True)
    )
    return EventSummary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=data), tensor=hparams.NULL_TENSOR)


def _write(path: Path, written: Sequence[Event]) -> None:
    with replaced_whole(path) as temporary, temporary.open("wb") as file:
        writer = RecordWriter(file)
        for event in written:
            writer.write(event.SerializeToString(deterministic=True))


def _read_rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path}: cannot be read ({error}). Delete the folder and run snakemake again."
        ) from error
