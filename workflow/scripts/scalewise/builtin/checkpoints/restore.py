"""Find, check and read the checkpoint that a training resumes from, on all ranks together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from scalewise.builtin.checkpoints.host_group import HostGroup
from scalewise.builtin.checkpoints.state import SHARED, rank_file
from scalewise.builtin.checkpoints.storage import load
from scalewise.execution.checkpoint_files import MISSING, Checkpoint, CheckpointError, CheckpointFolder
from scalewise.execution.messages import TrainSpec
from scalewise.ranks.results.starts import covers

T = TypeVar("T")


@dataclass(frozen=True)
class Restored:
    """The checkpoint that a training resumes from; all but ``rank_state`` is the same on all ranks.

    Args:
        checkpoint: The newest that every rank can use; None if there is none.
        shared: The state that all ranks have in common.
        rank_state: The state of this rank only.
        refused: A sentence for each newer checkpoint that is not used.
        lost_steps: Steps that the newest checkpoint holds beyond the one that is used.
    """

    checkpoint: Checkpoint | None
    refused: list[str]
    lost_steps: int
    shared: dict[str, Any] = field(default_factory=dict)
    rank_state: dict[str, Any] = field(default_factory=dict)


def read_newest(files: CheckpointFolder, group: HostGroup, spec: TrainSpec) -> Restored:
    """Read the newest checkpoint that is complete on every rank, with the times of its steps.

    Raises:
        CheckpointError: One cannot be read now, and may be complete.
    """
    names = (SHARED, rank_file(group.rank))
    found, refused = _read(group.on_rank_0, partial(_valid, files))
    newest = found[0].manifest.step if found else 0
    for checkpoint in found:
        problem = partial(_problem, checkpoint, names, group.rank, spec)
        problems = group.gather(_read(group.all_or_none, problem))
        if not any(problems):
            shared, rank_state = _read(group.all_or_none, partial(_load, checkpoint, names))
            return Restored(checkpoint, refused, newest - checkpoint.manifest.step, shared, rank_state)
        refused.append(next(filter(None, problems)))
    return Restored(None, refused, newest)


def _valid(files: CheckpointFolder) -> tuple[list[Checkpoint], list[str]]:
    """Return the run's checkpoints, the newest first, and a sentence for each that is refused."""
    refused: list[str] = []
    return list(files.valid(refused)), refused


def _problem(checkpoint: Checkpoint, names: Sequence[str], rank: int, spec: TrainSpec) -> str:
    """Return how a rank's files are damaged, or that its steps have no times; empty if neither."""
    try:
        for name in names:
            checkpoint.check(name)
    except CheckpointError as error:
        return str(error)
    step, starts = checkpoint.manifest.step, spec.starts
    if covers(spec, rank, step):
        return ""
    with suppress(*MISSING):
        for path in [path for folder in starts.iterdir() for path in folder.iterdir()]:
            path.read_bytes()  # a record that cannot be read now may be complete
    return (
        f"{checkpoint.folder} has no times of the {step} steps of rank {rank}: their records in {starts} are "
        f"missing or damaged. Move, copy or restore {spec.checkpoints} only as a whole."
    )


def _load(checkpoint: Checkpoint, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read files into host memory: a GPU may have no room for a second copy."""
    return [load(checkpoint.folder / name, torch.device("cpu")) for name in names]


def _read(together: Callable[[Callable[[], T]], T], read: Callable[[], T]) -> T:
    """Read together with the other ranks.

    Raises:
        CheckpointError: A rank cannot. Its checkpoint may be complete, so nothing is trained in its place.
    """

    def explained() -> T:
        try:
            return read()
        except OSError as error:
            raise CheckpointError(f"{error.filename} cannot be read: {error.strerror}") from error

    try:
        return together(explained)
    except CheckpointError as error:
        # also if its bytes are those that were written, and the host lacks memory for them
        raise CheckpointError(
            f"{error}. It may be complete, so nothing was deleted and nothing trained. Check the file "
            "system and the nodes' memory, or delete that checkpoint's folder to resume from the one before."
        ) from error
