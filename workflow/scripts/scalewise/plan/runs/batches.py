"""Division of an epoch's samples into steps and among ranks. Pure arithmetic, used by plan and training."""

from __future__ import annotations

MIN_SAMPLES_PER_RANK = 2
"""Batch normalisation needs two values in a forward pass. A last batch below this joins the one before."""


def step_sizes(samples: int, global_batch_size: int, parts: int) -> list[int]:
    """Return the samples of each step of an epoch: all samples, each once.

    All steps have ``global_batch_size`` samples but the last, which has the rest. A rest too small to
    give each part two samples is added to the step before it.

    Args:
        samples: Training samples.
        global_batch_size: Samples of a full step over all ranks, at most ``samples``.
        parts: Forward passes of a step over all ranks: world size x accumulation steps.
    """
    full, rest = divmod(samples, global_batch_size)
    sizes = [global_batch_size] * full
    if rest >= MIN_SAMPLES_PER_RANK * parts or not full:
        sizes.append(rest)
    elif rest:
        sizes[-1] += rest
    return sizes


def shard_range(samples: int, rank: int, world_size: int) -> range:
    """The positions of a batch that belong to a rank: contiguous, sizes differ by at most 1."""
    base, rest = divmod(samples, world_size)
    start = rank * base + min(rank, rest)
    return range(start, start + base + (rank < rest))
