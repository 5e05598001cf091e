"""Read and write the files of ``attempt/``: messages between the ranks of a run and their job.

Files work for every launcher and across nodes, and a rank that is killed cannot state that it has finished.

=================  =======================================  =======================================
file               written by                               read by
=================  =======================================  =======================================
rank_setup.json    job, before the ranks start              ranks; the next job, if there is no result
endpoint.json      rank 0, or torchrun's first agent        the other ranks or agents
rank{n}.json       rank n                                   job
progress.json      rank 0                                   job, status
stop               job, or a node's torchrun agent          ranks
=================  =======================================  =======================================

The probe of programs adds files, which its modules name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.plan.launch import RankLaunch
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import write_json

ATTEMPT = "attempt"
"""The folder of these files, below that of the run's records."""

PROGRAM_FOLDER = "program"
"""The folder of a run for what its program writes."""

PROBE = "probe"
"""The folder of the probe's files, below that of the files of the ranks."""

GROUP, BARRIER = "init_process_group", "barrier"
"""Functions in which each rank waits for all others, as measure/rank_waits.py names them."""

RANK_SETUP, ENDPOINT, PROGRESS, STOP = "rank_setup.json", "endpoint.json", "progress.json", "stop"

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


def is_timeout(error: str) -> bool:
    """Whether an error of a rank means that another one did not answer in time."""
    return any(phrase in error.lower() for phrase in _TIMEOUTS)


def is_consequence(error: str) -> bool:
    """Whether an error of a rank is only the consequence of another one's end."""
    return any(phrase in error.lower() for phrase in _CONSEQUENCES)


class _Note(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True)


N = TypeVar("N", bound=_Note)


class TrainSpec(_Note):
    """The run that the ranks of a training train.

    Args:
        dataset: The prepared file; None if a user's program trains.
        folder: Receives the run's records.
        started_at: UTC, ISO 8601; before the ranks were started.
        other_jobs: Other jobs of all users on the run's nodes when it began; None if unknown.
        study_jobs: Those of them that are of this study; None if unknown.
        input_hashes: Hashes of the input files that define the run, by name.
        from_step: Optimizer steps in the checkpoint that this start resumes from; 0 without one.
        failed_seconds: Time of earlier tries at the run, which left no result.
    """

    definition: RunDefinition
    dataset: Path | None
    folder: Path
    started_at: str
    other_jobs: int | None = None
    study_jobs: int | None = None
    input_hashes: dict[str, str] = {}
    from_step: int = 0
    failed_seconds: float = 0.0

    @property
    def output(self) -> Path:
        """The folder for what the program writes."""
        return self.folder / PROGRAM_FOLDER


class RankSetup(RankLaunch):
    """The start of the ranks, their rendezvous and their work.

    Args:
        network_interface: The interface for traffic between nodes; None for that of the node's address.
        timeout_seconds: A rank waits this long for another.
        supervisor_host: The host of the job that started the ranks.
        supervisor_pid: The job's process there; None under Slurm, which ends the ranks.
        token: Names the job among those that use the folder.
        training: The run to train.
    """

    network_interface: str | None
    timeout_seconds: int
    supervisor_host: str
    supervisor_pid: int | None
    token: str = ""
    training: TrainSpec | None = None


