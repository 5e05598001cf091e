"""The records of many runs as two tidy tables: one row a run, one row an epoch."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scalewise.analysis.analysis_spec import EPOCH_RATE, UNREADABLE, WITH_NO_GRAD
from scalewise.analysis.conditions import conditions_of, fingerprint, leave_out, made_with, origin_cautions
from scalewise.analysis.disturbed import disturbance, set_apart
from scalewise.analysis.memory import TRAINING, device_memory_bytes
from scalewise.analysis.mfu import mfu_columns
from scalewise.analysis.steps import STEP_COLUMNS, split
from scalewise.config.experiment import AnyExperiment
from scalewise.config.program import AnySettings, Metric, ProgramSettings
from scalewise.plan.formatting import pluralize
from scalewise.plan.rounds import known_rounds, requested_repeats
from scalewise.plan.runs import points, series_name, settings_of
from scalewise.records import (
    EPOCHS,
    RANKS,
    RECORD,
    STARTUP,
    EpochRecord,
    Measurements,
    ProgramMeasurements,
    Provenance,
    RecordError,
    RunRecord,
    damaged,
    read_failure,
    read_regular,
    read_run,
    seconds_between,
)

RUN_COLUMNS = [
    "experiment", "run", "series", "devices", "nodes", "devices_per_node", "repeat",
    "cpus_per_device", "batch_size_per_device", "global_batch_size", "outcome", "reason",
    "fingerprint", "throughput_samples_per_second", EPOCH_RATE, "samples", WITH_NO_GRAD,
    *STEP_COLUMNS, "train_seconds", "time_to_accuracy_seconds",
    "epochs_to_accuracy", "samples_to_target", "final_accuracy", "best_accuracy", "peak_memory_bytes",
    "peak_memory_kind", "device_memory_bytes",
    "loader", "loader_wait_fraction", "communication_fraction",
    "mean_utilization", "lowest_utilization", "throttled", "energy_joules", "samples_per_joule",
    "flops_per_step", "model_flops_utilization", "mfu_note", "mfu_basis",
    "monitor_note", *STARTUP, "wall_seconds",
    "device_hours", "parameters", "seed", "device_name", "hosts", "commit", "started_at",
    "launcher", "slurm_job_id", "restart_count", "other_jobs", "study_jobs", "other_cpu_fraction",
    "disturbance", "resumed", "measured_steps",
]  # fmt: skip

EPOCH_COLUMNS = [field.name for field in fields(EpochRecord)]

LOSS_COLUMNS = ["step", "loss"]

NOT_RUN, OUT_OF_DATE = "not run yet", "out of date"
"""Outcomes of a run that has no result, or one of other settings."""

EPOCH_EDGE = "the begin of a data-loader iteration"
"""Reason for which a step is left out of the rate of steps."""

_OF_WHOLE_RUNS = ("wall_seconds", "device_hours", "time_to_accuracy_seconds")
"""Not known of a run that was resumed: they would hold more than one start-up, or more than one warm-up. Nor
of a run that was ended after some steps: nobody knows how long a whole one takes."""


@dataclass(frozen=True)
class Tables:
    """The measurements of an experiment.

    Args:
        runs: One row for each planned run, ``RUN_COLUMNS`` and the swept options; ``outcome`` says
            which have no figures and ``reason`` why.
        epochs: One row for each epoch of each run that trained; of a program that tells no epochs one for
            each loss that was seen, ``LOSS_COLUMNS`` in place of ``EPOCH_COLUMNS``.
        origins: Provenance of each run that has it.
        programs: Findings on each run of a program, by devices.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    origins: Sequence[Provenance]
    programs: Sequence[tuple[int, ProgramMeasurements]] = ()

    @property
    def cautions(self) -> list[str]:
        """Sentences on the runs that belong next to the answer, each once with the number of its runs."""
        found = Counter(text for _, program in self.programs for text in program.cautions)
        total = pluralize(str(len(self.programs)), "run")
        texts = [f"In {count} of {total}: {text}" for text, count in found.items()]
        return [*texts, *origin_cautions(self.origins)]


