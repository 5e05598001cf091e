"""The training loop: load, forward, backward, update, record; then evaluate, off the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from scalewise.plan.batches import share
from scalewise.records import EpochRecord
from scalewise.training.distributed import Identity, sum_over_ranks
from scalewise.training.loaders import ResidentLoader
from scalewise.training.sampling import EpochSampler
from scalewise.training.throughput import StepClock

EVALUATION_BATCH = 1024


@dataclass(frozen=True)
class Task:
    """All that a rank needs to train.

    Args:
        model: wrapped in DistributedDataParallel, at every world size.
        optimizer: of its parameters.
        schedule: advanced once a step.
        sampler: indices of each step.
        train: batches to train on.
        test: batches to evaluate on.
        clock: of the steps.
        identity: this rank.
        device: this rank's.
    """

    model: nn.parallel.DistributedDataParallel
    optimizer: Optimizer
    schedule: LRScheduler
    sampler: EpochSampler
    train: ResidentLoader
    test: ResidentLoader
    clock: StepClock[Any]
    identity: Identity
    device: torch.device


def train(task: Task, epochs: int, report: Callable[[EpochRecord], None]) -> tuple[list[EpochRecord], bool]:
    """Train for a number of epochs, or until the loss is no longer finite.

    Args:
        task: this rank's part.
        epochs: passes over the data.
        report: called with each epoch as it ends.

    Returns:
        the epochs, with this rank's seconds and the losses of all ranks, and whether the training
        diverged.
    """
    records: list[EpochRecord] = []
    for epoch in range(epochs):
        windows_before = len(task.clock.windows)
        train_loss, learning_rate = train_epoch(task, epoch)
        ended = time.perf_counter()
        test_loss, accuracy = evaluate(task)
        windows = task.clock.windows[windows_before:]
        seconds = sum(window.seconds for window in windows)
        record = EpochRecord(
            epoch=epoch + 1,
            train_seconds=seconds,
            evaluation_seconds=time.perf_counter() - ended,
            samples_per_second=sum(window.samples for window in windows) / seconds,
            train_loss=train_loss,
            test_loss=test_loss,
            test_accuracy=accuracy,
            learning_rate=learning_rate,
        )
        records.append(record)
        report(record)
        if not (math.isfinite(train_loss) and math.isfinite(test_loss)):
            return records, True
    return records, False


def train_epoch(task: Task, epoch: int) -> tuple[float, float]:
    """One pass over the training data.

    Returns:
        mean loss per sample over all ranks, and the learning rate of the first step.
    """
    task.model.train()
    task.sampler.set_epoch(epoch)
    loss_sum = torch.zeros((), device=task.device)
    learning_rate = float(task.schedule.get_last_lr()[0])
    task.clock.open_window()
    for samples, indices in task.sampler:
        task.clock.begin_step()

        images, labels = task.train.load(indices)
        task.clock.loaded()

        loss = cross_entropy(task.model(images), labels, reduction="sum")

        # DDP averages over ranks: this makes it the mean over the step's samples, however they fall
        (loss * (task.identity.world_size / samples)).backward()

        task.optimizer.step()
        task.optimizer.zero_grad()
        task.schedule.step()

        loss_sum += loss.detach()
        task.clock.end_step(samples)
    task.clock.close_window()
    (total,) = sum_over_ranks([loss_sum.item()], task.device)
    return total / len(task.train), learning_rate


@torch.inference_mode()
def evaluate(task: Task) -> tuple[float, float]:
    """Mean loss and accuracy over the test split, each sample counted once, over all ranks."""
    network: nn.Module = task.model.module
    network.eval()
    # batch statistics differ between ranks until DDP's next forward: all evaluate rank 0's
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)
    mine = share(len(task.test), task.identity.rank, task.identity.world_size)
    loss_sum = torch.zeros((), dtype=torch.float64, device=task.device)
    correct = torch.zeros((), dtype=torch.float64, device=task.device)
    for start in range(mine.start, mine.stop, EVALUATION_BATCH):
        images, labels = task.test.load(torch.arange(start, min(start + EVALUATION_BATCH, mine.stop)))
        logits = network(images)
        loss_sum += cross_entropy(logits, labels, reduction="sum")
        correct += (logits.argmax(1) == labels).sum()
    loss, right, count = sum_over_ranks([loss_sum.item(), correct.item(), len(mine)], task.device)
    assert count == len(task.test), f"{count} test samples counted, not {len(task.test)}"
    return loss / count, right / count
