"""One rank's part of a checkpoint as a file, and the room for it.

torch writes it; read again it is with ``weights_only``, which makes tensors and plain values and runs
nothing.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import torch

from scalewise.execution.checkpoint_files import CheckpointError, FileSum

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNTOLD = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EINTR}
"""Errors of the system's call for room that say nothing of the room."""


class _Summed:
    """A file that sums what it is given.

    torch's writer does not survive an exception from below: the first one is kept, and the rest of the
    bytes goes nowhere.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        view = memoryview(data).cast("B")
        self.bytes += len(view)
        if self.error is None:
            self._sum.update(view)
            try:
                self._write_all(view)
            except OSError as error:
                self.error = error
        return len(view)

    def _write_all(self, view: memoryview) -> None:
        # near a limit the system takes a part and says nothing; the next write then fails
        while view:
            view = view[self._file.write(view) :]

    def flush(self) -> None:
        """Do nothing: torch calls this once, at the end."""

    @property
    def sum(self) -> FileSum:
        return FileSum(bytes=self.bytes, sha256=self._sum.hexdigest())


def save(path: Path, state: dict[str, Any]) -> FileSum:
    """Write a rank's state and flush it to disk.

    Args:
        path: A file in a folder that is not yet a checkpoint.
        state: Tensors and plain values.

    Returns:
        Size and sum of the bytes, by which the file is known again.

    Raises:
        CheckpointError: There is no room, or the disk does not take it; nothing is left of the file.
    """
    summed: _Summed | None = None
    try:
        with path.open("wb", buffering=0) as file:
            summed = _Summed(file)
            torch.save(state, cast(IO[bytes], summed))
            if summed.error is not None:
                raise summed.error
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise CheckpointError(why_not(error, path, summed.bytes if summed else 0)) from error
    return summed.sum


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read what ``save`` wrote, onto a device.

    Raises:
        CheckpointError: The file is another, such as a pickle of objects, or there is no memory for it.
        OSError: The file cannot be read.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        # torch's own words for what is no tensor advise to read it all the same
        foreign = isinstance(error, UnpicklingError)
        why = "it holds other objects" if foreign else str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path} cannot be loaded as a checkpoint of tensors: {why}") from error
    return state


def check_space(folder: Path, file_bytes: int, total_bytes: int) -> None:
    """Stop where checkpoints would find no room.

    The system is asked for the room itself, where the file system can tell without writing: free space
    says nothing of a quota.

    Args:
        folder: Made if missing.
        file_bytes: Size of the largest file.
        total_bytes: Size of all checkpoints that lie there at once.

    Raises:
        CheckpointError: There is not enough.
    """
    probe = folder / f".room-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and limit < file_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if shutil.disk_usage(folder).free < total_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with probe.open("wb") as file:
            _allocate(file.fileno(), min(total_bytes, limit) if limit > 0 else total_bytes)
    except OSError as error:
        raise CheckpointError(why_not(error, folder, total_bytes)) from error
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _allocate(descriptor: int, size: int) -> None:
    """Reserve room by Linux's own call: the C library's would write every block of some file systems."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "fallocate"):
        return
    library.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if library.fallocate(descriptor, 0, 0, size) and (code := ctypes.get_errno()) not in UNTOLD:
        raise OSError(code, os.strerror(code))


def why_not(error: OSError, path: Path, needed_bytes: int) -> str:
    """Say that nothing could be written: path, reason, bytes needed and free, and what to do."""
    what = error.strerror or str(error)
    there = path if path.is_dir() else path.parent
    try:
        free = f"{shutil.disk_usage(there).free:,} free"
    except OSError:
        free = "free space unknown"
    text = f"{path}: {what} ({needed_bytes:,} bytes needed, {free})"
    if error.errno == errno.EDQUOT:
        return f"{text}. Your quota there is spent: delete files, or ask for more."
    if error.errno == errno.EFBIG:
        return f"{text}. A file may not be so large here: raise `ulimit -f`."
    if error.errno in NO_ROOM:
        return f"{text}. Free space there; a quota may also be spent although space is free."
    return f"{text}. Look whether the folder can be written."
