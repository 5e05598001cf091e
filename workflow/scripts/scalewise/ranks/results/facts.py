"""Facts of a built-in training that no probe can see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewise.records import Resumption


@dataclass(frozen=True)
class Epoch:
    """An epoch that was trained and evaluated, by what only the training knows.

    Args:
        epoch: Number, from 1.
        end_step: Optimizer steps of the whole training at its end.
        samples: Training samples of all ranks in it.
        evaluation_seconds: Host seconds.
        learning_rate: The rate of its first step.
    """

    epoch: int
    end_step: int
    samples: int
    evaluation_seconds: float
    train_loss: float
    test_loss: float
    test_accuracy: float
    learning_rate: float


@dataclass(frozen=True)
class Facts:
    """Facts of a built-in training that no probe can see.

    Args:
        diverged: Place and losses at which the training was no longer finite; empty if it stayed finite.
        resumption: The starts and resumes of the run.
    """

    epochs: Sequence[Epoch]
    diverged: str
    resumption: Resumption
