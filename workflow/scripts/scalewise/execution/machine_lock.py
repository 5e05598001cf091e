"""One training at a time on a machine, whoever starts it: each has the machine to itself."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.2
MACHINE_WAIT_SECONDS = 24 * 3600.0

ENVIRONMENT_VARIABLE = "SCALEWISE_MACHINE_LOCK"
"""The path of another lock file, for a machine on which none of the folders can be used."""

FOLDERS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - the same for every user is the point
"""The first that every user may write to. Never TMPDIR, which is another in every shell that sets it."""


class MachineBusyError(Exception):
    """Another training held the machine for longer than the wait allowed."""


def lock_path(environ: Mapping[str, str]) -> Path:
    """The lock file of this machine, the same for all of its users."""
    if chosen := environ.get(ENVIRONMENT_VARIABLE):
        return Path(chosen)
    # by the mode, not by trying: root must not choose another folder than everybody else
    for_all = (folder for folder in FOLDERS if folder.is_dir() and folder.stat().st_mode & 0o002)
    return next(for_all, FOLDERS[-1]) / "scalewise-training.lock"


@contextmanager
def machine_lock(
    wait_seconds: float,
    notify: Callable[[str], None],
    path: Path | None = None,
) -> Iterator[None]:
    """Hold the machine for one training run.

    A lock of the kernel's: it goes with the process, however that ends.

    Args:
        wait_seconds: The longest time to wait for another training to end.
        notify: Called once when there is something to wait for.
        path: The lock file; by default one for all users of this machine.

    Raises:
        MachineBusyError: The wait was not long enough.
        OSError: The lock file cannot be made or opened.
    """
    path = path or lock_path(os.environ)
    deadline = time.monotonic() + wait_seconds
    notified = False
    while (descriptor := _try_to_lock(path)) is None:
        if not notified:
            notify(f"waiting: another Scalewise run is using this machine (lock file {path})")
            notified = True
        if time.monotonic() > deadline:
            raise MachineBusyError(
                f"another training has held {path} for more than {wait_seconds:.0f} s. "
                "Find it with `fuser` on that file, or wait for it to end."
            )
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


def _try_to_lock(path: Path) -> int | None:
    """The descriptor that holds the lock; None while another process holds it."""
    descriptor = _open_for_all(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # old files of a temporary folder are removed: who holds a file without a name holds nothing
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _open_for_all(path: Path) -> int:
    """The lock file, open for reading, which suffices to lock it; made where there is none."""
    # no O_CREAT on another user's file: the kernel forbids that in sticky folders such as /tmp
    try:
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY)
        _create_for_all(path)
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise OSError(
            error.errno or errno.EIO,
            f"{error.strerror}; trainings on this machine take turns by this file. "
            f"{ENVIRONMENT_VARIABLE} names another one",
            str(path),
        ) from error


def _create_for_all(path: Path) -> None:
    """Make the file, readable by every user from the moment on at which it has its name."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.fchmod(descriptor, 0o644)  # whatever the umask
        with suppress(FileExistsError):  # another was faster
            os.link(draft, path)
    finally:
        os.close(descriptor)
        draft.unlink()
