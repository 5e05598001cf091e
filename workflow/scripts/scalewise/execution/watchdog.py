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
from typing import Literal

from scalewise.execution.log import last_line
from scalewise.execution.rank_files import GROUP, PROBE, PROGRESS, RankFiles, read_waits
from scalewise.execution.start import RankProcesses
from scalewise.plan.launch import Launch
from scalewise.records import RECORD, utc_now

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

LONGEST_LOOK_SECONDS = 5.0
"""A longer time between two looks counts as this: the job was suspended, or its file system stalled."""

RANK_FILE = re.compile(r"rank(\d+)\.json")

Outcome = Literal["failed", "interrupted", "timed-out"]
Cause = Literal["signal", "limit", "error", "not in group", "no step", "taken"]
"""Reasons to end ranks: a signal to the job, the time limit, an error of a rank, one of two silences, or
another job that trains the run by now."""


class RunTakenError(Exception):
    """Another job trains the run by now."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks to watch.

    Args:
        log: Receives what the ranks print.
        limit_seconds: The ranks are ended after this time.
        resumes: Whether what the program has saved remains if it is ended early.
    """

    rank_files: RankFiles
    launch: Launch
    world_size: int
    log: Path
    limit_seconds: float
    resumes: bool = False


@dataclass(frozen=True)
class Ended:
    """The end of a group of ranks.

    Args:
        code: The launcher's exit code.
        cause: The reason for which this job ended them, or asked them to; None if they ended by themselves.
        seconds: The limit that was passed, if one was.
        stop_source: The signal to this job or to a rank that ended them; empty without one.
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
        return "interrupted" if self.cause == "signal" or (not self.cause and self.stop_source) else "failed"


class Watchdog:
    """Decides when to end ranks; nothing here ends a process.

    Ranks whose program resumes first get a request to stop: torchrun and srun kill their ranks at SIGTERM.

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
        self._stop_began = self._stop_ends = 0.0
        self._signals = 0
        self.requested: Cause | None = None
        """The reason to request the ranks to stop; None without a request."""
        self.seconds = 0.0
        """The limit that has passed, if one is the cause to end the ranks."""

    @property
    def silent_seconds(self) -> float:
        """Return the time since the last step; 0 before the first."""
        return 0.0 if self._step is None else self._now - self._step[1]

    def cause(self, *, has_failed: bool = False) -> Cause | None:
        """Return why to end the ranks now; None if they may continue. Request a stop if one is due.

        Args:
            has_failed: Whether one of several processes has ended with an error.
        """
        now = self._clock()
        self._now += min(now - self._last, LONGEST_LOOK_SECONDS)
        self._last = now
        if self._now >= self._look_at or (self._received and self.requested is None):
            self._look_at = self._now + LOOK_SECONDS
            with suppress(OSError):  # a user may delete the folder of a run at work
                self._look()
            if not self._files.is_current:
                return "taken"
        if has_failed and self._failed_at is None:
            self._failed_at = self._now
        if self._failed_at is not None and self._now - self._failed_at >= COLLECT_ERRORS_SECONDS:
            return self.requested or "error"
        if self.requested is None:
            if self._received:
                self._request_stop("signal", signal.Signals(self._received[0]).name)
            elif self._now > self._group.limit_seconds:
                self.seconds = self._group.limit_seconds
                self._request_stop("limit", "the time limit")
            else:
                return self._silence()
        if self._now - self._stop_began < SECOND_SIGNAL_SECONDS:
            self._signals = len(self._received)
        is_over = self._now >= self._stop_ends or len(self._received) > self._signals
        return self.requested if is_over else None

    def _request_stop(self, cause: Cause, source: str) -> None:
        """Ask a program that resumes to save and to end; others have nothing to wait for."""
        self.requested, self._stop_began = cause, self._now
        has_result = (self._files.folder.parent / RECORD).exists()
        saves = self._group.resumes and PROGRESS in self._inodes and not has_result
        self._stop_ends = self._now + (STOP_SECONDS if saves else 0.0)
        if not saves:
            self._notify(f"{source}: the ranks are ended")
            return
        again = "; a second signal ends it at once" if cause == "signal" else ""
        self._notify(f"{source}: the program has {STOP_SECONDS:.0f} s to save{again}")
        with suppress(OSError):  # they are ended anyway
            self._files.request_stop(source)

    def _silence(self) -> Cause | None:
        """Return which wait for the ranks has been too long."""
        has_started = any(map(RANK_FILE.fullmatch, self._inodes))
        waits: tuple[tuple[Cause, float | None, float], ...] = (
            ("not in group", None if has_started else 0.0, self._start_seconds),
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


def supervise(group: RankGroup, notify: Callable[[str], None]) -> Ended:
    """Start the ranks and wait for their end, the limit or a signal; no process of them remains.

    Raises:
        RunTakenError: Another job uses the run's folder by now; this one leaves it as it is.
    """
    with group.log.open("a", encoding="utf-8") as log, _signals() as received:
        log.write(f"{utc_now()} {shlex.join(group.launch.shown)}\n")
        log.flush()
        watchdog = Watchdog(group, received, notify)
        ranks = RankProcesses(group.launch, log)
        last = ""
        cause: Cause | None = None
        try:
            while (code := ranks.wait(POLL_SECONDS)) is None:
                if cause := watchdog.cause(has_failed=bool(ranks.failure)):
                    last = last_line(group.log)
                    has_time = cause in {"signal", "limit"} or group.launch.argv[0] == "srun"
                    code = ranks.end(GRACE_SECONDS if has_time else SHORT_GRACE_SECONDS)
                    break
        finally:
            ranks.kill()
    if not group.rank_files.is_current:
        raise RunTakenError("another job has taken over this run, and the ranks of this one are ended")
    # torchrun may kill a rank that still saves once the peers have stopped
    stops = [rank.stop_source for rank in group.rank_files.ranks(group.world_size) if rank.stop_source]
    names = [signal.Signals(number).name for number in received]
    # a signal to end says more than Slurm's warning before it
    sources = [name for name in names if name != "SIGUSR1"]
    sources += stops or names
    source = next(iter(sources), "")
    cause = cause or watchdog.requested
    return Ended(code, cause, watchdog.seconds, source, last, watchdog.silent_seconds)


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