def collect(
    name: str, spec: AnyExperiment, runs_folder: Path, *, asked: Mapping[str, int] | None = None
) -> Tables:
    """Read the records of the runs that the experiment asks for; others in the folder are left alone.

    Args:
        name: The experiment's name.
        spec: Settings of the experiment.
        runs_folder: Holds a folder for each run.
        asked: Repeats of each point, by its name; by default, what the rounds beside the folder of the runs
            have asked for.

    Returns:
        The tables. A run with a damaged record has no figures: its outcome is ``unreadable``, and its reason
        names the file and the fix.
    """
    if asked is None:
        asked = requested_repeats(spec, known_rounds(spec, runs_folder.parent))
    run_rows: list[dict[str, Any]] = []
    epoch_tables: list[pd.DataFrame] = []
    origins: list[Provenance] = []
    conditions: dict[str, Mapping[str, str]] = {}
    programs: list[tuple[int, ProgramMeasurements]] = []
    for planned, settings in _planned_rows(name, spec, asked):
        folder = runs_folder / str(planned["run"])
        try:
            if not (folder / RECORD).exists():
                failure = read_failure(folder)
                outcome, reason = (failure.outcome, failure.reason) if failure else (NOT_RUN, "")
                run_rows.append(planned | {"outcome": outcome, "reason": reason})
                continue
            summary = read_run(folder, folder.name)
            epochs, ranks = _read_epochs(folder, summary), _read_ranks(folder, summary)
        except RecordError as error:
            run_rows.append(planned | {"outcome": UNREADABLE, "reason": str(error)})
            continue
        if not made_with(summary.definition, settings):
            reason = "its settings have changed since; snakemake trains it again"
            run_rows.append(planned | {"outcome": OUT_OF_DATE, "reason": reason})
            continue
        epochs["elapsed_train_seconds"] = epochs["train_seconds"].cumsum()
        # planned values last: a swept key and a measurement may have the same name
        row = _finished(summary, epochs, ranks, spec) | planned
        run_rows.append(row)
        met = conditions_of(summary.definition, summary.provenance, summary.measurements)
        row["fingerprint"] = fingerprint(met)
        conditions[row["fingerprint"]] = met
        program = summary.measurements.program if summary.measurements else None
        if program is not None:
            programs.append((row["devices"], program))
        if program is not None and epochs.empty:
            # a column of None alone would hold objects, not numbers
            epochs = pd.DataFrame(program.losses, columns=LOSS_COLUMNS).astype({"loss": float})
        shared = {key: row[key] for key in ("run", "series", "devices", "repeat", "cpus_per_device")}
        epoch_tables.append(epochs.assign(**shared))
        if summary.provenance:
            origins.append(summary.provenance)
    runs = pd.DataFrame(run_rows)
    runs = runs.reindex(columns=[*RUN_COLUMNS, *(c for c in runs.columns if c not in RUN_COLUMNS)])
    runs = set_apart(leave_out(runs, conditions))
    filled = [table for table in epoch_tables if len(table)]
    epochs = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=["run"])
    return Tables(runs, epochs, origins, programs)


def _read_epochs(folder: Path, summary: RunRecord) -> pd.DataFrame:
    """The epochs of a run, which are those that its summary speaks of.

    Raises:
        RecordError: The file is missing, damaged, cut, or of another run.
    """
    path, measured = folder / EPOCHS, summary.measurements
    if measured is None:
        return pd.DataFrame(columns=EPOCH_COLUMNS)
    rows, expected = _read_rows(path, EPOCH_COLUMNS), measured.epochs_completed
    if rows["epoch"].tolist() != list(range(1, expected + 1)):
        raise damaged(path, f"has {len(rows)} rows, not those of epochs 1 to {expected} of {RECORD}")
    if rows.empty:
        return rows
    for column, most in (("train_seconds", 1e9), ("evaluation_seconds", 1e9), ("test_accuracy", 1.0)):
        if not rows[column].dropna().between(0.0, most).all():
            raise damaged(path, f"{column} is not a number from 0 to {most:g} in every row")
    known_rows = rows["test_accuracy"].dropna()
    if known_rows.empty and measured.best_accuracy is None:
        return rows
    best, last = known_rows.max(), known_rows.iloc[-1]
    known = np.array([measured.best_accuracy, measured.final_accuracy], dtype=float)
    # pandas' reading of a number may differ in its last digit
    if not np.allclose([best, last], known, rtol=1e-9, atol=0.0):
        raise damaged(
            path,
            f"the best and the last accuracy are {best} and {last}, but "
            f"{measured.best_accuracy} and {measured.final_accuracy} in {RECORD}",
        )
    return rows


