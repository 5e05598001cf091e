"""Prepared files: tensors that every rank maps into memory, with a checksum of all of them.

Datasets and pretrained weights are safetensors files: no rank reads a pickle, and the ranks of a node share
the pages of a file.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from scalewise.records import replaced_whole

CHECKSUM = "sha256"
"""Name of the checksum in the metadata of a prepared file."""


class DatasetError(ValueError):
    """Data or weights that must not be trained on; the message names the file, the values and the fix."""


@dataclass(frozen=True)
class Dataset:
    """Images and labels of both splits.

    Args:
        train_images: uint8, [samples, channels, height, width].
        train_labels: int64, [samples].
        test_images: uint8, [samples, channels, height, width].
        test_labels: int64, [samples].
        classes: Number of classes; labels are 0 to one less.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int


def load(path: Path) -> Dataset:
    """Map a prepared dataset into memory.

    Raises:
        DatasetError: The file is missing or damaged.
    """
    tensors = read(path)
    return Dataset(**tensors, classes=int(tensors["train_labels"].max()) + 1)


def read(path: Path) -> dict[str, torch.Tensor]:
    """Map the tensors of a prepared file into memory, once all of them have been compared with its checksum.

    Raises:
        DatasetError: The file is missing or damaged.
    """
    reason = "it differs from what was stored"
    try:
        with safe_open(path, "pt") as file:
            stored = (file.metadata() or {}).get(CHECKSUM)
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if stored == _checksum(tensors):
            return tensors
    except FileNotFoundError as error:
        raise DatasetError(
            f"the prepared file {path} is missing. Give the same command again: it prepares the data."
        ) from error
    except (SafetensorError, OSError) as error:
        reason = str(error)
    raise DatasetError(
        f"the prepared file {path} is damaged ({reason}). Delete it and give the same command again."
    )


def write(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Store tensors under the final name, whole or not at all.

    Args:
        tensors: Contiguous, and none of them a view of another.
        path: The file to write.

    Raises:
        DatasetError: The file cannot be written; no part of it is left.
    """
    with writable(path):
        save_whole(tensors, path, {CHECKSUM: _checksum(tensors)})


def save_whole(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors and metadata as a safetensors file, whole or not at all, with the mode of a new file."""
    with (
        # the library may leave parts under other names, and lets only the owner read its file
        TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder,
        replaced_whole(path) as part,
    ):
        part.touch()
        whole = Path(folder) / path.name
        save_file(dict(tensors), whole, metadata)
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


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the sha256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
