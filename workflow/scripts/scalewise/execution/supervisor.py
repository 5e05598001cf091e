"""The ranks of one attempt from outside: start them, watch them, end them all, say why they failed.

Needs no torch.
"""

from __future__ import annotations

import math
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from scalewise.execution.messages import Complaint, Stopped
from scalewise.execution.rank_files import Attempt
from scalewise.execution.rank_processes import RankProcesses
from scalewise.execution.run_lock import Hold, RunTakenError
from scalewise.execution.watchdog import WORD_SECONDS, Vigil, Why
from scalewise.plan.jobs.launch import Launch
from scalewise.records import utc_now, write_text

GRACE_SECONDS = 10.0
SHORT_GRACE_SECONDS = 1.5
"""Grace after a rank has raised or hangs: launchers but srun would wait 30 s for one that cannot hear."""
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Order:
    """Ranks to supervise.

    Args:
        label: Names their work in messages.
        log: Receives what the ranks print.
        limit_seconds: The ranks are ended after this long.
        cure: A sentence on what to do about that.
        spent_seconds: Time of the limit that earlier starts have used.
        job_ends_at: The end of their job by the monotonic clock, where that comes first; no limit of theirs.
        hold: The lock on the folder they write to; None where no other process could take it.
    """

    label: str
    attempt: Attempt
    launch: Launch
    world_size: int
    log: Path
    limit_seconds: float
    cure: str = "Raise runtime_minutes, or train fewer epochs."
    spent_seconds: float = 0.0
    job_ends_at: float = math.inf
    hold: Hold | None = None

    @property
    def seconds_left(self) -> float:
        """Time of the limit that earlier starts have not used."""
        return self.limit_seconds - self.spent_seconds


@dataclass(frozen=True)
class End:
    """The end of a group of ranks.

    Args:
        code: The launcher's exit code.
        why: ``failed`` also where the code is 0 and a result is missing.
        stopped: The step edge at which the ranks ended together, if they did.
        asked: Whether the end was asked for here, by a signal to this process or at the limit.
        words: Names what asked for it here.
        unstarted_seconds: Time after which no rank had started; None where one had, or the launcher ended
            before.
    """

    code: int
    why: Why
    stopped: Stopped | None = None
    asked: bool = False
    words: str = "a signal"
    unstarted_seconds: float | None = None


def watch(order: Order) -> End:
    """Start the ranks and wait for them, for the limit, or for a signal; nothing of them stays.

    Raises:
        RunTakenError: another holds the run's folder by now; nothing in it is this one's to touch.
    """
    with order.log.open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"{utc_now()} {shlex.join(order.launch.shown)}\n")
        log.flush()
        try:
            return _watch(order, log)
        finally:
            if not _is_taken(order):
                _restore(log, order.log)


def _is_taken(order: Order) -> bool:
    return order.hold is not None and order.hold.taken_by is not None


def _restore(log: IO[str], path: Path) -> None:
    """Put the log back where it was taken away while it was written.

    Another snakemake's job for this run, which waits for this one to end, begins by removing its log.
    """
    with suppress(OSError):
        if not path.exists() or not os.path.samestat(os.fstat(log.fileno()), path.stat()):
            log.seek(0)
            write_text(path, log.read())


def _watch(order: Order, log: IO[str]) -> End:
    with _signals() as received:
        vigil = Vigil(
            order.attempt,
            order.seconds_left,
            received,
            tell=lambda text: _tell(order, log, text),
            job_ends_at=order.job_ends_at,
        )
        ranks = RankProcesses(order.launch, log)
        bar = _Bar(order)
        short = GRACE_SECONDS if order.launch.argv[0] == "srun" else SHORT_GRACE_SECONDS
        try:
            while (code := ranks.wait(POLL_SECONDS)) is None:
                bar.draw()
                if _is_taken(order):
                    # no checkpoint: the other writes there
                    code = ranks.end(short)
                    break
                # a launcher of its own ends the others where one failed; here, once they have told why
                failed = ranks.failed_for(WORD_SECONDS)
                if vigil.is_over() or failed:
                    code = ranks.end(short if failed or vigil.complained else GRACE_SECONDS)
                    break
            if order.hold is not None:
                order.hold.beat()
                if (other := order.hold.taken_by) is not None:
                    raise RunTakenError(
                        f"{order.label}: {other} has taken this run, as this training had given no sign of "
                        "life for too long: its file system stalled, or it was stopped. Its ranks are ended "
                        "here; the other goes on from the last checkpoint."
                    )
            stopped = order.attempt.read_stopped()
            return End(
                code=code,
                why=vigil.why(stopped),
                stopped=stopped,
                asked=vigil.asked,
                words=vigil.words,
                unstarted_seconds=vigil.unstarted_seconds,
            )
        finally:
            bar.clear()
            ranks.kill()


