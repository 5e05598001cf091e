"""The samples that a rank sees in each step: every sample once an epoch over all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from scalewise.plan.runs.batches import shard_range, step_sizes


@dataclass(frozen=True)
class SampledStep:
    """One optimizer step of an epoch.

    Args:
        samples: Number of samples over all ranks.
        passes: int64 indices of this rank's samples, for each of its forward and backward passes.
    """

    samples: int
    passes: Sequence[torch.Tensor]


class EpochSampler:
    """Shuffles anew each epoch and shares every step's samples between the ranks.

    Unlike torch's DistributedSampler it neither repeats nor drops samples; all ranks take the same
    number of steps and passes.

    Args:
        samples: Number of samples in the training split.
        global_batch_size: Samples of a full step over all ranks.
        seed: Equal on all ranks.
        accumulation_steps: Forward and backward passes of a step.
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
        self.samples_of_pass = max(self._sizes[0] // parts, 1)
        """Fewest samples of a forward and backward pass of the first step, on whichever rank."""
        self._samples = samples
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
        order = torch.randperm(self._samples, generator=generator)
        start = 0
        for size in self._sizes:
            mine = shard_range(size, self._rank, self._world_size)
            indices = order[start + mine.start : start + mine.stop]
            parts = (shard_range(len(indices), part, self._accumulation_steps) for part in self._passes)
            yield SampledStep(size, [indices[part.start : part.stop] for part in parts])
            start += size

    @property
    def _passes(self) -> range:
        return range(self._accumulation_steps)
