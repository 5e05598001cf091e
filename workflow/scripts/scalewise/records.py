"""What a run leaves behind: types, writers and readers. All that training and analysis share.

Every file is written under a temporary name, flushed to disk and renamed, so a reader sees it whole
or not at all. Units stand in the names; times are seconds, memory is bytes.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

Outcome = Literal["completed", "diverged", "out-of-memory"]
"""How a run that is a result ended; a retry would end the same way."""

LauncherName = Literal["srun", "popen", "torchrun", "spawn"]
"""What starts the ranks of a run."""

R = TypeVar("R", bound=BaseModel)

SUMMARY, EPOCHS, RANKS, FAILURE = "summary.json", "epochs.csv", "ranks.csv", "failure.json"
UTILIZATION, MODEL = "utilization.csv", "model.safetensors"


class RecordError(Exception):
    """A record that cannot be read: the message names the file and the cure."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Window(_Record):
    """Consecutive steps between two synchronisations of the device.

    Args:
        first_step: index of its first step in the run, from 0.
        steps: optimizer steps.
        samples: training samples of all ranks.
        seconds: of the slowest rank.
        warmup: left out of the throughput.
    """

    first_step: int
    steps: int
    samples: int
    seconds: float
    warmup: bool


class Pass(_Record):
    """One forward and backward pass of a device by itself, nothing exchanged; medians over some passes.

    Args:
        batch_size: samples.
        forward_seconds: with the loss.
        backward_seconds: until all gradients are there.
    """

    batch_size: int
    forward_seconds: float
    backward_seconds: float


class Bucket(_Record):
    """Gradients that travel together, in the order in which they do.

    Args:
        bytes: as they travel.
        ready_fraction: of the backward pass after which the last of them is there.
    """

    bytes: int
    ready_fraction: float


class AllReduce(_Record):
    """One message size.

    Args:
        bytes: of the message, on each rank.
        seconds: of each all-reduce, on the slowest rank.
    """

    bytes: int
    seconds: list[float]


class Collectives(_Record):
    """``collectives.json``: all-reduce over one shape.

    Args:
        shape: nodes x devices per node.
        backend: gloo or nccl.
        launcher: what started the ranks.
        hosts: one for each node.
        devices: device name of each rank.
        versions: of Python and the libraries that matter.
        measured_at: UTC, ISO 8601.
        reductions: by message size, smallest first; empty where there was an error.
        error: why there is no measurement.
    """

    record_version: Literal[1] = 1
    shape: str
    backend: str
    launcher: str
    hosts: list[str]
    devices: list[str]
    versions: dict[str, str]
    measured_at: str
    reductions: list[AllReduce]
    error: str = ""


class Startup(_Record):
    """Seconds before the first result, of the slowest rank for each part.

    The launch goes from the start of the run to that of the rank's process.
    """

    imports_seconds: float
    process_group_seconds: float
    data_seconds: float
    model_seconds: float
    first_step_seconds: float
    launch_seconds: float = 0.0


class Resumption(_Record):
    """How a run came to its end where it did not do so in one go.

    Args:
        starts: of the training, 1 for one that nothing disturbed.
        resumed_at_steps: optimizer steps that were done when a start went on from a checkpoint.
        lost_steps: that were done again because no checkpoint had them, as far as anybody saw them done.
        unmeasured_steps: because of a resume, left out of the throughput as the first warm-up is.
        checkpoints: written, of all starts.
        checkpoint_seconds: that the training stood still for them.
        problems: why a checkpoint could not be written or used, or what was measured up to it not be kept.
        earlier_hosts: of starts before the last one.
        earlier_other_jobs: of anybody, on their nodes when one of them began, at most.
    """

    starts: int = 1
    resumed_at_steps: list[int] = []
    lost_steps: int = 0
    unmeasured_steps: int = 0
    checkpoints: int = 0
    checkpoint_seconds: float = 0.0
    problems: list[str] = []
    earlier_hosts: list[str] = []
    earlier_other_jobs: int | None = None


