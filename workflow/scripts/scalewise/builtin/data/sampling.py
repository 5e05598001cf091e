"""The samples that a rank sees in each step: every sample once an epoch over all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Sampler

from scalewise.plan.runs.batches import shard_range, step_sizes

_SEEDS = 2**62

Indices = npt.NDArray[np.int64]
"""[batch]. An array, not a tensor: it is sliced faster, and reaches a loader's process as bytes."""


@dataclass(frozen=True)
class SampledStep:
    """One optimizer step of an epoch.

    Args:
        samples: Number of samples over all ranks.
        micro_batches: This rank's samples of each.
    """

    samples: int
    micro_batches: Sequence[Indices]


class EpochSampler:
    """Shuffles anew each epoch and shares every step's samples between the ranks.

    Unlike torch's DistributedSampler it neither repeats nor drops samples; all ranks take the same
    number of steps and micro-batches.

    Args:
        samples: Number of samples in the training split.
        global_batch_size: Samples of a full step over all ranks.
        seed: Equal on all ranks.
        accumulation_steps: Micro-batches of a step.
    """

    def __init__(
        self,
        samples: int,
        global_batch_size: int,
        rank: int,
        world_size: int,
        seed: int,
        accumulation_steps: int = 1,
    ) -> None:
        parts = world_size * accumulation_steps
        self._sizes = step_sizes(samples, global_batch_size, parts)
        self.samples_of_micro_batch = max(self._sizes[0] // parts, 1)
        """Fewest samples of a micro-batch of the first step, on any rank."""
        self.samples = samples
        """Number of samples in the training split."""
        self._rank = rank
        self._world_size = world_size
        self._accumulation_steps = accumulation_steps
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle of this epoch, equal on all ranks."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return len(self._sizes)

    @property
    def samples_of_rank(self) -> int:
        """Number of training samples of this rank in an epoch."""
        return sum(len(shard_range(size, self._rank, self._world_size)) for size in self._sizes)

    def samples_before(self, step: int) -> int:
        """Return the number of this rank's samples in an epoch's steps before ``step``, counted from 0."""
        if step == len(self):
            return self.samples_of_rank
        # all steps but the last have as many
        return step * len(shard_range(self._sizes[0], self._rank, self._world_size))

    def __iter__(self) -> Iterator[SampledStep]:
        """Yield the steps of the epoch."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(self.samples, generator=generator).numpy()
        start = 0
        for size in self._sizes:
            mine = shard_range(size, self._rank, self._world_size)
            indices = order[start + mine.start : start + mine.stop]
            number = self._accumulation_steps
            parts = (shard_range(len(indices), part, number) for part in range(number))
            yield SampledStep(size, [indices[part.start : part.stop] for part in parts])
            start += size


class SeededBatches(Sampler[list[Any]]):
    """The batch sampler of both loaders: yields a batch as the seed of its random draws and its indices.

    Args:
        seed: Each rank draws with its own.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._epoch = self._first = 0
        self._batches: Sequence[Indices] = []
        self.batch_size = 0
        """Samples of the largest planned batch, under the name that torch's own batch sampler uses."""

    def plan(self, batches: Sequence[Indices], epoch: int, first: int = 0) -> None:
        """Choose the batches of the next iteration.

        Random draws for a batch follow from its place in the epoch only, so that a training can resume in
        the middle of one.

        Args:
            batches: One for each batch, in their order.
            epoch: The epoch that they belong to, from 0.
            first: Place of the first batch in the epoch, from 0.
        """
        self._batches, self._epoch, self._first = batches, epoch, first
        self.batch_size = max(map(len, batches), default=0)

    def __len__(self) -> int:
        """Number of planned batches."""
        return len(self._batches)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield ``[seed, indices]`` for each planned batch."""
        of_epoch = (self._seed * 1_000_003 + self._epoch) * 1_000_003
        for place, indices in enumerate(self._batches, self._first):
            yield [(of_epoch + place) % _SEEDS, indices]
