"""A dataset on disk: one safetensors file, written in one pass and proved when it is mapped.

It is written here piece by piece, for safetensors' own writer would hold the whole of it in memory
twice; a sum of each piece stands in its header.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]
"""Arrays of a dataset by the names in ``ORDER``."""

# labels first: they are small, and proved whole each time
ORDER = ("train_labels", "test_labels", "train_images", "test_images")

PIECE_BYTES = 1 << 20
MAX_PIECES = 8192
"""Most pieces of a file, which keeps its header small: above 8 GiB pieces grow."""

VERIFY_BYTES = 256 << 20
"""Bytes that are read and proved at each start of a rank: all of CIFAR, a sample of more."""

_TYPES = {np.dtype(np.uint8): "U8", np.dtype(np.int64): "I64"}


class DatasetError(ValueError):
    """Data that must not be trained on; the message names the file, the values and the fix."""


class DamagedFileError(ValueError):
    """A file that differs from what was stored; the message says where."""


@contextmanager
def scratch_folder(destination: Path) -> Iterator[Path]:
    """A folder beside a file, for arrays that memory need not hold; gone afterwards."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".part", dir=destination.parent)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def scratch_array(folder: Path, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """An array of uint8 zeros on disk, of which the kernel keeps in memory what fits."""
    return np.memmap(folder / name, np.uint8, "w+", shape=shape)


def write(arrays: Arrays, destination: Path) -> None:
    """Store four arrays, images of uint8 and labels of int64, under the final name, whole or not at all.

    Raises:
        OSError: The file cannot be written; no part of it is left.
    """
    total = sum(arrays[name].nbytes for name in ORDER)
    piece = _piece_bytes(total)
    sums = [0] * math.ceil(total / piece)
    temporary = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(_header(arrays, piece, sums))
            for index, content in enumerate(_pieces(arrays, piece)):
                file.write(content)
                sums[index] = zlib.crc32(content)
            file.seek(0)
            file.write(_header(arrays, piece, sums))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(destination)
    finally:
        temporary.unlink(missing_ok=True)


def verify(path: Path, at_most_bytes: int = VERIFY_BYTES) -> None:
    """Compare a stored file with the sums in its header.

    The labels are always read, and all of a file that is not larger than the limit. Of a larger
    one, pieces drawn anew each time: every rank of every run looks at others.

    Raises:
        DamagedFileError: A piece differs, or the file has no sums.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size - 8 - length
        if size < 0:
            raise DamagedFileError("it ends within its header")
        try:
            header = json.loads(file.read(length))
            metadata = header.pop("__metadata__")
            piece, sums = int(metadata["piece_bytes"]), metadata["crc32"].split()
            label_bytes = header["test_labels"]["data_offsets"][1]
            entries_sum = metadata["entries_crc32"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise DamagedFileError("it has no sums of its pieces") from error
        if entries_sum != _entries_sum(header):
            raise DamagedFileError("its header differs from what was stored")
        if piece <= 0 or len(sums) != math.ceil(size / piece):
            raise DamagedFileError(f"it has {len(sums)} sums for {size:,} bytes")
        chosen = set(range(math.ceil(label_bytes / piece)))
        others = range(len(chosen), len(sums))
        budget = max(at_most_bytes // piece, 1)
        # a generator of its own: the training's are not touched
        drawn = others if len(sums) <= budget else random.Random().sample(others, min(budget, len(others)))  # noqa: S311
        for index in sorted(chosen | set(drawn)):
            file.seek(8 + length + index * piece)
            if f"{zlib.crc32(file.read(piece)):08x}" != sums[index]:
                raise DamagedFileError(
                    f"it differs from what was stored, from byte {8 + length + index * piece:,} on"
                )


def _header(arrays: Arrays, piece: int, sums: list[int]) -> bytes:
    """The file's header, equally long whatever the sums are."""
    entries: dict[str, object] = {}
    offset = 0
    for name in ORDER:
        array = arrays[name]
        entries[name] = {
            "dtype": _TYPES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    metadata = {
        "piece_bytes": str(piece),
        "entries_crc32": _entries_sum(entries),
        "crc32": " ".join(f"{value:08x}" for value in sums),
    }
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # numbers of 8 bytes begin where such may
    return len(text).to_bytes(8, "little") + text


def _entries_sum(entries: Mapping[str, object]) -> str:
    """Checksum of names, types, shapes and places of the arrays."""
    return f"{zlib.crc32(json.dumps(entries, sort_keys=True).encode()):08x}"


def _pieces(arrays: Arrays, piece: int) -> Iterator[bytes]:
    """Yield all bytes in order, in equal pieces across the borders of arrays; the last may be shorter."""
    waiting = bytearray()
    for name in ORDER:
        flat = arrays[name].reshape(-1).view(np.uint8)
        for begin in range(0, flat.size, PIECE_BYTES):
            waiting += flat[begin : begin + PIECE_BYTES].data
            while len(waiting) >= piece:
                yield bytes(waiting[:piece])
                del waiting[:piece]
    if waiting:
        yield bytes(waiting)


def _piece_bytes(total: int) -> int:
    return PIECE_BYTES * max(math.ceil(total / (MAX_PIECES * PIECE_BYTES)), 1)