class Provenance(_Record):
    """Where a number comes from.

    Args:
        commit: of the workflow, with ``-dirty`` where files were changed; None outside a checkout.
        versions: of Python and the libraries that matter.
        hosts: one for each node, of all starts.
        devices: device name of each rank.
        cpu_model: of the first host.
        operating_system: kernel and machine.
        launcher: what started the ranks.
        started_at: UTC, ISO 8601.
        ended_at: UTC, ISO 8601.
        slurm_job_id: None outside Slurm.
        restart_count: how often the batch system started this job anew.
        other_jobs: of anybody, on the run's nodes when a start began, at most; None where nobody can say.
    """

    commit: str | None
    versions: dict[str, str]
    hosts: list[str]
    devices: list[str]
    cpu_model: str
    operating_system: str
    launcher: str
    started_at: str
    ended_at: str
    slurm_job_id: str | None
    restart_count: int
    other_jobs: int | None = None


class Measurements(_Record):
    """What a run that trained has measured.

    Args:
        parameters: trainable parameters of the model.
        epochs_completed: with evaluation.
        throughput_samples_per_second: samples over seconds of all windows after warm-up.
        windows: warm-up included.
        train_seconds: all windows, warm-up included.
        evaluation_seconds: off the training clock.
        final_accuracy: test accuracy of the last epoch, a fraction.
        best_accuracy: of the best epoch.
        peak_memory_bytes: of the rank that used most.
        peak_memory_kind: what that counts.
        loader_wait_fraction: share of the measured step time spent waiting for data, slowest rank.
        startup: before the first step.
        mean_utilization: share of the training that the devices were busy, a fraction, mean over ranks;
            this and the next five are None where nobody could say.
        least_utilization: of the rank whose device was least busy.
        energy_joules: of all devices, from the first step to the last evaluation.
        monitor_cpu_fraction: CPU time of the monitor over wall time, of the rank where it cost most.
        throttled: a device lowered its clock, against heat or for want of power.
        communication_fraction: share of the step time that waited for gradients of other ranks.
        loader: what brought the batches.
        monitor_note: what could not be measured, or which device was throttled, and why.
        passes: one for each batch size that was tried after the training, the run's own first.
        buckets: of the model's gradients; empty where they do not travel in DDP's buckets.
        resumption: where the run was cut off and went on.
    """

    parameters: int
    epochs_completed: int
    throughput_samples_per_second: float | None
    windows: list[Window]
    train_seconds: float
    evaluation_seconds: float
    final_accuracy: float | None
    best_accuracy: float | None
    peak_memory_bytes: int
    peak_memory_kind: Literal["CUDA allocator peak", "process peak RSS"]
    loader_wait_fraction: float
    startup: Startup
    mean_utilization: float | None = None
    least_utilization: float | None = None
    energy_joules: float | None = None
    monitor_cpu_fraction: float | None = None
    throttled: bool | None = None
    communication_fraction: float | None = None
    loader: str = "resident"
    monitor_note: str = ""
    passes: list[Pass] = []
    buckets: list[Bucket] = []
    resumption: Resumption = Resumption()


class Definition(_Record):
    """What the run was asked to do, as the plan resolved it."""

    experiment: str
    run: str
    shape: str
    batch_size_per_device: int
    global_batch_size: int
    repeat: int
    options: dict[str, Any]
    accelerator: Literal["cpu", "cuda"]
    launcher: LauncherName = "torchrun"
    settings: dict[str, Any]


class Summary(_Record):
    """``summary.json``: one run, its outcome and its figures.

    Args:
        definition: what was asked.
        outcome: completed, diverged or out-of-memory.
        reason: a sentence where the outcome is not completed.
        measurements: None where the run ended before its first epoch did.
        provenance: None where it ended before the ranks had met.
    """

    record_version: Literal[1] = 1
    definition: Definition
    outcome: Outcome
    reason: str
    measurements: Measurements | None
    provenance: Provenance | None


