"""The predictions of an experiment: ``prediction.csv`` and ``prediction.json``, from records on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.formatting import format_ratio, percent
from scalewise.analysis.prediction.all_reduce_model import AllReduceModel, NotMeasuredError
from scalewise.analysis.prediction.step_model import Baseline, NoPredictionError, predict_point
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape, count_devices
from scalewise.plan.runs.runs import Options, batch_per_device, combinations, points, series_name, settings_of
from scalewise.plan.terminal.predictions import PREDICTION, REMARKS
from scalewise.records import SUMMARY, AllReduceMeasurement, read_summary, write_text

PREDICTION_COLUMNS = [
    "experiment", "series", "devices", "nodes", "shape", "measured_point", "n",
    "step_seconds", "step_seconds_low", "step_seconds_high",
    "compute_seconds", "loader_seconds", "all_reduce_seconds", "exposed_seconds",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high", "speedup", "speedup_low", "speedup_high",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high",
    "device_hours_per_epoch", "hidden", "extrapolated",
]  # fmt: skip


@dataclass(frozen=True)
class PredictionSpec:
    """An experiment to predict, as the plan defines it.

    Args:
        shapes: Shapes by planned device count, the latter the way the configuration gives it.
        projected: Shapes beyond the planned ones.
    """

    name: str
    spec: Experiment
    shapes: Mapping[str, Shape]
    projected: Sequence[Shape]

    @classmethod
    def from_json(cls, text: str) -> PredictionSpec:
        """Read ``PlannedExperiment.prediction_definition``."""
        values = json.loads(text)
        return cls(
            values["name"],
            Experiment.model_validate(values["spec"]),
            {devices: Shape.parse(shape) for devices, shape in values["shapes"].items()},
            [Shape.parse(shape) for shape in values["project"]],
        )

    def planned(self, options: Options) -> list[Shape]:
        """Shapes that a series plans to measure, fewest devices first."""
        mine = (point.devices for point in points(self.spec) if point.options == options)
        return sorted({self.shapes[str(devices)] for devices in mine}, key=_size)


def compute_prediction(
    experiment: PredictionSpec, all_reduces: Sequence[AllReduceMeasurement], runs_folder: Path, folder: Path
) -> None:
    """Write the predictions of an experiment, with what limits them and why a series has none.

    Args:
        experiment: The experiment, with what is planned and projected.
        all_reduces: The site's all-reduce, one record for each shape.
        runs_folder: Holds a folder for each run; those on one device that are there count.
        folder: Receives the files.

    Raises:
        RecordError: A record is damaged.
    """
    network = AllReduceModel.of(all_reduces)
    rows: list[dict[str, Any]] = []
    notes = list(_link_notes(network))
    refused: dict[str, str] = {}
    for options in combinations(experiment.spec):
        series = series_name(options)
        shapes = experiment.planned(options)
        if not shapes:
            continue
        try:
            bases = _baselines(experiment, options, runs_folder)
        except NoPredictionError as error:
            refused[series] = f"no prediction for {series}: {error}."
            continue
        found, missed = _series_rows(experiment, options, shapes, bases, network)
        rows += found
        notes += [f"{series}: {reason}." for reason in missed]
        notes += [f"{series}: {sentence}" for sentence in _series_notes(found)]
    table = pd.DataFrame(rows, columns=PREDICTION_COLUMNS)
    told = {"notes": list(dict.fromkeys(notes)), "refused": refused, "links": _links(network)}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / PREDICTION, table.to_csv(index=False, lineterminator="\n"))
    write_text(folder / REMARKS, json.dumps(told, indent=2) + "\n")


def _baselines(experiment: PredictionSpec, options: Options, runs_folder: Path) -> list[Baseline]:
    """The series' runs on one device, those of the first repeats that have completed."""
    settings = settings_of(experiment.spec, options)
    _check_options(settings)
    ones = [
        point.name
        for point in points(experiment.spec)
        if point.options == options and experiment.shapes[str(point.devices)].world_size == 1
    ]
    if not ones:
        raise NoPredictionError("it has no run on 1 device to take the computing from; add 1 to devices")
    # the first repeats alone: others in the folder may be of another machine, or come later
    names = (f"{ones[0]}.r{repeat}" for repeat in range(1, experiment.spec.min_repeats + 1))
    folders = [runs_folder / name for name in names if (runs_folder / name / SUMMARY).exists()]
    bases, reasons = [], []
    for folder in folders:
        summary = read_summary(folder)
        made = summary.definition.settings
        if any(
            made.get(key) != value for key, value in settings.model_dump(exclude={"seed", "launcher"}).items()
        ):
            continue  # from before the settings changed
        if summary.measurements is None or summary.outcome != "completed":
            reasons.append(f"{folder.name} did not complete ({summary.reason})")
            continue
        try:
            bases.append(Baseline.of(summary.measurements, settings.accumulation_steps))
        except NoPredictionError as error:
            reasons.append(f"{folder.name}: {error}")
    if not bases:
        raise NoPredictionError(
            "; ".join(reasons) if reasons else f"{ones[0]} has no completed run; run snakemake to make it"
        )
    return bases


