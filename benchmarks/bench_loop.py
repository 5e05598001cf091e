"""What our training loop costs over a bare one: same network, same DDP, same optimizer, same batches."""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from scalewise.plan.launch import Start
from scalewise.plan.study import load_study
from scalewise.records import Definition
from scalewise.training import datasets
from scalewise.training.attempt import Attempt
from scalewise.training.distributed import claim_cpus, identify, process_group
from scalewise.training.loop import Task, train_epoch
from scalewise.training.rank import build_task, resident_loaders
from scalewise.training.supervisor import muster_for

from .measure import Row, interleave, spread

MOST = 1.02
# Many short passes: the two of a pair are so close in time that they meet the same machine. What an
# epoch costs once weighs more in them than in a whole one, which counts against us.
ROUNDS = 300
STEPS = 4
# the smallest batch of the study that ships: the fewer samples, the more a step's own cost shows
BATCH = 128
EXPERIMENT = {
    "dataset": "digits",
    "model": "digits_cnn",
    "global_batch_size": BATCH,
    "devices": [1],
    "repeats": 1,
    "warmup_steps": 0,
}
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


def rows() -> list[Row]:
    """Epochs of both loops in turn, in one process on one core."""
    identity = identify(os.environ | ONE_RANK, "spawn")
    claim_cpus("cpu", identity, cpus_per_device=1)
    device = torch.device("cpu")
    (run,) = load_study({"experiments": {"bench": EXPERIMENT}}).runs.values()
    meeting = muster_for("1x1", "cpu", 1, "spawn", "tcp", Start(), timeout_seconds=60)
    with (
        tempfile.TemporaryDirectory() as folder,
        process_group(Attempt(Path(folder)), meeting, identity, device),
    ):
        file = Path(folder) / "digits.safetensors"
        datasets.prepare("digits", file)
        whole = datasets.load(file)
        samples = STEPS * BATCH
        dataset = replace(
            whole, train_images=whole.train_images[:samples], train_labels=whole.train_labels[:samples]
        )
        definition = Definition.model_validate_json(run.definition)
        task = build_task(definition, dataset, *resident_loaders(dataset, device), identity, device)
        compared = _compare(task)
        del task  # DDP must be gone before its process group
    return compared


def _compare(task: Task) -> list[Row]:
    images, labels = task.train.load(torch.arange(len(task.train)))
    epochs = itertools.count()

    def ours() -> None:
        train_epoch(task, next(epochs))

    # One network and one optimizer for both: two copies would differ by where they lie in memory.
    model, optimizer = task.model, task.optimizer

    def bare() -> None:
        model.train()
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
    compared = []
    for clock in ("cpu", "wall"):
        mine, other = ([getattr(pair[side], clock) * 1e3 / STEPS for pair in pairs] for side in (0, 1))
        ratio = spread([a / b for a, b in zip(mine, other, strict=True)])
        judged = clock == "cpu"
        compared.append(
            Row(
                what=f"loop: {clock} time of a step, digits_cnn, batch {BATCH}",
                ours=spread(mine).show("ms", 1),
                reference=spread(other).show("ms", 1),
                ratio=ratio.show(digits=4),
                n=ROUNDS,
                target=f"at most {MOST}" if judged else "",
                met=not judged or ratio.median <= MOST,
            )
        )
    return compared
