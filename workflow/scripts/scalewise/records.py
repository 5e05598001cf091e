"""Records of a run: types, writers and readers, which training and analysis share.

Every file is written under a temporary name, flushed to disk and renamed, so a reader sees it whole
or not at all. Units stand in the names; times are seconds, memory is bytes.
"""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scalewise.config.errors import UserError
from scalewise.plan.run_definition import RunDefinition

Outcome = Literal["completed", "diverged", "out-of-memory"]
"""The outcomes of a run that is a result; a retry would end the same way."""

MemoryKind = Literal["CUDA allocator", "CUDA allocator peak", "process peak RSS"]
"""The memory that a peak counts.

Of the allocator it is what tensors hold, data on the GPU included; its peak holds evaluation, too. RSS is the
resident memory of the process, with interpreter, libraries and data, and evaluation too.
"""

STARTUP = ("launch_seconds", "imports_seconds", "preparation_seconds", "first_step_seconds")
"""The parts of a run before its second step, of a rank and of a run."""

R = TypeVar("R", bound=BaseModel)

RECORD, EPOCHS, RANKS, UTILIZATION = "record.json", "epochs.csv", "ranks.csv", "utilization.csv"
"""The files of every run that has a result; the record is written last."""
FAILURE, MODEL = "failure.json", "model.safetensors"


Seconds = Annotated[float, Field(ge=0, le=1e9)]
Rate = Annotated[float, Field(ge=1e-9, le=1e18)]
"""Samples per second. A rate beyond these bounds is a damaged one, and no ratio with it can be computed."""
Fraction = Annotated[float, Field(ge=0, le=1)]


