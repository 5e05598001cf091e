"""Let one process at a time train a run, also if two machines see its folder.

A snakemake that was killed leaves its jobs in the queue, and the next one does not know of them. Kernel
locks do not reach across every parallel file system. So the lock is a folder with one file, which names the
process that holds the run. That process sets the file's time every few seconds.

free to held: the holder writes a draft of the folder and renames it to ``lock``. The file system refuses this
    unless ``lock`` is missing or empty.
held to free: the holder deletes its file, or another process does once the holder is gone. The file has the
    holder's token as its name, so no process can delete the file of the next holder by mistake.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.execution.slurm import is_active

LOCK = "lock"

HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""A holder whose file keeps its time for this long, as seen from here, is gone."""
LOST_SECONDS = 3 * HEARTBEAT_SECONDS
"""The same for an earlier start of this process's Slurm job: it has usually ended."""
POLL_SECONDS = 0.5
QUERY_SECONDS = 20.0
"""Time between two queries to Slurm about a holder's job."""


class LockTimeoutError(Exception):
    """Another process held the run for longer than the wait allowed."""


class LockLostError(Exception):
    """Another process has taken the run, as this one had not updated its lock."""


class LockOwner(BaseModel):
    """A process that trains a run or waits to.

    Args:
        token: Names this use of the lock.
        host: The process's host.
        pid: The process's id on that host.
        job: Slurm's job id; None outside Slurm.
        restart: The number of times that Slurm has requeued that job.
        start_ticks: The start of the process, in ticks since boot: ids of processes are used again.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    host: str
    pid: int
    job: str | None
    restart: int
    start_ticks: str = ""

    @classmethod
    def this_process(cls, in_job: bool = True) -> LockOwner:
        """Describe this process.

        Args:
            in_job: True if it does the work of its Slurm job; false in a user's session inside a job.
        """
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            job=os.environ.get("SLURM_JOB_ID") if in_job else None,
            restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")) if in_job else 0,
            start_ticks=_start_ticks(os.getpid()) or "",
        )

    def __str__(self) -> str:
        return f"Slurm job {self.job} on {self.host}" if self.job else f"process {self.pid} on {self.host}"

    def is_earlier_start_of(self, other: LockOwner) -> bool:
        """Whether Slurm has requeued this process's job since, and started it again as the other process.

        Slurm does so when the last start has ended, or when one of its nodes did not answer. The processes
        of that node may still run, and write.
        """
        return self.job is not None and self.job == other.job and self.restart < other.restart


class RunLock:
    """The lock on a run's folder, held by this process.

    Args:
        path: The lock's folder.
        owner: This process.
        waited: Whether this process had to wait for another holder, which may have completed the run.
    """

    def __init__(self, path: Path, owner: LockOwner, waited: bool) -> None:
        self._path, self._owner = path, owner
        self.waited = waited
        self.taken_by: LockOwner | None = None
        """The process that has taken the run, if this one was suspended for too long."""

    def heartbeat(self) -> None:
        """Set the time of this process's file, or find the file of another process that has taken the run."""
        with suppress(OSError):
            # twice: a network file system may list a file that has gone
            holder = _read(self._path) or _read(self._path)
            if holder is not None and holder.owner is not None and holder.owner.token != self._owner.token:
                self.taken_by = holder.owner
            elif holder is not None:
                os.utime(holder.file)


