"""Let one process at a time train a run, and without a scheduler one training at a time use a machine.

A Snakemake that was killed leaves its jobs at work, and the next one does not know of them. On one machine
the kernel holds both locks, abstract Unix sockets, and frees them when the process ends, even if it is
killed. All users see them, unless a container has its own network namespace. A job of Slurm looks for an
earlier job of its run in the queue.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path

from scalewise.config.errors import UserError
from scalewise.execution.slurm import earlier_job

POLL_SECONDS, QUEUE_SECONDS = 0.5, 20.0
"""Time between two looks at a lock, and between two queries to Slurm: many processes may wait at once."""

MACHINE_WAIT_SECONDS = 24 * 3600.0
MACHINE_LOCK = "SCALEWISE_MACHINE_LOCK"
"""Variable with the name of another lock: trainings wait only for those with the same name."""

Notify = Callable[[str], None]


class LockError(UserError):
    """Another process trains the run or uses the machine."""


def lock_run(folder: Path, wait_seconds: float, notify: Notify) -> AbstractContextManager[None]:
    """Hold a run's folder on this machine while training it.

    Args:
        folder: Holds the run's records.
        wait_seconds: The longest time to wait for another holder to end.
        notify: Called once, with a sentence on the holder that this process waits for.

    Raises:
        LockError: The wait was not long enough.
    """
    return _hold(_address(f"run {folder.resolve()}"), "{} is training this run", wait_seconds, notify)


def machine_lock(wait_seconds: float, notify: Notify) -> AbstractContextManager[None]:
    """Hold the machine for one training; arguments and errors are those of ``lock_run``."""
    address = _address(f"machine {os.environ.get(MACHINE_LOCK, '')}")
    text = "waiting: another Scalewise run is using this machine ({})"
    return _hold(address, text, wait_seconds, notify)


def is_training(folder: Path) -> bool:
    """Return whether a process of this machine trains the run of a folder."""
    return bool(_holder(_address(f"run {folder.resolve()}")))


def _address(name: str) -> str:
    # hashed: the kernel takes 107 bytes
    return f"\0scalewise-{sha256(os.fsencode(name)).hexdigest()[:32]}"


@contextmanager
def _hold(address: str, text: str, wait_seconds: float, notify: Notify) -> Iterator[None]:
    """Hold a lock; the text, with the name of the process that has it, is shown if that takes time."""
    deadline, notified = time.monotonic() + wait_seconds, False
    with socket.socket(socket.AF_UNIX) as lock:
        while not _bind(lock, address):
            waiting = text.format(_holder(address) or "another process")
            if time.monotonic() > deadline:
                raise LockError(
                    f"{waiting}, for more than {wait_seconds:.0f} s. Wait for it, or end it, and give the "
                    "same command again."
                )
            if not notified:
                notified = True
                notify(waiting)
            time.sleep(POLL_SECONDS)
        lock.listen(128)
        yield


def _bind(lock: socket.socket, address: str) -> bool:
    """Give a socket an address; return False if another process has it."""
    try:
        lock.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _holder(address: str) -> str:
    """Return the name of the process that has an address, from the kernel; empty if none has."""
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.setblocking(False)
        try:
            waiting.connect(address)
            credentials = waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except ConnectionRefusedError:
            return ""
        except OSError:  # too many processes wait
            return "another process"
    return f"process {struct.unpack('3i', credentials)[0]}"


def wait_for_earlier_job(wait_seconds: float, notify: Notify) -> str:
    """Wait until no earlier job of Slurm trains the run of this job; return the job that has ended, if any.

    Arguments and errors are those of ``lock_run``.
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
