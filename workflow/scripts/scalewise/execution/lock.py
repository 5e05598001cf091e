"""Let one training at a time use a machine, and one job of Slurm train a run.

A Snakemake that was killed leaves its jobs at work, and the next one does not know of them. Without a
scheduler the kernel holds a lock of the machine, an abstract Unix socket, and frees it when the process ends,
even if it is killed. All users see it, unless a container has its own network namespace. A job of Slurm looks
for an earlier job of its run in the queue.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256

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


@contextmanager
def wait_for_turn(limit_seconds: float, notify: Notify, *, in_slurm: bool) -> Iterator[str]:
    """Hold this machine, unless Slurm assigns its devices; yields the job that trained the run meanwhile.

    Args:
        limit_seconds: The longest time that an earlier job of Slurm trains the run.
        notify: Called with a sentence on the process or the job that this one waits for.
        in_slurm: Whether this is a job of Slurm.
    """
    if in_slurm:
        yield wait_for_earlier_job(limit_seconds, notify)
    else:
        with machine_lock(MACHINE_WAIT_SECONDS, notify):
            yield ""


@contextmanager
def machine_lock(wait_seconds: float, notify: Notify) -> Iterator[None]:
    """Hold the machine for one training.

    Args:
        wait_seconds: The longest time to wait for another holder to end.
        notify: Called once, with a sentence on the holder that this process waits for.

    Raises:
        LockError: The wait was not long enough.
    """
    deadline, notified = time.monotonic() + wait_seconds, False
    # hashed: the kernel takes 107 bytes
    name = sha256(os.fsencode(os.environ.get(MACHINE_LOCK, ""))).hexdigest()
    address = f"\0scalewise-{name[:32]}"
    with socket.socket(socket.AF_UNIX) as lock:
        while not _bind(lock, address):
            waiting = f"waiting: another Scalewise run is using this machine ({_holder(address)})"
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
    """Return the name of the process that has an address, from the kernel."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as waiting:  # it ends now, or too many wait
        waiting.setblocking(False)
        waiting.connect(address)
        credentials = waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return f"process {struct.unpack('3i', credentials)[0]}"
    return "another process"


def wait_for_earlier_job(wait_seconds: float, notify: Notify) -> str:
    """Wait until no earlier job of Slurm trains the run of this job; return the job that has ended, if any.

    Arguments and errors are those of ``machine_lock``.
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