def _tell(order: Order, log: IO[str], text: str) -> None:
    """Tell the user and the log."""
    with suppress(OSError):  # a full disk must not keep the ranks from being asked
        os.write(log.fileno(), f"{utc_now()} {text}\n".encode())
    print(f"{order.label}: {text}", file=sys.stderr, flush=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM, SIGINT and SIGUSR1 as a list to look at, instead of an exception at any line."""
    received: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)

    heeded = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, note) for number in heeded}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reason(order: Order, ended: End, cause: Complaint | None) -> str:
    """A sentence on why there is no result, naming rank and host where they are known."""
    if ended.why == "timed-out":
        then = "with more time the same command goes on from there"
        return f"not done after {in_minutes(order.limit_seconds)}. {order.cure}{_checkpoint(ended, then)}"
    if ended.why == "interrupted":
        by = ended.stopped.because if ended.stopped is not None else ended.words
        return f"ended by {by}.{_checkpoint(ended, 'the same command goes on from there')}"
    if ended.unstarted_seconds is not None:
        return (
            f"no rank started within {ended.unstarted_seconds:.0f} s. The launcher's words stand below; "
            "where nodes need longer to load PyTorch, raise timeout_seconds."
        )
    if cause is not None and not cause.is_consequence:
        return f"rank {cause.rank} on {cause.host}: {cause.headline}"
    if not order.attempt.folder.exists():
        return (
            f"{order.attempt.folder} was removed while the ranks were at work. Leave the folder of a run "
            "alone until it has ended; the same command trains it again."
        )
    missing = order.attempt.missing(order.world_size)
    if missing and len(missing) < order.world_size:
        return (
            f"{order.world_size - len(missing)} of {order.world_size} ranks started; "
            f"missing: {', '.join(map(str, missing))}."
        )
    if missing:
        return f"no rank started, and {_started(order)} exited with code {ended.code}. Its words stand below."
    silent = order.attempt.silent(order.world_size)
    if silent:
        names = ", ".join(f"rank {note.rank} on {note.host} (pid {note.pid})" for note in silent)
        return (
            f"{names} left no word: killed from outside, often by the system's out-of-memory killer, or hung."
        )
    if cause is not None:
        quiet = order.attempt.unanswering(order.world_size)
        if quiet:
            names = ", ".join(f"rank {note.rank} on {note.host} (pid {note.pid})" for note in quiet)
            return f"{names} did not answer the other ranks in time: hung, or cut off from them."
        return f"rank {cause.rank} on {cause.host}: {cause.headline}"
    return f"{_started(order)} exited with code {ended.code}."


def _started(order: Order) -> str:
    return "the process of a rank" if order.launch.name == "popen" else "the launcher"


def in_minutes(seconds: float) -> str:
    """Seconds as minutes in plain digits; a fraction where there are few."""
    minutes = seconds / 60
    return f"{minutes:.0f} minutes" if minutes >= 100 else f"{minutes:.3g} minutes"


def _checkpoint(ended: End, then: str) -> str:
    if ended.stopped is None:
        return ""
    if not ended.stopped.saved:
        return f" No checkpoint could be written: {ended.stopped.problem}"
    return f" The checkpoint at step {ended.stopped.step} is kept: {then}."


class _Bar:
    """Epochs done, on one line of a terminal; silent elsewhere."""

    WIDTH = 24

    def __init__(self, order: Order) -> None:
        self._attempt = order.attempt
        self._label = order.label
        self._shown = ""

    def draw(self) -> None:
        if not sys.stderr.isatty():
            return
        progress = self._attempt.read_progress()
        if progress is None:
            text = f"{self._label}  starting"
        else:
            done = self.WIDTH * progress.epoch // progress.epochs
            bar = "#" * done + "." * (self.WIDTH - done)
            text = f"{self._label}  [{bar}] epoch {progress.epoch}/{progress.epochs}"
        if text != self._shown:
            self._shown = text
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
