"""Let one process at a time train a run, and without a scheduler one training at a time use a machine.

A Snakemake that was killed leaves its jobs at work, and the next one does not know of them. On one machine
the kernel holds both locks, and frees them when the process ends, even if it is killed. Kernel locks do not
reach across every parallel file system: a job of Slurm looks for an earlier job of its run in the queue.

The lock of a machine is an abstract Unix socket: all users see its name, unless a container has its own
network namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import IO, TypeVar

from scalewise.config.errors import UserError
from scalewise.execution.slurm import earlier_job

LOCK = "lock"
POLL_SECONDS, QUEUE_SECONDS = 0.5, 20.0
"""Time between two looks at a lock, and between two queries to Slurm: many processes may wait at once."""

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
"""Errors of file systems without locks. Snakemake's lock of the folder remains."""

MACHINE_WAIT_SECONDS = 24 * 3600.0
MACHINE_LOCK = "SCALEWISE_MACHINE_LOCK"
"""Variable with the name of another lock: trainings wait only for those with the same name."""

Lock = TypeVar("Lock")


class LockError(UserError):
    """Another process trains the run or uses the machine."""


def _wait(
    take: Callable[[], Lock | None],
    holder: Callable[[], str],
    text: str,
    wait_seconds: float,
    notify: Callable[[str], None],
) -> Lock:
    """Return a lock once it can be taken; the text, with the holder's name, is shown if it takes time."""
    deadline, notified = time.monotonic() + wait_seconds, False
    while (lock := take()) is None:
        waiting = text.format(holder())
        if time.monotonic() > deadline:
            raise LockError(
                f"{waiting}, for more than {wait_seconds:.0f} s. Wait for it, or end it, and give the same "
                "command again."
            )
        if not notified:
            notified = True
            notify(waiting)
        time.sleep(POLL_SECONDS)
    return lock


@contextmanager
def lock_run(folder: Path, wait_seconds: float, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold a run's folder on this machine while training it.

    Args:
        folder: Holds the run's records.
        wait_seconds: The longest time to wait for another holder to end.
        notify: Called once, with a sentence on the holder that this process waits for.

    Raises:
        LockError: The wait was not long enough.
        OSError: The folder cannot be written.
    """
    path = folder / LOCK
    with _wait(
        lambda: _lock_file(path), lambda: _read(path), "{} is training this run", wait_seconds, notify
    ) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock_file(path: Path) -> IO[str] | None:
    """Return the locked file; None if another process has it."""
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # else its last holder has removed it
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        if error.errno in NO_LOCKS:
            return file
        raise
    file.close()
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except FileNotFoundError:
        return "another process"


def is_training(folder: Path) -> bool:
    """Return whether a process of this machine trains the run of a folder."""
    try:
        with (folder / LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return False


@contextmanager
def machine_lock(wait_seconds: float, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the machine for one training.

    Args:
        wait_seconds: The longest time to wait for another training to end.
        notify: Called once, with a sentence on the process that this one waits for.

    Raises:
        LockError: The wait was not long enough.
    """
    # hashed: the kernel takes 107 bytes
    name = sha256(os.environ.get(MACHINE_LOCK, "").encode()).hexdigest()[:16]
    address = f"\0scalewise-training-{name}"
    text = "waiting: another Scalewise run is using this machine ({})"
    with _wait(lambda: _bind(address), lambda: _peer(address), text, wait_seconds, notify):
        yield


def _bind(address: str) -> socket.socket | None:
    """Return a socket that has an address; None if another process has it."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(address)
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    lock.listen(128)
    return lock


def _peer(address: str) -> str:
    """Return the name of the process that has an address, from the kernel."""
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.setblocking(False)
        try:
            waiting.connect(address)
            credentials = waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:  # it has just ended, or too many processes wait
            return "another process"
    return f"process {struct.unpack('3i', credentials)[0]}"


def wait_for_earlier_job(wait_seconds: float, notify: Callable[[str], None]) -> str:
    """Wait until no earlier job of Slurm trains the run of this job; return the job that has ended, if any.

    Args:
        wait_seconds: The longest time to wait.
        notify: Called once, with a sentence on the job that this one waits for.

    Raises:
        LockError: The wait was not long enough.
    """
    deadline, waited_for = time.monotonic() + wait_seconds, ""
    while job := earlier_job(os.environ):
        if job != waited_for:
            waited_for = job
            notify(f"Slurm job {job} is training this run; waiting for it to end (scancel it to train here)")
        if time.monotonic() > deadline:
            raise LockError(f"Slurm job {job} is training this run. Wait for it, or scancel it.")
        time.sleep(QUEUE_SECONDS)
    return waited_for
