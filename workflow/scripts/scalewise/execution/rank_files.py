"""Read and write the files of ``attempt/``: messages between the ranks of a run and their job.

Files work for every launcher and across nodes, and a rank that is killed cannot state that it has finished.

=================  =======================================  =======================================
file               written by                               read by
=================  =======================================  =======================================
rank_setup.json    job, before the ranks start              ranks; the next job, if there is no result
endpoint           rank 0, or torchrun's first agent        the other ranks or agents
rank{n}.json       rank n                                   job
failed             the ranks that fail                      job
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
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import program_of
from scalewise.records import Provenance, write_json

ATTEMPT = "attempt"
"""The folder of these files, below that of the run's records."""

PROGRAM_FOLDER = "program"
"""The folder of a run for what its program writes."""

PROBE = "probe"
"""The folder of the probe's files, below that of the files of the ranks."""

RANK_SETUP, ENDPOINT, PROGRESS, FAILED, STOP = (
    "rank_setup.json",
    "endpoint",
    "progress.json",
    "failed",
    "stop",
)

_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "recvvalue failed",
    "timed out",
    "timeout",
)
"""Phrases of gloo, nccl and the store in errors of ranks that have lost another rank: never the cause."""


def is_consequence(error: str) -> bool:
    """Whether an error of a rank is only the consequence of another one's end."""
    return any(phrase in error.lower() for phrase in _CONSEQUENCES)


class RankSetup(BaseModel, frozen=True, defer_build=True):
    """The run as its ranks read it: what they train, how they meet, and what their records say of the job.

    Args:
        dataset: The prepared file; None if a user's program trains.
        folder: Receives the run's records.
        inputs: Hashes of the input files that define the run, by name.
        started_at: UTC, ISO 8601; before the ranks were started.
        timeout_seconds: A rank waits this long for another.
        limit_seconds: The job ends the ranks after this time.
        supervisor_host: The host of the job that started the ranks.
        supervisor_pid: The job's process there; None under Slurm, which ends the ranks.
        network_interface: The interface for traffic between nodes; None for that of the node's address.
        token: Names the job among those that use the folder.
        from_step: Optimizer steps in the checkpoint that the program resumes from; 0 without one.
        failed_seconds: Time of earlier tries at the run, which left no result.
        slurm_job_id: None outside Slurm.
        restart_count: Number of times that Slurm has requeued the job.
        other_jobs: Other jobs of all users on the run's nodes when it began; None if unknown.
        study_jobs: Those of them that are of this study; None if unknown.
    """

    definition: RunDefinition
    dataset: Path | None
    folder: Path
    inputs: dict[str, str]
    started_at: str
    timeout_seconds: int
    limit_seconds: float
    supervisor_host: str
    supervisor_pid: int | None = None
    network_interface: str | None = None
    token: str = ""
    from_step: int = 0
    failed_seconds: float = 0.0
    slurm_job_id: str | None = None
    restart_count: int = 0
    other_jobs: int | None = None
    study_jobs: int | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.definition.shape.world_size

    @property
    def resumes(self) -> bool:
        """Whether what the program has saved remains if it is ended early."""
        return program_of(self.definition).resumes

    @property
    def output(self) -> Path:
        """The folder for what the program writes."""
        return self.folder / PROGRAM_FOLDER

    def provenance(self, ended_at: str, **of_ranks: Any) -> Provenance:
        """Return the origin of the run's numbers, with what its ranks have found on their hosts."""
        lists: dict[str, Any] = {name: [] for name in ("hosts", "devices", "environments", "gpu_limits")}
        return Provenance(
            launcher=self.definition.launcher,
            started_at=self.started_at,
            ended_at=ended_at,
            slurm_job_id=self.slurm_job_id,
            restart_count=self.restart_count,
            other_jobs=self.other_jobs,
            study_jobs=self.study_jobs,
            failed_seconds=self.failed_seconds,
            inputs=self.inputs,
            **{"commit": None} | lists | of_ranks,
        )


class Progress(BaseModel, frozen=True, defer_build=True):
    """``progress.json``: the progress of a training, as rank 0 reported it last.

    Args:
        step: Optimizer steps done since the training began.
        text: The same for readers: ``epoch 3/10``.
        reported_at: Seconds since the epoch by the clock of rank 0's host.
    """

    step: int
    text: str
    reported_at: float


State = Literal["running", "terminated", "finished", "failed", "stopped"]


