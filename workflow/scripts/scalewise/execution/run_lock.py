"""One writer a run: whoever trains it holds its folder, also where two machines see the folder.

A snakemake that was killed leaves its jobs in the queue, and the next one knows nothing of them. Kernel
locks do not reach across every parallel file system, so the holder is a file that is made at once or not
at all, and touched while its writer lives.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""A holder whose file has not been touched for this long, as seen from here, is gone."""
LOST_SECONDS = 3 * HEARTBEAT_SECONDS
"""The same for an earlier start of a job that Slurm has started anew: most often it has ended."""
POLL_SECONDS = 0.5
ASK_SECONDS = 20.0
"""Time between two questions to Slurm about a holder's job."""
CLAIM_SECONDS = 600.0
"""A claim to a holder's file takes milliseconds; one this old, by any clock, has been left."""

_ENDED = frozenset(
    {
        *("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"),
        *("BOOT_FAIL", "PREEMPTED"),
    }
)
"""States of a Slurm job that does not run any more; none at all for one that the controller has forgotten.

NODE_FAIL is none of them: it says that a node does not answer, and its processes may live.
"""


class LockTimeoutError(Exception):
    """Another training holds the run for longer than the wait allowed."""


class LockLostError(Exception):
    """Another training has taken the run, which this one had left without a sign of life."""


class LockOwner(BaseModel):
    """The process that trains a run.

    Args:
        token: Names this one holding, among others by the same process.
        host: The host of the supervisor.
        pid: The supervisor's process id on that host.
        job: Slurm's id; None outside Slurm.
        restart: The number of times that Slurm has started that job anew.
        born: The start of that process, in ticks since boot; process ids are given anew.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    host: str
    pid: int
    job: str | None
    restart: int
    born: str = ""

    @classmethod
    def me(cls, in_job: bool = True) -> LockOwner:
        """This process.

        Args:
            in_job: Whether it is the work of its Slurm job; false in a session that somebody works in.
        """
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            job=os.environ.get("SLURM_JOB_ID") if in_job else None,
            restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")) if in_job else 0,
            born=_start_ticks(os.getpid()) or "",
        )

    def __str__(self) -> str:
        return f"Slurm job {self.job} on {self.host}" if self.job else f"process {self.pid} on {self.host}"


class RunLock:
    """The lock on a run's folder, held by this process.

    Args:
        path: The holder's file.
        me: The holder.
        waited: Whether another holder that was alive, or may have been, had to be waited for; it may have
            completed the run.
    """

    def __init__(self, path: Path, me: LockOwner, waited: bool) -> None:
        self._path, self._me = path, me
        self.waited = waited
        self.taken_by: LockOwner | None = None
        """The process that has taken the folder, as one that was stopped for long finds when it goes on."""

    def heartbeat(self) -> None:
        """Give a sign of life, or find that the folder is another's; whose file is left as it is."""
        with suppress(OSError), self._path.open("rb") as file:
            now = _parse(file.read())
            if now.token in {self._me.token, ""}:
                os.utime(file.fileno())
            else:
                self.taken_by = now


@contextmanager
def lock_run(
    folder: Path,
    wait_seconds: float,
    notify: Callable[[str], None],
    me: LockOwner | None = None,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[RunLock]:
    """Hold a run's folder while training it.

    Args:
        folder: Holds the run's records.
        wait_seconds: The longest time to wait for another holder to end.
        notify: Told once whom this waits for.
        me: The holder; by default this process.
        silence_seconds: Time without a sign of life after which a holder of whom nothing else is known counts
            as gone.

    Raises:
        LockTimeoutError: The wait was not long enough.
    """
    me = me or LockOwner.me()
    path = folder / "holder.json"
    lock = RunLock(path, me, _take(path, me, wait_seconds, notify, silence_seconds))
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(lock, done), name="holder", daemon=True)
    beat.start()
    try:
        yield lock
    finally:
        done.set()
        beat.join()
        if (now := _read(path)) is not None and now.token == me.token:
            path.unlink(missing_ok=True)


def _take(
    path: Path, me: LockOwner, wait_seconds: float, notify: Callable[[str], None], silence_seconds: float
) -> bool:
    deadline = time.monotonic() + wait_seconds
    waited = False
    watched = _Watched(me, silence_seconds)
    while not _create(path, me):
        other = _read(path)
        if other is not None:
            gone = watched.is_gone(path, other)
            if gone and _remove(path, other):
                continue
            if not gone and not waited:
                notify(_wait_message(other, me))
                waited = True
        if time.monotonic() > deadline:
            raise LockTimeoutError(
                f"{other or 'another'} has been training this run for more than {wait_seconds:.0f} s. Wait "
                "for it, or end it and run snakemake again."
            )
        time.sleep(POLL_SECONDS)
    return waited


