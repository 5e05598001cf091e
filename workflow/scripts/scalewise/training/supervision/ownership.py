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
POLL_SECONDS = 0.5
ASK_SECONDS = 20.0
"""Between two questions to Slurm about a holder's job."""
CLAIM_SECONDS = 600.0
"""A claim to a holder's file takes milliseconds; one this old, by any clock, has been left."""

_ENDED = frozenset(
    {
        *("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"),
        *("NODE_FAIL", "BOOT_FAIL", "PREEMPTED"),
    }
)
"""States of a Slurm job that does not run any more; none at all for one that the controller has forgotten."""


class RunBusyError(Exception):
    """Another training holds the run for longer than the wait allowed."""


class Holder(BaseModel):
    """Who trains a run.

    Args:
        token: of this one holding.
        host: where its supervisor runs.
        pid: of the supervisor there.
        job: Slurm's id; None outside Slurm.
        restart: how often Slurm has started that job anew.
        born: when that process started, in ticks since boot; numbers of processes are given anew.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    host: str
    pid: int
    job: str | None
    restart: int
    born: str = ""

    @classmethod
    def me(cls, in_job: bool = True) -> Holder:
        """This process.

        Args:
            in_job: it is what its Slurm job does; false in a session that somebody works in.
        """
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            job=os.environ.get("SLURM_JOB_ID") if in_job else None,
            restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")) if in_job else 0,
            born=_born(os.getpid()) or "",
        )

    def __str__(self) -> str:
        return f"Slurm job {self.job} on {self.host}" if self.job else f"process {self.pid} on {self.host}"


@contextmanager
def owned_run(
    folder: Path,
    wait_seconds: float,
    notify: Callable[[str], None],
    me: Holder | None = None,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[bool]:
    """Hold a run's folder while training it.

    Args:
        folder: of the run's records.
        wait_seconds: how long to wait for another holder to end.
        notify: told once whom this waits for.
        me: who holds it; by default this process.
        silence_seconds: after which a holder of whom nothing else is known counts as gone.

    Yields:
        whether it had to wait for another that was alive, which may have left the records.

    Raises:
        RunBusyError: the wait was not long enough.
    """
    me = me or Holder.me()
    path = folder / "holder.json"
    waited = _take(path, me, wait_seconds, notify, silence_seconds)
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, done), name="holder", daemon=True)
    beat.start()
    try:
        yield waited
    finally:
        done.set()
        beat.join()
        if (now := _read(path)) is not None and now.token == me.token:
            path.unlink(missing_ok=True)


def _take(
    path: Path, me: Holder, wait_seconds: float, notify: Callable[[str], None], silence_seconds: float
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
                notify(
                    f"{other} is training this run; waiting for it to end (scancel or kill it to train here)"
                )
                waited = True
        if time.monotonic() > deadline:
            raise RunBusyError(
                f"{other or 'another'} has been training this run for more than {wait_seconds:.0f} s. Wait "
                "for it, or end it and run snakemake again."
            )
        time.sleep(POLL_SECONDS)
    return waited


class _Watched:
    """A holder as it is seen over time.

    The times of its file are as the file's server keeps them and are compared with themselves alone:
    clocks may differ. Slurm is asked seldom, for many may wait at once.
    """

    def __init__(self, me: Holder, silence_seconds: float) -> None:
        self._me = me
        self._silence_seconds = silence_seconds
        self._mark: tuple[str, float] | None = None
        self._since = time.monotonic()
        self._asked = -ASK_SECONDS
        self._alive: bool | None = None

    def is_gone(self, path: Path, other: Holder) -> bool:
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
        return self._alive is False or (self._alive is None and now - self._since > self._silence_seconds)


def _is_alive(other: Holder, me: Holder) -> bool | None:
    """Whether a holder still runs; None where nobody here can say."""
    if other.job is not None and other.job != me.job:
        return _job_is_active(other.job)
    if other.job is not None and other.restart < me.restart:
        return False  # Slurm starts a job anew when its last start has ended
    if other.host == me.host and Path("/proc/self").exists():
        born = _born(other.pid)
        return born is not None and other.born in {"", born}
    return None


def _born(pid: int) -> str | None:
    """When a process started, in ticks since boot; None for one that has ended, buried or not."""
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
    return answer.stdout.strip() not in _ENDED


def _create(path: Path, me: Holder) -> bool:
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


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValidationError, UnicodeDecodeError):
        return Holder(token="", host="an unknown host", pid=0, job=None, restart=0)


def _remove(path: Path, gone: Holder) -> bool:
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


def _beat(path: Path, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):
            os.utime(path)
