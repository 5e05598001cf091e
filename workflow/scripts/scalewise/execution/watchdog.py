"""Decide when to end ranks: after a signal, at their limit, after an error or silence, or if none starts.

Ranks that can save their work first get a request to do so and to end. Nothing here ends a process: the
launcher must not get a SIGTERM before, as torchrun and srun then kill their ranks.
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
from scalewise.execution.rank_files import PROGRESS, STOP, RankFiles
from scalewise.records import RECORD

STOP_SECONDS = 60.0
"""Time for the ranks to save what they have done and to end."""

SECOND_SIGNAL_AFTER_SECONDS = 2.0
"""Time after which a second signal counts: a terminal and a scheduler may both send the first."""

COLLECT_ERRORS_SECONDS = 3.0
"""Time after the first rank's error, in which other ranks write theirs."""

IMPORT_SECONDS = 300.0
"""Time for all ranks to read PyTorch at once, from a container or a file system that has not cached it."""

LEAST_SILENCE_SECONDS = 30.0
"""Shortest silence of rank 0 that counts as a hang: a busy machine may delay its thread for seconds."""

LOOK_SECONDS = 1.0
"""Time between two looks at the ranks' files."""

STALL_SECONDS = 5.0
"""Time between two looks after which this process was delayed, and the ranks may have been, too."""

RANK_FILE = re.compile(r"rank(\d+)\.json")

JOB_END = "the end of the job's time"
"""The reason to stop for ranks of a job that has spent some of its time on waiting."""


class Kept(Enum):
    """Work of ranks that remains if they are ended early; each value is the message for the user."""

    BY_PROGRAM = f"the program has {STOP_SECONDS:.0f} s to save"
    NOTHING = "the program is ended; it starts again from the beginning next time"


Why = Literal["failed", "interrupted", "timed-out"]


