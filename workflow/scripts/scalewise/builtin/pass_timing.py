"""Forward and backward passes timed after the training, off its clock.

A step holds everything at once. Passes of the same batch, with gradients exchanged and without, tell
what the exchange adds; passes of smaller batches tell what a device would take if more of them shared
the work. Nothing of the training is changed: no optimizer step, and buffers as they were.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from scalewise.builtin.data.loaders import Batch
from scalewise.builtin.loop import summed_loss
from scalewise.builtin.trainer import Trainer
from scalewise.execution.progress_reporter import say
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
from scalewise.ranks.distributed.process_group import sum_over_ranks
from scalewise.records import Pass

BLOCKS = 3
"""Most blocks of passes, with the exchange and without it in turn: what disturbs the machine meets both."""

COUNTED = 4
"""Most passes of a block, or of a batch size, that count; one goes before them, which does not."""

LEAST_COUNTED = 2
"""Fewest passes of a block that count, however long a pass takes."""

SHARE_OF_TRAINING = 0.1
"""Budget of all passes together as a share of the training's time; the next two bound it."""

LEAST_SECONDS, MOST_SECONDS = 0.3, 20.0


NO_STATISTICS = "Expected more than 1 value per channel when training"
"""Words of torch's batch norm, which has no statistics of a single value."""


@dataclass(frozen=True)
class PassTimes:
    """Seconds of forward and backward passes that one rank timed after the training.

    Args:
        local_seconds: Time of forward and backward without communication; None for a model in parts (fsdp).
        exchanged_seconds: The same with gradients exchanged; None on one rank.
        passes: The run's own batch size first; smaller ones only on one rank.
    """

    local_seconds: float | None = None
    exchanged_seconds: float | None = None
    passes: list[Pass] = field(default_factory=list)


def time_forward_backward(trainer: Trainer, least_seconds: float = LEAST_SECONDS) -> PassTimes:
    """Time passes on this rank; all ranks must call it, after the training and with nothing else running.

    Args:
        trainer: Weights, buffers and optimizer are left as they are.
        least_seconds: Budget of the passes after however short a training.
    """
    if trainer.settings.parallelism == "fsdp":
        return PassTimes()
    alone = trainer.identity.world_size == 1
    with nothing_learned(trainer), _as_compiled_for_each_size(trainer.settings):
        own = samples_of_a_pass(trainer)
        batch = test_batch(trainer, own)
        budget, expected = _budget(trainer, least_seconds)
        if not alone:
            return _with_and_without_exchange(trainer, batch, budget, expected)
        began = time.perf_counter()
        timed = _time_local(trainer, batch, affordable(budget / 2, expected, 2 * COUNTED))
        smaller = list(smaller_passes(trainer, own, max(began + budget, time.perf_counter() + budget / 4)))
        smaller.sort(key=lambda each: each.batch_size, reverse=True)
        passes = [_median_pass(own, timed), *smaller]
        return PassTimes(_median_seconds(timed), None, passes)


def merge_ranks(times: Sequence[PassTimes]) -> list[Pass]:
    """Return the passes of the run: of each batch size the median over the ranks.

    Args:
        times: One for each rank, in rank order.
    """
    # ranks' shares of a batch may differ by one sample: rank 0's is the whole one
    return [
        Pass(
            batch_size=of_one_size[0].batch_size,
            forward_seconds=median(each.forward_seconds for each in of_one_size),
            backward_seconds=median(each.backward_seconds for each in of_one_size),
        )
        for of_one_size in zip(*(rank.passes for rank in times), strict=True)
    ]


# --- one pass -----------------------------------------------------------------------------------------

ForwardBackward = tuple[float, float]
"""Forward and backward seconds."""


def _time_pass(trainer: Trainer, batch: Batch, exchanged: bool) -> ForwardBackward:
    """Time one pass as the training loop makes it, the device idle before and after.

    Gradients are ``exchanged`` between ranks or not.
    """
    timer: DeviceTimer[Any] = timer_for(trainer.device)
    images, labels = batch
    trainer.optimizer.zero_grad()
    timer.synchronize()
    start = timer.record()
    with trainer.parallel_model.gradient_sync(now=exchanged):
        loss = summed_loss(trainer, images, labels)
        middle = timer.record()
        trainer.precision.backward(loss / len(labels))
    end = timer.record()
    timer.synchronize()
    return timer.seconds(start, middle), timer.seconds(middle, end)


def _time_local(trainer: Trainer, batch: Batch, count: int) -> list[ForwardBackward]:
    return [_time_pass(trainer, batch, exchanged=False) for _ in range(count + 1)][1:]


