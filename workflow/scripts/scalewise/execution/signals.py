"""What a scheduler or a launcher asks of a rank while it trains. Needs no torch: it must be ready early."""

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
            terminated: called once after a SIGTERM, in a thread of its own: launchers send one to the peers
                of a failed rank, and end them soon after.
        """

        def tell() -> None:
            self._terminated.wait()
            with suppress(OSError):
                terminated()

        threading.Thread(target=tell, name="terminated", daemon=True).start()
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
