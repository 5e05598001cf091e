"""The training loop: load, forward, backward, update, record; then evaluate, off the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from scalewise.builtin.trainer import Trainer
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.batches import shard_range
from scalewise.ranks.distributed.process_group import sum_over_ranks
from scalewise.ranks.results.facts import Epoch

LARGEST_EVALUATION_BATCH = 1024
"""Samples beyond which a larger batch evaluates hardly faster."""

Ending = Literal["completed", "diverged", "stopped"]
"""End of a training: all done, the loss no longer finite, or asked to end after a step."""


@dataclass
class TrainingState:
    """Progress of a training, without its weights; every count is of what is done.

    Args:
        loss_sum: Sum over this rank's samples of the epoch so far.
        epoch: The epoch that is being trained, from 0.
        step: Optimizer steps of this epoch.
        steps: Optimizer steps of the whole training.
        learning_rate: The rate of the epoch's first step.
        epochs: One for each epoch that was evaluated.
        train_loss: Mean loss per sample over all ranks of what was trained last, an epoch or a part of one;
            None before its end.
        ended_early: True once the throughput is known well enough, for which the training was made.
    """

    loss_sum: torch.Tensor
    epoch: int = 0
    step: int = 0
    steps: int = 0
    learning_rate: float = 0.0
    epochs: list[Epoch] = field(default_factory=list)
    train_loss: float | None = None
    ended_early: bool = False

    @classmethod
    def start(cls, device: torch.device, epoch: int = 0) -> TrainingState:
        """The state of a training, or of its epoch, of which nothing is done yet."""
        return cls(torch.zeros((), device=device), epoch=epoch)

    def begin_epoch(self, learning_rate: float) -> None:
        """Begin to count an epoch of which nothing is done yet."""
        self.loss_sum.zero_()
        self.learning_rate = learning_rate

    def end_epoch(self, evaluated: Epoch | None = None) -> None:
        """Count an epoch as trained and, if it was, as evaluated."""
        if evaluated is not None:
            self.epochs.append(evaluated)
        self.epoch, self.step = self.epoch + 1, 0

    def is_over(self, settings: Settings) -> bool:
        """Whether all steps that the settings ask for are done, or else all epochs."""
        if settings.last_step is not None:
            return self.ended_early or self.steps >= settings.last_step
        return self.epoch >= settings.epochs


def to_the_end(_state: TrainingState) -> bool:
    """Never end a training early: the ``after_step`` of one that nothing interrupts."""
    return False


def train(
    trainer: Trainer,
    state: TrainingState,
    report: Callable[[Epoch], None],
    after_step: Callable[[TrainingState], bool] = to_the_end,
) -> Ending:
    """Train to the end that the settings ask for, or until the loss is no longer finite.

    The end is that of all epochs, or of the first at which the required accuracy is held. If the settings
    have steps, it is the last of them, or the one after which the throughput is known well enough, and
    nothing is evaluated.

    Args:
        trainer: Holds the model, which is trained in place.
        state: The training begins there. Afterwards it says how far the training came, with all epochs.
        report: Called with each epoch as it ends.
        after_step: Called after each optimizer step but the last of ``steps``; true ends the training there.
    """
    trainer.measured.begin_training(
        trainer.optimizer, state.steps, trainer.settings.last_step, trainer.device
    )
    while not state.is_over(trainer.settings):
        train_loss = train_epoch(trainer, state, after_step)
        if train_loss is None:
            return "stopped"
        state.train_loss = train_loss
        if trainer.settings.steps is not None:
            if state.step == len(trainer.sampler):
                state.end_epoch()
            if not math.isfinite(train_loss):
                return "diverged"
            continue
        ended = time.perf_counter()
        trainer.measured.pause("evaluate")
        try:
            test_loss, accuracy = evaluate(trainer)
        except torch.OutOfMemoryError as error:
            # the training itself had room: the run's reason must not name it as too large
            raise torch.OutOfMemoryError(
                f"in the evaluation after epoch {state.epoch + 1}, not in training: {error}"
            ) from error
        epoch = Epoch(
            epoch=state.epoch + 1,
            end_step=state.steps,
            samples=trainer.sampler.samples,
            evaluation_seconds=time.perf_counter() - ended,
            train_loss=train_loss,
            test_loss=test_loss,
            test_accuracy=accuracy,
            learning_rate=state.learning_rate,
        )
        state.end_epoch(epoch)
        report(epoch)
        if not (math.isfinite(train_loss) and math.isfinite(test_loss)):
            return "diverged"
        if is_accurate_enough([each.test_accuracy for each in state.epochs], trainer.settings):
            break
    return "completed"


def is_accurate_enough(accuracies: Sequence[float], settings: Settings) -> bool:
    """True if the last epochs, as many as the patience, were all accurate enough to stop."""
    last = accuracies[-settings.stop_patience_epochs :]
    if settings.stop_at_accuracy is None or len(last) < settings.stop_patience_epochs:
        return False
    return min(last) >= settings.stop_at_accuracy


def train_epoch(
    trainer: Trainer, state: TrainingState, after_step: Callable[[TrainingState], bool] = to_the_end
) -> float | None:
    """Train for an epoch, or for the rest of one that the state is in the middle of.

    It ends early at the last step of a training that has one.

    Returns:
        Mean loss per sample over all ranks; None where the training is to end in the middle.
    """
    last_step = trainer.settings.last_step
    trainer.parallel_model.train()
    trainer.sampler.set_epoch(state.epoch)
    if state.step == 0:
        state.begin_epoch(float(trainer.schedule.get_last_lr()[0]))
    epoch = list(trainer.sampler)
    # what is beyond the last step is not loaded either
    end = None if last_step is None else state.step + last_step - state.steps
    steps = epoch[state.step : end]
    first = state.step * trainer.settings.accumulation_steps
    planned = [indices for step in steps for indices in step.micro_batches]
    trainer.batch_sampler.plan(planned, state.epoch, first)
    batches = iter(trainer.train)
    if trainer.measured.is_paused:
        trainer.measured.resume()
    for step in steps:
        last = len(step.micro_batches) - 1
        for index in range(len(step.micro_batches)):
            images, labels = next(batches)
            with trainer.parallel_model.gradient_sync(now=index == last):
                loss = summed_loss(trainer, images, labels)
                # gradients are averaged over ranks: this makes it the mean over the step's samples,
                # however they fall
                trainer.precision.backward(loss * (trainer.identity.world_size / step.samples))
            state.loss_sum += loss.detach()

        trainer.precision.step(trainer.optimizer)
        trainer.optimizer.zero_grad()
        trainer.schedule.step()
        state.step, state.steps = state.step + 1, state.steps + 1
        if state.steps == last_step:
            break
        if trainer.measured.is_over:
            state.ended_early = True
            break
        if after_step(state):
            return None
    (total,) = sum_over_ranks([state.loss_sum.item()], trainer.device)
    return total / sum(step.samples for step in epoch[: state.step])


def summed_loss(trainer: Trainer, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The forward pass of a batch while training: its loss, summed over the samples."""
    with trainer.precision.autocast():
        logits = trainer.parallel_model.compiled(images)
        return cross_entropy(
            logits, labels, reduction="sum", label_smoothing=trainer.settings.label_smoothing
        )