class Failure(_Record):
    """``failure.json``: why a run has no summary. Not a result: the next attempt replaces it.

    Args:
        outcome: failed, timed-out or interrupted.
        reason: a sentence that names rank and host where they are known.
        limit_seconds: that the run had.
        traceback: of the first rank that raised; empty where none did.
        log_tail: last lines of train.log.
        ended_at: UTC, ISO 8601.
    """

    definition: Definition
    outcome: Literal["failed", "timed-out", "interrupted"]
    reason: str
    limit_seconds: float | None = None
    traceback: str = ""
    log_tail: list[str]
    ended_at: str


@dataclass(frozen=True)
class EpochRecord:
    """One row of ``epochs.csv``.

    Losses are means per sample, accuracy is a fraction, the learning rate is that of the first step.
    """

    epoch: int
    train_seconds: float
    evaluation_seconds: float
    samples_per_second: float
    train_loss: float
    test_loss: float
    test_accuracy: float
    learning_rate: float


@dataclass(frozen=True)
class RankRecord:
    """One row of ``ranks.csv``; step times are of the measured steps, on the device's clock.

    Utilization is of the training, a fraction; it and the communication are None where nobody could say,
    and so are the two passes, forward and backward over one batch after the training: by the rank itself,
    and with gradients exchanged.
    """

    rank: int
    local_rank: int
    host: str
    device: str
    visible_devices: str
    threads: int
    cpu_affinity: str
    train_samples: int
    test_samples: int
    step_seconds_p05: float
    step_seconds_p50: float
    step_seconds_p95: float
    step_seconds_max: float
    loader_wait_seconds: float
    peak_memory_bytes: int
    imports_seconds: float
    process_group_seconds: float
    data_seconds: float
    model_seconds: float
    first_step_seconds: float
    mean_utilization: float | None = None
    communication_seconds_per_step: float | None = None
    local_pass_seconds: float | None = None
    exchanged_pass_seconds: float | None = None
    launch_seconds: float = 0.0


@dataclass(frozen=True)
class UtilizationRecord:
    """One row of ``utilization.csv``: one device at one time; None for what it does not tell.

    Args:
        timestamp: UTC, ISO 8601.
        host: of the device.
        rank: that uses it.
        device: index and name.
        phase: of the run: ``start``, then ``warm-up``, ``train`` and ``evaluate``.
        utilization: a fraction. Of a GPU: the time with a kernel on it, in the driver's last sample period.
            Of a CPU process: its CPU time and its children's since the row before, over wall time and its
            CPUs.
        memory_bytes: used on the GPU, by whomever; resident memory of a CPU process.
        power_watts: of the GPU.
    """

    timestamp: str
    host: str
    rank: int
    device: str
    phase: str
    utilization: float | None
    memory_bytes: int | None
    power_watts: float | None


RowKind = type[EpochRecord] | type[RankRecord] | type[UtilizationRecord]
"""What a CSV file of a run holds."""


def utc_now() -> str:
    """ISO 8601, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def replaced_whole(path: Path) -> Iterator[Path]:
    """A temporary file to write, which then becomes ``path``, whole or not at all, surviving a crash."""
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


def write_rows(path: Path, kind: RowKind, rows: Sequence[Any]) -> None:
    """Write rows of one kind as CSV; an empty sequence leaves the header alone, None an empty value."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, [field.name for field in fields(kind)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_text(path, buffer.getvalue())


def read_summary(run_folder: Path) -> Summary:
    """The summary of a run.

    Raises:
        RecordError: it is missing or damaged.
    """
    return _read(run_folder / SUMMARY, Summary)


def read_failure(run_folder: Path) -> Failure | None:
    """Why the run failed, if it did."""
    if not (run_folder / FAILURE).exists():
        return None
    return _read(run_folder / FAILURE, Failure)


def read_collectives(path: Path) -> Collectives:
    """The all-reduce over one shape.

    Raises:
        RecordError: it is missing or damaged.
    """
    return _read(path, Collectives)


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}. Run snakemake again to make it.") from error
    except (ValidationError, UnicodeDecodeError) as error:
        raise RecordError(
            f"{path}: not a {kind.__name__.lower()} of this version ({error}). "
            "Delete the file and run snakemake again."
        ) from error
