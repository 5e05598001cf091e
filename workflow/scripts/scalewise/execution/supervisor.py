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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from scalewise.execution.messages import GracefulStop, Rank, RankError
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import RankProcesses
from scalewise.execution.run_lock import LockLostError, RunLock
from scalewise.execution.watchdog import COLLECT_ERRORS_SECONDS, STOP_SECONDS, Kept, Watchdog, Why
from scalewise.plan.jobs.launch import Launch
from scalewise.records import utc_now, write_text

GRACE_SECONDS = 10.0
SHORT_GRACE_SECONDS = 1.5
"""Grace after a rank has failed or hangs: launchers other than srun would wait 30 s for one that hangs."""
POLL_SECONDS = 0.2
SILENT_SECONDS = 30.0
"""Time without progress after which a run that reached its limit may hang."""
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
    kept: Kept = Kept.CHECKPOINT
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
    """

    code: int
    outcome: Why
    stopped: GracefulStop | None = None
    stop_requested: bool = False
    stop_source: str = "a signal"
    unstarted_seconds: float | None = None
    dead_before: tuple[int, ...] = ()


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
                    dead_before = _dead_here(rank_group)
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
            )
        finally:
            bar.clear()
            ranks.kill()


def _dead_here(rank_group: RankGroup) -> tuple[int, ...]:
    here = socket.gethostname()
    silent = rank_group.rank_files.died_without_note(rank_group.world_size)
    return tuple(rank.rank for rank in silent if rank.host == here and not _is_alive(rank.pid))


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


def failure_reason(group: RankGroup, ended: ExitStatus, cause: RankError | None) -> str:
    """Return why there is no result, with rank and host if they are known."""
    if ended.outcome == "timed-out":
        kept = _what_is_kept(group, ended, "with more time the same command resumes there")
        return f"stopped after {in_minutes(group.limit_seconds)}{_reached(group)}. {group.fix}{kept}"
    if ended.outcome == "interrupted":
        by = ended.stopped.stop_source if ended.stopped is not None else ended.stop_source
        return f"ended by {by}.{_what_is_kept(group, ended, 'the same command resumes there')}"
    if ended.unstarted_seconds is not None:
        return (
            f"no rank started within {ended.unstarted_seconds:.0f} s. The launcher's output is below. "
            "If nodes need longer to load PyTorch, raise timeout_seconds."
        )
    if cause is not None and not cause.is_secondary:
        return f"rank {cause.rank} on {cause.host}: {cause.first_line}"
    if not group.rank_files.folder.exists():
        return (
            f"{group.rank_files.folder} was removed while the run was at work. Give the same command to run "
            "it again."
        )
    missing = group.rank_files.never_started(group.world_size)
    if missing and len(missing) < group.world_size:
        return (
            f"{group.world_size - len(missing)} of {group.world_size} ranks started; "
            f"missing: {', '.join(map(str, missing))}."
        )
    if missing:
        return f"no rank started, and {_started(group)} exited with code {ended.code}. Its output is below."
    silent = group.rank_files.died_without_note(group.world_size)
    if silent:
        aborted = [rank for rank in silent if group.rank_files.aborted(rank.rank)]
        if len(aborted) == len(silent):
            unresponsive = group.rank_files.unresponsive(group.world_size)
            if others := [rank for rank in unresponsive if rank not in aborted]:
                return _unresponsive_text(others)
            return (
                f"{_names(aborted)} ended by SIGABRT: NCCL gave up waiting for another rank, or a library "
                "failed. The log has its output."
            )
        silent = [rank for rank in silent if rank not in aborted]
        silent = [rank for rank in silent if rank.rank in ended.dead_before] or silent
        return (
            f"{_names(silent)} ended without an error message. Slurm or the kernel's out-of-memory killer "
            "sent SIGKILL, or the rank hung."
        )
    if cause is not None:
        if unresponsive := group.rank_files.unresponsive(group.world_size):
            return _unresponsive_text(unresponsive)
        return f"rank {cause.rank} on {cause.host}: {cause.first_line}"
    return f"{_started(group)} exited with code {ended.code}."


def _names(ranks: Sequence[Rank]) -> str:
    return ", ".join(f"rank {rank.rank} on {rank.host} (pid {rank.pid})" for rank in ranks)


def _unresponsive_text(ranks: Sequence[Rank]) -> str:
    why = "it hangs, or its network connection is lost"
    return f"{_names(ranks)} did not answer the other ranks in time: {why}."


def _started(rank_group: RankGroup) -> str:
    return "the process of a rank" if rank_group.launch.name == "popen" else "the launcher"


def in_minutes(seconds: float) -> str:
    """Write seconds as minutes in plain digits, with a fraction if they are few: ``1 minute``."""
    minutes = seconds / 60
    number = f"{minutes:.0f}" if minutes >= 100 else f"{minutes:.3g}"
    return f"{number} minute{'' if number == '1' else 's'}"


def _reached(group: RankGroup) -> str:
    """Return the progress at the end, and that the ranks may hang if the last steps are long ago."""
    progress = group.rank_files.read_progress()
    if progress is None:
        return ", before its first step"
    silent = group.rank_files.seconds_since_progress()
    # ranks that can save have had time for that since
    most = SILENT_SECONDS if group.kept is Kept.NOTHING else SILENT_SECONDS + STOP_SECONDS
    hangs = f". It may hang: its last progress was {silent:.0f} s ago" if silent > most else ""
    return f", at {progress}{hangs}"


def _what_is_kept(group: RankGroup, ended: ExitStatus, then: str) -> str:
    if group.kept is Kept.NOTHING:
        return " The program starts again from the beginning next time."
    if ended.stopped is None:
        return ""
    if group.kept is Kept.BY_PROGRAM:
        return " The program resumes next time from what it has saved."
    if not ended.stopped.saved:
        return f" No checkpoint could be written: {ended.stopped.problem}"
    return f" The checkpoint at step {ended.stopped.step} is kept: {then}."


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
