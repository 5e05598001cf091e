"""Find, check and read the checkpoint that a training resumes from, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from scalewise.builtin.checkpoints.state import SHARED, own_name
from scalewise.builtin.checkpoints.storage import load
from scalewise.execution.checkpoint_files import Checkpoint, CheckpointError, CheckpointFolder
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.distributed.process_group import gather

T = TypeVar("T")


class HostGroup:
    """Exchanges objects between the hosts of all ranks, by gloo also if they train over NCCL.

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

    def first(self, value: T) -> T:
        """Return rank 0's value on all ranks."""
        return self.gather(value)[0]


@dataclass(frozen=True)
class Restored:
    """The checkpoint that a training resumes from; all but ``own`` is the same on all ranks.

    Args:
        checkpoint: The newest that every rank could read; None if there is none.
        shared: The state that all ranks have in common.
        own: This rank's state.
        refused: A sentence for each newer checkpoint that is not used.
        lost_steps: Steps that the newest checkpoint holds beyond the one that is used.
    """

    checkpoint: Checkpoint | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    lost_steps: int = 0


def read_newest(
    files: CheckpointFolder, group: HostGroup, refuse: Callable[[Checkpoint], str] = lambda _: ""
) -> Restored:
    """Read the newest checkpoint that is complete on every rank.

    Args:
        files: The run's checkpoints.
        group: All ranks.
        refuse: Returns why this rank cannot use a checkpoint; empty if it can.

    Raises:
        CheckpointError: One cannot be read now, and may be complete.
    """
    refused: list[str] = []
    names = (SHARED, own_name(group.rank))
    found = group.first(_read(group, lambda: list(files.valid(refused)) if group.rank == 0 else []))
    newest = found[0].manifest.step if found else 0
    for checkpoint in found:
        damage = group.gather(_read(group, partial(_damage, checkpoint, names, refuse)))
        if not any(damage):
            shared, own = _read(group, partial(_load, checkpoint, names))
            lost_steps = newest - checkpoint.manifest.step
            return Restored(checkpoint, shared, own, group.first(refused), lost_steps)
        refused.append(next(filter(None, damage)))
    return Restored(refused=group.first(refused), lost_steps=newest)


def _damage(checkpoint: Checkpoint, names: Sequence[str], refuse: Callable[[Checkpoint], str]) -> str:
    """Return how files differ from those that were written, or why they are refused; empty if neither."""
    try:
        for name in names:
            checkpoint.check(name)
    except CheckpointError as error:
        return str(error)
    return refuse(checkpoint)


def _load(checkpoint: Checkpoint, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read files into host memory: a GPU may have no room for a second copy."""
    return [load(checkpoint.folder / name, torch.device("cpu")) for name in names]


def _read(group: HostGroup, read: Callable[[], T]) -> T:
    """Return what this rank reads, if every rank can read.

    Raises:
        CheckpointError: A rank cannot. Its checkpoint may be complete, so nothing is trained in its place.
    """
    value, problem = None, ""
    try:
        value = read()
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
    except CheckpointError as error:
        # its bytes are those that were written; the host may lack memory for them
        problem = str(error)
    if problems := list(filter(None, group.gather(problem))):
        raise CheckpointError(
            f"{problems[0]}. It may be complete, so nothing was deleted and nothing trained. Check the file "
            "system and the nodes' memory, or delete that checkpoint's folder to resume from the one before."
        )
    return cast(T, value)