class Watchdog:
    """Watches the ranks of one attempt.

    Args:
        rank_files: The files of the ranks; ``begin`` has written how they meet.
        seconds: Time that the ranks have.
        received: Numbers of signals to this process; more may be added later.
        notify: Shows the user a message.
        kept: The part of the ranks' work that remains; if nothing does, they get no time to save.
        job_ends_at: The time by the clock at which the ranks must have stopped, also within their limit.
        clock: Gives monotonic seconds.
    """

    def __init__(
        self,
        rank_files: RankFiles,
        seconds: float,
        received: Sequence[int],
        notify: Callable[[str], None],
        kept: Kept = Kept.NOTHING,
        job_ends_at: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._job_ends_at, self._kept = clock, job_ends_at, kept
        began = clock()
        self._rank_files, self._received, self._notify = rank_files, received, notify
        self._deadline = began + seconds
        # twice: the agents of the nodes meet, and then the ranks
        patience = 2 * rank_files.rank_setup().timeout_seconds + IMPORT_SECONDS
        self._start_seconds, self._unstarted_at = patience, began + patience
        self._silence = max(rank_files.rank_setup().timeout_seconds, LEAST_SILENCE_SECONDS)
        self._heartbeat: tuple[float, float] | None = None
        self._looked: float | None = None
        self._files: dict[str, int] = {}
        self._end: Why | None = None
        self._stop_source = "a signal"
        self._stop_requested_at: tuple[float, int] | None = None
        self._rank_failed_at: float | None = None
        self.unstarted_seconds: float | None = None
        """Time in which no rank had started, if that is the reason to end them."""

    @property
    def rank_failed(self) -> bool:
        """Whether a rank has raised."""
        return self._rank_failed_at is not None

    @property
    def stop_source(self) -> str:
        """Return the source of the request to end, such as a signal's name, if ``stop_requested``."""
        return self._stop_source

    @property
    def stop_requested(self) -> bool:
        """Whether a signal to this process, or the limit, ends the ranks."""
        return self._end is not None or bool(self._stop_signals)

    def outcome(self, stopped: GracefulStop | None) -> Why:
        """Return the kind of end; ``stopped`` is given if the ranks ended together as requested."""
        if self._end is not None:
            return self._end
        return "interrupted" if self.stop_requested or stopped is not None else "failed"

    def should_terminate(self) -> bool:
        """Read the ranks' files, and request a stop if it is due; returns whether to end the ranks."""
        self._poll()
        now = self._clock()
        if self._stop_requested_at is None and (cause := self._cause(now)) is not None:
            self._end, self._stop_source = cause
            if PROGRESS not in self._files or (self._rank_files.folder.parent / RECORD).exists():
                return True  # there is nothing to save, or it is saved
            if self._kept is Kept.NOTHING:
                self._notify(f"{self._stop_source}: {self._kept.value}")
                return True
            self._request_stop(self._stop_source, now)
        if self._rank_failed_at is not None and now - self._rank_failed_at >= COLLECT_ERRORS_SECONDS:
            return True
        if self._stop_requested_at is not None:
            since, signals = self._stop_requested_at
            if now - since < SECOND_SIGNAL_AFTER_SECONDS:
                self._stop_requested_at = (since, len(self._stop_signals))
                return False
            return len(self._stop_signals) > signals or now - since >= STOP_SECONDS
        if self._heartbeat is not None and now - self._heartbeat[1] > self._silence:
            return True
        if now >= self._unstarted_at and not any(map(RANK_FILE.fullmatch, self._files)):
            self.unstarted_seconds = self._start_seconds
            return True
        return False

    @property
    def _stop_signals(self) -> list[int]:
        """Return the signals that request this process to end."""
        return [number for number in self._received if number != signal.SIGUSR1]

    def _cause(self, now: float) -> tuple[Why, str] | None:
        """Return the kind of end that is due and the reason that the ranks get; None if none is due."""
        if self._stop_signals:
            return "interrupted", signal.Signals(self._stop_signals[0]).name
        if now > self._deadline:
            return "timed-out", "the time limit"
        if now > self._job_ends_at:
            return "interrupted", JOB_END
        return None

    def _request_stop(self, reason: str, now: float) -> None:
        self._stop_requested_at = (now, len(self._stop_signals))
        again = "; a second signal ends it at once" if self._stop_signals else ""
        self._notify(f"{reason}: {self._kept.value}{again}")
        with suppress(OSError):  # they are ended anyway
            self._rank_files.request_stop(reason)

    def _poll(self) -> None:
        """List the folder: on a network file system a single look-up may remember that a file was missing."""
        last = self._looked
        at_once = self._received and self._stop_requested_at is None
        if last is not None and self._clock() - last < LOOK_SECONDS and not at_once:
            return
        before = self._files
        with suppress(OSError):  # a user may delete the folder of a run at work
            self._files = {entry.name: entry.inode() for entry in os.scandir(self._rank_files.folder)}
        heartbeat = self._rank_files.last_heartbeat()
        # read after the look, which a file system that stalls may delay for minutes
        now = self._looked = self._clock()
        stall = now - last if last is not None and now - last > STALL_SECONDS else 0.0
        self._unstarted_at += stall
        if heartbeat is None:
            self._heartbeat = None  # its folder is gone or cannot be read; the rank may be alive
        elif self._heartbeat is None or heartbeat != self._heartbeat[0] or stall:
            # times of one file are compared with each other only: clocks may differ
            self._heartbeat = (heartbeat, now)
        if self._rank_failed_at is None and self._has_new_failure(before):
            self._rank_failed_at = now
        # like Slurm's signal to the ranks; before the first progress there is nothing to save
        if signal.SIGUSR1 in self._received and PROGRESS in self._files and STOP not in self._files:
            with suppress(OSError):
                self._rank_files.request_stop(signal.SIGUSR1.name)

    def _has_new_failure(self, before: dict[str, int]) -> bool:
        """Whether a rank has failed, by the files that were replaced since: many ranks may share a disk."""
        with suppress(OSError):
            for name, inode in self._files.items():
                match = RANK_FILE.fullmatch(name) if before.get(name) != inode else None
                rank = self._rank_files.read_rank(int(match[1])) if match is not None else None
                if rank is not None and rank.state == "failed":
                    return True
        return False
