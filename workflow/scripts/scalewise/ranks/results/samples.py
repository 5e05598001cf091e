"""Samples of a run's steps: as they were planned, and as they were seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from scalewise.ranks.results.probe_record import ProbeRecord


@dataclass(frozen=True)
class Planned:
    """The run as it was planned.

    Args:
        program: The program, as the configuration names it.
        global_batch_size: Samples of a step over all devices.
        accumulation_steps: Passes of a step.
        samples_given: Whether the configuration says that the samples of a step cannot be seen.
        samples_vary: Whether it says that those that are seen count, whatever their number.
        same_batches: Whether it says that all ranks train on the same batches.
        names: Names in braces of its arguments and environment.
        accelerator: ``cuda`` or ``cpu``.
    """

    program: str
    devices: int
    global_batch_size: int
    accumulation_steps: int
    samples_given: bool
    names: frozenset[str]
    accelerator: str
    samples_vary: bool = False
    same_batches: bool = False


@dataclass(frozen=True)
class Samples:
    """Samples of an optimizer step over all ranks, and where they were seen."""

    per_step: float | None
    source: Literal["loader", "forward", "configuration"]


def samples_seen(ranks: Sequence[ProbeRecord]) -> Samples:
    """Samples of a step over all ranks: of a loader's batches, else of the inputs of forward passes.

    The usual number of each rank counts: loaders fetch ahead, and the last batch of a pass is smaller.
    """
    by_loader = [_usual(rank.samples) for rank in ranks]
    known = [samples for samples in by_loader if samples is not None]
    # of a loader that one rank reads for all, the others see nothing
    if known and any(known):
        return Samples(sum(known), "loader")
    forward = [rank.forward_samples for rank in ranks]
    if all(forward):
        return Samples(sum(samples for samples in forward if samples is not None), "forward")
    return Samples(None, "configuration")


def _usual(samples: Sequence[int | None]) -> float | None:
    if not samples:
        return 0.0
    if None in samples:
        return None
    return float(median(each for each in samples if each is not None))
