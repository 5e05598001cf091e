"""Types of the JSON files that the ranks of an attempt and its supervisor write for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.plan.launch import RankLaunch
from scalewise.plan.runs.run_definition import RunDefinition

PROGRAM_FOLDER = "program"
"""The folder of a run for what its program writes."""

_TIMEOUTS = ("timed out", "timeout")
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "recvvalue failed",
    *_TIMEOUTS,
)
"""Phrases of gloo, nccl and the store in errors of ranks that have lost another rank: never the cause."""

_WITHOUT_MEMORY = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "'out of memory'",
)
"""Phrases of torch's allocator, CUDA, its libraries and NCCL if a GPU has no memory left."""


def is_out_of_memory(error: str) -> bool:
    """Whether an error means that a device had no memory left.

    Args:
        error: The exception's type and message.
    """
    return any(words in error for words in _WITHOUT_MEMORY)


class _Note(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


class Waiting(_Note):
    """``waiting.json``: a job waits, before it starts its ranks.

    Args:
        reason: Thing that it waits for, such as ``another training on this machine``.
        since: Seconds since the epoch.
    """

    reason: str
    since: float


class Progress(_Note):
    """The progress of a training, as rank 0 reported it last.

    Args:
        epoch: Epochs done.
        epochs: Epochs of the whole training, if they end it; 0 for a program, whose epochs are unknown.
        step: Optimizer steps done since the training began.
        steps: Optimizer steps of the whole training, if they end it; None otherwise.
        steps_per_epoch: Optimizer steps of an epoch; None if unknown.
        reported_at: Time of the report, seconds since the epoch by the clock of rank 0's host.
        first_step: Steps that this start's first report had; the steps of earlier starts are among them.
        first_reported_at: Time of that report.
        samples_per_second: Throughput by the clock of rank 0; None before the first. Of the built-in training
            in the latest windows without warm-up; of a program between its last two messages.
    """

    epoch: int
    epochs: int
    step: int = 0
    steps: int | None = None
    steps_per_epoch: int | None = None
    reported_at: float = 0.0
    first_step: int = 0
    first_reported_at: float = 0.0
    samples_per_second: float | None = None

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole training; None if unknown."""
        if self.steps is not None:
            return self.steps
        return self.epochs * (self.steps_per_epoch or 0) or None

    @property
    def fraction(self) -> float | None:
        """Share of the training that is done; None if its length is unknown."""
        return self.step / self.total_steps if self.total_steps else None

    def __str__(self) -> str:
        if self.steps is not None:
            return f"step {self.step}/{self.steps}"
        return f"epoch {self.epoch}/{self.epochs}" if self.epochs else f"step {self.step}"


class GracefulStop(_Note):
    """The end of all ranks, as requested.

    Args:
        step: Optimizer steps done.
        saved: Whether the next start comes further by what this one has saved.
        stop_source: The name of the signal that a rank received, or the reason in ``request_stop``.
    """

    step: int
    saved: bool
    stop_source: str


class RankError(_Note):
    """The exception that ended a rank.

    Args:
        time: Seconds since the epoch by the host's clock; orders the ranks of one host.
        message: The exception's type and text.
        out_of_memory: Whether the device had no memory left.
        permanent: Whether another try would end the same way.
    """

    rank: int
    host: str
    time: float
    message: str
    traceback: str
    out_of_memory: bool
    permanent: bool = False

    @property
    def first_line(self) -> str:
        """The first line of its message."""
        return self.message.splitlines()[0]

    @property
    def is_secondary(self) -> bool:
        """Whether it is only the consequence of another rank's end."""
        return self._has_phrase(_CONSEQUENCES)

    @property
    def is_timeout(self) -> bool:
        """Whether another rank did not answer in time."""
        return self._has_phrase(_TIMEOUTS)

    def _has_phrase(self, phrases: tuple[str, ...]) -> bool:
        text = self.message.lower()
        return any(phrase in text for phrase in phrases)


class Rank(_Note):
    """``rank{n}.json``: the state of a rank, which the rank writes.

    Args:
        pid: Number of its process; for a user's program, of the program's process.
        state: ``terminated`` after a request to end, which launchers send to the peers of a rank that failed.
        error: The exception that ended it; None in other states.
        ended_because: Reason for which Scalewise ended its program; empty if it did not.
    """

    rank: int
    host: str
    pid: int
    ended_because: str = ""
    state: Literal["running", "terminated", "finished", "failed"] = "running"
    error: RankError | None = None


Work = Literal["train", "hello"]
"""The work of ranks after their rendezvous."""


class TrainSpec(_Note):
    """The run that the ranks of a training train.

    Args:
        dataset: The prepared file; None if a user's program trains.
        folder: Receives the run's records.
        started_at: UTC, ISO 8601; before the ranks were started.
        other_jobs: Other jobs of all users on the run's nodes when it began; None if unknown.
        study_jobs: Those of them that are of this study; None if unknown.
        weights: The file that the training begins from; None for random weights.
        input_hashes: Hashes of the input files that define the run, by name.
        start_number: Number of this start of the training, from 1.
        from_step: Optimizer steps that the checkpoint holds from which this start resumes; 0 without one.
        lost_steps: Steps of earlier starts that no checkpoint holds.
    """

    definition: RunDefinition
    dataset: Path | None
    folder: Path
    started_at: str
    other_jobs: int | None = None
    study_jobs: int | None = None
    weights: Path | None = None
    input_hashes: dict[str, str] = {}
    start_number: int = 1
    from_step: int = 0
    lost_steps: int = 0

    @property
    def output(self) -> Path:
        """The folder for what the program writes."""
        return self.folder / PROGRAM_FOLDER


class RankSetup(RankLaunch):
    """The start of an attempt's ranks, their rendezvous and their work.

    Args:
        network_interface: The interface for traffic between nodes; None for that of the node's address.
        timeout_seconds: A rank waits this long for another.
        supervisor_host: The host of the process that started the ranks.
        supervisor_pid: The id of that process; None under Slurm, which ends the ranks.
        token: Names the attempt among those that use its folder.
        training: The run to train; None for other work.
    """

    network_interface: str | None
    timeout_seconds: int
    supervisor_host: str
    supervisor_pid: int | None
    token: str = ""
    work: Work = "train"
    training: TrainSpec | None = None


class Endpoint(_Note):
    """The address at which rank 0, or the agent of the first node, waits for the others."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
