"""Hashes of the files that define a run beside its settings: a checkpoint of other data is not resumed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

LONGEST_HEADER = 64 << 20
"""Bytes of the longest header that is read; a longer one is none of a prepared file."""


def input_hashes(dataset: Path, weights: Path | None, own_model: Sequence[Path]) -> dict[str, str]:
    """Hashes by the name that a user knows each input by: ``dataset``, ``weights``, ``model file``.

    Args:
        dataset: The prepared file; its header holds the checksums of all of its pieces.
        weights: The file that the training begins from; None for random weights.
        own_model: Files of the user's own model; empty for a model of the catalogue.

    Raises:
        OSError: A file cannot be read.
    """
    found = {"dataset": _of_prepared(dataset)}
    if weights is not None:
        found["weights"] = _of_prepared(weights)
    if own_model:
        sums = (hashlib.sha256(path.read_bytes()).digest() for path in own_model)
        found["model file"] = hashlib.sha256(b"".join(sums)).hexdigest()
    return found


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
