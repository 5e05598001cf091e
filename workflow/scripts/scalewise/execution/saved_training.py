"""Find what train.py has saved of a run that was cut off. Needs no torch."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import steps_per_epoch


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
    if steps is None:
        return SavedTraining()
    for folder in sorted((output / "checkpoints").glob("epoch-*"), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):  # train.py names a damaged one
            rows = json.loads((folder / "training.json").read_text(encoding="utf-8"))["rows"]
            seconds = sum(row["train_seconds"] + row["evaluation_seconds"] for row in rows)
            return SavedTraining(len(rows) * steps, seconds)
    return SavedTraining()
