"""Handle signals of the scheduler before the ranks, and in a rank the end of its parent.

Imported before torch, which takes seconds to load.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

POLL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1
"""The option, from linux/prctl.h, for the signal that this process gets when its parent ends."""


def forward_sigusr1(request_stop: Callable[[str], None]) -> None:
    """Turn a SIGUSR1 to this process, which runs between the launcher and the ranks, into a request to stop.

    Slurm sends it before the end of a job's time, and it must not end this process. The handler only sets a
    flag. Child processes do not inherit the handler.

    Args:
        request_stop: Requests the ranks to stop; called with the signal's name, in another thread.
    """
    received = threading.Event()

    def note(_signum: int, _frame: FrameType | None) -> None:
        # once: a second signal may come while the event is locked by the first one's handler
        signal.signal(signal.SIGUSR1, lambda *_: None)
        received.set()

    _call_once(received, lambda: request_stop(signal.SIGUSR1.name), "relay")
    signal.signal(signal.SIGUSR1, note)


def _call_once(event: threading.Event, action: Callable[[], None], name: str) -> None:
    """Call a function after an event, in a thread: a signal's handler may run between any two lines."""

    def wait() -> None:
        event.wait()
        with suppress(OSError):  # the ranks may have ended, and their folder with them
            action()

    threading.Thread(target=wait, name=name, daemon=True).start()


def exit_when_parent_dies(supervisor: int | None, supervisor_is_here: bool) -> None:
    """End this process once its parent or its supervisor has ended, even if that was killed.

    A supervisor that was killed cannot end its ranks. They would continue to train during the next run, and
    disturb its figures.

    Args:
        supervisor: The process id of the supervisor; None if another process ends its ranks.
        supervisor_is_here: Whether the supervisor runs on this host, where its id is valid.
    """
    parent = os.getppid()
    # by the kernel: also when this process is stopped, or waits inside a collective
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    watched = Path(f"/proc/{supervisor}") if supervisor is not None and supervisor_is_here else None

    def watch() -> None:
        while os.getppid() == parent and (watched is None or watched.exists()):
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orphan", daemon=True).start()
