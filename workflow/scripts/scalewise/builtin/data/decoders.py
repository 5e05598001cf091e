"""Read MNIST, CIFAR and the handwritten digits as arrays.

Archives are read in memory and nothing is extracted. torchvision's readers take unpacked files of MNIST and
pickles of CIFAR.
"""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from scalewise.builtin.data.datasets import DatasetError

Arrays = dict[str, NDArray[np.generic]]
"""Images and labels of both splits, by their names in ``Dataset``."""

CIFAR = {
    "cifar10": {
        "train": [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)],
        "test": ["cifar-10-batches-bin/test_batch.bin"],
    },
    "cifar100": {"train": ["cifar-100-binary/train.bin"], "test": ["cifar-100-binary/test.bin"]},
}
"""Members of the archives that hold the images of each split."""


def decode_mnist(files: Mapping[str, Path]) -> Arrays:
    """Decode the four idx files: images of [samples, 1, height, width], labels of [samples].

    Args:
        files: Paths by their published names.

    Raises:
        DatasetError: A file is damaged, or holds something else; the message names it.
    """
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        arrays[f"{split}_images"] = _read_idx(files[f"{prefix}-images-idx3-ubyte.gz"], 3)[:, None]
        path = files[f"{prefix}-labels-idx1-ubyte.gz"]
        arrays[f"{split}_labels"] = _checked(_read_idx(path, 1), 10, str(path))
    return arrays


def decode_cifar(dataset: str, archive: Path) -> Arrays:
    """Decode a binary archive: images of [samples, 3, 32, 32], labels of [samples], CIFAR-100's fine ones.

    Raises:
        DatasetError: The archive is damaged, or holds something else; the message names file and member.
    """
    members = _read_members(archive)
    # CIFAR-100 puts a coarse label first
    classes, label_bytes = (10, 1) if dataset == "cifar10" else (100, 2)
    record = label_bytes + 3 * 32 * 32
    arrays: Arrays = {}
    for split, names in CIFAR[dataset].items():
        for name in names:
            if name not in members:
                raise DatasetError(f"{archive}: {name} is missing.")
            if not members[name] or len(members[name]) % record:
                raise DatasetError(
                    f"{archive}: {name} has {len(members[name]):,} bytes, not a whole number of "
                    f"{record}-byte records."
                )
        records = np.frombuffer(b"".join(members[name] for name in names), np.uint8).reshape(-1, record)
        arrays[f"{split}_images"] = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        labels = records[:, label_bytes - 1]
        arrays[f"{split}_labels"] = _checked(labels, classes, f"{archive}: {', '.join(names)}")
    return arrays


def decode_digits(test_samples: int) -> Arrays:
    """Return the 1,797 handwritten digits in scikit-learn (UCI Optical Recognition, 8x8, values 0 to 16)."""
    # takes seconds to import, and only the digits need it
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(
        images.reshape(-1, 1, 8, 8).astype(np.uint8),
        labels.astype(np.int64),
        test_size=test_samples,
        stratify=labels,
        random_state=0,
    )
    return dict(zip(("train_images", "test_images", "train_labels", "test_labels"), split, strict=True))


def _read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an idx file of bytes: a mark, the sizes as big-endian numbers of 4 bytes, then the values."""
    content = _unpack(path)
    head = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4)]
    # 8: values of one byte
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) - head != math.prod(shape):
        raise DatasetError(
            f"{path}: is not an idx file of bytes in {dimensions} dimensions: it begins with "
            f"{content[:head].hex()} and has {len(content):,} bytes."
        )
    return np.frombuffer(content, np.uint8)[head:].reshape(shape)


def _read_members(archive: Path) -> dict[str, bytes]:
    """Read the files in a .tar.gz, by their names."""
    content, members = io.BytesIO(_unpack(archive)), {}
    try:
        with tarfile.open(fileobj=content, mode="r:") as opened:
            for member in opened:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise DatasetError(f"{archive}: has a member that leads out of it, {member.name!r}.")
                if not (member.isreg() or member.isdir()):
                    raise DatasetError(f"{archive}: has a link or a device as member {member.name!r}.")
                if (file := opened.extractfile(member)) is not None:
                    members[str(path)] = file.read()
    except tarfile.TarError as error:
        raise DatasetError(f"{archive}: cannot be unpacked ({error}).") from error
    return members


def _unpack(path: Path) -> bytes:
    """Return the content of a gzip file, which its own checksum protects."""
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: cannot be unpacked ({error}).") from error


def _checked(labels: NDArray[np.uint8], classes: int, place: str) -> NDArray[np.uint8]:
    if labels.size and labels.max() >= classes:
        first = int(np.argmax(labels >= classes))
        raise DatasetError(f"{place}: record {first} has label {labels[first]}, not 0 to {classes - 1}.")
    return labels
