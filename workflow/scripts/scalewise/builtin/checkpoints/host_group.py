"""Let all ranks do the same, or fail for the same reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.distributed.process_group import gather

T = TypeVar("T")


class HostGroup:
    """All ranks, connected between their hosts by gloo, also if they train over NCCL.

    So an exchange neither reads nor stops the queue of a device.

    Args:
        identity: This rank.
        timeout_seconds: A rank waits this long for the others.
    """

    def __init__(self, identity: Identity, timeout_seconds: float) -> None:
        self.rank, self._world_size = identity.rank, identity.world_size
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    def gather(self, value: T) -> list[T]:
        """Return the value of every rank, in rank order, on all ranks."""
        return gather(value, self._world_size, self._group)

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest over all ranks of each value."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return cast(list[float], tensor.tolist())

    def all_or_none(self, work: Callable[[], T]) -> T:
        """Do a rank's work, which may raise CheckpointError, and return its value.

        Raises:
            CheckpointError: The work of a rank failed: all ranks raise the error of the first of them.
        """
        value, problem = None, ""
        try:
            value = work()
        except CheckpointError as error:
            problem = str(error)
        if problems := list(filter(None, self.gather(problem))):
            raise CheckpointError(problems[0])
        return cast(T, value)

    def on_rank_0(self, work: Callable[[], T]) -> T:
        """Do work on rank 0 only, and return its value on all ranks.

        Raises:
            CheckpointError: The work failed, on all ranks.
        """
        return cast(T, self.gather(self.all_or_none(lambda: work() if self.rank == 0 else None))[0])
