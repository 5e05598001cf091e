"""Forward and backward passes timed after the training, off its clock.

A step holds everything at once. Passes of the same batch, with gradients exchanged and without, tell
what the exchange adds; passes of smaller batches tell what a device would take if more of them shared
the work; and the moments at which gradients are ready tell how much of their exchange a backward pass
can hide. Nothing of the training is changed: no optimizer step, and buffers as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch.distributed import _DEFAULT_FIRST_BUCKET_BYTES as FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
from torch.distributed import _compute_bucket_assignment_by_size as assign_by_size  # type: ignore[attr-defined]

from scalewise.builtin.data.loaders import Batch
from scalewise.builtin.loop import summed_loss
from scalewise.builtin.trainer import Trainer
from scalewise.execution.progress_reporter import say
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
from scalewise.ranks.distributed.process_group import sum_over_ranks
from scalewise.records import Bucket, Pass

BLOCKS = 3
"""Most blocks of passes, with the exchange and without it in turn: what disturbs the machine meets both."""

COUNTED = 4
"""Most passes of a block, or of a batch size, that count; one goes before them, which does not."""

LEAST_COUNTED = 2
"""Fewest passes of a block that count, however long a pass takes."""

SHARE_OF_TRAINING = 0.1
"""Budget of all passes together as a share of the training's time; the next two bound it."""

LEAST_SECONDS, MOST_SECONDS = 0.3, 20.0

DEFAULT_BUCKET_MB = 25
"""DDP's own size of a bucket; without bucket_cap_mb its first bucket is smaller."""

COMPRESSED_BYTES = {"fp16": 2, "bf16": 2}
"""Bytes of a gradient's element after a communication hook."""

NO_STATISTICS = "Expected more than 1 value per channel when training"
"""Words of torch's batch norm, which has no statistics of a single value."""


@dataclass(frozen=True)
class PassTimes:
    """Seconds of forward and backward passes that one rank timed after the training.

    Args:
        local_seconds: Time of forward and backward without communication; None for a model in parts (fsdp).
        exchanged_seconds: The same with gradients exchanged; None on one rank.
        passes: The run's own batch size first; smaller ones only on one rank.
        buckets: Only on one rank; empty if gradients are not exchanged in DDP's buckets.
    """

    local_seconds: float | None = None
    exchanged_seconds: float | None = None
    passes: list[Pass] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)


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
        buckets = _time_buckets(trainer, batch, affordable(budget / 2, expected, COUNTED))
        smaller = list(smaller_passes(trainer, own, max(began + budget, time.perf_counter() + budget / 4)))
        smaller.sort(key=lambda each: each.batch_size, reverse=True)
        passes = [_median_pass(own, timed), *smaller]
        return PassTimes(_median_seconds(timed), None, passes, buckets)


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


def _time_pass(
    trainer: Trainer, batch: Batch, exchanged: bool, ready: Callable[[Any], None] | None = None
) -> ForwardBackward:
    """Time one pass as the training loop makes it, the device idle before and after.

    Gradients are ``exchanged`` between ranks or not. ``ready`` gets the mark where the backward pass begins.
    """
    timer: DeviceTimer[Any] = timer_for(trainer.device)
    images, labels = batch
    trainer.optimizer.zero_grad()
    timer.synchronize()
    start = timer.record()
    with trainer.parallel_model.gradient_sync(now=exchanged):
        loss = summed_loss(trainer, images, labels)
        middle = timer.record()
        if ready is not None:
            ready(middle)
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


def _time_buckets(trainer: Trainer, batch: Batch, count: int) -> list[Bucket]:
    """Time at which the gradients of each of DDP's buckets are ready, as a fraction of the backward pass."""
    settings = trainer.settings
    parameters = [weight for weight in trainer.parallel_model.module.parameters() if weight.requires_grad]
    timer: DeviceTimer[Any] = timer_for(trainer.device)
    begun: list[Any] = []
    marks: dict[int, Any] = {}
    order: list[int] = []
    fractions: dict[int, list[float]] = {index: [] for index in range(len(parameters))}

    def hook(index: int) -> Callable[[torch.Tensor], None]:
        def gradient_ready(_weight: torch.Tensor) -> None:
            marks[index] = timer.record()
            order.append(index)

        return gradient_ready

    hooks = [
        weight.register_post_accumulate_grad_hook(hook(index)) for index, weight in enumerate(parameters)
    ]
    try:
        for each in range(count + 1):
            order.clear()
            _, backward_seconds = _time_pass(trainer, batch, exchanged=False, ready=begun.append)
            if each:
                for index, mark in marks.items():
                    fractions[index].append(timer.seconds(begun[-1], mark) / backward_seconds)
    finally:
        for handle in hooks:
            handle.remove()
    if len(order) < len(parameters):
        return []  # weights without a gradient: DDP would not finish its buckets either
    return [
        Bucket(
            bytes=sum(_sent_bytes(parameters[index], settings) for index in bucket),
            ready_fraction=min(max(median(fractions[index]) for index in bucket), 1.0),
        )
        for bucket in _bucket_assignment(parameters, order, settings.bucket_cap_mb)
    ]


def _bucket_assignment(
    parameters: Sequence[torch.Tensor], order: Sequence[int], bucket_cap_mb: int | None
) -> list[list[int]]:
    """Return the buckets that DDP builds after its first step, by torch's own function.

    Args:
        parameters: Those of the model's that have gradients.
        order: Their indices, as their gradients become ready.
        bucket_cap_mb: The setting; None for torch's own, whose first bucket is smaller.

    Returns:
        Indices of the parameters of each bucket, in the order in which buckets are sent.
    """
    cap = (bucket_cap_mb or DEFAULT_BUCKET_MB) * 1024**2
    first = cap if bucket_cap_mb else int(FIRST_BUCKET_BYTES)
    buckets, _ = assign_by_size([parameters[index] for index in order], [first, cap])
    return [[order[place] for place in bucket] for bucket in buckets]


def _sent_bytes(weight: torch.Tensor, settings: Settings) -> int:
    """Return the bytes of a weight's gradient that are sent to the other ranks."""
    return weight.numel() * COMPRESSED_BYTES.get(settings.communication_hook, weight.element_size())


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
