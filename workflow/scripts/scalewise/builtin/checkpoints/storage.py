"""Write and read one rank's file of a checkpoint, and check that there is room for it."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import torch

from scalewise.execution.checkpoint_files import CheckpointError, FileSum
from scalewise.execution.os_errors import describe_write_error


class _Summed:
    """A file that counts and sums the bytes written to it.

    torch's writer cannot handle an exception here: the first is kept, and the remaining bytes are dropped.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        size = memoryview(data).nbytes
        self.bytes += size
        if self.error is None:
            self.sha256.update(data)
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Do nothing: torch calls this at the end."""


def save(path: Path, state: dict[str, Any]) -> FileSum:
    """Write a rank's state and flush it to disk.

    Args:
        path: A file in a folder that is not yet a checkpoint.
        state: Tensors and plain values.

    Returns:
        Size and checksum of the file.

    Raises:
        CheckpointError: The disk has no room for it, or fails; no part of the file is left.
    """
    needed_bytes = 0
    try:
        with path.open("wb") as file:
            summed = _Summed(file)
            torch.save(state, cast(IO[bytes], summed))
            needed_bytes = summed.bytes
            if summed.error is not None:
                raise summed.error
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise CheckpointError(describe_write_error(error, path, needed_bytes)) from error
    return FileSum(bytes=needed_bytes, sha256=summed.sha256.hexdigest())


def load(path: Path, device: torch.device) -> dict[str, Any]:
    """Read a file that ``save`` wrote onto a device: tensors and plain values; no code of the file runs.

    Raises:
        CheckpointError: The file holds something else, such as a pickle, or does not fit in memory.
        OSError: The file cannot be read.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        # torch's own message advises to load other objects all the same
        is_foreign = isinstance(error, UnpicklingError)
        reason = "it holds other objects" if is_foreign else str(error).partition("\n")[0]
        raise CheckpointError(f"{path} cannot be loaded as a checkpoint of tensors: {reason}") from error
    return state


def check_space(folder: Path, file_bytes: int, total_bytes: int) -> None:
    """Check that checkpoints can be written.

    A quota of which something is left is found later, as the first checkpoint is written: no call of the
    system states it for every file system.

    Args:
        folder: Created if missing.
        file_bytes: Size of the largest file.
        total_bytes: Size of all checkpoints that are there at once.

    Raises:
        CheckpointError: There is no room, or the folder cannot be written.
    """
    with explained(folder, total_bytes):
        folder.mkdir(parents=True, exist_ok=True)
        if 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] < file_bytes:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if shutil.disk_usage(folder).free < total_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\0")


@contextmanager
def explained(path: Path, needed_bytes: int) -> Iterator[None]:
    """Raise an OSError of this block as a CheckpointError that explains it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(describe_write_error(error, path, needed_bytes)) from error
