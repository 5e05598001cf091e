"""A rank does not outlive those who started it, however they end."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import psutil

POLL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1
"""The option, from linux/prctl.h, for the signal that this process gets when its parent ends."""


def exit_when_parent_dies(supervisor: int | None, supervisor_is_here: bool) -> None:
    """End this process once its parent or its supervisor has gone.

    A supervisor that was killed cannot end its ranks. Left alone they would train on beside the run
    that comes next, and spoil its figures.

    Args:
        supervisor: The process id of the job that started it; None if another process ends its ranks.
        supervisor_is_here: Whether that job runs on this host, so that its id means something here.
    """
    parent = os.getppid()
    # by the kernel: also when this process is stopped, or waits inside a collective
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    watched = supervisor if supervisor_is_here else None

    def watch() -> None:
        while os.getppid() == parent and (watched is None or psutil.pid_exists(watched)):
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orphan", daemon=True).start()
