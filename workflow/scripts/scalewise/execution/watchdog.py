"""Start the ranks of one job, watch them, and end them: after a signal, an error, silence, or their limit."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Literal

from scalewise.execution.log import append_log, last_line, say
from scalewise.execution.rank_files import GROUP, PROBE, PROGRESS, STOP, RankFiles, read_waits
from scalewise.execution.start import RankProcesses
from scalewise.plan.launch import Launch
from scalewise.records import RECORD, utc_now, write_text

POLL_SECONDS, LOOK_SECONDS = 0.2, 1.0
"""Time between two looks at the processes, and at their files."""

WAITS_SECONDS = 10.0
"""Time between two looks at where each rank waits, before the first step: many ranks may share a disk."""

NO_STEP_SECONDS = 30 * 60.0
"""Longest time without a step, if timeout_seconds is shorter: an evaluation or a checkpoint may take long."""

GROUP_SECONDS = 5 * 60.0
"""Longest wait in the process group for a rank that does not come, if timeout_seconds is shorter."""

IMPORT_SECONDS = 5 * 60.0
"""Time for all ranks to read PyTorch at once, from a container or a file system that has not cached it."""

STOP_SECONDS = 60.0
"""Time for the program to save what it has done and to end."""

SECOND_SIGNAL_SECONDS = 2.0
"""Time after which a second signal counts: a terminal and a scheduler may both send the first."""

COLLECT_ERRORS_SECONDS = 3.0
"""Time after the first rank's error, in which other ranks write theirs."""

GRACE_SECONDS, SHORT_GRACE_SECONDS = 10.0, 1.5
"""Time to end after SIGTERM; the short one after a failure: torchrun waits 30 s for a rank that hangs."""

RANK_FILE = re.compile(r"rank(\d+)\.json")

Outcome = Literal["failed", "interrupted", "timed-out"]
Cause = Literal["signal", "limit", "error", "not started", "not in group", "no step", "taken"]
"""Reasons to end ranks: a signal to the job, the time limit, an error of a rank, one of three silences, or
another job that trains the run by now."""


