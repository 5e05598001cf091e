"""The predictions of an experiment, from records on disk.

``prediction.csv`` and ``prediction.json`` rest on runs on one device, before any large job.
``projection.csv`` and ``projection.json`` follow when the study has run: steps that it has measured on a few
nodes are then the base for more nodes than it measures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.conditions import conditions_of, fingerprint, leave_out, made_with
from scalewise.analysis.prediction.all_reduce_model import AllReduceModel, NotMeasuredError
from scalewise.analysis.prediction.measured_exchange import MeasuredStep, measured_exchange
from scalewise.analysis.prediction.step_model import (
    Baseline,
    Exchange,
    MeanStep,
    NoPredictionError,
    predict_point,
)
from scalewise.analysis.prediction.wording import hiding_notes, inference_notes, link_notes, program_notes
from scalewise.analysis.statistics.intervals import Interval, median_and_range
from scalewise.plan.config.experiment import AnyExperiment, read_experiment
from scalewise.plan.config.program import AnySettings, ProgramSettings
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.runs import Options, combinations, global_batch, points, series_name, settings_of
from scalewise.plan.terminal.predictions import PREDICTION, PROJECTION, REMARKS, REMARKS_ON_PROJECTION
from scalewise.records import (
    SUMMARY,
    AllReduceMeasurement,
    Measurements,
    ProgramMeasurements,
    RecordError,
    read_summary,
    write_text,
)

PREDICTION_COLUMNS = [
    "experiment", "series", "devices", "nodes", "shape", "measured_point", "n",
    "step_seconds", "step_seconds_low", "step_seconds_high",
    "compute_seconds", "loader_seconds", "all_reduce_seconds", "exposed_seconds",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high", "speedup", "speedup_low", "speedup_high",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high",
    "device_hours_per_epoch", "hidden", "extrapolated", "interpolated", "from_steps_on",
]  # fmt: skip


REPLICAS = frozenset({"DistributedDataParallel"})
"""Wrappers that exchange gradients and nothing else."""


@dataclass(frozen=True)
class PredictionSpec:
    """An experiment to predict, as the plan defines it.

    Args:
        shapes: Shapes by planned device count, the latter the way the configuration gives it.
        projected: Shapes beyond the planned ones.
    """

    name: str
    spec: AnyExperiment
    shapes: Mapping[str, Shape]
    projected: Sequence[Shape]

    @classmethod
    def from_json(cls, text: str) -> PredictionSpec:
        """Read ``PlannedExperiment.prediction_definition``."""
        values = json.loads(text)
        return cls(
            values["name"],
            read_experiment(values["spec"]),
            {devices: Shape.parse(shape) for devices, shape in values["shapes"].items()},
            [Shape.parse(shape) for shape in values["project"]],
        )

    def planned(self, options: Options) -> list[Shape]:
        """Shapes that a series plans to measure, fewest devices first."""
        mine = (point.devices for point in points(self.spec) if point.options == options)
        return sorted({self.shapes[str(devices)] for devices in mine}, key=_size)


@dataclass(frozen=True)
class _CompletedRun:
    """A run that completed, of the series' settings."""

    name: str
    shape: Shape
    measured: Measurements
    conditions: Mapping[str, str]


Assumptions = list[Baseline]
"""Baselines that may be true of one run: a single one if its overlap is measured, else three."""


@dataclass(frozen=True)
class _SeriesRuns:
    """Measurements of the runs of a series that are comparable with most of those on one device.

    Args:
        settings: Settings of the series.
        alone: The runs on one device, at least one.
        bases: Assumptions on each of these.
        steps: Measured steps on several devices, fewest first.
        notes: Phrases on the runs that are left out.
    """

    settings: AnySettings
    alone: Sequence[Measurements]
    bases: Sequence[Assumptions]
    steps: Sequence[MeasuredStep]
    notes: Sequence[str]

    @property
    def of_program(self) -> bool:
        """Whether the overlap is assumed and not measured."""
        return isinstance(self.settings, ProgramSettings)

    def fewer(self, shape: Shape, network: AllReduceModel) -> list[MeasuredStep]:
        """The measured steps on fewer devices that a shape is predicted from."""
        like = [step for step in self.steps if step.shape.devices_per_node == shape.devices_per_node]
        if not self.of_program:
            return [step for step in like if step.shape.nodes < shape.nodes]
        # of a program the next smaller one says what its computing and its exchange take together
        sizes = [[step for step in steps if _size(step.shape) < _size(shape)] for steps in (like, self.steps)]
        return [step for step in (sizes[0] or sizes[1])[-1:] if _is_known(network, step.shape)]


