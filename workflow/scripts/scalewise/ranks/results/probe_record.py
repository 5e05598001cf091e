"""The records that the probe leaves of each process that made optimizer steps."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.execution.rank_files import probe_files, steps_by_rank
from scalewise.records import MemoryKind

FORWARD_STEPS = 20
"""First steps whose forward passes' inputs are looked at."""

SEEN, RECORD, STEPS, BACKWARDS = "seen.json", "record.json", "steps", "backwards"
UNEVEN = "uneven"
"""Ends of the names of the probe's files, behind rank and process."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Peaks(_Part):
    """Peak memory up to the first evaluation, and of the whole process."""

    training_bytes: int
    whole_bytes: int
    kind: MemoryKind


class ProbeRecord(_Part):
    """One process, as the probe saw it; lists have an entry for each step.

    Args:
        rank: Number in the process group; without one, the launcher's.
        world_size: Ranks of the process group; 1 without one.
        ended_at: Monotonic seconds of this host at which each step ended; a GPU may still be at work on it.
        seconds: Device seconds since the end of the step before, or since a pause of the training; None for
            the first step of a program, whose begin is unknown.
        flags: Bits that say what else the step held.
        seconds_without_training: Host seconds of a step in which it evaluated or computed no gradients.
        samples: Samples of the batches of a DataLoader that feeds the training; empty without one.
        forward_samples: Samples of a step by the inputs of forward passes, in the first ones; None where none
            was seen.
        forward_looks: Index and samples of later steps that were looked at.
        wait_seconds: Seconds of waiting for a DataLoader's batches: of the GPU that trains, else of the host.
        parameters: Number of trained parameters, of all ranks if they share them; None if unknown.
        gradient_bytes: Bytes of all gradients; of one rank's share where ``sharded``.
        sharded_over: Ranks that share a sharded model; None if it is not sharded, or if they are unknown.
        weights: Sums of parts of some parameters, equal on all ranks that exchange gradients.
        weights_finite: Whether the values of parts of some parameters are finite; None if unknown.
        optimizers: Names of those that made steps, each once.
        misses_optimizer: Class of the optimizer that the configuration names, if another one leads.
        losses: Losses by their steps, from 0; None for one that is not finite.
        batches: Checksums of the first batches; None without a DataLoader.
        forward_batches: Checksums of the inputs of the first forward passes; None where none was seen.
        data_parallel_devices: Most devices among which a DataParallel divides a batch; 0 without one.
        reads_all: Whether the loader goes through the whole dataset, and not through a share of it.
        refused: A kind of parallelism of which samples and exchange cannot be told; None as a rule.
        communication_seconds: Exposed exchange of each step, None if DDP did not time it; empty without DDP.
        step_flops: Floating-point operations of a step of this process, by number format; empty if they were
            not counted.
        step_flops_note: Reason that they are unknown, or not all.
    """

    ended: Literal["seen", "steps", "itself"]
    rank: int
    world_size: int
    local_rank: int | None = None
    pid: int
    host: str
    backend: str | None = None
    device: str
    device_uuid: str | None = None
    cuda: bool
    visible_devices: str = ""
    threads: int
    affinity: list[int] = []
    process_started: float
    torch_imported: float
    first_step_began: float | None
    first_step_ended: float | None
    ended_at: list[float]
    seconds: list[float | None]
    flags: list[int]
    seconds_without_training: list[float]
    samples: list[int | None]
    forward_samples: float | None
    forward_looks: list[tuple[int, int]] = []
    wait_seconds: list[float]
    backward_passes: list[int]
    reads_all: bool = False
    optimizers: list[str]
    misses_optimizer: str | None = None
    skipped_by_scaler: int
    parameters: int | None = None
    gradient_bytes: int | None = None
    parameter_dtypes: list[str] = []
    sharded: bool = False
    sharded_over: int | None = None
    parallelism: list[str]
    data_parallel_devices: int = 0
    refused: str | None = None
    precision: dict[str, int] = {}
    compiled: bool = False
    losses: dict[str, float | None] = {}
    weights: list[float | None] = []
    weights_finite: bool | None = None
    batches: list[float | None] | None = None
    forward_batches: list[float | None] | None = None
    communication_seconds: list[float | None] = []
    step_flops: dict[str, float] = {}
    step_flops_note: str = ""
    peak_memory: Peaks
    versions: dict[str, str]
    imported_files: dict[str, str] = {}
    events: list[str] = []

    @property
    def timed_exchanges(self) -> list[float]:
        """Seconds of the exchanges that DDP has timed, in the order of their steps."""
        return [seconds for seconds in self.communication_seconds if seconds is not None]

    @property
    def step_count(self) -> int:
        """Optimizer steps that were seen."""
        return len(self.seconds)

    @property
    def first_step_seconds(self) -> float | None:
        """Host seconds from the first batch or forward pass to the end of the first step."""
        if self.first_step_began is None or self.first_step_ended is None:
            return None
        return self.first_step_ended - self.first_step_began

    def step_seconds(self, index: int, training_only: bool = False) -> float:
        """Return the device seconds of a step, or only those in which it trained."""
        seconds = self.seconds[index] or 0.0
        return max(seconds - self.seconds_without_training[index], 0.0) if training_only else seconds


def read_records(folder: Path, kind: str, rank: int | None = None) -> list[ProbeRecord]:
    """Read the records of a kind, one for each process that left one, by rank; or those of a rank.

    Raises:
        RuntimeError: A record is damaged; the message names file and value.
    """
    found = []
    for path in probe_files(folder, kind):
        if rank is not None and not path.name.startswith(f"{rank}."):
            continue
        with suppress(OSError):  # one that a file system does not show yet
            text = path.read_text(encoding="utf-8")
            try:
                found.append(ProbeRecord.model_validate_json(text))
            except ValidationError as error:  # it is renamed once it is whole
                raise RuntimeError(f"{path}: {error}") from error
    return sorted(found, key=lambda record: (record.rank, record.pid))


def backwards_without_step(folder: Path) -> int:
    """Return the most backward passes of a process that made no step."""
    return _largest(folder, BACKWARDS)


def steps_done(folder: Path) -> int:
    """Return the optimizer steps that some process has written."""
    return _largest(folder, STEPS)


def _largest(folder: Path, kind: str) -> int:
    """Return the largest number in the files of a kind; 0 if there are none."""
    return max(steps_by_rank(folder, kind).values(), default=0)
