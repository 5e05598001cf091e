"""A rank does not outlive those who started it, however they end."""

from __future__ import annotations

import os
import threading
import time

POLL_SECONDS = 1.0


def exit_with(supervisor: int, supervisor_is_here: bool) -> None:
    """End this process once its parent or its supervisor has gone.

    A supervisor that was killed cannot end its ranks. Left alone they would train on beside the run
    that comes next, and spoil its figures.

    Args:
        supervisor: process id of train.py.
        supervisor_is_here: it runs on this host, so that its id means something here.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent and (not supervisor_is_here or _alive(supervisor)):
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="orphan", daemon=True).start()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
