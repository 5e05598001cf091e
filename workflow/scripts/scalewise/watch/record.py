"""The file by which another process learns how a study stands: written by the one that runs it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.watch.jobs import Job
from scalewise.watch.points import Rounds, RunKey, WatchedStudy
from scalewise.watch.slurm_queue import QueuedJob

RECORD = Path(".snakemake") / "scalewise" / "study.json"
"""Folder below the one in which Snakemake runs, next to its own notes."""


class WatchRecordError(Exception):
    """The file is there and says nothing: it cannot be read, or is damaged."""


class WatchRecord(BaseModel):
    """A session of a study.

    Args:
        first_asked: Repeats that were asked for when it began, by experiment and point.
        session: Runs that this session makes, as far as was known when it began.
        jobs: The last job of each run in this session.
        queue: States that Slurm reported last, by the ids of the jobs.
        told_at: Seconds since the epoch.
        ended: Whether the session has ended in order.
    """

    model_config = ConfigDict(frozen=True)

    study: WatchedStudy
    rounds: Rounds
    first_asked: dict[str, dict[str, int]]
    host: str
    pid: int
    began: float
    told_at: float
    session: tuple[RunKey, ...]
    jobs: tuple[tuple[RunKey, Job], ...] = ()
    queue: dict[str, QueuedJob] = {}
    ended: bool = False

    @property
    def is_alive(self) -> bool | None:
        """Whether the process that runs the study is there; None on another host, which cannot see it."""
        if self.ended:
            return False
        if self.host != socket.gethostname():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write_watch_record(folder: Path, record: WatchRecord) -> None:
    """Write the file whole or not at all; it is not flushed to disk, as nothing rests on it.

    Raises:
        OSError: It cannot be written.
    """
    path = folder / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(record.model_dump_json(), encoding="utf-8")
    draft.replace(path)


def read_watch_record(folder: Path) -> WatchRecord | None:
    """The latest session of the study in a folder; None where none has begun.

    Args:
        folder: Folder in which Snakemake runs.

    Raises:
        WatchRecordError: It cannot be read.
    """
    path = folder / RECORD
    try:
        return WatchRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise WatchRecordError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValidationError, UnicodeDecodeError):
        raise WatchRecordError(f"{path} is damaged. The next start of snakemake writes it again.") from None
