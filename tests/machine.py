"""The machine as tests need it: cores, a disk that is soon full, the ports at which a process listens."""

import os
import resource
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

TOO_FEW = len(os.sched_getaffinity(0)) < 2
REASON = "several processes compute at once: needs 2 CPU cores"

needs_two_cores = pytest.mark.skipif(TOO_FEW, reason=REASON)


def skip_without_two_cores() -> None:
    """For a fixture, which takes no mark."""
    if TOO_FEW:
        pytest.skip(REASON)


# --- a disk of a few megabytes, or small files -----------------------------------------------------------


@cache
def cannot_mount() -> str:
    """Why this machine gives no namespace to mount in; empty where it does."""
    try:
        ended = subprocess.run(
            [*_namespace(), "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        return f"needs unshare: {error}"
    return f"needs a mount namespace: {ended.stderr.strip()}" if ended.returncode else ""


def _namespace() -> list[str]:
    # as another user than root, in a user namespace; its processes are then those of its root
    return ["unshare", "--map-root-user", "--mount"]


needs_small_disk = pytest.mark.skipif(bool(cannot_mount()), reason=cannot_mount() or "can mount")


def on_small_disk(folder: Path, size: str, command: Sequence[str]) -> list[str]:
    """A command that sees an empty disk in place of a folder, and is itself the process that is started.

    Args:
        folder: where the disk is; made if missing. Others see what was in it before, and so do all once the
            command has ended.
        size: of the disk, as tmpfs takes it: ``20m``.
        command: what to run.
    """
    place = shlex.quote(str(folder))
    script = f"mkdir -p {place} && mount -t tmpfs -o size={size} tmpfs {place} && exec {shlex.join(command)}"
    return [*_namespace(), "sh", "-c", script]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes, as with ``ulimit -f``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def seen_by(pid: int, path: Path) -> Path:
    """The way to a path as a process in another namespace sees it."""
    return Path(f"/proc/{pid}/root{path.absolute()}")


# --- processes and ports ---------------------------------------------------------------------------------


def processes_in(folder: Path) -> list[tuple[str, psutil.Process]]:
    """Return the processes that run in a folder or name it, with their command lines."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if process.status() != psutil.STATUS_ZOMBIE and (
                str(folder) in command or Path(process.cwd()).is_relative_to(folder)
            ):
                found.append((command, process))
    return found


LISTENS = "0A"
"""How the kernel spells the state of a socket that accepts connections."""


def listening(pid: int) -> set[str]:
    """The addresses that a process accepts connections at, in its own network namespace."""
    process = Path(f"/proc/{pid}")
    try:
        held = set()
        for one in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # it has been closed since
                held.add(str(one.readlink()))
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in (process / "net" / table).read_text().splitlines()[1:]
        ]
    except OSError:
        return set()  # it has ended
    return {row[1] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in held}
