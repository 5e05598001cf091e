"""Read and write the files of ``attempt/``: messages between the ranks of a run and their job.

Files work for every launcher and across nodes, and a rank that is killed cannot state that it has finished.

===============  ==================================  ==================================
file             written by                          read by
===============  ==================================  ==================================
rank_setup.json  job, before the ranks start         ranks, status, the run's next job
endpoint         rank 0, or torchrun's first agent   the other ranks or agents
rank{n}.json     rank n                              job
failed           the ranks that fail                 job
stop             job, or a node's torchrun agent     ranks
probe/           the probe, whose modules name them  ranks; job and status: steps, waits
===============  ==================================  ==================================
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from scalewise.config.settings import Settings
from scalewise.plan.run_definition import RunDefinition, program_of, steps_per_epoch
from scalewise.records import Origin, Provenance, write_json

ATTEMPT = "attempt"
"""The folder of these files, below that of the run's records."""

PROGRAM_FOLDER = "program"
"""The folder of a run for what its program writes."""

RANK_SETUP, ENDPOINT, FAILED, STOP = "rank_setup.json", "endpoint", "failed", "stop"

_CONSEQUENCE = re.compile(
    "connection (closed|reset) by peer|broken pipe|remote process exited|recvvalue failed|timed out|timeout",
    re.IGNORECASE,
)
"""Phrases of gloo, nccl and the store in errors of ranks that have lost another rank: never the cause."""

_OWN = re.compile(r"ended with code \d+: (?!RuntimeError(?!: Data)|[\w.]*Dist\w+Error|.*client socket)")
"""Errors that torch.distributed does not raise, such as a download that timed out."""


def is_consequence(error: str) -> bool:
    """Whether an error of a rank is only the consequence of another one's end."""
    return bool(_CONSEQUENCE.search(error)) and not _OWN.search(error)


class RankSetup(Origin):
    """The run as its ranks read it: what they train, how they meet, and what their records say of the job.

    Args:
        dataset: The prepared file; None if a user's program trains.
        folder: Receives the run's records.
        timeout_seconds: A rank waits this long for another.
        limit_seconds: The job ends the ranks after this time.
        supervisor_host: The host of the job that started the ranks.
        supervisor_pid: The job's process there; None under Slurm, which ends the ranks.
        network_interface: The interface for traffic between nodes; None for that of the node's address.
        from_step: Optimizer steps in the checkpoint that the program resumes from; 0 without one.
    """

    definition: RunDefinition
    dataset: Path | None
    folder: Path
    timeout_seconds: int
    limit_seconds: float
    supervisor_host: str
    supervisor_pid: int | None = None
    network_interface: str | None = None
    from_step: int = 0

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

    def provenance(self, **of_ranks: Any) -> Provenance:
        """Return the origin of the run's numbers, with what its ranks have found on their hosts."""
        return Provenance(**self.model_dump(include=set(Origin.model_fields)), **of_ranks)


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


class RankFiles:
    """The folder of the messages, which the next job of the run uses again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def setup(self) -> RankSetup:
        """The job's setup, as this process has read it first."""
        return RankSetup.model_validate_json(self._setup_text)

    @cached_property
    def _setup_text(self) -> bytes:
        return self._read_setup()

    def _read_setup(self) -> bytes:
        return (self.folder / RANK_SETUP).read_bytes()

    # ---- from the job to the ranks

    def begin(self, setup: RankSetup) -> None:
        """Delete the files of an earlier job and write how the ranks meet, and their work."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # the earlier setup is replaced last: it says that what the program has saved belongs to this run
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != RANK_SETUP:
                path.unlink()
        write_json(self.folder / RANK_SETUP, setup)
        self.setup, self._setup_text = setup, self._read_setup()

    def request_stop(self, because: str) -> None:
        """Request the ranks to let their program save, and to end."""
        self._write(STOP, because)

    def stop_request(self) -> str:
        """Return the reason of a request to stop; empty without one."""
        return self._read(STOP)

    @property
    def is_training(self) -> bool:
        """Whether the job trains on this machine, which its own process supervises."""
        with suppress(OSError, ValueError):
            command = Path(f"/proc/{self.setup.supervisor_pid}/cmdline").read_bytes()  # empty once it is dead
            return bool(command) and self.setup.supervisor_host == socket.gethostname()
        return False

    @property
    def is_current(self) -> bool:
        """Whether no other job has taken the folder, such as after a long suspension of this one."""
        try:
            return self._read_setup() == self._setup_text
        except OSError:
            return True

    def check_current(self) -> None:
        """Check that this job and its ranks may still write the run's files.

        Raises:
            OSError: Another job trains the run by now.
        """
        if not self.is_current:
            raise OSError(errno.ESTALE, "another job has it by now", str(self.folder))

    def _write(self, name: str, text: str) -> None:
        self.check_current()
        draft = self.folder / f".{name}"
        draft.write_text(text, encoding="utf-8")
        draft.replace(self.folder / name)

    def _lists(self, name: str) -> bool:
        # listed, not looked up: a network file system may remember for a minute that a file was missing
        with suppress(OSError):
            return any(path.name == name for path in self.folder.iterdir())
        return False

    def _read(self, name: str) -> str:
        with suppress(OSError):
            return (self.folder / name).read_text(encoding="utf-8") if self._lists(name) else ""
        return ""

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
        return self._read(ENDPOINT)

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

    def has_failed(self) -> bool:
        """Whether a rank has failed."""
        return self._lists(FAILED)

    def read_rank(self, rank: int) -> Rank | None:
        """Read the state of a rank; None before it has started, and if its file cannot be read."""
        with suppress(OSError, ValidationError):
            return Rank.model_validate_json((self.folder / f"rank{rank}.json").read_bytes())
        return None

    def ranks(self) -> list[Rank]:
        """Read the states of the ranks that have started."""
        states = map(self.read_rank, range(self.setup.world_size))
        return [rank for rank in states if rank is not None]

    @property
    def probe(self) -> Path:
        """The folder of the probe's files."""
        return self.folder / "probe"

    def steps(self) -> int:
        """Return the optimizer steps of this start, of the rank that has made most."""
        return max(steps_by_rank(self.probe).values(), default=0)

    def progress(self) -> str:
        """Return how far the training is, ``epoch 3/10``; empty before the first step of this start."""
        if not (steps := self.steps()):
            return ""
        run, done = self.setup.definition, self.setup.from_step + steps
        program = program_of(run)
        if program.steps is not None:
            last = program.warmup_steps + program.steps  # later steps are not measured
            return f"step {min(done, last)}/{last}"
        if isinstance(run.settings, Settings) and (per_epoch := steps_per_epoch(run)):
            return f"epoch {done // per_epoch}/{run.settings.epochs}"
        return f"step {done}"

    def waits(self) -> dict[int, dict[str, Any]]:
        """Return where each rank waits that has reached the process group, as the probe has written it last.

        Returns:
            By rank: the function of torch.distributed in which it waits (``where``, empty outside of one),
            and, in the one that makes the process group, the ``address`` at which it looks for rank 0.
        """
        waits = {}
        for path in probe_files(self.probe, "wait"):
            with suppress(OSError, ValueError):
                wait = json.loads(path.read_text(encoding="utf-8"))
                waits[wait["rank"]] = wait
        return waits
