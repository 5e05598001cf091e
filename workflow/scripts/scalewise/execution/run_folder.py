"""Read what a run's folder has from its earlier starts: inputs, checkpoints of train.py, output."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewise.config.catalog.program_files import program_files
from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.execution.rank_files import PROGRAM_FOLDER
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import steps_per_epoch
from scalewise.records import LOG_TAIL_LINES

# ---- the input files that define a run, in addition to its settings: others need another training

SMALL_BYTES = 1_000_000
"""Largest file that counts by its content, as in Snakemake."""


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
        with dataset.open("rb") as file:  # it begins with the checksum of its content
            return {"dataset": hashlib.sha256(file.read(SMALL_BYTES)).hexdigest()}
    files = {"program": program_files(program), "files": [Path(name) for name in program.files]}
    return {name: _hash_files(paths) for name, paths in files.items() if paths}


def _hash_files(paths: Sequence[Path]) -> str:
    """Hash small files by content; larger ones, and those of folders, by name, size and time."""
    digest = hashlib.sha256()
    for path in paths:
        if path.is_file() and path.stat().st_size <= SMALL_BYTES:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
            continue
        for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if not each.is_dir():
                status = each.stat()
                digest.update(os.fsencode(f"{each}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()


# ---- what train.py has saved

CHECKPOINTS = "checkpoints"
"""The folder for train.py's checkpoints, in that of the program."""

LEAST_STEPS = 10
"""Steps after the warm-up from which on the throughput of a start is known."""


def saved_epochs(folder: Path, run: RunDefinition) -> list[dict[str, Any]]:
    """Return the epochs in the newest checkpoint of train.py; none of a user's program."""
    if not isinstance(run.settings, Settings):
        return []
    return next((rows for _, rows in _checkpoints(folder)), [])


def prepare_to_train(folder: Path, run: RunDefinition, *, resumes: bool) -> list[dict[str, Any]]:
    """Make the folder that a program writes to; empty it unless the program resumes from its files.

    Checkpoints after which too few steps follow to measure are deleted: figures are those of the last start.

    Returns:
        The epochs in the checkpoint from which train.py resumes.

    Raises:
        OSError: It cannot be created or emptied.
    """
    program = folder / PROGRAM_FOLDER
    if not resumes and program.exists():
        shutil.rmtree(program)
    program.mkdir(parents=True, exist_ok=True)
    steps, settings = steps_per_epoch(run), run.settings
    if steps is None or not isinstance(settings, Settings):
        return []
    least = min(settings.warmup_steps + LEAST_STEPS, settings.epochs * steps)
    for checkpoint, rows in _checkpoints(folder):
        left = settings.epochs - len(rows)
        if (accuracy := settings.stop_at_accuracy) is not None:
            # the next epoch may be the last
            left = min(left, 0 if rows and rows[-1]["test_accuracy"] >= accuracy else 1)
        if left * steps >= least:
            return rows
        shutil.rmtree(checkpoint)
    return []


def remove_after_training(folder: Path, run: RunDefinition) -> None:
    """Delete what train.py has left of a run that has a result; the files of a user's program stay."""
    if isinstance(run.settings, Settings):
        shutil.rmtree(folder / PROGRAM_FOLDER, ignore_errors=True)


def _checkpoints(folder: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield the checkpoints and the epochs that they hold, the newest first."""
    for each in sorted((folder / PROGRAM_FOLDER / CHECKPOINTS).glob("epoch-*"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # train.py names a damaged one
            yield each, json.loads((each / "training.json").read_text(encoding="utf-8"))["rows"]


# ---- the output of the ranks, and the part of it that a terminal can show

OUTPUT = "train.log"
"""The file with all that the ranks print."""

SHOWN_BYTES = 1 << 14
"""Most bytes of a failed run's output that reach the terminal."""

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that change what a terminal shows, but for tabs and ends of lines."""

_OF_SCALEWISE = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\S* ")
"""The time before a command that Scalewise adds to the output."""

LONGEST_LINE = 200
"""Most characters of the last line of output in a reason."""


def printable(text: str) -> str:
    """Return the end of a program's output as a terminal can show it: bounded, control characters escaped."""
    lines = text[-SHOWN_BYTES:].replace("\r\n", "\n").replace("\r", "\n")
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), lines)


def log_tail(log: Path) -> list[str]:
    """Return the last lines of a log; none if it is missing."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - SHOWN_BYTES, 0))
            text = file.read(SHOWN_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    return printable(text).splitlines()[-LOG_TAIL_LINES:]


def last_line(log: Path) -> str:
    """Return the last line that the ranks printed; empty without one."""
    lines = [line.strip() for line in log_tail(log) if not _OF_SCALEWISE.match(line)]
    return next((line[:LONGEST_LINE] for line in reversed(lines) if line), "")