def _read_ranks(folder: Path, summary: RunRecord) -> pd.DataFrame:
    """The ranks of a run, which are those that its summary speaks of.

    Raises:
        RecordError: The file is missing, damaged, cut, or of another run.
    """
    if summary.measurements is None:
        return pd.DataFrame()
    path, expected = folder / RANKS, summary.definition.shape.world_size
    rows = _read_rows(path, ("rank",))
    # without any, the parts of a step are unknown, which is not wrong
    if len(rows) and rows["rank"].tolist() != list(range(expected)):
        raise damaged(path, f"has {len(rows)} rows, not one for each of {expected} ranks")
    return rows


def _read_rows(path: Path, needed: Collection[str]) -> pd.DataFrame:
    """A CSV file of a run, which has at least the needed columns.

    Raises:
        RecordError: The file is missing or damaged.
    """
    try:
        rows = pd.read_csv(io.BytesIO(read_regular(path)))
    except (OSError, ValueError) as error:  # pandas' own errors and bad bytes are ValueErrors
        raise damaged(path, f"cannot be read ({error})") from error
    if missing := set(needed) - set(rows.columns):
        raise damaged(path, f"has no column {', '.join(sorted(missing))}")
    numbers = rows[list(needed)].select_dtypes(exclude="number")
    if len(rows) and not numbers.dropna(axis=1, how="all").empty:
        raise damaged(path, f"{numbers.columns[0]} is not a number in every row")
    return rows


def _planned_rows(
    experiment: str, spec: AnyExperiment, asked: Mapping[str, int]
) -> Iterator[tuple[dict[str, Any], AnySettings]]:
    """The columns of every planned run that are known before it has run, and the settings of its series."""
    for point in points(spec):
        settings = settings_of(spec, point.options)
        for repeat in range(1, asked[point.name] + 1):
            row = {
                "experiment": experiment,
                "run": point.run_name(repeat),
                "series": series_name(point.options),
                "devices": point.world_size,
                "repeat": repeat,
            }
            yield row | dict(point.options), settings


def _finished(
    summary: RunRecord, epochs: pd.DataFrame, ranks: pd.DataFrame, spec: AnyExperiment
) -> dict[str, Any]:
    """Return the columns of a run that has a result."""
    run = summary.definition
    row: dict[str, Any] = {
        "nodes": run.shape.nodes,
        "devices_per_node": run.shape.devices_per_node,
        "cpus_per_device": run.settings.cpus_per_device,
        "batch_size_per_device": run.batch_size_per_device,
        "global_batch_size": run.global_batch_size,
        "seed": run.settings.seed,
        "outcome": summary.outcome,
        "reason": summary.reason,
    }
    if summary.measurements:
        row |= _measured(summary.measurements, epochs, ranks)
        row |= mfu_columns(summary)
        row |= _to_target(summary.measurements, epochs, spec)
    if summary.provenance:
        row |= _origin(summary.provenance, run.shape.world_size)
    row["disturbance"] = disturbance(row)
    if row.get("resumed"):
        row |= dict.fromkeys(_OF_WHOLE_RUNS)
        if "RSS" in row["peak_memory_kind"]:
            # what was read to be resumed from is in them
            row[TRAINING] = None
    if ended_by_steps(summary):
        row |= dict.fromkeys(("wall_seconds", "device_hours"))
    return row


def _measured(measured: Measurements, epochs: pd.DataFrame, ranks: pd.DataFrame) -> dict[str, Any]:
    """Return the figures of a run."""
    windows = measured.windows
    samples = sum(window.samples for window in windows)
    figures = measured.model_dump(exclude={"windows", "program"})
    row = {key: value for key, value in figures.items() if key in RUN_COLUMNS} | {
        "samples": samples,
        EPOCH_RATE: epoch_rate(measured, epochs),
        "peak_memory_kind": _memory_kind(measured),
        "samples_per_joule": _samples_per_joule(measured),
        "measured_steps": sum(window.steps for window in windows if not window.warmup),
        "resumed": int(measured.from_step > 0),
    }
    if measured.program is not None:
        row[WITH_NO_GRAD] = measured.program.throughput_with_no_grad
    return row | split(windows, ranks)


