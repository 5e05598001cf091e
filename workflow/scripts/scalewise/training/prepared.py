"""Write prepared files: tensors that every rank maps into memory, with a checksum of all of them."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from scalewise.records import replaced_whole
from scalewise.training.data import CHECKSUM, DatasetError, checksum


def write(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Store tensors as a safetensors file under the final name, whole or not at all, with a new file's mode.

    Args:
        tensors: Contiguous, and none of them a view of another.
        path: The file to write.

    Raises:
        DatasetError: The file cannot be written; no part of it is left.
    """
    with (
        writable(path),
        # the library may leave parts under other names, and lets only the owner read its file
        TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
        replaced_whole(path) as part,
    ):
        part.touch()
        whole = Path(folder) / path.name
        save_file(dict(tensors), whole, {CHECKSUM: checksum(tensors)})
        whole.chmod(stat.S_IMODE(part.stat().st_mode))
        whole.replace(part)


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Make the folder of a file; if anything there cannot be written, name the file and the fix.

    Raises:
        DatasetError: Something could not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise DatasetError(
            f"{path}: cannot be written ({getattr(error, 'strerror', None) or error}). Make room, or make "
            "the folder writable."
        ) from error
