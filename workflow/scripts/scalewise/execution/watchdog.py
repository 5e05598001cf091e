"""Decides when ranks at work are ended: by a signal, their limit, an error, silence, or as none starts.

Ranks that can save what they have done are first asked to do that, and to end by themselves. Nothing here
ends a process: the launcher must not get a SIGTERM before, for torchrun and srun kill their ranks at one.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Literal

from scalewise.execution.messages import GracefulStop
from scalewise.execution.rank_files import RankFiles
from scalewise.records import RECORD

STOP_SECONDS = 60.0
"""Time for the ranks to save what they have done and to end."""

SECOND_SIGNAL_AFTER_SECONDS = 2.0
"""A second signal counts after this: a terminal and a scheduler may both send the first."""

COLLECT_ERRORS_SECONDS = 3.0
"""Time from the first rank's error on: ranks that raise at once must get theirs written."""

IMPORT_SECONDS = 300.0
"""Time for all ranks to read PyTorch at once, from a container or a file system new to it."""

LEAST_SILENCE_SECONDS = 30.0
"""Silence of rank 0 before it counts as stopped: a busy machine may hold its thread up for seconds."""

LOOK_SECONDS = 1.0
"""Time between two looks at what the ranks have left."""

STALL_SECONDS = 5.0
"""Time without a look that says this process was held up; the same may hold up the ranks, too."""

RANK_FILE = re.compile(r"rank(\d+)\.json")

JOB_END = "the end of the job's time"
"""The reason to stop that ranks are given whose job has spent some of its time on waiting."""


class Kept(Enum):
    """Work that remains of ranks that are ended early; each value is the message for the user."""

    CHECKPOINT = f"writing a checkpoint, within {STOP_SECONDS:.0f} s"
    BY_PROGRAM = f"the program has {STOP_SECONDS:.0f} s to save"
    NOTHING = "the program is ended; it starts again from the beginning next time"


Why = Literal["failed", "interrupted", "timed-out"]


