"""Hash the input files that define a run, in addition to its settings: others need another training."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from scalewise.config.catalog.program_files import program_files
from scalewise.config.program import ProgramSettings
from scalewise.plan.runs.run_definition import RunDefinition

SMALL_BYTES = 1_000_000
"""Largest file that counts by its content, as in Snakemake."""

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
    if files := program_files(program):
        hashes["program"] = _hash_files(files)
    if program.files:
        hashes["files"] = _hash_files(list(map(Path, program.files)))
    return hashes


def _hash_files(paths: Sequence[Path]) -> str:
    """Hash small files by content; larger ones, and those of folders, by name, size and time."""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_dir():
            for each in sorted(each for each in path.rglob("*") if each.is_file()):
                digest.update(_stat_line(each))
        elif path.stat().st_size > SMALL_BYTES:
            digest.update(_stat_line(path))
        else:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _stat_line(path: Path) -> bytes:
    stat = path.stat()
    return os.fsencode(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\n")


def _hash_prepared(path: Path) -> str:
    """Return the hash of a prepared file's header, which holds the checksum of its content."""
    with path.open("rb") as file:
        start = file.read(8)
        header = file.read(min(int.from_bytes(start, "little"), LONGEST_HEADER))
    return hashlib.sha256(start + header).hexdigest()