@contextmanager
def lock_run(
    folder: Path,
    wait_seconds: float,
    notify: Callable[[str], None],
    owner: LockOwner | None = None,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[RunLock]:
    """Hold a run's folder while training it.

    Args:
        folder: Holds the run's records.
        wait_seconds: The longest time to wait for another holder to end.
        notify: Called once, with a sentence on the holder that this process waits for.
        owner: The process that takes the lock; by default this one.
        silence_seconds: Time without a sign of life after which a holder counts as gone, if its state is
            unknown otherwise.

    Raises:
        LockTimeoutError: The wait was not long enough.
        OSError: The folder cannot be written.
    """
    owner = owner or LockOwner.this_process()
    path = folder / LOCK
    lock = RunLock(path, owner, _take(path, owner, wait_seconds, notify, silence_seconds))
    done = threading.Event()
    heartbeats = threading.Thread(target=_give_signs_of_life, args=(lock, done), name="lock", daemon=True)
    heartbeats.start()
    try:
        yield lock
    finally:
        done.set()
        heartbeats.join()
        (path / owner.token).unlink(missing_ok=True)
        with suppress(OSError):  # another process may hold it by now
            path.rmdir()


def _give_signs_of_life(lock: RunLock, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        lock.heartbeat()


def _take(
    path: Path, owner: LockOwner, wait_seconds: float, notify: Callable[[str], None], silence_seconds: float
) -> bool:
    """Wait until this process holds the lock; returns whether it had to wait for another process."""
    deadline = time.monotonic() + wait_seconds
    waited = False
    observer = _Observer(owner, silence_seconds)
    while True:
        holder = _read(path)
        if holder is not None and observer.is_gone(holder):
            holder.file.unlink(missing_ok=True)
            holder = None
        if holder is None and _enter(path, owner):
            return waited
        if holder is not None and not waited:
            notify(_wait_message(holder.owner, owner))
            waited = True
        if time.monotonic() > deadline:
            other = (holder and holder.owner) or "another process"
            raise LockTimeoutError(
                f"{other} has been training this run for more than {wait_seconds:.0f} s. Wait for it, or end "
                "it and run snakemake again."
            )
        time.sleep(POLL_SECONDS)


def _enter(path: Path, owner: LockOwner) -> bool:
    """Take a free lock; returns False if another process was faster."""
    draft = path.with_name(f".{path.name}.{owner.token}")
    try:
        draft.mkdir()
        (draft / owner.token).write_text(owner.model_dump_json(), encoding="utf-8")
        draft.rename(path)
    except OSError as error:
        # a network file system may rename a folder and report that it has not
        is_held_here = (path / owner.token).exists()
        if not is_held_here and error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return is_held_here
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


@dataclass(frozen=True)
class _Holder:
    """The file of a lock's holder.

    Args:
        time: Set by each sign of life, by the clock of the file's server.
        owner: None if the file is damaged, as after a crash of its machine.
    """

    file: Path
    time: float
    owner: LockOwner | None


def _read(path: Path) -> _Holder | None:
    """Read the holder of a lock; None if it is free."""
    try:
        for each in path.iterdir():
            # opened: a network file system may remember an old time
            with each.open("rb") as file:
                owner = None
                with suppress(ValidationError):
                    owner = LockOwner.model_validate_json(file.read())
                return _Holder(each, os.fstat(file.fileno()).st_mtime, owner)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ESTALE}:
            raise
    return None


def _wait_message(other: LockOwner | None, owner: LockOwner) -> str:
    if other is not None and other.is_earlier_start_of(owner):
        return (
            f"an earlier start of {other} may still be at work; waiting for it to end, or to give no sign of "
            f"life for {LOST_SECONDS:.0f} s"
        )
    return (
        f"{other or 'another process'} is training this run; waiting for it to end (scancel or kill it to "
        "train here)"
    )


class _Observer:
    """Decides whether the holder of a lock is gone.

    Times of its file are compared with each other only: clocks may differ. Queries to Slurm are rare, as
    many processes may wait at once.
    """

    def __init__(self, owner: LockOwner, silence_seconds: float) -> None:
        self._owner, self._silence_seconds = owner, silence_seconds
        self._sign: tuple[Path, float] | None = None
        self._sign_at = 0.0
        self._queried_at = 0.0
        self._is_alive: bool | None = None

    def is_gone(self, holder: _Holder) -> bool:
        """Whether the holder has ended, or has given no sign of life for too long if its end is unknown."""
        now = time.monotonic()
        is_new = self._sign is None or self._sign[0] != holder.file
        if (holder.file, holder.time) != self._sign:
            self._sign, self._sign_at = (holder.file, holder.time), now
        in_other_job = holder.owner is not None and holder.owner.job not in {None, self._owner.job}
        if is_new or not in_other_job or now - self._queried_at >= QUERY_SECONDS:
            self._is_alive, self._queried_at = _is_alive(holder.owner, self._owner), now
        silence_seconds = self._silence_seconds
        if holder.owner is not None and holder.owner.is_earlier_start_of(self._owner):
            silence_seconds = min(silence_seconds, LOST_SECONDS)
        return self._is_alive is False or (self._is_alive is None and now - self._sign_at > silence_seconds)


def _is_alive(other: LockOwner | None, owner: LockOwner) -> bool | None:
    """Whether a holder runs; None if unknown."""
    if other is not None and other.job is not None and other.job != owner.job:
        return is_active(other.job)
    if other is not None and other.host == owner.host:
        ticks = _start_ticks(other.pid)
        return ticks is not None and other.start_ticks in {"", ticks}
    return None


def _start_ticks(pid: int) -> str | None:
    """Return the start of a process in ticks since boot; None if it has ended, also as a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]
