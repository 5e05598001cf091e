"""A process between the launcher and the ranks gets their signals, too; it must not end of one."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from types import FrameType

from scalewise.execution.rank_files import Attempt


def relay_signal(attempt: Attempt) -> None:
    """Hand on SIGUSR1, which Slurm sends ahead of the end of a job's time: the ranks are asked to stop.

    Only a flag is set in the handler. What this process starts does not inherit it.

    Args:
        attempt: where rank 0 looks.
    """
    received = threading.Event()

    def note(_signum: int, _frame: FrameType | None) -> None:
        # once: a second signal may come while the event is locked by the first one's handler
        signal.signal(signal.SIGUSR1, lambda *_: None)
        received.set()

    def hand_on() -> None:
        received.wait()
        with suppress(OSError):  # the ranks may have ended, and their folder with them
            attempt.request_stop(signal.SIGUSR1.name)

    threading.Thread(target=hand_on, name="relay", daemon=True).start()
    signal.signal(signal.SIGUSR1, note)
