"""Which samples a rank sees in which step: every sample once an epoch over all ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from scalewise.plan.batches import share, step_sizes


class EpochSampler:
    """Shuffles anew each epoch and shares every step's samples between the ranks.

    Unlike torch's DistributedSampler it neither repeats nor drops samples; all ranks take the same
    number of steps.

    Args:
        samples: in the training split.
        global_batch_size: of a full step over all ranks.
        rank: this one.
        world_size: ranks in all.
        seed: equal on all ranks.
    """

    def __init__(self, samples: int, global_batch_size: int, rank: int, world_size: int, seed: int) -> None:
        self._sizes = step_sizes(samples, global_batch_size, world_size)
        self._samples = samples
        self._rank = rank
        self._world_size = world_size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the shuffle of this epoch, equal on all ranks."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self._sizes)

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Samples of the step over all ranks, and the int64 indices of this rank's part of them."""
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
        order = torch.randperm(self._samples, generator=generator)
        start = 0
        for size in self._sizes:
            mine = share(size, self._rank, self._world_size)
            yield size, order[start + mine.start : start + mine.stop]
            start += size
