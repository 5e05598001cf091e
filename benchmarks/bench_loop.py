"""What our training loop costs over a bare one: same network, same DDP, same optimizer, same batches.

python benchmarks/run.py loop
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from scalewise.training.data import datasets
from scalewise.training.loop import TrainingState, train_epoch
from scalewise.training.trainer import Trainer

from .measure import CLOCKS, Row, interleave, step_row
from .one_rank import one_rank, project_task

MOST = 1.02
# Many short passes: the two of a pair are so close in time that they meet the same machine. What an
# epoch costs once weighs more in them than in a whole one, which counts against us.
ROUNDS = 300
STEPS = 4
# the smallest batch of the study that ships: the fewer samples, the more a step's own cost shows
BATCH = 128
OPTIONS = {"model": "digits_cnn", "global_batch_size": BATCH}


def rows() -> list[Row]:
    """Epochs of both loops in turn, in one process on one core."""
    with one_rank() as (identity, device), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.safetensors"
        datasets.prepare("digits", file)
        whole = datasets.load(file)
        samples = STEPS * BATCH
        dataset = replace(
            whole, train_images=whole.train_images[:samples], train_labels=whole.train_labels[:samples]
        )
        return _compare(project_task(OPTIONS, dataset, identity, device))


def _compare(trainer: Trainer) -> list[Row]:
    images, labels = next(iter(trainer.train.batches([torch.arange(len(trainer.train))])))
    epochs = itertools.count()

    def ours() -> None:
        train_epoch(trainer, TrainingState.start(trainer.device, next(epochs)))

    # One network and one optimizer for both: two copies would differ by where they lie in memory.
    model, optimizer = trainer.parallel_model.compiled, trainer.optimizer

    def bare() -> None:
        trainer.parallel_model.train()
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()

    interleave(ours, bare, rounds=5)
    pairs = interleave(ours, bare, ROUNDS)

    # Judged by CPU time: other processes on the machine lengthen the wall time of whichever loop they
    # meet. Wall time is quoted too, since it alone would show a loop that waits.
    return [
        step_row(
            f"loop: {clock} time of a step, digits_cnn, batch {BATCH}",
            *(pairs, clock, STEPS),
            MOST if clock == "cpu" else None,
        )
        for clock in CLOCKS
    ]