class Endpoint(_Note):
    """The address at which rank 0, or the agent of the first node, waits for the others."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Progress(_Note):
    """The progress of a training, as rank 0 reported it last.

    Args:
        epoch: Epochs done.
        epochs: Epochs of the whole training, if they end it; 0 for a program, whose epochs are unknown.
        step: Optimizer steps done since the training began.
        steps: Optimizer steps of the whole training, if they end it; None otherwise.
        reported_at: Time of the report, seconds since the epoch by the clock of rank 0's host.
    """

    epoch: int
    epochs: int
    step: int = 0
    steps: int | None = None
    reported_at: float = 0.0

    def __str__(self) -> str:
        if self.steps is not None:
            return f"step {self.step}/{self.steps}"
        return f"epoch {self.epoch}/{self.epochs}" if self.epochs else f"step {self.step}"


class Rank(_Note):
    """``rank{n}.json``: the state of a rank, which the rank writes.

    Args:
        pid: Number of its process; for a program, of the program's process.
        state: ``terminated`` after a request to end, which launchers send to the peers of a rank that failed;
            ``stopped`` if it has ended because of a signal or of ``stop``.
        stop_source: The signal's name, or the text of ``stop``.
        error: The type and text of the exception that ended it; empty in other states, as are the next four.
        failed_at: Seconds since the epoch by the host's clock; orders the ranks of one host.
        out_of_memory: Whether the device had no memory left.
        permanent: Whether another try would end the same way.
    """

    rank: int
    host: str
    pid: int
    state: Literal["running", "terminated", "finished", "failed", "stopped"] = "running"
    stop_source: str = ""
    error: str = ""
    traceback: str = ""
    failed_at: float = 0.0
    out_of_memory: bool = False
    permanent: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"

    @property
    def failure(self) -> str:
        """The rank, its host and the first line of its error."""
        return f"rank {self.rank} on {self.host}: {(self.error.splitlines() or [''])[0]}"


class RankWait(_Note):
    """``{rank}.{pid}.wait``: the place where a rank waits for the others; the probe writes it.

    Args:
        address: Host and port at which it looks for rank 0; empty if unknown.
        where: The function that it is in; empty after it has returned.
    """

    rank: int
    host: str
    address: str
    where: str


def _read(path: Path, kind: type[N]) -> N | None:
    """Return a note; None before it is written, and if it cannot be read."""
    with suppress(OSError, ValidationError):
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    return None


def read_waits(folder: Path) -> dict[int, RankWait]:
    """Return the last note of each rank that has reached ``init_process_group``, by rank."""
    waits = [wait for path in folder.glob("*.wait") if (wait := _read(path, RankWait)) is not None]
    return {wait.rank: wait for wait in sorted(waits, key=lambda wait: wait.rank)}


def steps_of_ranks(folder: Path) -> dict[int, int]:
    """Return the optimizer steps that each rank has noted, by rank."""
    found: dict[int, int] = {}
    for path in folder.glob("*.steps"):
        with suppress(OSError, ValueError):
            rank, done = int(path.name.partition(".")[0]), int(path.read_text(encoding="utf-8"))
            found[rank] = max(done, found.get(rank, 0))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class RankFiles:
    """The folder of the messages.

    Args:
        folder: Used again by the next job of the run.
        token: Names the job that uses it; empty if no other job of this run can exist. After a long
            suspension, ranks of an earlier job may find another token: they write nothing.
    """

    folder: Path
    token: str = ""

    @classmethod
    def join(cls, folder: Path) -> RankFiles:
        """Return the files in a folder, for a process that the job has started."""
        return cls(folder, _token(folder))

    # ---- from the job to the ranks

    def begin(self, rank_setup: RankSetup) -> None:
        """Delete the files of an earlier job and write how the ranks meet, and their work."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # the earlier setup is replaced last: it says that what the program has saved belongs to this run
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != RANK_SETUP:
                path.unlink()
        write_json(self.folder / RANK_SETUP, rank_setup.model_copy(update={"token": self.token}))

    def rank_setup(self) -> RankSetup:
        """Read how the ranks meet, and their work."""
        return RankSetup.model_validate_json((self.folder / RANK_SETUP).read_text(encoding="utf-8"))

    def unfinished(self) -> TrainSpec | None:
        """Return the training of the last job; None if there is none or it cannot be read."""
        with suppress(OSError, ValidationError):
            return self.rank_setup().training
        return None

    def request_stop(self, because: str) -> None:
        """Request the ranks to let their program save, and to end."""
        self._write(STOP, because)

    def stop_request(self) -> str | None:
        """Return the reason of a request to stop, if there is one."""
        return (self.folder / STOP).read_text(encoding="utf-8") if self._lists(STOP) else None

    def end(self) -> None:
        """Delete the folder, unless another job uses it."""
        if self.is_current:
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- the token of the job

    @property
    def is_current(self) -> bool:
        """Whether no other job has the folder; true also if the folder is gone."""
        try:
            return not self.token or _token(self.folder) == self.token
        except OSError:
            return True

    def check_current(self) -> None:
        """Check that these ranks may still write the run's files.

        Raises:
            OSError: Another job trains the run by now.
        """
        if not self.is_current:
            raise OSError(errno.ESTALE, "another job has it by now", str(self.folder))

    def _write(self, name: str, text: str) -> None:
        # not flushed to disk: progress is written while the clock runs
        self.check_current()
        draft = self.folder / f".{name}"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.folder / name)

    def _lists(self, name: str) -> bool:
        # listed, not looked up: a network file system may remember for a minute that a file was missing
        return any(path.name == name for path in self.folder.iterdir())

    # ---- the rendezvous

    @property
    def rendezvous_file(self) -> Path:
        """Return the path of the file by which ranks meet without a port; torch writes it."""
        return self.folder.absolute() / "rendezvous"

    def publish_endpoint(self, host: str, port: int) -> None:
        """Write the address to which the others connect."""
        self._write(ENDPOINT, Endpoint(host=host, port=port).model_dump_json())

    def endpoint(self) -> Endpoint | None:
        """Read the address to which the others connect; None before it is published."""
        return _read(self.folder / ENDPOINT, Endpoint)

    def wait_for_endpoint(self, timeout_seconds: float) -> Endpoint:
        """Wait for the address to connect to.

        Raises:
            TimeoutError: There was none in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while not self._lists(ENDPOINT) or (endpoint := self.endpoint()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out: no rank waited at a rendezvous within {timeout_seconds:g} s")
            time.sleep(0.05)
        return endpoint

    # ---- from the ranks to the job

    def started(self, rank: int, host: str, pid: int | None = None) -> None:
        """State that a rank runs, in this process or in another one."""
        self._write_rank(Rank(rank=rank, host=host, pid=pid or os.getpid()))

    def finished(self, rank: int) -> None:
        """State that a rank has ended in order."""
        self._change(rank, state="finished")

    def terminated(self, rank: int) -> None:
        """State that a rank was requested to end, unless it has ended."""
        if (earlier := self.read_rank(rank)) is not None and earlier.state == "running":
            self._change(rank, state="terminated")

    def stopped(self, rank: int, source: str) -> None:
        """State that a rank has ended because of a signal or a request to stop."""
        self._change(rank, state="stopped", stop_source=source)

    def failed(self, rank: int, host: str, error: str, **facts: Any) -> None:
        """State the reason that ends a rank; facts are further fields of ``Rank``."""
        earlier = self.read_rank(rank) or Rank(rank=rank, host=host, pid=os.getpid())
        failure = {"state": "failed", "error": error, "failed_at": time.time(), **facts}
        self._write_rank(earlier.model_copy(update=failure))

    def _change(self, rank: int, **changes: str) -> None:
        self.check_current()
        if (earlier := self.read_rank(rank)) is not None:
            self._write_rank(earlier.model_copy(update=changes))

    def _write_rank(self, rank: Rank) -> None:
        self._write(f"rank{rank.rank}.json", rank.model_dump_json())

    def read_rank(self, rank: int) -> Rank | None:
        """Read the state of a rank; None before it has started, and if its file cannot be read."""
        return _read(self.folder / f"rank{rank}.json", Rank)

    def ranks(self, world_size: int) -> list[Rank]:
        """Read the states of the ranks that have started."""
        return [rank for number in range(world_size) if (rank := self.read_rank(number)) is not None]

    def progress(self, progress: Progress) -> None:
        """Write the progress of the training, for the job and the status."""
        self._write(PROGRESS, progress.model_copy(update={"reported_at": time.time()}).model_dump_json())

    def read_progress(self) -> Progress | None:
        """Read the progress that rank 0 reported last; None before the first."""
        return _read(self.folder / PROGRESS, Progress)


def _token(folder: Path) -> str:
    token: str = json.loads((folder / RANK_SETUP).read_bytes())["token"]
    return token
