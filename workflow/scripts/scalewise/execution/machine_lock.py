"""Let one training at a time run on a machine.

The lock is an abstract Unix socket. All users of the machine see its name, and the kernel frees the name
when the process ends, even if it is killed. Processes in another network namespace do not see it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

POLL_SECONDS = 0.2
MACHINE_WAIT_SECONDS = 24 * 3600.0
MOST_WAITING = 128

ENVIRONMENT_VARIABLE = "SCALEWISE_MACHINE_LOCK"
"""The name of another lock: trainings wait only for those with the same name."""


class MachineBusyError(Exception):
    """Another training held the machine for longer than the wait allowed."""


@contextmanager
def machine_lock(
    wait_seconds: float, notify: Callable[[str], None], name: str | None = None
) -> Iterator[None]:
    """Hold the machine for one training.

    Args:
        wait_seconds: The longest time to wait for another training to end.
        notify: Called once, with a sentence on the process that this one waits for.
        name: Name of the lock; by default from the environment, or the one for all users of the machine.

    Raises:
        MachineBusyError: The wait was not long enough.
    """
    name = name or os.environ.get(ENVIRONMENT_VARIABLE, "")
    # hashed: the kernel takes 107 bytes
    address = f"\0scalewise-training-{sha256(name.encode()).hexdigest()[:16]}"
    deadline = time.monotonic() + wait_seconds
    notified = False
    while (lock := _try_to_lock(address)) is None:
        if not notified:
            notify(f"waiting: another Scalewise run is using this machine ({_holder(address)})")
            notified = True
        if time.monotonic() > deadline:
            raise MachineBusyError(
                f"{_holder(address)} has been training on this machine for more than {wait_seconds:.0f} s. "
                "Wait for it to end, or end it, and give the same command again."
            )
        time.sleep(POLL_SECONDS)
    with lock:
        yield


def _try_to_lock(address: str) -> socket.socket | None:
    """Return the socket that holds the lock; None while another process holds it."""
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(address)
        lock.listen(MOST_WAITING)
    except OSError as error:
        lock.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return lock


def _holder(address: str) -> str:
    """Return the name of the process that holds the lock, from the kernel."""
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.setblocking(False)
        try:
            waiting.connect(address)
            credentials = waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:  # it has just ended, or too many processes wait
            return "another process"
    pid, _user, _group = struct.unpack("3i", credentials)
    return f"process {pid}" if pid else "another process"
