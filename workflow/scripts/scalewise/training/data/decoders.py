"""The published formats of MNIST and CIFAR, and the sets that need no download, as arrays.

Archives are read as streams: nothing of them is extracted, and nothing in them can name a file here.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from scalewise.training.data.storage import Arrays, DatasetError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Bytes = NDArray[np.uint8]

MAX_UNPACKED_BYTES = 256 << 20
"""Most bytes of one file: the largest published one is 184 MB, and a bomb is more."""

CIFAR_MEMBERS: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar10": {
        "train": tuple(f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("cifar-10-batches-bin/test_batch.bin",),
    },
    "cifar100": {"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)},
}
_CIFAR_CLASSES = {"cifar10": 10, "cifar100": 100}
_CIFAR_PIXELS = 3 * 32 * 32


class FormatError(DatasetError):
    """A file that is not what its name says; the message names file, place and values."""


def decode_mnist(files: Mapping[str, Path]) -> Arrays:
    """Decode the four idx files: images of [samples, 1, height, width], labels of [samples].

    Args:
        files: Paths by their published names.

    Raises:
        FormatError: A file is damaged, or holds what MNIST does not.
    """
    arrays: Arrays = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(files[f"{prefix}-images-idx3-ubyte.gz"], 3)
        path = files[f"{prefix}-labels-idx1-ubyte.gz"]
        labels = read_idx(path, 1)
        _check_labels(labels, 10, str(path))
        arrays[f"{split}_images"] = images[:, None]
        arrays[f"{split}_labels"] = labels.astype(np.int64)
    return arrays


def read_idx(path: Path, dimensions: int) -> Bytes:
    """Read a gzipped idx file of bytes: a mark, the sizes as big-endian numbers of 4 bytes, then the values.

    Raises:
        FormatError: The file is something else, has other dimensions, or is cut or too long.
    """
    with _naming(path), gzip.open(path) as file:
        stream = _Bounded(file, MAX_UNPACKED_BYTES)
        head = _exactly(stream, 4 + 4 * dimensions)
        # 8: values of one byte
        if head[:4] != bytes([0, 0, 8, dimensions]):
            raise FormatError(f"begins with {head[:4].hex()}, not {bytes([0, 0, 8, dimensions]).hex()}")
        shape = [int.from_bytes(head[at : at + 4], "big") for at in range(4, len(head), 4)]
        count = int(np.prod(shape, dtype=object))
        if count > MAX_UNPACKED_BYTES:
            raise FormatError(f"says it has values of shape {shape}, {count:,} bytes")
        values = np.frombuffer(_exactly(stream, count), np.uint8).reshape(shape)
        if stream.read(1):
            raise FormatError(f"goes on after its {count:,} values")
    return values


def decode_cifar(dataset: str, archive: Path) -> Arrays:
    """Decode a binary archive: images of [samples, 3, 32, 32], labels of [samples], CIFAR-100's fine ones.

    Raises:
        FormatError: The archive is damaged, or holds what CIFAR's does not.
    """
    splits = CIFAR_MEMBERS[dataset]
    found = read_members(archive, {name for members in splits.values() for name in members})
    arrays: Arrays = {}
    # CIFAR-100 puts a coarse label first
    label_bytes = 1 if dataset == "cifar10" else 2
    record = label_bytes + _CIFAR_PIXELS
    for split, members in splits.items():
        parts = []
        for name in members:
            content = found[name]
            if not content or len(content) % record:
                raise FormatError(
                    f"{archive}: {name} has {len(content):,} bytes, no whole number of {record}-byte records"
                )
            part = np.frombuffer(content, np.uint8).reshape(-1, record)
            _check_labels(part[:, label_bytes - 1], _CIFAR_CLASSES[dataset], f"{archive}: {name}")
            parts.append(part)
        records = np.concatenate(parts)
        arrays[f"{split}_images"] = records[:, label_bytes:].reshape(-1, 3, 32, 32)
        arrays[f"{split}_labels"] = records[:, label_bytes - 1].astype(np.int64)
    return arrays


def read_members(archive: Path, wanted: set[str]) -> dict[str, bytes]:
    """Read the wanted members of a .tar.gz, all others passed over.

    Raises:
        FormatError: A member is missing, twice there, a link or device, or leads out of the archive.
    """
    found: dict[str, bytes] = {}
    with _naming(archive), gzip.open(archive) as unpacked:
        # bounds all that the archive may unpack to, long names and what is passed over among it
        stream = cast("io.BufferedReader", _Bounded(unpacked, MAX_UNPACKED_BYTES))
        with tarfile.open(fileobj=stream, mode="r|") as members:
            for member in members:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise FormatError(f"has a member that leads out of it, {member.name!r}")
                if not (member.isreg() or member.isdir()):
                    raise FormatError(f"has a member that is no file, {member.name!r} (a link or device)")
                name = str(path)
                if name not in wanted or not member.isreg():
                    continue
                if name in found:
                    raise FormatError(f"has {name!r} twice")
                content = members.extractfile(member)
                assert content is not None, "a regular file"
                found[name] = content.read()
        # behind the last member stands the sum of all
        while stream.read(1 << 20):
            pass
        if missing := sorted(wanted - found.keys()):
            raise FormatError(f"has no member {missing[0]!r}")
    return found


def decode_digits(test_samples: int) -> Arrays:
    """The 1,797 handwritten digits in scikit-learn (UCI Optical Recognition, 8x8, values 0 to 16)."""
    # only to prepare: no rank pays for the import
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
    names = ("train_images", "test_images", "train_labels", "test_labels")
    return dict(zip(names, split, strict=True))


class _Bounded(io.RawIOBase):
    """A stream that ends in an error where it would go on for ever."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self.stream = stream
        self.left = limit
        self.limit = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        content = self.stream.read1(len(view))
        self.left -= len(content)
        if self.left < 0:
            raise FormatError(f"unpacks to more than {self.limit:,} bytes")
        view[: len(content)] = content
        return len(content)


def _exactly(stream: io.RawIOBase, count: int) -> bytes:
    content = bytearray()
    while len(content) < count and (piece := stream.read(min(count - len(content), 1 << 20))):
        content += piece
    if len(content) != count:
        raise FormatError(f"ends after {len(content):,} of {count:,} bytes")
    return bytes(content)


def _check_labels(labels: Bytes, classes: int, place: str) -> None:
    if len(labels) and labels.max() >= classes:
        first = int(np.argmax(labels >= classes))
        raise FormatError(f"{place}: record {first} has label {labels[first]}, not 0 to {classes - 1}")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Raise all errors of the formats as one type, with the file in front."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    except (gzip.BadGzipFile, tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise FormatError(f"{path}: cannot be unpacked ({error})") from error
