"""A disk of a few megabytes for one command, a tmpfs in a new mount namespace; or small files."""

from __future__ import annotations

import resource
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest


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
