"""The checkpoint that a training goes on from: all ranks look for it, check it and read it together."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from scalewise.execution.checkpoint_files import Checkpoint, CheckpointError, CheckpointFolder
from scalewise.training.checkpoints.state import SHARED, own_name
from scalewise.training.checkpoints.storage import load
from scalewise.training.distributed.identity import Identity
from scalewise.training.distributed.process_group import gather

T = TypeVar("T")

HOST = torch.device("cpu")
"""Checkpoints are read to here: a GPU may have no room for a second copy."""


class HostGroup:
    """Asks all ranks by gloo, also where they train over nccl; every rank must ask the same.

    Args:
        identity: This rank.
        timeout_seconds: A rank waits this long for the others.
    """

    def __init__(self, identity: Identity, timeout_seconds: float) -> None:
        self.rank, self._world_size = identity.rank, identity.world_size
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in rank order, on all ranks."""
        return gather(value, self._world_size, self._group)

    def first(self, value: T) -> T:
        """Rank 0's value, on all ranks."""
        return self.gather(value)[0]


@dataclass(frozen=True)
class Restored:
    """The content of the checkpoint that a training goes on from; all but ``own`` is the same on all ranks.

    Args:
        checkpoint: The newest that every rank could read; None where there is none.
        shared: The content that all ranks hold alike.
        own: This rank's own content.
        refused: A sentence for each newer checkpoint that is not used.
        lost_steps: Steps that the newest checkpoint holds beyond the one that is used.
    """

    checkpoint: Checkpoint | None = None
    shared: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    lost_steps: int = 0


def read_newest(files: CheckpointFolder, group: HostGroup) -> Restored:
    """Read the newest checkpoint that is whole on every rank.

    Raises:
        CheckpointError: One cannot be read now and may be whole all the same.
    """
    refused: list[str] = []
    found = _find(files, group, refused)
    newest = found[0].manifest.step if found else 0
    for checkpoint in found:
        states, problem, unreadable = _read(checkpoint, group.rank)
        told = group.gather((problem, unreadable))
        _stop_if([each for each, is_unreadable in told if is_unreadable])
        problems = [each for each, _ in told if each]
        if not problems:
            shared, own = states
            lost_steps = newest - checkpoint.manifest.step
            return Restored(checkpoint, shared, own, group.first(refused), lost_steps)
        refused += problems[:1]
    return Restored(refused=group.first(refused), lost_steps=newest)


def _find(files: CheckpointFolder, group: HostGroup, refused: list[str]) -> list[Checkpoint]:
    """The checkpoints that rank 0 finds, the newest first, on all ranks."""
    found, unreadable = list[Checkpoint](), ""
    if group.rank == 0:
        try:
            found = list(files.valid(refused))
        except OSError as error:
            unreadable = _unreadable(error)
    found, unreadable = group.first((found, unreadable))
    _stop_if([unreadable] if unreadable else [])
    return found


def _read(checkpoint: Checkpoint, rank: int) -> tuple[list[dict[str, Any]], str, bool]:
    """Read this rank's part; else say what is wrong, and whether the checkpoint may be whole all the same."""
    try:
        paths = [checkpoint.check(name) for name in (SHARED, own_name(rank))]
    except CheckpointError as error:
        return [], str(error), False
    except OSError as error:
        return [], _unreadable(error), True
    try:
        return [load(path, HOST) for path in paths], "", False
    except CheckpointError as error:
        # its bytes are those that were written: it is this host that has, for instance, no memory for it
        return [], str(error), True
    except OSError as error:
        return [], _unreadable(error), True


def _stop_if(unreadable: list[str]) -> None:
    """Stop where a checkpoint may be whole: nothing is trained in its place, and nothing taken away."""
    if unreadable:
        raise CheckpointError(
            f"{unreadable[0]}. It may be whole, so nothing was deleted and nothing trained. Look at the "
            "file system and the nodes' memory, or delete that checkpoint's folder to go on from the one "
            "before."
        )


def _unreadable(error: OSError) -> str:
    return f"{error.filename} cannot be read: {error.strerror}"