class Rank(BaseModel, frozen=True, defer_build=True):
    """``rank{n}.json``: the state of a rank, which the rank writes.

    Args:
        pid: Number of its process; for a program, of the program's process.
        changed_at: Seconds since the epoch by the host's clock; orders the ranks of one host.
        state: ``terminated`` after a request to end, which launchers send to the peers of a rank that failed;
            ``stopped`` if it has ended because of a signal or of ``stop``.
        stop_source: The signal's name, or the text of ``stop``.
        error: The type and text of the exception that ended it; empty in other states, as are the next three.
        out_of_memory: Whether the device had no memory left.
        permanent: Whether another try would end the same way.
    """

    rank: int
    host: str
    pid: int
    changed_at: float = 0.0
    state: State = "running"
    stop_source: str = ""
    error: str = ""
    traceback: str = ""
    out_of_memory: bool = False
    permanent: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.host} (pid {self.pid})"

    @property
    def failure(self) -> str:
        """The rank, its host and the first line of its error."""
        return f"rank {self.rank} on {self.host}: {self.error.partition(chr(10))[0]}"


GROUP = "init_process_group"
"""The function in which ranks wait for all others first, as measure/rank_waits.py names it."""


def probe_files(folder: Path, kind: str) -> list[Path]:
    """List the probe's files of a kind: a network file system may remember that one was missing."""
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.name.endswith(f".{kind}")]
    return []


def steps_by_rank(folder: Path, kind: str = "steps") -> dict[int, int]:
    """Return the optimizer steps in the probe's files of a kind, by rank."""
    steps: dict[int, int] = {}
    for path in probe_files(folder, kind):
        with suppress(OSError, ValueError):
            rank = int(path.name.partition(".")[0])
            steps[rank] = max(int(path.read_text(encoding="utf-8")), steps.get(rank, 0))
    return steps


def read_waits(folder: Path) -> dict[int, dict[str, Any]]:
    """Return where each rank waits that has reached ``init_process_group``, as the probe has written it last.

    Returns:
        By rank: its host, the function in which it waits (``where``, empty outside of one), and the address
        at which it looks for rank 0.
    """
    waits = {}
    for path in probe_files(folder, "wait"):
        with suppress(OSError, ValueError):
            wait = json.loads(path.read_text(encoding="utf-8"))
            waits[wait["rank"]] = wait
    return waits


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

    def unfinished(self) -> RankSetup | None:
        """Return the work of the last job; None if there is none or it cannot be read."""
        with suppress(OSError, ValidationError):
            return self.rank_setup()
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
        self._write(ENDPOINT, f"{host}:{port}")

    def endpoint(self) -> str:
        """Return the address to which the others connect, ``host:port``; empty before it is published."""
        with suppress(OSError):
            if self._lists(ENDPOINT):
                return (self.folder / ENDPOINT).read_text(encoding="utf-8")
        return ""

    def wait_for_endpoint(self, timeout_seconds: float) -> tuple[str, int]:
        """Wait for the address to connect to; return host and port.

        Raises:
            TimeoutError: There was none in time.
        """
        deadline = time.monotonic() + timeout_seconds
        while not (endpoint := self.endpoint()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out: no rank waited at a rendezvous within {timeout_seconds:g} s")
            time.sleep(0.05)
        host, _, port = endpoint.rpartition(":")
        return host, int(port)

    # ---- from the ranks to the job

    def mark(self, rank: int, state: State, **facts: Any) -> None:
        """Write the state of a rank; facts are further fields of ``Rank``, at first host and pid."""
        earlier = self.read_rank(rank) or Rank(rank=rank, host="", pid=os.getpid())
        changes = {"state": state, "changed_at": time.time(), **facts}
        self._write(f"rank{rank}.json", earlier.model_copy(update=changes).model_dump_json())
        if state == "failed":
            (self.folder / FAILED).touch()

    def read_rank(self, rank: int) -> Rank | None:
        """Read the state of a rank; None before it has started, and if its file cannot be read."""
        with suppress(OSError, ValidationError):
            return Rank.model_validate_json((self.folder / f"rank{rank}.json").read_bytes())
        return None

    def ranks(self, world_size: int) -> list[Rank]:
        """Read the states of the ranks that have started."""
        return [rank for number in range(world_size) if (rank := self.read_rank(number)) is not None]

    def progress(self, step: int, text: str) -> None:
        """Write the progress of the training, for the job and the status."""
        progress = Progress(step=step, text=text, reported_at=time.time())
        self._write(PROGRESS, progress.model_dump_json())

    def read_progress(self) -> Progress | None:
        """Read the progress that rank 0 reported last; None before the first."""
        with suppress(OSError, ValidationError):
            return Progress.model_validate_json((self.folder / PROGRESS).read_bytes())
        return None


def _token(folder: Path) -> str:
    token: str = json.loads((folder / RANK_SETUP).read_bytes())["token"]
    return token
