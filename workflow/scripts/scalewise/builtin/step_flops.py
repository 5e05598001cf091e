"""Count the floating-point operations of a step, after the training and off its clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from scalewise.builtin.loop import summed_loss
from scalewise.builtin.trainer import Trainer
from scalewise.measure.flops import FlopCount


def count_step_flops(trainer: Trainer, global_batch_size: int) -> tuple[dict[str, float], str]:
    """Count one micro-batch of this rank on the real model, eager, and return the operations of a whole step.

    All ranks must call it. Weights, buffers, gradients and random numbers are left as they are.

    Args:
        trainer: The trained model.
        global_batch_size: Samples of a step over all ranks and micro-batches.

    Returns:
        The operations of all ranks by number format, and the reason if they are unknown.
    """
    samples, device = len(next(iter(trainer.sampler)).micro_batches[0]), trainer.device
    # a model in parts keeps whole gradients unless they are exchanged
    exchanged = trainer.settings.parallelism == "fsdp"
    try:
        with (
            _nothing_learned(trainer),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            _eager(compiled=trainer.settings.compile),
            trainer.parallel_model.gradient_sync(now=exchanged),
            FlopCount() as count,
        ):
            # test images need no loader process
            images, labels = trainer.test.load(torch.arange(samples) % len(trainer.test))
            trainer.precision.backward(summed_loss(trainer, images, labels) / len(labels))
    except (RuntimeError, ValueError) as error:
        # the run has its result: a missing count must not end it
        return {}, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if count.reason:
        return {}, count.reason
    return {name: flops * global_batch_size / samples for name, flops in count.by_format.items()}, ""


@contextmanager
def _nothing_learned(trainer: Trainer) -> Iterator[None]:
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


def _eager(*, compiled: bool) -> AbstractContextManager[object]:
    """Run the compiled model's operators one by one, as only those can be counted."""
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
