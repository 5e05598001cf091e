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

from pydantic import BaseModel, ConfigDict

from scalewise.records import Definition, write_json, write_text

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
    def is_consequence(self) -> bool:
        """Whether it only says that another rank has gone."""
        text = self.message.lower()
        return any(phrase in text for phrase in _CONSEQUENCES)


class Assignment(_Note):
    """What every rank of a run is told.

    Args:
        definition: the run.
        dataset: the prepared file.
        folder: of the run's records.
        launcher: what started the ranks.
        started_at: UTC, ISO 8601; before the ranks were started.
        supervisor_host: where train.py runs.
        supervisor_pid: its process there.
    """

    definition: Definition
    dataset: Path
    folder: Path
    launcher: str
    started_at: str
    supervisor_host: str
    supervisor_pid: int


@dataclass(frozen=True)
class Attempt:
    """The folder of one attempt at a run."""

    folder: Path

    def begin(self, assignment: Assignment) -> None:
        """Forget an earlier attempt and lay out this one's assignment for the ranks."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        write_json(self.folder / "assignment.json", assignment)

    def end(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder)

    def assignment(self) -> Assignment:
        """What the ranks are to do."""
        text = (self.folder / "assignment.json").read_text(encoding="utf-8")
        return Assignment.model_validate_json(text)

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

    def missing(self, world_size: int) -> list[int]:
        """Ranks that never came."""
        return [rank for rank in range(world_size) if not (self.folder / f"rank{rank}.started.json").exists()]
