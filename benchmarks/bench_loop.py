"""The loop of train.py against a bare one: same network, same optimizer, same batches, in one process.

What the probe costs a step of either is another benchmark, own-cost.

    python benchmarks/run.py loop
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from scalewise.training.data import read
from scalewise.training.prepare import prepare
from train import Training

from .measure import CLOCKS, Row, interleave, step_row
from .one_rank import epochs_of, one_rank, training_of

MOST = 1.02
# Short passes: the two of a pair are so close in time that they meet the same machine. What an epoch costs
# once weighs more in them than in a whole one, which counts against us.
ROUNDS, STEPS = 100, 12
SMALL = {"ROUNDS": 1}
# the smallest batch of the study that ships: the fewer samples, the more a step's own cost shows
BATCH = 128


def rows() -> list[Row]:
    """Epochs of both loops in turn, on one core."""
    with one_rank() as device, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.safetensors"
        prepare("digits", file)
        data = read(file)
        chosen = torch.arange(STEPS * BATCH) % len(data["train_labels"])
        part = {name: data[name][chosen] for name in ("train_images", "train_labels")}
        training = training_of({"batch_size_per_device": BATCH}, dict(data) | part, device)
        ours, bare = epochs_of(training), bare_loop(training)
        interleave(ours, bare, rounds=5)
        pairs = interleave(ours, bare, ROUNDS)
    # Judged by CPU time: other processes on the machine lengthen the wall time of whichever loop they
    # meet. Wall time is quoted too, since it alone would show a loop that waits.
    what = f"time of a step, digits_cnn, batch {BATCH}"
    return [
        step_row(f"loop: {clock} {what}", pairs, clock, STEPS, MOST if clock == "cpu" else None)
        for clock in CLOCKS
    ]


def bare_loop(training: Training) -> Callable[[], None]:
    """Return an epoch of a loop that only trains, over the training's images, network and optimizer."""
    # one network and one optimizer for both: two copies would differ by where they lie in memory
    model, optimizer = training.model, training.optimizer
    batches = list(training.data.train)
    images, labels = (torch.cat([batch[part] for batch in batches]) for part in (0, 1))

    def bare() -> None:
        model.train()
        order = torch.randperm(len(images))
        for start in range(0, len(images), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()

    return bare