def compute_prediction(
    experiment: PredictionSpec,
    all_reduces: Sequence[AllReduceMeasurement],
    runs_folder: Path,
    folder: Path,
    *,
    from_steps: bool = False,
) -> None:
    """Write the predictions of an experiment, with what limits them and why a series has none.

    Args:
        experiment: The experiment, with what is planned and projected.
        all_reduces: The site's all-reduce, one record for each shape.
        runs_folder: Holds a folder for each run; those on one device that are there count.
        folder: Receives the files.
        from_steps: Predict device counts that the study does not measure from steps that it has measured on
            fewer nodes; the files are then the projection's.

    Raises:
        RecordError: A record is damaged.
    """
    network = AllReduceModel.of(all_reduces)
    rows: list[dict[str, Any]] = []
    notes = list(link_notes(network))
    refused: dict[str, str] = {}
    for options in combinations(experiment.spec):
        series = series_name(options)
        shapes = experiment.planned(options)
        if not shapes:
            continue
        try:
            runs = _series_runs(experiment, options, runs_folder, from_steps=from_steps)
        except NoPredictionError as error:
            refused[series] = f"no prediction for {series}: {error}."
            continue
        found, missed = _series_rows(experiment, series, shapes, runs, network)
        rows += found
        notes += [f"{series}: {phrase}; left out of the prediction." for phrase in runs.notes]
        notes += [f"{series}: {reason}." for reason in missed]
        of_step = program_notes(found, runs.settings, runs.alone) if runs.of_program else hiding_notes(found)
        of_links = inference_notes(found, network, of_program=runs.of_program)
        notes += [f"{series}: {sentence}" for sentence in (*of_step, *of_links)]
    table = pd.DataFrame(rows, columns=PREDICTION_COLUMNS)
    told = {"notes": list(dict.fromkeys(notes)), "refused": refused, "links": _links(network)}
    folder.mkdir(parents=True, exist_ok=True)
    files = (PROJECTION, REMARKS_ON_PROJECTION) if from_steps else (PREDICTION, REMARKS)
    write_text(folder / files[0], table.to_csv(index=False, lineterminator="\n"))
    write_text(folder / files[1], json.dumps(told, indent=2) + "\n")


def _series_runs(
    experiment: PredictionSpec, options: Options, runs_folder: Path, *, from_steps: bool
) -> _SeriesRuns:
    """The runs of a series that a prediction starts from: those comparable with most of the baseline's."""
    settings = settings_of(experiment.spec, options)
    _check_options(settings)
    mine = [point for point in points(experiment.spec) if point.options == options]
    shapes = {point.name: experiment.shapes[str(point.devices)] for point in mine}
    ones = [name for name, shape in shapes.items() if shape.world_size == 1]
    if not ones:
        raise NoPredictionError("it has no run on 1 device to take the computing from; add 1 to devices")
    done, reasons = [], []
    # a program's steps count within a node, too: DDP's counters tell its exchange there
    fewest_nodes = 1 if isinstance(settings, ProgramSettings) else 2
    several = [
        name
        for name, shape in shapes.items()
        if from_steps and shape.nodes >= fewest_nodes and shape.world_size > 1
    ]
    for name in [ones[0], *several]:
        # of one device the first repeats alone: others in the folder may come later
        most = experiment.spec.min_repeats if name == ones[0] else experiment.spec.max_repeats
        for repeat in range(1, most + 1):
            run = _completed(runs_folder / f"{name}.r{repeat}", shapes[name], settings)
            if isinstance(run, _CompletedRun):
                done.append(run)
            elif run and name == ones[0]:
                reasons.append(run)
    kept, notes = _comparable(done)
    if isinstance(settings, ProgramSettings):
        for run in kept:
            check_exchange(run.measured.program, several=run.shape.world_size > 1)
    alone, bases = [], []
    for run in kept:
        if run.shape.world_size == 1:
            try:
                bases.append(_assumptions(run.measured, settings))
                alone.append(run.measured)
            except NoPredictionError as error:
                reasons.append(f"{run.name}: {error}")
    if not bases:
        reasons = reasons or [f"{ones[0]} has no completed run; run snakemake to make it"]
        raise NoPredictionError("; ".join(reasons))
    return _SeriesRuns(settings, alone, bases, list(_measured_steps(kept, settings)), notes)


