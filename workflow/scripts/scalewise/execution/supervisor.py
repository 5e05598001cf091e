"""Start the ranks of one attempt, watch them, end them all, and report why they failed.

Needs no torch.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from scalewise.execution.messages import GracefulStop
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import RankProcesses
from scalewise.execution.rank_waits import last_line
from scalewise.execution.run_lock import LockLostError, RunLock
from scalewise.execution.watchdog import COLLECT_ERRORS_SECONDS, Kept, Watchdog, Why
from scalewise.plan.launch import Launch
from scalewise.records import utc_now, write_text

GRACE_SECONDS = 10.0
SHORT_GRACE_SECONDS = 1.5
"""Grace after a rank has failed or hangs: launchers other than srun would wait 30 s for one that hangs."""
POLL_SECONDS = 0.2
STUDY_IS_SHOWN = "SCALEWISE_STUDY_IS_SHOWN"
"""Variable that is set if the terminal shows the whole study: a single run's bar would break the display."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks to supervise.

    Args:
        label: Names their work in messages.
        log: Receives what the ranks print.
        limit_seconds: The ranks are ended after this time.
        fix: A sentence on what to do if that happens.
        kept: The part of their work that remains if they are ended early.
        spent_seconds: Time of the limit that earlier starts have used.
        job_ends_at: The end of their job by the monotonic clock, if it comes before their limit.
        lock: The lock on the folder they write to; None if no other process can take it.
    """

    label: str
    rank_files: RankFiles
    launch: Launch
    world_size: int
    log: Path
    limit_seconds: float
    fix: str = "Raise runtime_minutes, or train fewer epochs or steps."
    kept: Kept = Kept.NOTHING
    spent_seconds: float = 0.0
    job_ends_at: float = math.inf
    lock: RunLock | None = None

    @property
    def seconds_left(self) -> float:
        """Time of the limit that earlier starts have not used."""
        return self.limit_seconds - self.spent_seconds


@dataclass(frozen=True)
class ExitStatus:
    """The end of a group of ranks.

    Args:
        code: The launcher's exit code.
        outcome: ``failed`` also if the code is 0 and a result is missing.
        stopped: The step edge at which the ranks ended together, if they did.
        stop_requested: Whether this process requested the end, after a signal to it or at the limit.
        stop_source: The reason for that request.
        unstarted_seconds: Time in which no rank started; None if one did, or the launcher ended before.
        dead_before: Ranks of this host whose processes had ended before the others were ended.
        ended_alive: Ranks of this host without a note that this process ended; empty if all ended before.
        last_line: The last line that the ranks had printed before this process ended them.
    """

    code: int
    outcome: Why
    stopped: GracefulStop | None = None
    stop_requested: bool = False
    stop_source: str = "a signal"
    unstarted_seconds: float | None = None
    dead_before: tuple[int, ...] = ()
    ended_alive: tuple[int, ...] = ()
    last_line: str = ""


def supervise(rank_group: RankGroup) -> ExitStatus:
    """Start the ranks and wait for their end, the limit or a signal; no process of them remains.

    Raises:
        LockLostError: Another process holds the run's folder by now; this one leaves it as it is.
    """
    with rank_group.log.open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"{utc_now()} {shlex.join(rank_group.launch.shown)}\n")
        log.flush()
        try:
            return _supervise(rank_group, log)
        finally:
            if not _is_taken(rank_group):
                _restore(log, rank_group.log)


def _is_taken(rank_group: RankGroup) -> bool:
    return rank_group.lock is not None and rank_group.lock.taken_by is not None


def _restore(log: IO[str], path: Path) -> None:
    """Write the log again if another snakemake's job for this run, which waits, has removed it."""
    with suppress(OSError):
        if not path.exists() or not os.path.samestat(os.fstat(log.fileno()), path.stat()):
            log.seek(0)
            write_text(path, log.read())


