"""Hashes of the files that define a run beside its settings: a checkpoint of other data is not resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

LONGEST_HEADER = 64 << 20
"""Bytes of the longest header that is read; a longer one is none of a prepared file."""


def input_hashes(dataset: Path, weights: Path | None) -> dict[str, str]:
    """Hashes by the name that a user knows each input by: ``dataset``, ``weights``.

    Args:
        dataset: The prepared file; its header holds the checksums of all of its pieces.
        weights: The file that the training begins from; None for random weights.

    Raises:
        OSError: A file cannot be read.
    """
    found = {"dataset": _of_prepared(dataset)}
    if weights is not None:
        found["weights"] = _of_prepared(weights)
    return found


def program_hashes(program: Sequence[Path], files: Sequence[Path], inputs: Sequence[Path]) -> dict[str, str]:
    """Hashes of what defines a user's program beside its settings: ``program``, ``files``, ``inputs``.

    Args:
        program: The program's own file and all that it imports, as far as they can be found by reading.
        files: Files that it reads as its configuration.
        inputs: Data that it trains on; of a folder the names, sizes and times of its files count.

    Raises:
        OSError: A file cannot be read.
    """
    found = {}
    if program:
        found["program"] = _of_files(program)
    if files:
        found["files"] = _of_files(files)
    if inputs:
        found["inputs"] = _of_stats(inputs)
    return found


def _of_files(paths: Sequence[Path]) -> str:
    sums = (hashlib.sha256(path.read_bytes()).digest() for path in sorted(paths))
    return hashlib.sha256(b"".join(sums)).hexdigest()


def _of_stats(paths: Sequence[Path]) -> str:
    """Names, sizes and times, for data may be too much to be read before each run."""
    digest = hashlib.sha256()
    for path in paths:
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                stat = each.stat()
                digest.update(f"{each}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _of_prepared(path: Path) -> str:
    """Size and hash of a safetensors file; of its header if that holds checksums, else of the whole file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        header = file.read(min(length, LONGEST_HEADER))
        if b'"crc32"' in header:
            return f"{size}:{hashlib.sha256(start + header).hexdigest()}"
        file.seek(0)
        return f"{size}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
