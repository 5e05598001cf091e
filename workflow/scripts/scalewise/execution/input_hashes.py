"""What defines a run beside its settings, as short texts: a checkpoint of other data is not gone on from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

LONGEST_HEADER = 64 << 20
"""Of a prepared file, in bytes; a longer one is none."""


def fingerprints(dataset: Path, weights: Path | None, own_model: Sequence[Path]) -> dict[str, str]:
    """By the name that a user knows the thing by.

    Args:
        dataset: the prepared file; its header holds the sums of all of its pieces.
        weights: to begin from.
        own_model: files of the user's own model; none for another.

    Raises:
        OSError: one cannot be read.
    """
    found = {"dataset": _of_prepared(dataset)}
    if weights is not None:
        found["weights"] = _of_prepared(weights)
    if own_model:
        sums = (hashlib.sha256(path.read_bytes()).digest() for path in own_model)
        found["model file"] = hashlib.sha256(b"".join(sums)).hexdigest()
    return found


def _of_prepared(path: Path) -> str:
    """Of a safetensors file: its size, and the sum of its header; that of its bytes where it has no sums."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        header = file.read(min(length, LONGEST_HEADER))
        if b'"crc32"' in header:
            return f"{size}:{hashlib.sha256(start + header).hexdigest()}"
        file.seek(0)
        return f"{size}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