def check_exchange(program: ProgramMeasurements | None, *, several: bool = False) -> None:
    """Refuse a program that is seen to exchange other things than gradients.

    Args:
        program: Findings on a run.
        several: True for a run on several devices, which must have been seen to exchange gradients.

    Raises:
        NoPredictionError: It does, or nothing was seen.
    """
    if program is None:
        return
    others = [name for name in program.parallelism if name not in REPLICAS]
    others += [name for name in program.optimizers if "ZeroRedundancy" in name]
    if others:
        raise NoPredictionError(
            f"{' and '.join(others)} exchanges more than gradients, which is not modelled; "
            "DistributedDataParallel is"
        )
    if several and not program.parallelism:
        raise NoPredictionError(
            "on several devices nothing was seen that exchanges gradients; DistributedDataParallel is "
            "modelled"
        )


def _assumptions(
    measured: Measurements, settings: AnySettings, step: MeasuredStep | None = None
) -> Assumptions:
    """Return the assumptions on a run on one device.

    Args:
        measured: The run.
        settings: Settings of the series.
        step: A step of a program on several devices, whose computing is known from DDP's counters.

    Raises:
        NoPredictionError: The run lacks a measurement.
    """
    accumulation = settings.accumulation_steps
    if not isinstance(settings, ProgramSettings):
        return [Baseline.of(measured, accumulation)]
    program, (seconds, samples) = measured.program, MeanStep.of(measured)
    assert program is not None, "the run is one of a program"
    if not program.gradient_bytes:
        why = program.unknown.get("bytes of gradients", "the program did not show any")
        raise NoPredictionError(f"the bytes of its gradients are not known: {why}")
    wait = measured.loader_wait_fraction
    whole = seconds * (1 - (wait or 0.0))
    computing = {samples: Interval(whole, whole, whole, 1)}
    loader = None if wait is None else wait * seconds / samples
    if step is not None and step.exposed is not None:
        # what waits for data is in what was counted as computing
        low, high = step.seconds.low - step.exposed.low, step.seconds.high - step.exposed.high
        middle = step.seconds.estimate - step.exposed.estimate
        computing = {samples: Interval(seconds, seconds, seconds, 1)}
        computing[step.global_batch_size / step.shape.world_size] = Interval(
            middle, min(low, middle), max(high, middle), step.seconds.n
        )
        loader = None if loader is None else 0.0
    return Baseline.of_program(computing, loader, program.gradient_bytes, accumulation)


def _measured_steps(runs: Sequence[_CompletedRun], settings: AnySettings) -> Iterator[MeasuredStep]:
    """Each shape's step on several devices, fewest first; of a program those whose exchange DDP counted."""
    of_program = isinstance(settings, ProgramSettings)
    on_more = sorted((run for run in runs if run.shape.world_size > 1), key=lambda run: _size(run.shape))
    for shape, same in groupby(on_more, key=lambda run: run.shape):
        seconds, exposed = [], []
        for run in same:
            share = run.measured.communication_fraction
            with suppress(NoPredictionError):  # all its steps are warm-up
                step = MeanStep.of(run.measured)
                if share is not None or not of_program:
                    seconds.append(step.seconds)
                    exposed.append((share or 0.0) * step.seconds)
        if seconds:
            batch = global_batch(settings, shape.world_size)
            counted = median_and_range(exposed) if of_program else None
            yield MeasuredStep(shape, batch, median_and_range(seconds), counted)


def _completed(folder: Path, shape: Shape, settings: AnySettings) -> _CompletedRun | str:
    """A run that completed with these settings; else why it did not, empty where nothing is to be said."""
    if not (folder / SUMMARY).exists():
        return ""
    try:
        summary = read_summary(folder)
    except RecordError as error:
        return str(error)
    if not made_with(summary.definition, settings):
        return ""  # from before the settings changed
    if summary.measurements is None or summary.outcome != "completed":
        return f"{folder.name} did not complete ({summary.reason})"
    measured = summary.measurements
    conditions = conditions_of(summary.definition, summary.provenance, measured.parameters, measured.program)
    return _CompletedRun(folder.name, shape, summary.measurements, conditions)