class RecordError(UserError):
    """A record that cannot be read: the message names the file and the fix."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Window(_Record):
    """Consecutive steps that are measured, or excluded from the throughput.

    Args:
        first_step: Index of its first step in the run, from 0.
        steps: Optimizer steps.
        samples: Training samples of all ranks.
        seconds: Time of the slowest rank.
        warmup: True for a window that is excluded from the throughput: its steps warm up, or hold something
            else than others, such as an evaluation or a smaller batch.
    """

    first_step: int
    steps: Annotated[int, Field(ge=1, le=2**53)]
    samples: Annotated[int, Field(ge=0, le=2**53)]
    seconds: Annotated[float, Field(ge=1e-9, le=1e9)]
    warmup: bool


class GpuLimits(_Record):
    """Limits that an administrator or the board sets to a GPU's speed; None if NVML does not report them.

    Args:
        power_watts: Enforced power limit: the least of all that are in force.
        sm_clock_mhz: Highest clock of the multiprocessors.
        memory_clock_mhz: Highest clock of the memory.
        memory_bytes: Size of the memory; no limit of speed, and so no condition of a comparison.
    """

    power_watts: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_bytes: int | None = None


class Environment(_Record):
    """The CPU and the software that some hosts of a run have in common.

    Args:
        hosts: Names of these hosts, in the order of their ranks.
        cpu_model: Model name that the kernel gives.
        operating_system: Kernel and machine.
        versions: Versions of Python and of the libraries that matter, by name; of a GPU's driver, too.
    """

    hosts: list[str]
    cpu_model: str
    operating_system: str
    versions: dict[str, str]


class Origin(_Record):
    """The job that made a run, and the input files.

    Args:
        started_at: UTC, ISO 8601; before the ranks were started.
        slurm_job_id: None outside Slurm.
        restart_count: Number of times that the batch system started this job again.
        other_jobs: Other jobs on the run's nodes when it began; None if unknown.
        study_jobs: Other jobs of this study there; None if unknown.
        failed_seconds: Time of earlier tries at the run, which left no result.
        inputs: Hashes of the input files that define the run, by name.
    """

    launcher: str
    started_at: str
    slurm_job_id: str | None = None
    restart_count: int = 0
    other_jobs: int | None = None
    study_jobs: int | None = None
    failed_seconds: Seconds = 0.0
    inputs: dict[str, str]


class Provenance(Origin):
    """The origin of a run's numbers.

    Args:
        ended_at: UTC, ISO 8601.
        commit: Commit of the workflow, with ``-dirty`` if files were changed; None outside a checkout.
        hosts: One for each node.
        devices: Device name of each rank; this and the next two are empty if the ranks left no measurement.
        environments: Every different environment of the last start's hosts.
        gpu_limits: Limits of each rank's GPU, None for a CPU process, or without NVML.
    """

    ended_at: str
    commit: str | None = None
    hosts: list[str]
    devices: list[str] = []
    environments: list[Environment] = []
    gpu_limits: list[GpuLimits | None] = []

    @model_validator(mode="after")
    def _ends_after_its_start(self) -> Self:
        times = [datetime.fromisoformat(text) for text in (self.started_at, self.ended_at)]
        if None in [time.tzinfo for time in times] or times != sorted(times):
            raise ValueError(
                "not two times with a zone, the earlier one first: a clock may have been set back"
            )
        return self


class MetricReading(_Record):
    """A number that a program has printed.

    Args:
        seconds: Training time until then, without evaluation and saving.
        step: Optimizer steps until then.
    """

    seconds: float
    step: int
    value: float


class ProgramMeasurements(_Record):
    """Findings on a user's program, which is not written for Scalewise.

    Args:
        command: Program and arguments.
        ended: ``steps`` if it was ended after the steps to measure, ``itself`` if it came to its end.
        samples_from: Source of the samples of a step: a DataLoader's batches, the inputs of forward passes,
            or the configuration.
        samples_seen: Samples of a step over all ranks as they were measured; None if they were not.
        optimizers: Optimizers that made steps, by name.
        skipped_steps: Steps in which a gradient scaler refused the update.
        parallelism: Wrappers that exchange gradients, by name; empty if none was found.
        precision: Formats of autocast and of the parameters.
        compiled: Whether torch.compile was used.
        gradient_bytes: Bytes of all gradients of the model.
        losses: Step and loss as it was given to ``backward``, on rank 0: scaled, or divided by the passes;
            None if it is not finite.
        metric: Readings of the metric that the configuration names.
        metric_line: First line of which it was read, and the number; empty without one.
        seconds_to_metric: Training time until it was reached; None if it was not, or none is named.
        imported_files: Hash of every file outside installed packages that was imported, by path.
        unknown: Reason for each quantity that is unknown.
        notes: Sentences for the user.
        throughput_with_no_grad: Samples per second with the time of forward passes without gradients counted,
            if it is unknown whether they belong to the training; else None.
        cautions: Sentences about the run to show with the answer.
    """

    command: list[str]
    ended: Literal["steps", "itself"]
    samples_from: Literal["loader", "forward", "configuration"]
    samples_seen: float | None
    optimizers: list[str] = []
    skipped_steps: int = 0
    parallelism: list[str] = []
    precision: str = ""
    compiled: bool = False
    gradient_bytes: int | None = None
    losses: list[tuple[int, float | None]] = []
    metric: list[MetricReading] = []
    metric_line: str = ""
    seconds_to_metric: Seconds | None = None
    imported_files: dict[str, str] = {}
    unknown: dict[str, str] = {}
    notes: list[str] = []
    throughput_with_no_grad: Rate | None = None
    cautions: list[str] = []


class Measurements(_Record):
    """The measurements of a run that trained.

    Args:
        parameters: Trainable parameters of the model; 0 if unknown.
        epochs_completed: Epochs that the program has written.
        throughput_samples_per_second: Samples over seconds of all windows after warm-up.
        windows: All windows, those that are excluded from the throughput too.
        excluded_steps: Number of steps after the warm-up that are excluded from it, by the reason.
        train_seconds: Time of all windows.
        evaluation_seconds: Time of all evaluations, which ``train_seconds`` excludes; None if unknown.
        final_accuracy: Test accuracy of the last epoch, a fraction.
        best_accuracy: Test accuracy of the best epoch, a fraction.
        peak_memory_bytes: Peak while training, of the rank that used most.
        peak_memory_kind: The memory that both peaks count.
        loader_wait_fraction: Share of the measured step time spent waiting for data, slowest rank; None if
            unknown.
        launch_seconds: Time from the start of the run to that of a rank's process; this and the next three
            are those of the slowest rank, and None if unknown.
        imports_seconds: Time until torch was imported.
        preparation_seconds: Time from then to the first batch or forward pass: process group, data and model.
        first_step_seconds: Time of the first step.
        mean_utilization: Share of the time of the measured steps in which the GPUs were busy, mean over
            ranks; this and the next four are None if they could not be measured.
        lowest_utilization: Utilization of the least busy device.
        energy_joules: Energy of all devices, from the first measured step to the last.
        throttled: True if a device lowered its clock, because of heat or its power limit.
        communication_fraction: Share of the step time that waited for gradients of other ranks.
        other_cpu_fraction: Share of a machine's CPU time that processes outside the run took while its last
            start trained, of the machine with the most; None if unknown.
        loader: ``resident`` or ``workers``; ``program`` if a program loads its data.
        from_step: Optimizer steps in the checkpoint that the run resumed from, 0 without one. All figures are
            those of its last start.
        monitor_note: Measurements that failed, or devices that were throttled, and why.
        step_flops: Floating-point operations of a step of all devices, by number format; empty if unknown.
        step_flops_note: Reason that they are unknown.
        program: Findings on a user's program; None for the built-in loop.
    """

    parameters: int
    epochs_completed: int
    throughput_samples_per_second: Rate | None
    windows: list[Window]
    train_seconds: Seconds
    evaluation_seconds: Seconds | None
    final_accuracy: Fraction | None
    best_accuracy: Fraction | None
    peak_memory_bytes: Annotated[int, Field(ge=0, le=2**62)]
    peak_memory_kind: MemoryKind
    loader_wait_fraction: float | None
    launch_seconds: float | None = None
    imports_seconds: float | None = None
    preparation_seconds: float | None = None
    first_step_seconds: float | None = None
    mean_utilization: float | None = None
    lowest_utilization: float | None = None
    energy_joules: float | None = None
    throttled: bool | None = None
    communication_fraction: float | None = None
    other_cpu_fraction: float | None = None
    excluded_steps: dict[str, int] = {}
    loader: str = "resident"
    monitor_note: str = ""
    from_step: int = 0
    step_flops: dict[str, float] = {}
    step_flops_note: str = ""
    program: ProgramMeasurements | None = None


class RunRecord(_Record):
    """``record.json``: one run, its outcome and its figures.

    Args:
        reason: A sentence if the outcome is not ``completed``.
        measurements: None if the run ended before its first epoch did.
        provenance: None if the run ended before the rendezvous of its ranks.
    """

    definition: RunDefinition
    outcome: Outcome
    reason: str
    measurements: Measurements | None
    provenance: Provenance | None


class Failure(_Record):
    """``failure.json``: the last try at a run, if it left no result; a result removes the file.

    Args:
        definition: The run, with every setting written out.
        inputs: Hashes of the input files that define it, by name.
        reason: A sentence that names rank and host if they are known.
        permanent: Whether another try would end the same way.
        ended_at: UTC, ISO 8601.
        limit_seconds: The run's limit.
        seconds: Time of this try and of those before it.
        output: Last lines of train.log; or the traceback of the rank that raised first, if the log ends with
            those of other ranks.
    """

    definition: RunDefinition
    inputs: dict[str, str]
    outcome: Literal["failed", "timed-out", "interrupted"]
    reason: str
    permanent: bool = False
    ended_at: str
    limit_seconds: float
    seconds: Seconds
    output: list[str] = []


@dataclass(frozen=True)
class EpochRecord:
    """One row of ``epochs.csv``, which the program writes; None is a value that it does not tell.

    Losses are means per sample, accuracy is a fraction, the learning rate is that of the first step.
    """

    epoch: int
    train_seconds: float | None
    evaluation_seconds: float | None
    samples_per_second: float | None
    train_loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    learning_rate: float | None


@dataclass(frozen=True)
class RankRecord:
    """One row of ``ranks.csv``; step times are of the measured steps, on the device's clock.

    Utilization is that during these steps, a fraction. The waiting is the part of the communication in which
    the rank waited for the last rank of that step. Peak memory is that of training. None is a value that is
    unknown.
    """

    rank: int
    local_rank: int
    host: str
    device: str
    visible_devices: str
    threads: int
    cpu_affinity: str
    train_samples: int | None
    step_seconds_p50: float
    loader_wait_seconds: float | None
    peak_memory_bytes: int
    imports_seconds: float | None
    first_step_seconds: float | None
    mean_utilization: float | None = None
    communication_seconds_per_step: float | None = None
    launch_seconds: float | None = 0.0
    waiting_seconds_per_step: float | None = None
    preparation_seconds: float | None = None


@dataclass(frozen=True)
class UtilizationRecord:
    """One row of ``utilization.csv``: one GPU at one time; None for a value that it does not report.

    Args:
        timestamp: UTC, ISO 8601.
        device: Name of the GPU.
        utilization: Fraction of the driver's last sample period in which a kernel ran on the GPU.
        memory_bytes: Memory used on the GPU by all processes.
        power_watts: Power of the GPU.
        memory_total_bytes: Memory of the GPU, used or not.
        memory_utilization: Fraction of the driver's last sample period in which the GPU's memory was read or
            written: ``utilization.memory`` of nvidia-smi.
    """

    timestamp: str
    host: str
    rank: int
    device: str
    utilization: float | None
    memory_bytes: int | None
    power_watts: float | None
    memory_total_bytes: int | None
    memory_utilization: float | None


def utc_now() -> str:
    """Return the time in ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def later(time: str, seconds: float) -> str:
    """Return the time some seconds after another, both as ``utc_now`` returns them."""
    return (datetime.fromisoformat(time) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def seconds_between(started_at: str, ended_at: str) -> float:
    """Return the seconds from one time to a later one, both as ``utc_now`` returns them."""
    return (datetime.fromisoformat(ended_at) - datetime.fromisoformat(started_at)).total_seconds()


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file to write, which then replaces ``path`` whole or not at all, even in a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, surviving a crash of the machine."""
    with replaced_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, record: BaseModel) -> None:
    """Write a record as indented JSON."""
    write_text(path, record.model_dump_json(indent=2) + "\n")


def write_rows(path: Path, kind: type[Any], rows: Sequence[Any]) -> None:
    """Write rows of one kind as CSV; an empty sequence gives only the header, None an empty value."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(path, buffer.getvalue())


def read_run(run_folder: Path, run: str | None = None) -> RunRecord:
    """Read the record of a run.

    Args:
        run_folder: The run's folder.
        run: The name that it must have; None if the folder need not be named after it.

    Raises:
        RecordError: It is missing, damaged, or of another run.
    """
    path = run_folder / RECORD
    record = read_record(path, RunRecord)
    if run is not None and record.definition.run != run:
        raise damaged(path, f"is of the run {record.definition.run}")
    return record


def damaged(path: Path, problem: str) -> RecordError:
    """Return the error of a run's record that is damaged.

    Args:
        path: The record, in the run's folder.
        problem: Follows the path in the message.
    """
    return RecordError(f"{path}: {problem}. Delete {path.parent} and give the same command again.")


def read_failure(run_folder: Path) -> Failure | None:
    """Read why the last try at a run left no result; None if it has one, or was never tried.

    Raises:
        RecordError: The file is damaged.
    """
    if (run_folder / RECORD).exists() or not (run_folder / FAILURE).exists():
        return None
    return read_record(run_folder / FAILURE, Failure)


def read_record(path: Path, kind: type[R]) -> R:
    """Read a record of this kind.

    Raises:
        RecordError: It is missing or damaged.
    """
    try:
        return kind.model_validate_json(read_regular(path))
    except OSError as error:
        fix = "Run" if isinstance(error, FileNotFoundError) else "Delete it and run"
        raise RecordError(f"{path}: {error.strerror}. {fix} snakemake again to make it.") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        value = "" if first["type"] in {"missing", "json_invalid"} else f" is {str(first['input'])[:60]!r}"
        raise RecordError(
            f"{path}: not a record of this version ({place}{value}: {first['msg']}). "
            "Delete the file and run snakemake again."
        ) from error


def read_regular(path: Path) -> bytes:
    """Read a regular file; never wait for a named pipe.

    Raises:
        OSError: It is not a regular file, or cannot be read.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return path.read_bytes()