def _check_options(settings: Settings) -> None:
    """Refuse what exchanges other things than gradients in buckets."""
    if settings.parallelism != "ddp":
        what = {"fsdp": "gathers parameters in each pass", "zero1": "sends parameters after each step"}
        raise NoPredictionError(
            f"{settings.parallelism} {what[settings.parallelism]}, which is not modelled; use parallelism ddp"
        )
    if settings.communication_hook == "powersgd":
        raise NoPredictionError(
            "what powersgd sends is not known before it runs; use communication_hook none, fp16 or bf16"
        )


def _series_rows(
    experiment: PredictionSpec,
    options: Options,
    planned: Sequence[Shape],
    bases: Sequence[Baseline],
    network: AllReduceModel,
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each shape that can be predicted, and why the others cannot."""
    settings = settings_of(experiment.spec, options)
    rows, missed = [], []
    for shape in sorted({*planned, *experiment.projected}, key=_size):
        devices = shape.world_size
        all_reduce = partial(network.all_reduce, shape) if devices > 1 else None
        try:
            columns = predict_point(
                bases,
                devices,
                _global_batch_size(settings, devices),
                _global_batch_size(settings, 1),
                all_reduce,
            )
        except (NotMeasuredError, NoPredictionError) as error:
            missed.append(f"no prediction for {error}")
            continue
        about = {
            "experiment": experiment.name,
            "series": series_name(options),
            "devices": devices,
            "nodes": shape.nodes,
            "shape": str(shape),
            "measured_point": shape in planned,
            "n": len(bases),
            "extrapolated": network.is_extrapolated(shape),
        }
        rows.append(about | columns)
    return rows, missed


def _global_batch_size(settings: Settings, devices: int) -> int:
    return batch_per_device(settings, devices) * devices * settings.accumulation_steps


def _size(shape: Shape) -> tuple[int, int]:
    return shape.world_size, shape.nodes


def _series_notes(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Sentences on where communication stops hiding, and on what was not measured."""
    several = [row for row in rows if row["devices"] > 1]
    if not several:
        return
    last_hidden = max((index for index, row in enumerate(several) if row["hidden"]), default=-1)
    if last_hidden == len(several) - 1:
        most = count_devices(several[-1]["devices"])
        yield f"up to {most}, communication hides behind the backward pass."
    else:
        first = several[last_hidden + 1]
        share = first["exposed_seconds"] / first["step_seconds"]
        yield (
            f"from {count_devices(first['devices'])} on, communication no longer hides behind the backward "
            f"pass: {percent(share, 0 if share >= 0.01 else 1)} of the step is exposed."
        )
    inferred = [str(row["devices"]) for row in several if row["extrapolated"]]
    if inferred:
        yield (
            f"the all-reduce over {', '.join(inferred)} devices was not measured; it is extrapolated from "
            "one node and two."
        )


def _link_notes(network: AllReduceModel) -> Iterator[str]:
    for shape, error in network.errors.items():
        yield f"The all-reduce over {shape} was not measured: {error.rstrip('.')}."
    for shape, fit in network.fits.items():
        if not fit.is_line:
            yield (
                f"The all-reduce over {shape} is no straight line in the message's size: "
                f"{percent(fit.worst_miss, 0)} off at worst. Its latency and bandwidth are those from 1 MiB "
                "on."
            )


def _links(network: AllReduceModel) -> list[dict[str, Any]]:
    """Latency and bus bandwidth of each measured shape."""
    return [
        {
            "shape": str(shape),
            "alpha_seconds": fit.alpha.as_dict(),
            "bus_bytes_per_second": fit.bandwidth.as_dict(),
            "line": fit.is_line,
        }
        for shape, fit in sorted(network.fits.items())
    ]


def beyond_sentences(table: pd.DataFrame, series: str | None) -> list[str]:
    """A sentence for each prediction of a series beyond the device counts that the study plans.

    Args:
        table: Contents of prediction.csv.
        series: Name of the series in scaling.csv.
    """
    beyond = table[(table["series"] == series) & ~table["measured_point"].astype(bool)]
    return [
        f"{count_devices(int(row['devices']))}: {format_ratio(row['speedup'])}x as fast as 1 "
        f"({format_ratio(row['speedup_low'])} to {format_ratio(row['speedup_high'])}), efficiency "
        f"{row['parallel_efficiency']:.2f}: predicted, not measured."
        for _, row in beyond.iterrows()
        if pd.notna(row["speedup"])
    ]
