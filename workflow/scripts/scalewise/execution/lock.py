"""Let one process at a time train a run, and without a scheduler one training at a time use a machine.

A Snakemake that was killed leaves its jobs in the queue, and the next one does not know of them. Kernel locks
do not reach across every parallel file system. So the lock of a run is a folder with one file, named after
the token of the process that holds the run. That process sets the file's time every few seconds.

free to held: the holder writes a draft of the folder and renames it to ``lock``. The file system refuses this
    unless ``lock`` is missing or empty.
held to free: the holder deletes its file, or another process does once the holder is gone. No process can
    delete the file of the next holder by mistake.

The lock of a machine is an abstract Unix socket: all users see its name, and the kernel frees it when the
process ends, even if it is killed. Processes in another network namespace do not see it.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scalewise.execution.slurm import is_active

LOCK = "lock"
HEARTBEAT_SECONDS = 5.0
SILENCE_SECONDS = 60.0
"""A holder whose file keeps its time for this long is gone, if its state is unknown otherwise."""
LOST_SECONDS = 3 * HEARTBEAT_SECONDS
"""The same for an earlier start of this process's Slurm job: it has usually ended."""
POLL_SECONDS, QUERY_SECONDS = 0.5, 20.0
"""Time between two looks at the lock, and between two queries to Slurm about the holder's job."""

MACHINE_WAIT_SECONDS = 24 * 3600.0
MACHINE_LOCK = "SCALEWISE_MACHINE_LOCK"
"""Variable with the name of another lock: trainings wait only for those with the same name."""


class LockError(Exception):
    """Another process held the run or the machine for longer than the wait allowed."""


class Owner(BaseModel):
    """A process that trains a run or waits to.

    Args:
        token: Names this use of the lock.
        job: Slurm's job id; None outside Slurm.
        restart: The number of times that Slurm has requeued that job.
        start_ticks: The start of the process, in ticks since boot: ids of processes are used again.
    """

    model_config = ConfigDict(frozen=True)

    token: str
    host: str
    pid: int
    job: str | None
    restart: int
    start_ticks: str = ""

    @classmethod
    def this_process(cls, in_job: bool = True) -> Owner:
        """Describe this process; it does the work of its Slurm job, or is a user's session inside a job."""
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            job=os.environ.get("SLURM_JOB_ID") if in_job else None,
            restart=int(os.environ.get("SLURM_RESTART_COUNT", "0")) if in_job else 0,
            start_ticks=_start_ticks(os.getpid()) or "",
        )

    def __str__(self) -> str:
        return f"Slurm job {self.job} on {self.host}" if self.job else f"process {self.pid} on {self.host}"

    def is_alive(self, asking: Owner) -> bool | None:
        """Whether it runs, as another process can find out; None if unknown."""
        if self.job is not None and self.job != asking.job:
            return is_active(self.job)
        if self.host == asking.host:
            ticks = _start_ticks(self.pid)
            return ticks is not None and self.start_ticks in {"", ticks}
        return None

    def is_earlier_start_of(self, other: Owner) -> bool:
        """Whether Slurm has requeued its job since, and started it again as the other process.

        If one of its nodes had not answered, the processes there may still run and write.
        """
        return self.job is not None and self.job == other.job and self.restart < other.restart


