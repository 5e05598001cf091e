"""What the ranks of one attempt tell the supervisor: small files in a folder that both can reach.

Files work for every launcher and across nodes, and a rank that is killed cannot write the one that
says it finished.
"""

from __future__ import annotations

import os
import shutil
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.records import Definition, LauncherName, write_json, write_text

_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "remote process exited",
    "recvvalue failed",
    "timed out",
    "timeout",
)
"""What gloo, nccl and the store say on the ranks that outlive another: never the cause."""


class _Note(BaseModel):
    model_config = ConfigDict(frozen=True)


class Progress(_Note):
    """Epochs done so far, of all."""

    epoch: int
    epochs: int


class Presence(_Note):
    """Where a rank runs."""

    rank: int
    host: str
    pid: int


class Complaint(_Note):
    """The exception that ended a rank.

    Args:
        rank: where it was raised.
        host: of the rank.
        time: when, in seconds since the epoch; orders ranks of one host.
        message: type and text.
        traceback: as Python prints it.
        out_of_memory: the device had no memory left.
    """

    rank: int
    host: str
    time: float
    message: str
    traceback: str
    out_of_memory: bool

    @property
    def headline(self) -> str:
        """The first line of its message."""
        return self.message.splitlines()[0]

    @property
    def is_consequence(self) -> bool:
        """Whether it only says that another rank has gone."""
        text = self.message.lower()
        return any(phrase in text for phrase in _CONSEQUENCES)


class Muster(_Note):
    """How the ranks of an attempt are started and meet, whatever they do then.

    Args:
        shape: nodes x devices per node.
        accelerator: ``cuda`` or ``cpu``.
        cpus_per_device: threads of each rank.
        launcher: what starts them.
        rendezvous: ``tcp`` or ``file``.
        network_interface: between nodes; None for the one of the node's own address.
        timeout_seconds: that a rank waits for another.
        supervisor_host: where the process that started them runs.
        supervisor_pid: that process; None under Slurm, which ends ranks by itself.
    """

    shape: str
    accelerator: Literal["cpu", "cuda"]
    cpus_per_device: int
    launcher: LauncherName
    rendezvous: Literal["tcp", "file"]
    network_interface: str | None
    timeout_seconds: int
    supervisor_host: str
    supervisor_pid: int | None


class Assignment(_Note):
    """What the ranks of a training are told.

    Args:
        definition: the run.
        dataset: the prepared file.
        folder: of the run's records.
        started_at: UTC, ISO 8601; before the ranks were started.
        other_jobs: of anybody on the run's nodes when it began; None where nobody can say.
        weights: to begin from; None for random ones.
    """

    definition: Definition
    dataset: Path
    folder: Path
    started_at: str
    other_jobs: int | None = None
    weights: Path | None = None


class MeetingPoint(_Note):
    """Where rank 0, or the agent of the first node, waits for the others."""

    host: str
    port: int


@dataclass(frozen=True)
class Attempt:
    """The folder of one attempt at a run."""

    folder: Path

    def begin(self, muster: Muster) -> None:
        """Forget an earlier attempt and lay out for the ranks how they meet."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / "muster.json", muster)

    def muster(self) -> Muster:
        """How the ranks meet."""
        return Muster.model_validate_json((self.folder / "muster.json").read_text(encoding="utf-8"))

    def assign(self, assignment: Assignment) -> None:
        """Lay out what the ranks are to do, before they are started."""
        write_json(self.folder / "assignment.json", assignment)

    def end(self) -> None:
        """Leave nothing behind; a rank on another node may still close a file."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def assignment(self) -> Assignment:
        """What the ranks are to do."""
        text = (self.folder / "assignment.json").read_text(encoding="utf-8")
        return Assignment.model_validate_json(text)

    @property
    def meeting_file(self) -> Path:
        """Where ranks meet without a port."""
        return self.folder.absolute() / "rendezvous"

    def wait_here(self, host: str, port: int) -> None:
        """Say where the others are to come."""
        write_json(self.folder / "meeting.json", MeetingPoint(host=host, port=port))

    def meeting_point(self, timeout_seconds: float) -> MeetingPoint:
        """Where to come, as soon as it has been said.

        Raises:
            TimeoutError: nobody said it in time.
        """
        deadline = time.monotonic() + timeout_seconds
        # listed, not looked up: a network file system may remember for a minute that a file was missing
        while not any(path.name == "meeting.json" for path in self.folder.iterdir()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out: nobody waited at a rendezvous within {timeout_seconds:g} s")
            time.sleep(0.05)
        try:
            text = (self.folder / "meeting.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            # the listing was an earlier attempt's
            time.sleep(0.05)
            return self.meeting_point(deadline - time.monotonic())
        return MeetingPoint.model_validate_json(text)

    def started(self, rank: int, host: str) -> None:
        """A rank is there."""
        note = Presence(rank=rank, host=host, pid=os.getpid())
        write_text(self.folder / f"rank{rank}.started.json", note.model_dump_json())

    def finished(self, rank: int) -> None:
        """A rank has left in order."""
        write_text(self.folder / f"rank{rank}.finished", "")

    def failed(self, rank: int, host: str, error: BaseException, out_of_memory: bool) -> None:
        """A rank has raised."""
        note = Complaint(
            rank=rank,
            host=host,
            time=time.time(),
            message=f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
            out_of_memory=out_of_memory,
        )
        write_text(self.folder / f"rank{rank}.failed.json", note.model_dump_json())

    def terminated(self, rank: int) -> None:
        """A rank was asked to end, which launchers do to the peers of one that failed."""
        write_text(self.folder / f"rank{rank}.terminated", "")

    def progress(self, progress: Progress) -> None:
        """Rank 0 has done another epoch."""
        write_text(self.folder / "progress.json", progress.model_dump_json())

    def read_progress(self) -> Progress | None:
        """The last epoch that was reported."""
        path = self.folder / "progress.json"
        return Progress.model_validate_json(path.read_text()) if path.exists() else None

    def cause(self, world_size: int) -> Complaint | None:
        """The first exception that is not the consequence of another rank's end."""
        complaints = [
            Complaint.model_validate_json(path.read_text()) for path in self.folder.glob("rank*.failed.json")
        ]
        first_hand = [complaint for complaint in complaints if not complaint.is_consequence]
        if not first_hand and self.silent(world_size):
            return None
        return min(first_hand or complaints, key=lambda note: note.time, default=None)

    def silent(self, world_size: int) -> list[Presence]:
        """Ranks that were there and left no word: killed from outside."""
        gone = []
        for rank in range(world_size):
            left_word = any(
                (self.folder / f"rank{rank}.{ending}").exists()
                for ending in ("finished", "failed.json", "terminated")
            )
            started = self.folder / f"rank{rank}.started.json"
            if started.exists() and not left_word:
                gone.append(Presence.model_validate_json(started.read_text()))
        return gone

    def unanswering(self, world_size: int) -> list[Presence]:
        """Ranks that neither finished nor complained, though they may have been asked to end."""
        return [
            Presence.model_validate_json(started.read_text())
            for rank in range(world_size)
            if (started := self.folder / f"rank{rank}.started.json").exists()
            and not (self.folder / f"rank{rank}.finished").exists()
            and not (self.folder / f"rank{rank}.failed.json").exists()
        ]

    def missing(self, world_size: int) -> list[int]:
        """Ranks that never came."""
        return [rank for rank in range(world_size) if not (self.folder / f"rank{rank}.started.json").exists()]
