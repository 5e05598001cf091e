"""Hash the input files that define a run, in addition to its settings: others need another training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from scalewise.config.catalog.program_files import program_files
from scalewise.config.program import ProgramSettings
from scalewise.plan.runs.run_definition import RunDefinition

LONGEST_HEADER = 64 << 20
"""Most bytes of a header that are read; no prepared file has a longer one."""


def input_hashes(definition: RunDefinition, dataset: Path | None) -> dict[str, str]:
    """Return the hashes of the input files that define a run, by name.

    Args:
        definition: The run.
        dataset: The prepared file; None if a user's program trains.

    Raises:
        OSError: A file cannot be read.
    """
    program = definition.settings
    if not isinstance(program, ProgramSettings):
        assert dataset is not None, "the rule names the prepared file of a built-in training"
        return {"dataset": _hash_prepared(dataset)}
    hashes = {}
    # the program's file and the files that it imports, as far as its source shows them
    if files := program_files(program):
        hashes["program"] = _hash_contents(files)
    if program.files:
        hashes["files"] = _hash_contents([Path(path) for path in program.files])
    if program.inputs:
        hashes["inputs"] = _hash_stats([Path(path) for path in program.inputs])
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
