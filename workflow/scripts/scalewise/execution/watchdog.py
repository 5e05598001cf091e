"""Start the ranks of one job, watch them, and end them: after a signal, an error, silence, or their limit."""

from __future__ import annotations

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Literal

from scalewise.execution.lock import LockError
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.run_folder import OUTPUT, last_line
from scalewise.execution.start import RankProcesses
from scalewise.plan.launch import Launch
from scalewise.records import RECORD, utc_now

POLL_SECONDS, LOOK_SECONDS = 0.2, 1.0
"""Time between two looks at the processes, and whether one has left an error."""

NO_STEP_SECONDS = 30 * 60.0
"""Longest time without a step, if timeout_seconds is shorter: a start or an evaluation may take long."""

GROUP_SECONDS = 5 * 60.0
"""Longest wait in the process group for a rank that does not come, if timeout_seconds is shorter."""

PROBE_SECONDS = 10.0
"""Time between two looks at the steps of each rank and where it waits: many ranks may share a disk."""

STOP_SECONDS = 60.0
"""Time for the program to save what it has done and to end."""

COLLECT_ERRORS_SECONDS = 3.0
"""Time after the first rank's error, in which other ranks write theirs."""

GRACE_SECONDS, SHORT_GRACE_SECONDS = 10.0, 1.5
"""Time to end after SIGTERM; the short one after a failure: torchrun waits 30 s for a rank that hangs."""

Outcome = Literal["failed", "interrupted", "timed-out"]
Cause = Literal["signal", "limit", "error", "not in group", "no step", "taken"]
"""Reasons to end ranks: a signal to the job, the time limit, an error of a rank, a long wait in the process
group for others, a long time without a step, or another job that trains the run by now."""


@dataclass(frozen=True)
class Ended:
    """The end of the ranks of a job.

    Args:
        code: The launcher's exit code.
        cause: The reason for which this job ended them, or asked them to; None if they ended by themselves.
        seconds: Time since their start.
        silent_seconds: Time since the last step, or without one since their start.
        stop_source: The signal to this job or to a rank that ended them; empty without one.
        last_line: The last line that the ranks had printed before this job ended them.
    """

    code: int
    cause: Cause | None = None
    seconds: float = 0.0
    silent_seconds: float = 0.0
    stop_source: str = ""
    last_line: str = ""

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
        files: RankFiles,
        received: Sequence[int],
        notify: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files, self._received, self._notify, self._clock = files, received, notify, clock
        timeout = files.setup.timeout_seconds
        self._longest_silence, self._longest_wait = max(timeout, NO_STEP_SECONDS), max(timeout, GROUP_SECONDS)
        self._began = self._step_at = clock()
        self._look_at = self._probe_at = self._stop_ends = 0.0
        self._waiting_since = self._failed_at = math.inf
        self._steps = 0
        self.requested: Cause | None = None
        """The reason to request the ranks to stop; None without a request."""

    @property
    def seconds(self) -> float:
        """Return the time since the start of the ranks."""
        return self._clock() - self._began

    @property
    def silent_seconds(self) -> float:
        """Return the time since the last step, or since the start."""
        return self._clock() - self._step_at

    def cause(self, *, has_failed: bool = False) -> Cause | None:
        """Return why to end the ranks now; None if they may continue. Request a stop if one is due.

        Args:
            has_failed: Whether one of several processes has ended with an error.
        """
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            has_failed |= self._files.has_failed()
            if not self._files.is_current:
                return "taken"
        if now >= self._probe_at:
            self._probe_at = now + PROBE_SECONDS
            self._look_at_steps(now)
        if has_failed:
            self._failed_at = min(self._failed_at, now)
        if now - self._failed_at >= COLLECT_ERRORS_SECONDS:
            return self.requested or "error"
        if self.requested is None:
            if self._received:
                self._request_stop("signal", signal.Signals(self._received[0]).name, now)
            elif now - self._began > self._files.setup.limit_seconds:
                self._request_stop("limit", "the time limit", now)
            elif now - self._step_at >= self._longest_silence:
                return "no step"
            elif now - self._waiting_since >= self._longest_wait:
                return "not in group"
        return self.requested if now >= self._stop_ends else None

    def _look_at_steps(self, now: float) -> None:
        """Note a new step, and ranks that wait for others before the first."""
        if (steps := self._files.steps()) > self._steps:
            self._steps, self._step_at = steps, now
        waits = {} if self._steps else self._files.waits()
        is_waiting = any(wait["address"] is not None for wait in waits.values())
        self._waiting_since = min(self._waiting_since, now) if is_waiting else math.inf

    def _request_stop(self, cause: Cause, source: str, now: float) -> None:
        """Ask a program that resumes to save and to end; others have nothing to wait for."""
        self.requested, setup = cause, self._files.setup
        if not setup.resumes or not self._files.steps() or (setup.folder / RECORD).exists():
            self._notify(f"{source}: the ranks are ended")
            return
        self._stop_ends = now + STOP_SECONDS
        self._notify(f"{source}: the program has {STOP_SECONDS:.0f} s to save")
        with suppress(OSError):  # they are ended anyway
            self._files.request_stop(source)


def supervise(launch: Launch, files: RankFiles, notify: Callable[[str], None]) -> Ended:
    """Start the ranks and wait for their end, the limit or a signal; no process of them remains.

    Raises:
        LockError: Another job uses the run's folder by now; this one leaves it as it is.
    """
    output, cause, last, silent_seconds = files.setup.folder / OUTPUT, None, "", 0.0
    with output.open("a", encoding="utf-8") as log, _signals() as received:
        log.write(f"{utc_now()} {shlex.join(launch.shown)}\n")
        log.flush()
        watchdog = Watchdog(files, received, notify)
        ranks = RankProcesses(launch, log)
        try:
            while (code := ranks.wait(POLL_SECONDS)) is None:
                if cause := watchdog.cause(has_failed=bool(ranks.failure)):
                    last, silent_seconds = last_line(output), watchdog.silent_seconds
                    has_time = cause in {"signal", "limit"} or launch.argv[0] == "srun"
                    code = ranks.end(GRACE_SECONDS if has_time else SHORT_GRACE_SECONDS)
                    break
        finally:
            ranks.kill()
    if not files.is_current:
        raise LockError("another job has taken over this run, and the ranks of this one are ended")
    names = [signal.Signals(number).name for number in received]
    sources = [
        *(name for name in names if name != signal.SIGUSR1.name),  # these say more than Slurm's warning
        *(rank.stop_source for rank in files.ranks()),
        *names,
    ]
    return Ended(
        code,
        cause or watchdog.requested,
        seconds=watchdog.seconds,
        silent_seconds=silent_seconds,
        stop_source=next(filter(None, sources), ""),
        last_line=last,
    )


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals in a list, instead of an exception or an end at any line."""
    received: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)

    handled = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup leaves it
        handled.append(signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