@torch.no_grad()
def evaluate(trainer: Trainer) -> tuple[float, float]:
    """Mean loss and accuracy over the test split, each sample counted once, over all ranks."""
    network = trainer.parallel_model.module
    network.eval()
    # batch statistics differ between ranks until the next forward pass: all evaluate rank 0's
    for buffer in network.buffers():
        dist.broadcast(buffer, src=0)
    loss_sum = torch.zeros((), dtype=torch.float64, device=trainer.device)
    correct = torch.zeros((), dtype=torch.float64, device=trainer.device)
    seen = 0
    batch_size = evaluation_batch(trainer.sampler.samples_of_micro_batch)
    for indices, counted in evaluation_batches(
        len(trainer.test), trainer.identity.rank, trainer.identity.world_size, batch_size
    ):
        images, labels = trainer.test.load(indices)
        with trainer.precision.autocast():
            logits = network(images)[:counted]
        loss_sum += cross_entropy(logits.float(), labels[:counted], reduction="sum")
        correct += (logits.argmax(1) == labels[:counted]).sum()
        seen += counted
    loss, right, count = sum_over_ranks([loss_sum.item(), correct.item(), seen], trainer.device)
    assert count == len(trainer.test), f"{count} test samples counted, not {len(trainer.test)}"
    return loss / count, right / count


def evaluation_batch(samples_of_micro_batch: int) -> int:
    """Most samples of a batch of evaluation: those of a micro-batch of training, which keeps more of each.

    A forward pass without gradients holds the activations of a layer or two, a training pass those of all
    layers, and gradients and the optimizer's states.
    """
    return min(samples_of_micro_batch, LARGEST_EVALUATION_BATCH)


def evaluation_batches(
    samples: int, rank: int, world_size: int, batch_size: int
) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield this rank's indices, and how many of them count, in as many batches on every rank.

    A model in parts is gathered for each batch, which all ranks must then have. One without a sample of
    its own takes the first, and does not count it.

    Args:
        samples: Number of test samples over all ranks.
        rank: The rank of the share.
        world_size: Number of shares.
        batch_size: Most samples of a batch.
    """
    mine = shard_range(samples, rank, world_size)
    number = math.ceil(math.ceil(samples / world_size) / batch_size)
    for part in (shard_range(len(mine), index, number) for index in range(number)):
        chosen = torch.arange(mine.start + part.start, mine.start + part.stop)
        yield (chosen, len(chosen)) if len(chosen) else (torch.zeros(1, dtype=torch.int64), 0)