def _median_pass(batch_size: int, timed: Sequence[ForwardBackward]) -> Pass:
    forward, backward = (median(half) for half in zip(*timed, strict=True))
    return Pass(batch_size=batch_size, forward_seconds=forward, backward_seconds=backward)


def _median_seconds(timed: Sequence[ForwardBackward]) -> float:
    return median(forward + backward for forward, backward in timed)


# --- what is timed ------------------------------------------------------------------------------------


def _with_and_without_exchange(trainer: Trainer, batch: Batch, budget: float, expected: float) -> PassTimes:
    # the first pass of a block does not count: ranks find each other there, and DDP sends its buffers
    # before the pass that follows an exchange
    blocks = min(max(int(budget / (2 * (COUNTED + 1) * expected)), 1), BLOCKS)
    count = affordable(budget / (2 * blocks), expected, COUNTED)
    local: list[ForwardBackward] = []
    exchanged: list[ForwardBackward] = []
    for _ in range(blocks):
        exchanged += [_time_pass(trainer, batch, exchanged=True) for _ in range(count + 1)][1:]
        local += _time_local(trainer, batch, count)
    passes = [_median_pass(len(batch[1]), local)]
    return PassTimes(_median_seconds(local), _median_seconds(exchanged), passes)


def smaller_passes(trainer: Trainer, own: int, deadline: float) -> Iterator[Pass]:
    """Time what 2, 4, 8, ... devices would get of the batch, then what 3, 6, 12, ... would.

    It ends at the deadline. The smallest cost least and come first; where each must be compiled, which costs
    more than its passes, the largest do. Between two sizes a power law is usually within 1 %, but misses by
    20 % and more where kernels switch; so the sizes that common device counts get are timed themselves.
    """
    shifts = range(own.bit_length())
    if not trainer.settings.compile:
        shifts = shifts[::-1]
    sizes = [*(own >> shift for shift in shifts), *(own // 3 >> shift for shift in shifts)]
    for size in dict.fromkeys(size for size in sizes if 0 < size < own):
        if time.perf_counter() >= deadline:
            return
        try:
            timed = _time_local(trainer, test_batch(trainer, size), COUNTED)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, (torch.OutOfMemoryError, torch.AcceleratorError)):
                raise  # of the device, which may not be usable any more
            if NO_STATISTICS not in str(error):
                say(f"passes of {size} samples are not timed: {type(error).__name__}: {error}")
            continue
        yield _median_pass(size, timed)


# --- around the passes --------------------------------------------------------------------------------


def samples_of_a_pass(trainer: Trainer) -> int:
    """Return the samples of the first micro-batch of this rank."""
    return len(next(iter(trainer.sampler)).micro_batches[0])


def test_batch(trainer: Trainer, size: int) -> Batch:
    """Return a batch of test images: they need no loader process, and the time does not depend on them."""
    return trainer.test.load(torch.arange(size) % len(trainer.test))


def _budget(trainer: Trainer, least_seconds: float) -> tuple[float, float]:
    """Budget of all passes and expected time of one, in seconds; the same on every rank."""
    steps, done = trainer.measured.steps, trainer.measured.steps.done
    training = steps.training_seconds(0, done)
    warm = trainer.settings.warmup_steps if done > trainer.settings.warmup_steps else 0
    step = (steps.training_seconds(warm, done) or least_seconds) / max(done - warm, 1)
    # each rank's own clock would let them disagree on how many passes to exchange
    world_size = trainer.identity.world_size
    training, step = (total / world_size for total in sum_over_ranks([training, step], trainer.device))
    budget = min(max(SHARE_OF_TRAINING * training, least_seconds), MOST_SECONDS)
    return budget, step / trainer.settings.accumulation_steps


def affordable(budget: float, expected: float, most: int) -> int:
    """Number of passes that count, of those that fit into the budget; one more is made."""
    return min(max(int(budget / expected) - 1, LEAST_COUNTED), most)


@contextmanager
def nothing_learned(trainer: Trainer) -> Iterator[None]:
    """Leave batch statistics and gradients as they were."""
    network = trainer.parallel_model.module
    was_training = network.training
    before = [buffer.detach().clone() for buffer in network.buffers()]
    trainer.parallel_model.train()
    try:
        yield
    finally:
        trainer.optimizer.zero_grad()
        with torch.no_grad():
            for buffer, kept in zip(network.buffers(), before, strict=True):
                buffer.copy_(kept)
        network.train(was_training)


def _as_compiled_for_each_size(settings: Settings) -> AbstractContextManager[None]:
    """Compile for every batch size that is tried, as a run of that size would: torch stops after eight."""
    if not settings.compile:
        return nullcontext()
    patched: AbstractContextManager[None] = torch._dynamo.config.patch(recompile_limit=64)
    return patched
