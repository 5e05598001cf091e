"""A request that a program ends before its time: noted, handed on to it, and enforced."""

from __future__ import annotations

import math
import signal
from contextlib import suppress
from types import FrameType

from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.program.child import Child

GRACE_SECONDS = 8.0
"""Time that the program has after a SIGTERM, for its own handlers; the supervisor gives little more."""

LOOK_SECONDS = 2.0
"""Time between two looks for the supervisor's note, on a file system that many ranks may share."""


class EndRequest:
    """A signal to this process, or the supervisor's note that asks all ranks to end.

    A program that resumes may save what it has done. It gets SIGUSR1 if it handles that signal, else SIGTERM,
    and all the time that the supervisor has. Any other gets SIGTERM and ``GRACE_SECONDS``.

    Args:
        rank_files: The folder of the supervisor's note.
        ranks: The ranks of this process.
        resumes: Whether the program resumes by itself.
    """

    def __init__(self, rank_files: RankFiles, ranks: range, resumes: bool) -> None:
        self._rank_files, self._ranks, self._resumes = rank_files, ranks, resumes
        self._terminated = False
        self._sent: set[int] = set()
        self._look_at, self._deadline = 0.0, math.inf
        self.source = ""
        """The signal's name, or the words of the note; empty without a request."""
        self.by_launcher = False
        """Whether a SIGTERM came first: launchers send one to the peers of a rank that has failed."""

    def __enter__(self) -> EndRequest:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def is_over(self, child: Child, now: float) -> bool:
        """Hand the request on to the program, if there is one; return whether the program's time is over.

        Args:
            child: The program.
            now: Monotonic seconds.
        """
        if not self.source and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.read_note()
        if not self.source:
            return False
        if not self._sent:
            with suppress(OSError):
                for rank in self._ranks:
                    self._rank_files.terminated(rank)
        must_end = self._terminated or not self._resumes
        number = signal.SIGTERM if must_end or not child.handles(signal.SIGUSR1) else signal.SIGUSR1
        if number not in self._sent and signal.SIGTERM not in self._sent:
            self._sent.add(number)
            child.send(number)
        if must_end and self._deadline == math.inf:
            self._deadline = now + GRACE_SECONDS
        return now >= self._deadline

    def read_note(self) -> None:
        """Read the supervisor's note, if there is one."""
        with suppress(OSError):  # a user may delete the folder of a run at work
            self.source = self.source or self._rank_files.stop_request() or ""

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._terminated = self._terminated or number == signal.SIGTERM
        if not self.source:
            self.source, self.by_launcher = signal.Signals(number).name, number == signal.SIGTERM