def _wait_message(other: LockOwner, me: LockOwner) -> str:
    """A sentence on the holder that this process waits for."""
    if _is_earlier_start(other, me):
        return (
            f"an earlier start of {other} may still be at work; waiting for it to end, or to give no sign of "
            f"life for {LOST_SECONDS:.0f} s"
        )
    return f"{other} is training this run; waiting for it to end (scancel or kill it to train here)"


class _Watched:
    """A holder as it is seen over time.

    The times of its file are as the file's server keeps them and are compared with themselves alone:
    clocks may differ. Slurm is asked seldom, for many may wait at once.
    """

    def __init__(self, me: LockOwner, silence_seconds: float) -> None:
        self._me = me
        self._silence_seconds = silence_seconds
        self._mark: tuple[str, float] | None = None
        self._since = time.monotonic()
        self._asked = -ASK_SECONDS
        self._alive: bool | None = None

    def is_gone(self, path: Path, other: LockOwner) -> bool:
        """Whether the holder has ended, by what can be known here, or by its silence."""
        now = time.monotonic()
        with suppress(FileNotFoundError):
            mark = (other.token, path.stat().st_mtime)
            if mark != self._mark:
                if self._mark is None or self._mark[0] != other.token:
                    self._asked = -ASK_SECONDS
                self._mark, self._since = mark, now
        if now - self._asked >= ASK_SECONDS or other.job in {None, self._me.job}:
            self._alive, self._asked = _is_alive(other, self._me), now
        silence = self._silence_seconds
        if _is_earlier_start(other, self._me):
            silence = min(silence, LOST_SECONDS)
        return self._alive is False or (self._alive is None and now - self._since > silence)


def _is_earlier_start(other: LockOwner, me: LockOwner) -> bool:
    """Whether Slurm has started the holder's job anew since, as this one.

    It does so when the last start has ended, or when a node of it did not answer: then its processes may
    live, and write.
    """
    return other.job is not None and other.job == me.job and other.restart < me.restart


def _is_alive(other: LockOwner, me: LockOwner) -> bool | None:
    """Whether a holder still runs; None where nobody here can say."""
    if other.job is not None and other.job != me.job:
        return _job_is_active(other.job)
    if other.host == me.host:
        born = _start_ticks(other.pid)
        return born is not None and other.born in {"", born}
    return None


def _start_ticks(pid: int) -> str | None:
    """The start of a process, in ticks since boot; None for one that has ended, buried or not."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


def _job_is_active(job: str) -> bool | None:
    if shutil.which("squeue") is None:
        return None
    try:
        command = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        # the controller has forgotten the job, or is away for a moment
        return False if "Invalid job id" in answer.stderr else None
    state = answer.stdout.strip()
    return None if state == "NODE_FAIL" else state not in _ENDED


def _create(path: Path, me: LockOwner) -> bool:
    """Make the file with its content at once; false where there is one."""
    draft = path.with_name(f".{path.name}.{me.token}")
    draft.write_text(me.model_dump_json(), encoding="utf-8")
    try:
        os.link(draft, path)
    except FileExistsError:
        # a network file system may make the link and say that it was there
        now = _read(path)
        return now is not None and now.token == me.token
    finally:
        draft.unlink()
    return True


def _read(path: Path) -> LockOwner | None:
    try:
        return _parse(path.read_bytes())
    except FileNotFoundError:
        return None


def _parse(content: bytes) -> LockOwner:
    """A holder's file; one without a token where it is damaged."""
    try:
        return LockOwner.model_validate_json(content.decode("utf-8"))
    except (ValidationError, UnicodeDecodeError):
        return LockOwner(token="", host="an unknown host", pid=0, job=None, restart=0)


def _remove(path: Path, gone: LockOwner) -> bool:
    """Take away the file of a holder that is gone; false while another is about to.

    Of several who find it so, one alone has the right to: whoever makes the claim, which names that
    holder. Without it, the second would take away the file of the first.
    """
    claim = path.with_name(f".{path.name}.{gone.token or 'damaged'}.gone")
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        with suppress(FileNotFoundError):
            if time.time() - claim.stat().st_mtime > CLAIM_SECONDS:
                claim.unlink()  # whoever made it was killed before it did what follows
        return False
    try:
        now = _read(path)
        if now is not None and now.token == gone.token:
            path.unlink(missing_ok=True)
    finally:
        claim.unlink(missing_ok=True)
    return True


def _beat(lock: RunLock, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        lock.heartbeat()
