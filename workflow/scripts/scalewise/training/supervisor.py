"""One run from outside: start its ranks, watch them, end them all, say why it failed. Needs no torch."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from scalewise.plan.launch import Launch
from scalewise.records import (
    EPOCHS,
    FAILURE,
    RANKS,
    SUMMARY,
    Definition,
    EpochRecord,
    Failure,
    RankRecord,
    Summary,
    utc_now,
    write_json,
    write_rows,
)
from scalewise.training.attempt import Assignment, Attempt, Complaint

LOG_TAIL_LINES = 25
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.2


class RunFailedError(Exception):
    """The run has no result; the message is for the user."""


@dataclass(frozen=True)
class Order:
    """One run to supervise.

    Args:
        assignment: what its ranks are told.
        attempt: where they leave word.
        launch: what starts them.
        world_size: how many they are.
        log: receives what the ranks print.
        limit_seconds: the run is ended after this long.
    """

    assignment: Assignment
    attempt: Attempt
    launch: Launch
    world_size: int
    log: Path
    limit_seconds: float

    @property
    def folder(self) -> Path:
        """Of the run's records."""
        return self.assignment.folder

    @property
    def definition(self) -> Definition:
        """The run."""
        return self.assignment.definition


def supervise(order: Order) -> None:
    """Run the ranks to their end.

    Leaves the run's records, or ``failure.json`` with the reason.

    Raises:
        RunFailedError: there is no result.
    """
    for name in (SUMMARY, EPOCHS, RANKS, FAILURE):
        (order.folder / name).unlink(missing_ok=True)
    order.attempt.begin(order.assignment)
    with order.log.open("a", encoding="utf-8") as log:
        log.write(f"{utc_now()} {shlex.join(order.launch.argv)}\n")
        log.flush()
        ended = _watch(order, log)
    cause = order.attempt.cause(order.world_size)
    if ended.code == 0 and (order.folder / SUMMARY).exists():
        order.attempt.end()
        return
    if cause is not None and cause.out_of_memory and ended.why == "failed":
        _record_out_of_memory(order, cause)
        order.attempt.end()
        return
    raise _fail(order, ended, cause)


@dataclass(frozen=True)
class _End:
    code: int
    why: str


def _watch(order: Order, log: IO[str]) -> _End:
    """Start the ranks and wait for them, for the limit, or for a signal."""
    deadline = time.monotonic() + order.limit_seconds
    with _signals() as received:
        process = subprocess.Popen(
            order.launch.argv,
            env=os.environ | order.launch.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a Ctrl-C reaches the ranks through _end_group alone
        )
        bar = _Bar(order)
        try:
            while True:
                try:
                    return _End(process.wait(timeout=POLL_SECONDS), "failed")
                except subprocess.TimeoutExpired:
                    bar.draw()
                if received:
                    return _End(_end_group(process), "interrupted")
                if time.monotonic() > deadline:
                    return _End(_end_group(process), "timed-out")
        finally:
            bar.clear()
            _kill_group(process)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT as a list to look at, instead of an exception at any line."""
    received: list[int] = []

    def note(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_group(process: subprocess.Popen[bytes]) -> int:
    """Ask the ranks to end, then make them."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        return process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        return process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Nothing of the run stays: ranks in sessions of their own end with their parent (see orphan.py)."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _record_out_of_memory(order: Order, cause: Complaint) -> None:
    """Out of device memory is a result: another attempt would end the same way."""
    write_rows(order.folder / EPOCHS, EpochRecord, [])
    write_rows(order.folder / RANKS, RankRecord, [])
    summary = Summary(
        definition=order.definition,
        outcome="out-of-memory",
        reason=f"rank {cause.rank} on {cause.host}: {cause.message.splitlines()[0]}",
        measurements=None,
        provenance=None,
    )
    write_json(order.folder / SUMMARY, summary)


def _fail(order: Order, ended: _End, cause: Complaint | None) -> RunFailedError:
    """Record the failure and say it: reason first, then the traceback or the log's last lines."""
    reason = _reason(order, ended, cause)
    tail = order.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:]
    for name in (SUMMARY, EPOCHS, RANKS):
        (order.folder / name).unlink(missing_ok=True)
    outcome = ended.why
    write_json(
        order.folder / FAILURE,
        Failure.model_validate(
            {
                "definition": order.definition,
                "outcome": outcome,
                "reason": reason,
                "log_tail": tail,
                "ended_at": utc_now(),
            }
        ),
    )
    name = f"{order.definition.experiment}/{order.definition.run}"
    details = cause.traceback.rstrip() if cause is not None else "\n".join(tail)
    return RunFailedError(f"{name} {outcome}: {reason}\n{details}\nWhole log: {order.log}")


def _reason(order: Order, ended: _End, cause: Complaint | None) -> str:
    if ended.why == "timed-out":
        return (
            f"not done after {order.limit_seconds / 60:g} minutes. Raise runtime_minutes, or train "
            "fewer epochs."
        )
    if ended.why == "interrupted":
        return "ended by a signal."
    if cause is not None:
        return f"rank {cause.rank} on {cause.host}: {cause.message.splitlines()[0]}"
    silent = order.attempt.silent(order.world_size)
    if silent:
        names = ", ".join(f"rank {note.rank} on {note.host} (pid {note.pid})" for note in silent)
        return (
            f"{names} left no word: killed from outside, often by the system's out-of-memory killer, or hung."
        )
    missing = order.attempt.missing(order.world_size)
    if missing:
        return (
            f"{order.world_size - len(missing)} of {order.world_size} ranks started; "
            f"missing: {', '.join(map(str, missing))}."
        )
    return f"the launcher exited with code {ended.code}."


class _Bar:
    """Epochs done, on one line of a terminal; silent elsewhere."""

    WIDTH = 24

    def __init__(self, order: Order) -> None:
        self._attempt = order.attempt
        self._label = f"{order.definition.experiment}/{order.definition.run}"
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