class Watchdog:
    """Watches the ranks of one attempt.

    Args:
        rank_files: Holds what the ranks leave; they have been told how they meet.
        seconds: Time that the ranks have.
        received: Numbers of signals to this process; grows meanwhile.
        tell: Shows the user a message.
        kept: The part of their work that remains; without any they have no time to save.
        job_ends_at: The time by the clock at which the ranks must have stopped, whatever else they have.
        clock: Gives monotonic seconds.
    """

    def __init__(
        self,
        rank_files: RankFiles,
        seconds: float,
        received: Sequence[int],
        tell: Callable[[str], None],
        kept: Kept = Kept.CHECKPOINT,
        job_ends_at: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._job_ends_at, self._kept = clock, job_ends_at, kept
        began = clock()
        self._rank_files, self._received, self._tell = rank_files, received, tell
        self._deadline = began + seconds
        # twice: the agents of the nodes meet, and then the ranks
        patience = 2 * rank_files.rank_setup().timeout_seconds + IMPORT_SECONDS
        self._start_seconds, self._unstarted_at = patience, began + patience
        self._silence = max(rank_files.rank_setup().timeout_seconds, LEAST_SILENCE_SECONDS)
        self._beat: tuple[float, float] | None = None
        self._looked: float | None = None
        self._files: dict[str, int] = {}
        self._end: Why | None = None
        self._stop_source = "a signal"
        self._stop_requested_at: tuple[float, int] | None = None
        self._rank_failed_at: float | None = None
        self.unstarted_seconds: float | None = None
        """Time in which no rank had started, if that is why they are ended."""

    @property
    def rank_failed(self) -> bool:
        """Whether a rank has raised."""
        return self._rank_failed_at is not None

    @property
    def stop_source(self) -> str:
        """The source of the request to end, such as a signal's name; meaningful if ``stop_requested``."""
        return self._stop_source

    @property
    def stop_requested(self) -> bool:
        """Whether a signal to this process, or the limit, ends the ranks."""
        return self._end is not None or bool(self._stop_signals)

    def outcome(self, stopped: GracefulStop | None) -> Why:
        """The kind of end that the ranks had; ``stopped`` where they ended together as asked."""
        if self._end is not None:
            return self._end
        return "interrupted" if self.stop_requested or stopped is not None else "failed"

    def should_terminate(self) -> bool:
        """Look, ask the ranks to end where that is due, and say whether to end them."""
        self._poll()
        now = self._clock()
        if self._stop_requested_at is None and (cause := self._cause(now)) is not None:
            self._end, self._stop_source = cause
            if "progress.json" not in self._files or (self._rank_files.folder.parent / RECORD).exists():
                return True  # there is nothing to keep, or it is kept
            if self._kept is Kept.NOTHING:
                self._tell(f"{self._stop_source}: {self._kept.value}")
                return True
            self._ask(self._stop_source, now)
        if self._rank_failed_at is not None and now - self._rank_failed_at >= COLLECT_ERRORS_SECONDS:
            return True
        if self._stop_requested_at is not None:
            since, signals = self._stop_requested_at
            if now - since < SECOND_SIGNAL_AFTER_SECONDS:
                self._stop_requested_at = (since, len(self._stop_signals))
                return False
            return len(self._stop_signals) > signals or now - since >= STOP_SECONDS
        if self._beat is not None and now - self._beat[1] > self._silence:
            return True
        if now >= self._unstarted_at and not any(map(RANK_FILE.fullmatch, self._files)):
            self.unstarted_seconds = self._start_seconds
            return True
        return False

    @property
    def _stop_signals(self) -> list[int]:
        """Signals that ask this process to end."""
        return [number for number in self._received if number != signal.SIGUSR1]

    def _cause(self, now: float) -> tuple[Why, str] | None:
        """The kind of end that is due, and the words in which the ranks are told; None if none is."""
        if self._stop_signals:
            return "interrupted", signal.Signals(self._stop_signals[0]).name
        if now > self._deadline:
            return "timed-out", "the time limit"
        if now > self._job_ends_at:
            return "interrupted", JOB_END
        return None

    def _ask(self, words: str, now: float) -> None:
        self._stop_requested_at = (now, len(self._stop_signals))
        again = "; a second signal ends it at once" if self._stop_signals else ""
        self._tell(f"{words}: {self._kept.value}{again}")
        with suppress(OSError):  # they are ended all the same
            self._rank_files.request_stop(words)

    def _poll(self) -> None:
        """List the folder: on a network file system a single look-up may remember that a file was missing."""
        last = self._looked
        at_once = self._received and self._stop_requested_at is None
        if last is not None and self._clock() - last < LOOK_SECONDS and not at_once:
            return
        before = self._files
        with suppress(OSError):  # a user may delete the folder of a run at work
            self._files = {entry.name: entry.inode() for entry in os.scandir(self._rank_files.folder)}
        beat = self._rank_files.last_heartbeat()
        # read after the look, which a file system that stalls may hold up for minutes
        now = self._looked = self._clock()
        away = now - last if last is not None and now - last > STALL_SECONDS else 0.0
        self._unstarted_at += away
        if beat is None:
            self._beat = None  # its folder is gone or cannot be read, which says nothing of the rank
        elif self._beat is None or beat != self._beat[0] or away:
            # its time is compared with itself alone: clocks may differ
            self._beat = (beat, now)
        if self._rank_failed_at is None and self._has_new_failure(before):
            self._rank_failed_at = now
        # like the signal that Slurm sends to the ranks themselves, and nothing before there is progress
        if signal.SIGUSR1 in self._received and "progress.json" in self._files and "stop" not in self._files:
            with suppress(OSError):
                self._rank_files.request_stop(signal.SIGUSR1.name)

    def _has_new_failure(self, before: dict[str, int]) -> bool:
        """Whether a rank has failed, of those that have written another file since: many may share a disk."""
        with suppress(OSError):
            for name, inode in self._files.items():
                found = RANK_FILE.fullmatch(name) if before.get(name) != inode else None
                rank = self._rank_files.read_rank(int(found[1])) if found is not None else None
                if rank is not None and rank.state == "failed":
                    return True
        return False