def _comparable(done: Sequence[_CompletedRun]) -> tuple[list[_CompletedRun], list[str]]:
    """The runs that are comparable with most others, and a phrase on each of the others."""
    known = {fingerprint(run.conditions): run.conditions for run in done}
    table = pd.DataFrame(
        {
            "run": [run.name for run in done],
            "series": "",
            "outcome": "completed",
            "devices": [run.shape.world_size for run in done],
            "fingerprint": [fingerprint(run.conditions) for run in done],
        }
    )
    judged = leave_out(table, known)
    apart = judged[judged["outcome"] != "completed"]
    notes = [f"{row['run']} is left out: {row['reason']}" for _, row in apart.iterrows()]
    return [done[index] for index in judged.index if index not in apart.index], notes


def _check_options(settings: AnySettings) -> None:
    """Refuse what exchanges other things than gradients in buckets."""
    if isinstance(settings, ProgramSettings):
        return  # its record says what it exchanges
    if settings.parallelism != "ddp":
        what = {"fsdp": "gathers parameters in each pass", "zero1": "sends parameters after each step"}
        raise NoPredictionError(
            f"{settings.parallelism} {what[settings.parallelism]}, which is not modelled; use parallelism ddp"
        )


def _series_rows(
    experiment: PredictionSpec,
    series: str,
    planned: Sequence[Shape],
    runs: _SeriesRuns,
    network: AllReduceModel,
) -> tuple[list[dict[str, Any]], list[str]]:
    """A row for each shape that can be predicted, and why the others cannot."""
    rows, missed = [], []
    for shape in sorted({*planned, *experiment.projected}, key=_size):
        # what the study measures is compared with a bound that knows nothing of these measurements
        fewer = [] if shape in planned else runs.fewer(shape, network)
        try:
            columns, anchors = _predicted(shape, fewer, runs, network)
        except (NotMeasuredError, NoPredictionError) as error:
            missed.append(f"no prediction for {error}")
            continue
        batch = global_batch(runs.settings, shape.world_size)
        about = {
            "experiment": experiment.name,
            "series": series,
            "devices": shape.world_size,
            "nodes": shape.nodes,
            "shape": str(shape),
            "measured_point": shape in planned,
            "n": len(runs.bases),
            "extrapolated": network.is_extrapolated(shape),
            # the band of a program holds any time of a smaller batch
            "interpolated": not runs.of_program
            and any(base.interpolates(shape.world_size, batch) for (base,) in runs.bases),
            "from_steps_on": " ".join(map(str, anchors)),
        }
        rows.append(about | columns)
    return rows, missed


def _predicted(
    shape: Shape, fewer: Sequence[MeasuredStep], runs: _SeriesRuns, network: AllReduceModel
) -> tuple[dict[str, Any], Sequence[Shape]]:
    """The columns of a shape that rest on the model, and the shapes whose measured steps count.

    Raises:
        NotMeasuredError: The all-reduce over the shape is not known.
        NoPredictionError: A device would have no sample in a pass, or far fewer than were timed.
    """
    devices, bases = shape.world_size, runs.bases
    if runs.of_program and fewer:
        bases = [_assumptions(alone, runs.settings, fewer[-1]) for alone in runs.alone]
    exchanges, anchors = [], list[Shape]()
    for assumed in zip(*bases, strict=True):
        found = measured_exchange(network, fewer, assumed)
        model = network if found is None else found.network
        anchors = [] if found is None else list(found.anchors)
        unexplained = 0.0 if found is None else found.unexplained_seconds
        exchanges.append(Exchange(partial(model.all_reduce, shape), unexplained))
    columns = predict_point(
        bases,
        devices,
        global_batch(runs.settings, devices),
        global_batch(runs.settings, 1),
        exchanges if devices > 1 else None,
        runs.bases,
    )
    return columns, anchors


def _is_known(network: AllReduceModel, shape: Shape) -> bool:
    try:
        network.all_reduce(shape, 1.0)
    except NotMeasuredError:
        return False
    return True


def _size(shape: Shape) -> tuple[int, int]:
    return shape.world_size, shape.nodes


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