@contextmanager
def lock_run(
    folder: Path,
    wait_seconds: float,
    notify: Callable[[str], None],
    owner: Owner | None = None,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[bool]:
    """Hold a run's folder while training it; yields whether this process had to wait for another holder.

    Args:
        folder: Holds the run's records.
        wait_seconds: The longest time to wait for another holder to end.
        notify: Called once, with a sentence on the holder that this process waits for.
        owner: The process that takes the lock; by default this one.
        silence_seconds: Replaces ``SILENCE_SECONDS``.

    Raises:
        LockError: The wait was not long enough.
        OSError: The folder cannot be written.
    """
    owner, path = owner or Owner.this_process(), folder / LOCK
    waited = _take(path, owner, wait_seconds, notify, silence_seconds)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # it is gone, or another process has taken the run
                os.utime(path / owner.token)

    heartbeats = threading.Thread(target=beat, name="lock", daemon=True)
    heartbeats.start()
    try:
        yield waited
    finally:
        done.set()
        heartbeats.join()
        (path / owner.token).unlink(missing_ok=True)
        with suppress(OSError):  # another process may hold it by now
            path.rmdir()


def _take(
    path: Path, owner: Owner, wait_seconds: float, notify: Callable[[str], None], silence_seconds: float
) -> bool:
    """Wait until this process holds the lock; returns whether it had to wait for another process."""
    deadline, waited = time.monotonic() + wait_seconds, False
    sign, sign_at, queried_at = (Path(), 0.0), 0.0, -math.inf
    is_alive: bool | None = None
    while True:
        now, held = time.monotonic(), _read(path)
        if held is None and _enter(path, owner):
            return waited
        if held is not None:
            file, changed_at, holder = held
            if sign != (file, changed_at):  # times of one file are compared only: clocks may differ
                queried_at = queried_at if sign[0] == file else -math.inf
                sign, sign_at = (file, changed_at), now
            # queries to Slurm are rare, as many processes may wait at once
            asks_slurm = holder is not None and holder.job not in {None, owner.job}
            if holder is None:
                is_alive = None
            elif not asks_slurm or now - queried_at >= QUERY_SECONDS:
                is_alive, queried_at = holder.is_alive(owner), now
            silence = silence_seconds
            if holder is not None and holder.is_earlier_start_of(owner):
                silence = min(silence, LOST_SECONDS)
            if is_alive is False or (is_alive is None and now - sign_at > silence):
                file.unlink(missing_ok=True)
                continue
            if not waited:
                waited = True
                notify(
                    f"{holder or 'another process'} is training this run; waiting for it to end (scancel or "
                    "kill it to train here)"
                )
        if now > deadline:
            other = (held and held[2]) or "another process"
            raise LockError(
                f"{other} has been training this run for more than {wait_seconds:.0f} s. Wait for it, or end "
                "it and run snakemake again."
            )
        time.sleep(POLL_SECONDS)


def _enter(path: Path, owner: Owner) -> bool:
    """Take a free lock; returns False if another process was faster."""
    draft = path.with_name(f".{path.name}.{owner.token}")
    try:
        draft.mkdir()
        (draft / owner.token).write_text(owner.model_dump_json(), encoding="utf-8")
        draft.rename(path)
    except OSError as error:
        # a network file system may rename a folder and report that it has not
        is_held_here = (path / owner.token).exists()
        if not is_held_here and error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        return is_held_here
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _read(path: Path) -> tuple[Path, float, Owner | None] | None:
    """Return the file of a lock's holder, its time, and the holder; None if the lock is free.

    The holder is None if the file is damaged, as after a crash of its machine.
    """
    try:
        for each in path.iterdir():
            # opened: a network file system may remember an old time
            with each.open("rb") as file:
                owner = None
                with suppress(ValidationError):
                    owner = Owner.model_validate_json(file.read())
                return each, os.fstat(file.fileno()).st_mtime, owner
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ESTALE}:
            raise
    return None


def _start_ticks(pid: int) -> str | None:
    """Return the start of a process in ticks since boot; None if it has ended, also as a zombie."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else fields[18]


# ---- the machine


@contextmanager
def machine_lock(
    wait_seconds: float, notify: Callable[[str], None], name: str | None = None
) -> Iterator[None]:
    """Hold the machine for one training.

    Args:
        wait_seconds: The longest time to wait for another training to end.
        notify: Called once, with a sentence on the process that this one waits for.
        name: Name of the lock; by default from the environment, or the one for all users of the machine.

    Raises:
        LockError: The wait was not long enough.
    """
    name = name or os.environ.get(MACHINE_LOCK, "")
    # hashed: the kernel takes 107 bytes
    address = f"\0scalewise-training-{sha256(name.encode()).hexdigest()[:16]}"
    deadline, notified = time.monotonic() + wait_seconds, False
    while True:
        with socket.socket(socket.AF_UNIX) as lock:
            try:
                lock.bind(address)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                lock.listen(128)
                yield
                return
        if not notified:
            notified = True
            notify(f"waiting: another Scalewise run is using this machine ({_holder(address)})")
        if time.monotonic() > deadline:
            raise LockError(
                f"{_holder(address)} has been training on this machine for more than {wait_seconds:.0f} s. "
                "Wait for it to end, or end it, and give the same command again."
            )
        time.sleep(POLL_SECONDS)


def _holder(address: str) -> str:
    """Return the name of the process that holds the machine, from the kernel."""
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.setblocking(False)
        try:
            waiting.connect(address)
            credentials = waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:  # it has just ended, or too many processes wait
            return "another process"
    pid, _user, _group = struct.unpack("3i", credentials)
    return f"process {pid}" if pid else "another process"
