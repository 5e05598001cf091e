"""What is measured has the machine to itself: one training at a time, whoever starts it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.2
MACHINE_WAIT_SECONDS = 24 * 3600.0


class MachineBusyError(Exception):
    """Another training held the machine for longer than the wait allowed."""


@contextmanager
def exclusive_machine(
    wait_seconds: float,
    notify: Callable[[str], None],
    path: Path | None = None,
) -> Iterator[None]:
    """Hold the machine for one training run.

    A lock of the kernel's: it goes with the process, however that ends.

    Args:
        wait_seconds: how long to wait for another training to end.
        notify: told once when there is something to wait for.
        path: the lock file; by default one for all users of this machine.

    Raises:
        MachineBusyError: the wait was not long enough.
    """
    path = path or Path(tempfile.gettempdir()) / "scalewise-training.lock"
    descriptor = _open_for_all(path)
    try:
        deadline = time.monotonic() + wait_seconds
        told = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    notify(f"waiting for another training on this machine to end ({path})")
                    told = True
                if time.monotonic() > deadline:
                    raise MachineBusyError(
                        f"another training has held {path} for more than {wait_seconds:.0f} s. "
                        "Find it with `fuser` on that file, or wait for it to end."
                    ) from None
                time.sleep(POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _open_for_all(path: Path) -> int:
    # no O_CREAT on another user's file: the kernel forbids that in sticky folders such as /tmp
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with suppress(PermissionError):  # another user was faster, and has done it
        os.fchmod(descriptor, 0o644)
    return descriptor
