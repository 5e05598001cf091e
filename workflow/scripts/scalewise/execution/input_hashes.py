"""Hash the input files that define a run, in addition to its settings: others need another training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

LONGEST_HEADER = 64 << 20
"""Most bytes of a header that are read; no prepared file has a longer one."""


def input_hashes(dataset: Path, weights: Path | None) -> dict[str, str]:
    """Return the hashes of a built-in training's inputs, by name: ``dataset``, ``weights``.

    Args:
        dataset: The prepared file.
        weights: The prepared file that the training begins from; None for random weights.

    Raises:
        OSError: A file cannot be read.
    """
    hashes = {"dataset": _hash_prepared(dataset)}
    if weights is not None:
        hashes["weights"] = _hash_prepared(weights)
    return hashes


def program_hashes(program: Sequence[Path], files: Sequence[Path], inputs: Sequence[Path]) -> dict[str, str]:
    """Return the hashes of the files of a user's program, by name: ``program``, ``files``, ``inputs``.

    Args:
        program: The program's file and the files that it imports, as far as its source shows them.
        files: Configuration files of the program.
        inputs: Data that it trains on; only the names, sizes and times of the files are hashed.

    Raises:
        OSError: A file cannot be read.
    """
    hashes = {}
    if program:
        hashes["program"] = _hash_contents(program)
    if files:
        hashes["files"] = _hash_contents(files)
    if inputs:
        hashes["inputs"] = _hash_stats(inputs)
    return hashes


def _hash_contents(paths: Sequence[Path]) -> str:
    sums = (hashlib.sha256(path.read_bytes()).digest() for path in sorted(paths))
    return hashlib.sha256(b"".join(sums)).hexdigest()


def _hash_stats(paths: Sequence[Path]) -> str:
    """Hash names, sizes and times: data may be too large to read before each run."""
    digest = hashlib.sha256()
    for path in paths:
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if each.is_file():
                stat = each.stat()
                digest.update(f"{each}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _hash_prepared(path: Path) -> str:
    """Return the hash of a prepared file's header, which holds the checksum of its content."""
    with path.open("rb") as file:
        start = file.read(8)
        header = file.read(min(int.from_bytes(start, "little"), LONGEST_HEADER))
    return hashlib.sha256(start + header).hexdigest()
