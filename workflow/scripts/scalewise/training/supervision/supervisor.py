"""The ranks of one attempt from outside: start them, watch them, end them all, say why they failed.

Needs no torch.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Literal

from scalewise.plan.launch import Launch, Start
from scalewise.records import LauncherName, utc_now, write_text
from scalewise.training.supervision.attempt import Attempt, Complaint, Muster

GRACE_SECONDS = 10.0
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Order:
    """Ranks to supervise.

    Args:
        label: what they do, for messages.
        attempt: where they leave word.
        launch: what starts them.
        world_size: how many they are.
        log: receives what the ranks print.
        limit_seconds: they are ended after this long.
        cure: what to do about that.
    """

    label: str
    attempt: Attempt
    launch: Launch
    world_size: int
    log: Path
    limit_seconds: float
    cure: str = "Raise runtime_minutes, or train fewer epochs."


@dataclass(frozen=True)
class End:
    """How the ranks ended.

    Args:
        code: of the launcher.
        why: ``failed`` also where the code is 0 and a result is missing.
    """

    code: int
    why: Literal["failed", "interrupted", "timed-out"]


def muster_for(
    shape: str,
    accelerator: Literal["cpu", "cuda"],
    cpus_per_device: int,
    launcher: LauncherName,
    rendezvous: Literal["tcp", "file"],
    start: Start,
    timeout_seconds: int,
) -> Muster:
    """How ranks that this process starts will meet."""
    return Muster(
        shape=shape,
        accelerator=accelerator,
        cpus_per_device=cpus_per_device,
        launcher=launcher,
        rendezvous=rendezvous,
        network_interface=start.network_interface,
        timeout_seconds=timeout_seconds,
        supervisor_host=socket.gethostname(),
        supervisor_pid=None if start.slurm else os.getpid(),
    )


def watch(order: Order) -> End:
    """Start the ranks and wait for them, for the limit, or for a signal; nothing of them stays."""
    with order.log.open("a+", encoding="utf-8", errors="replace") as log:
        log.write(f"{utc_now()} {shlex.join(order.launch.argv)}\n")
        log.flush()
        try:
            return _watch(order, log)
        finally:
            _restore(log, order.log)


def _restore(log: IO[str], path: Path) -> None:
    """Put the log back where it was taken away while it was written.

    Another snakemake's job for this run, which waits for this one to end, begins by removing its log.
    """
    with suppress(OSError):
        if not path.exists() or not os.path.samestat(os.fstat(log.fileno()), path.stat()):
            log.seek(0)
            write_text(path, log.read())


def _watch(order: Order, log: IO[str]) -> End:
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
                    return End(process.wait(timeout=POLL_SECONDS), "failed")
                except subprocess.TimeoutExpired:
                    bar.draw()
                if received:
                    return End(_end_group(process), "interrupted")
                if time.monotonic() > deadline:
                    return End(_end_group(process), "timed-out")
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


def reason(order: Order, ended: End, cause: Complaint | None) -> str:
    """Why there is no result, in a sentence that names rank and host where they are known."""
    if ended.why == "timed-out":
        return f"not done after {order.limit_seconds / 60:.3g} minutes. {order.cure}"
    if ended.why == "interrupted":
        return "ended by a signal."
    if cause is not None and not cause.is_consequence:
        return f"rank {cause.rank} on {cause.host}: {cause.headline}"
    missing = order.attempt.missing(order.world_size)
    if missing and len(missing) < order.world_size:
        return (
            f"{order.world_size - len(missing)} of {order.world_size} ranks started; "
            f"missing: {', '.join(map(str, missing))}."
        )
    if missing:
        return f"no rank started, and the launcher exited with code {ended.code}. Its words stand below."
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
    return f"the launcher exited with code {ended.code}."


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
