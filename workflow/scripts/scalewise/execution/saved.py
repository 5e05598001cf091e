"""Find what train.py has saved of a run, and remove it. Needs no torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.config.settings import Settings
from scalewise.execution.rank_files import PROGRAM_FOLDER
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import steps_per_epoch

CHECKPOINTS = "checkpoints"
"""The folder for train.py's checkpoints, in that of the program."""

LEAST_STEPS = 10
"""Steps after the warm-up from which on the throughput of a start is known."""


@dataclass(frozen=True)
class Saved:
    """The content of the newest checkpoint of train.py; nothing of a user's program, whose files are its own.

    Args:
        step: Optimizer steps.
        seconds: Time of its epochs, with their evaluations.
    """

    step: int = 0
    seconds: float = 0.0


def saved_training(folder: Path, run: RunDefinition) -> Saved:
    """Read what is saved in the folder of a run."""
    steps = steps_per_epoch(run)
    for _, rows in _checkpoints(folder):
        if steps is not None:
            seconds = sum(row["train_seconds"] + row["evaluation_seconds"] for row in rows)
            return Saved(len(rows) * steps, seconds)
    return Saved()


def prepare_to_train(folder: Path, run: RunDefinition, *, resumes: bool) -> None:
    """Make the folder that a program writes to; empty it unless the program resumes from its files.

    Checkpoints after which too few steps follow to measure are deleted: figures are those of the last start.

    Raises:
        OSError: It cannot be created or emptied.
    """
    program = folder / PROGRAM_FOLDER
    if not resumes and program.exists():
        shutil.rmtree(program)
    program.mkdir(parents=True, exist_ok=True)
    steps, settings = steps_per_epoch(run), run.settings
    if steps is None or not isinstance(settings, Settings):
        return
    least = min(settings.warmup_steps + LEAST_STEPS, settings.epochs * steps)
    for checkpoint, rows in _checkpoints(folder):
        left = settings.epochs - len(rows)
        if settings.stop_at_accuracy is not None:
            # the next epoch may be the last
            left = 0 if _has_stopped(settings, rows) else min(left, 1)
        if left * steps >= least:
            return
        shutil.rmtree(checkpoint)


def remove_after_training(folder: Path, run: RunDefinition) -> None:
    """Delete what train.py has left of a run that has a result; the files of a user's program stay."""
    if isinstance(run.settings, Settings):
        shutil.rmtree(folder / PROGRAM_FOLDER, ignore_errors=True)


def _has_stopped(settings: Settings, rows: list[dict[str, Any]]) -> bool:
    latest = [row["test_accuracy"] for row in rows[-settings.stop_patience_epochs :]]
    return len(latest) == settings.stop_patience_epochs and min(latest) >= (settings.stop_at_accuracy or 0.0)


def _checkpoints(folder: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield the checkpoints and the epochs that they hold, the newest first."""
    for each in sorted((folder / PROGRAM_FOLDER / CHECKPOINTS).glob("epoch-*"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # train.py names a damaged one
            yield each, json.loads((each / "training.json").read_text(encoding="utf-8"))["rows"]