class RunTakenError(Exception):
    """Another job trains the run by now."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks to watch.

    Args:
        label: Names their work in messages.
        log: Receives what the ranks print.
        limit_seconds: The ranks are ended after this time.
        fix: A sentence on what to do if that happens.
        resumes: Whether what the program has saved remains if it is ended early.
    """

    label: str
    rank_files: RankFiles
    launch: Launch
    world_size: int
    log: Path
    limit_seconds: float
    fix: str = "Raise runtime_minutes, or train fewer epochs or steps."
    resumes: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of a group of ranks.

    Args:
        code: The launcher's exit code.
        cause: The reason for which this job ended them, or asked them to; None if they ended by themselves.
        seconds: The limit that was passed, if one was.
        stop_source: The signal to this job or to rank 0 that ended them; empty without one.
        last_line: The last line that the ranks had printed before this job ended them.
        silent_seconds: Time since the last step.
    """

    code: int
    cause: Cause | None = None
    seconds: float = 0.0
    stop_source: str = ""
    last_line: str = ""
    silent_seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """The kind of end: ``failed`` also if the code is 0 and a result is missing."""
        if self.cause == "limit":
            return "timed-out"
        return (
            "interrupted" if self.cause == "signal" or (self.cause is None and self.stop_source) else "failed"
        )


class Watchdog:
    """Decides when to end ranks; nothing here ends a process.

    Ranks whose program resumes first get a request to stop: torchrun and srun kill their ranks at SIGTERM.
    Its time is the sum of the times between its looks, each counted as five seconds at most: a job that was
    suspended, or whose file system stalled, keeps its limits.

    Args:
        received: Numbers of signals to this process; more may be added later.
        notify: Shows the user a message.
        clock: Gives monotonic seconds.
    """

    def __init__(
        self,
        group: RankGroup,
        received: Sequence[int],
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._received, self._notify, self._clock = group, received, notify, clock
        self._files = group.rank_files
        timeout = self._files.rank_setup().timeout_seconds
        # twice: the agents of the nodes meet, and then the ranks
        self._start_seconds = 2 * timeout + IMPORT_SECONDS
        self._group_seconds = max(timeout, GROUP_SECONDS)
        self._step_seconds = max(timeout, NO_STEP_SECONDS)
        self._last, self._now = clock(), 0.0
        self._look_at = self._waits_at = 0.0
        self._inodes: dict[str, int] = {}
        self._failed_at: float | None = None
        self._waiting_since: float | None = None
        self._step: tuple[int, float] | None = None
        self._stop: tuple[Cause, float, int] | None = None
        self.seconds = 0.0
        """The limit that has passed, if one is the cause to end the ranks."""

    @property
    def requested(self) -> Cause | None:
        """Return why the ranks were requested to stop; None if they were not."""
        return None if self._stop is None else self._stop[0]

    @property
    def silent_seconds(self) -> float:
        """Return the time since the last step; 0 before the first."""
        return 0.0 if self._step is None else self._now - self._step[1]

    def cause(self) -> Cause | None:
        """Return why to end the ranks now; None if they may continue. Request a stop if one is due."""
        now = self._clock()
        self._now += min(now - self._last, 5.0)
        self._last = now
        signals = [number for number in self._received if number != signal.SIGUSR1]
        if self._now >= self._look_at or (signals and self._stop is None):
            self._look_at = self._now + LOOK_SECONDS
            with suppress(OSError):  # a user may delete the folder of a run at work
                self._look()
            if not self._files.is_current:
                return "taken"
        if self._failed_at is not None and self._now - self._failed_at >= COLLECT_ERRORS_SECONDS:
            return self.requested or "error"
        if self._stop is not None:
            return self._after_stop(*self._stop, len(signals))
        if signals:
            return self._request_stop("signal", signal.Signals(signals[0]).name, len(signals))
        if self._now > self._group.limit_seconds:
            self.seconds = self._group.limit_seconds
            return self._request_stop("limit", "the time limit", 0)
        return self._silence()

    def _request_stop(self, cause: Cause, source: str, signals: int) -> Cause | None:
        """Ask a program that resumes to save and end; return the cause if there is nothing to wait for."""
        has_result = (self._files.folder.parent / RECORD).exists()
        if not self._group.resumes or PROGRESS not in self._inodes or has_result:
            self._notify(f"{source}: the ranks are ended")
            return cause
        again = "; a second signal ends it at once" if signals else ""
        self._notify(f"{source}: the program has {STOP_SECONDS:.0f} s to save{again}")
        self._stop = cause, self._now, signals
        with suppress(OSError):  # they are ended anyway
            self._files.request_stop(source)
        return None

    def _after_stop(self, cause: Cause, since: float, before: int, signals: int) -> Cause | None:
        if self._now - since < SECOND_SIGNAL_SECONDS:
            self._stop = cause, since, signals
            return None
        return cause if signals > before or self._now - since >= STOP_SECONDS else None

    def _silence(self) -> Cause | None:
        """Return which wait for the ranks has been too long."""
        has_started = any(map(RANK_FILE.fullmatch, self._inodes))
        waits: tuple[tuple[Cause, float | None, float], ...] = (
            ("not started", None if has_started else 0.0, self._start_seconds),
            ("not in group", self._waiting_since, self._group_seconds),
            ("no step", None if self._step is None else self._step[1], self._step_seconds),
        )
        for cause, since, longest in waits:
            if since is not None and self._now - since >= longest:
                self.seconds = longest
                return cause
        return None

    def _look(self) -> None:
        """List the folder: on a network file system a single look-up may remember that a file was missing."""
        before = self._inodes
        self._inodes = {entry.name: entry.inode() for entry in os.scandir(self._files.folder)}
        changed = [name for name, inode in self._inodes.items() if before.get(name) != inode]
        for match in filter(None, map(RANK_FILE.fullmatch, changed)):
            rank = self._files.read_rank(int(match[1]))
            if self._failed_at is None and rank is not None and rank.state == "failed":
                self._failed_at = self._now
        if PROGRESS in changed and (progress := self._files.read_progress()) is not None:
            self._waiting_since = None
            if self._step is None or progress.step != self._step[0]:
                self._step = progress.step, self._now
        if self._step is None and self._now >= self._waits_at:
            self._waits_at = self._now + WAITS_SECONDS
            waits = read_waits(self._files.folder / PROBE)
            if not any(wait.where == GROUP for wait in waits.values()):
                self._waiting_since = None
            elif self._waiting_since is None:
                self._waiting_since = self._now
        # like Slurm's signal to the ranks; before the first progress there is nothing to save
        if signal.SIGUSR1 in self._received and PROGRESS in self._inodes and STOP not in self._inodes:
            self._files.request_stop(signal.SIGUSR1.name)


def supervise(group: RankGroup) -> Ended:
    """Start the ranks and wait for their end, the limit or a signal; no process of them remains.

    Raises:
        RunTakenError: Another job uses the run's folder by now; this one leaves it as it is.
    """
    with group.log.open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"{utc_now()} {shlex.join(group.launch.shown)}\n")
        log.flush()
        try:
            return _supervise(group, log)
        finally:
            if group.rank_files.is_current:
                _restore(log, group.log)


def _supervise(group: RankGroup, log: IO[str]) -> Ended:
    def notify(text: str) -> None:
        append_log(group.log, text)
        say(f"{group.label}: {text}")

    with _signals() as received:
        watchdog = Watchdog(group, received, notify)
        ranks = RankProcesses(group.launch, log)
        cause: Cause | None = None
        last = ""
        try:
            while (code := ranks.wait(POLL_SECONDS)) is None:
                cause = watchdog.cause()
                # without a launcher, only this process ends the other ranks, after time for their errors
                failed = ranks.failed_for(COLLECT_ERRORS_SECONDS)
                if cause is not None or failed:
                    last = last_line(group.log)
                    has_time = cause in {"signal", "limit"} or group.launch.argv[0] == "srun"
                    code = ranks.end(GRACE_SECONDS if has_time else SHORT_GRACE_SECONDS)
                    break
            if not group.rank_files.is_current:
                raise RunTakenError(
                    f"{group.label}: another job has taken over this run. This process had not updated its "
                    "lock for too long: its file system stalled, or it was suspended. Its ranks are ended."
                )
            first = group.rank_files.read_rank(0)
            stop_source = first.stop_source if first is not None else ""
            if signals := [number for number in received if number != signal.SIGUSR1]:
                stop_source = signal.Signals(signals[0]).name
            return Ended(
                code,
                cause or watchdog.requested,
                watchdog.seconds,
                stop_source,
                last,
                watchdog.silent_seconds,
            )
        finally:
            ranks.kill()


def _restore(log: IO[str], path: Path) -> None:
    """Write the log again if another Snakemake's job for this run, which waits, has removed it."""
    with suppress(OSError):
        if not path.exists() or not os.path.samestat(os.fstat(log.fileno()), path.stat()):
            log.seek(0)
            write_text(path, log.read())


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGTERM, SIGINT and SIGUSR1 in a list, instead of an exception at any line."""
    received: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)

    handled = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