def _samples_per_joule(measured: Measurements) -> float | None:
    """Return the samples from the first measured step to the last over the energy in that time."""
    counted = [index for index, window in enumerate(measured.windows) if not window.warmup]
    if not counted or not measured.energy_joules:
        return None
    within = measured.windows[counted[0] : counted[-1] + 1]
    return sum(window.samples for window in within) / measured.energy_joules


def _origin(origin: Provenance, devices: int) -> dict[str, Any]:
    """Return where a run was made, and how long it took from its start to its end."""
    seconds = seconds_between(origin.started_at, origin.ended_at)
    return {
        "device_name": ", ".join(dict.fromkeys(origin.devices)),
        "hosts": ", ".join(origin.hosts),
        "commit": origin.commit,
        "started_at": origin.started_at,
        "launcher": origin.launcher,
        "slurm_job_id": origin.slurm_job_id,
        "restart_count": origin.restart_count,
        "other_jobs": origin.other_jobs,
        "study_jobs": origin.study_jobs,
        "device_memory_bytes": device_memory_bytes(origin.gpu_limits),
        "wall_seconds": seconds,
        "device_hours": seconds * devices / 3600,
    }


def epoch_rate(measured: Measurements, epochs: pd.DataFrame) -> float | None:
    """Return the samples over the seconds of whole epochs, their edges included; None if unknown.

    The first epoch of the last start warms up. Of a program the edges count alone: its steps that begin a
    data-loader iteration are left out of the rate of steps, and are counted here, unless other steps are left
    out as well.
    """
    if measured.program is None:
        resumed = measured.from_step
        done = sum(window.steps for window in measured.windows)
        earlier = round(len(epochs) * resumed / (resumed + done)) if resumed else 0
        later = epochs[epochs["epoch"] > earlier + 1]
        seconds = later["train_seconds"].sum()
        return (
            float((later["samples_per_second"] * later["train_seconds"]).sum() / seconds) if seconds else None
        )
    if set(measured.excluded_steps) != {EPOCH_EDGE}:
        return None
    steady = [number for number, window in enumerate(measured.windows) if not window.warmup]
    windows = measured.windows[steady[0] :] if steady else []
    seconds = sum(window.seconds for window in windows)
    return sum(window.samples for window in windows) / seconds if seconds else None


def ended_by_steps(summary: RunRecord) -> bool:
    """Whether a run was ended after the steps to measure, so that it is no whole one."""
    program = summary.measurements.program if summary.measurements else None
    if program is not None:
        return program.ended == "steps"
    return summary.definition.settings.steps is not None


def _to_target(measured: Measurements, epochs: pd.DataFrame, spec: AnyExperiment) -> dict[str, float]:
    """Return training time and epochs until the accuracy, or the metric of a program, was reached."""
    if isinstance(spec, ProgramSettings):
        if measured.program is None or spec.metric is None:
            return {}
        return _to_metric(measured, measured.program, spec.metric)
    if spec.target is None or epochs.empty:
        return {}
    reached = epochs[epochs["test_accuracy"] >= spec.target.accuracy]
    if reached.empty:
        return {}
    first = reached.iloc[0]
    return {
        "time_to_accuracy_seconds": first["elapsed_train_seconds"],
        "epochs_to_accuracy": first["epoch"],
    }


def _to_metric(measured: Measurements, program: ProgramMeasurements, metric: Metric) -> dict[str, float]:
    """Return training time and samples until a metric was reached; a program has no epochs to count."""
    step: float | None = next(
        (reading.step for reading in program.metric if metric.is_reached(reading.value)), None
    )
    row: dict[str, float] = {}
    if program.seconds_to_metric is not None:
        row["time_to_accuracy_seconds"] = program.seconds_to_metric
        if program.metric:  # of very many readings a record holds some
            times, steps = zip(*((reading.seconds, reading.step) for reading in program.metric), strict=True)
            step = float(np.interp(program.seconds_to_metric, times, steps))
    counted = sum(window.steps for window in measured.windows)
    if step is not None and counted:
        row["samples_to_target"] = step * sum(window.samples for window in measured.windows) / counted
    return row


def _memory_kind(measured: Measurements) -> str:
    """The memory that the peaks of a run count, and whether the one of training holds evaluation too."""
    kind = measured.peak_memory_kind
    return f"{kind}, evaluation included" if kind != "CUDA allocator" else kind
