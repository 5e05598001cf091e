"""Find what train.py has saved of a run that was cut off. Needs no torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import steps_per_epoch

LEAST_STEPS = 10
"""Steps after the warm-up from which on the throughput of a start is known."""


@dataclass(frozen=True)
class SavedTraining:
    """The content of the newest checkpoint of a run.

    Args:
        step: Optimizer steps.
        seconds: Time of its epochs, with their evaluations.
    """

    step: int = 0
    seconds: float = 0.0


def saved_training(output: Path, run: RunDefinition) -> SavedTraining:
    """Read what is saved; nothing of a user's program, whose files are its own.

    Args:
        output: The folder for what the program writes.
        run: The run.
    """
    steps = steps_per_epoch(run)
    for _, rows in _checkpoints(output):
        if steps is not None:
            seconds = sum(row["train_seconds"] + row["evaluation_seconds"] for row in rows)
            return SavedTraining(len(rows) * steps, seconds)
    return SavedTraining()


def leave_enough_to_measure(output: Path, run: RunDefinition) -> None:
    """Delete checkpoints after which too few steps follow to measure: figures are those of the last start.

    Args:
        output: The folder for what the program writes.
        run: The run; the files of a user's program are its own.
    """
    steps, settings = steps_per_epoch(run), run.settings
    if steps is None or not isinstance(settings, Settings):
        return
    least = min(settings.warmup_steps + LEAST_STEPS, settings.epochs * steps)
    for folder, rows in _checkpoints(output):
        left = settings.epochs - len(rows)
        if settings.stop_at_accuracy is not None:
            # the next epoch may be the last
            left = 0 if _has_stopped(settings, rows) else min(left, 1)
        if left * steps >= least:
            return
        shutil.rmtree(folder)


def _has_stopped(settings: Settings, rows: list[dict[str, Any]]) -> bool:
    latest = [row["test_accuracy"] for row in rows[-settings.stop_patience_epochs :]]
    return len(latest) == settings.stop_patience_epochs and min(latest) >= (settings.stop_at_accuracy or 0.0)


def _checkpoints(output: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield the checkpoints and the epochs that they hold, the newest first."""
    for folder in sorted((output / "checkpoints").glob("epoch-*"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # train.py names a damaged one
            yield folder, json.loads((folder / "training.json").read_text(encoding="utf-8"))["rows"]
