"""Signals that a scheduler or a launcher sends to a rank, or to a process above it.

Handled before torch is loaded, which takes seconds.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Signals:
    """SIGUSR1 and SIGTERM as something to look at, instead of an end at any line.

    Slurm sends SIGUSR1 ahead of a job's time limit because the job asks for that, and SIGTERM when it
    preempts or cancels it. The handlers set a flag and nothing else.
    """

    def __init__(self) -> None:
        self._received: str | None = None
        self._is_terminated = False
        self._terminated = threading.Event()
        # from the first line on: left to itself, SIGUSR1 ends a process
        signal.signal(signal.SIGUSR1, self._note)

    @property
    def received(self) -> str | None:
        """The name of the signal that came first, if any did."""
        return self._received

    @contextmanager
    def instead_of_an_end(self, terminated: Callable[[], None]) -> Iterator[None]:
        """SIGTERM, too, is only noted in here.

        Args:
            terminated: Called once after a SIGTERM, in a thread of its own: launchers send one to the peers
                of a failed rank, and end them soon after.
        """
        _call_once(self._terminated, terminated, "terminated")
        before = signal.signal(signal.SIGTERM, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received = self._received or signal.Signals(number).name
        # once: a second signal may come while the event is locked by the first one's handler
        if number == signal.SIGTERM and not self._is_terminated:
            self._is_terminated = True
            self._terminated.set()


def forward_sigusr1(request_stop: Callable[[str], None]) -> None:
    """Hand SIGUSR1 on from a process between the launcher and the ranks, which must not end of it.

    Slurm sends it ahead of the end of a job's time. Only a flag is set in the handler. What this process
    starts does not inherit it.

    Args:
        request_stop: Asks the ranks to stop; called with the signal's name, in a thread of its own.
    """
    received = threading.Event()

    def note(_signum: int, _frame: FrameType | None) -> None:
        # once: a second signal may come while the event is locked by the first one's handler
        signal.signal(signal.SIGUSR1, lambda *_: None)
        received.set()

    _call_once(received, lambda: request_stop(signal.SIGUSR1.name), "relay")
    signal.signal(signal.SIGUSR1, note)


def _call_once(event: threading.Event, action: Callable[[], None], name: str) -> None:
    """Call this after the event, outside of any handler: a handler may come between any two lines."""

    def wait() -> None:
        event.wait()
        with suppress(OSError):  # the ranks may have ended, and their folder with them
            action()

    threading.Thread(target=wait, name=name, daemon=True).start()