def _supervise(rank_group: RankGroup, log: IO[str]) -> ExitStatus:
    with _signals() as received:
        watchdog = Watchdog(
            rank_group.rank_files,
            rank_group.seconds_left,
            received,
            notify=lambda text: _notify(rank_group, log, text),
            kept=rank_group.kept,
            job_ends_at=rank_group.job_ends_at,
        )
        ranks = RankProcesses(rank_group.launch, log)
        bar = _Bar(rank_group)
        dead_before: tuple[int, ...] = ()
        ended_alive: tuple[int, ...] = ()
        last = ""
        short = GRACE_SECONDS if rank_group.launch.argv[0] == "srun" else SHORT_GRACE_SECONDS
        try:
            while (code := ranks.wait(POLL_SECONDS)) is None:
                bar.draw()
                if _is_taken(rank_group):
                    # no checkpoint: the other process writes there
                    code = ranks.end(short)
                    break
                # without a launcher, only this process ends the other ranks, after time for their errors
                failed = ranks.failed_for(COLLECT_ERRORS_SECONDS)
                if watchdog.should_terminate() or failed:
                    # a rank that waits for another one inside NCCL handles no signal and leaves no error
                    dead_before, ended_alive = _silent_here(rank_group)
                    last = last_line(rank_group.log)
                    code = ranks.end(short if failed or watchdog.rank_failed else GRACE_SECONDS)
                    break
            if rank_group.lock is not None:
                rank_group.lock.heartbeat()
                if (other := rank_group.lock.taken_by) is not None:
                    raise LockLostError(
                        f"{rank_group.label}: {other} has taken over this run. This process had not updated "
                        "its lock for too long: its file system stalled, or it was suspended. Its ranks are "
                        "ended here; the other process resumes from the last checkpoint."
                    )
            stopped = rank_group.rank_files.read_stopped()
            return ExitStatus(
                code=code,
                outcome=watchdog.outcome(stopped),
                stopped=stopped,
                stop_requested=watchdog.stop_requested,
                stop_source=watchdog.stop_source,
                unstarted_seconds=watchdog.unstarted_seconds,
                dead_before=dead_before,
                ended_alive=ended_alive,
                last_line=last,
            )
        finally:
            bar.clear()
            ranks.kill()


def _silent_here(rank_group: RankGroup) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ranks of this host without a note: those whose processes have ended, and the others."""
    here = socket.gethostname()
    silent = rank_group.rank_files.died_without_note(rank_group.world_size)
    alive = {rank.rank: _is_alive(rank.pid) for rank in silent if rank.host == here}
    return tuple(rank for rank in alive if not alive[rank]), tuple(rank for rank in alive if alive[rank])


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _notify(rank_group: RankGroup, log: IO[str], text: str) -> None:
    """Show the user a message, and add it to the log."""
    with suppress(OSError):  # the request must reach the ranks even if the disk is full
        os.write(log.fileno(), f"{utc_now()} {text}\n".encode())
    print(f"{rank_group.label}: {text}", file=sys.stderr, flush=True)


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


class _Bar:
    """One line of a terminal with the epochs or steps done; empty elsewhere, or if the study is shown."""

    WIDTH = 24

    def __init__(self, rank_group: RankGroup) -> None:
        self._rank_files = rank_group.rank_files
        self._label = rank_group.label
        self._shown = ""

    def draw(self) -> None:
        if not sys.stderr.isatty() or os.environ.get(STUDY_IS_SHOWN):
            return
        progress = self._rank_files.read_progress()
        if progress is None:
            text = f"{self._label}  starting"
        else:
            bar = ""
            if (fraction := progress.fraction) is not None:
                done = int(self.WIDTH * min(fraction, 1.0))
                bar = f"[{'#' * done}{'.' * (self.WIDTH - done)}] "
            text = f"{self._label}  {bar}{progress}"
        if text != self._shown:
            self._shown = text
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
