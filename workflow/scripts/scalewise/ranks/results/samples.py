"""Samples of a run's steps: as they were planned, and as they were seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Literal

from scalewise.measure.step_flags import NEW_ITERATION, UNUSUAL_SHARE, unusual_steps
from scalewise.ranks.results.probe_record import FORWARD_STEPS, ProbeRecord


@dataclass(frozen=True)
class Planned:
    """The run as it was planned.

    Args:
        program: The program, as the configuration names it.
        global_batch_size: Samples of a step over all devices.
        accumulation_steps: Micro-batches of a step.
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

    The usual number of each rank counts: loaders fetch ahead, and the last batch of an epoch is smaller.
    """
    by_loader = [_usual(trained_samples(rank)) for rank in ranks]
    known = [samples for samples in by_loader if samples is not None]
    # of a loader that one rank reads for all, the others see nothing
    if known and any(known):
        return Samples(sum(known), "loader")
    forward = [rank.forward_samples for rank in ranks]
    if all(forward):
        return Samples(sum(samples for samples in forward if samples is not None), "forward")
    return Samples(None, "configuration")


def trained_samples(rank: ProbeRecord) -> list[int | None]:
    """Return the samples that each step of a rank trains on, of those that its loader has given it.

    A loader that must know the last batch of an epoch has fetched one more than is trained: the first step
    of an epoch has too many, and the last one lacks as many. One whose batches are kept
    (``itertools.cycle``) gives none after the first epoch: then the inputs of forward passes count.
    """
    samples = list(rank.samples)
    if None in samples:
        return samples
    begins = [index for index, bits in enumerate(rank.flags[: len(samples)]) if bits & NEW_ITERATION]
    for begin, end in pairwise([*begins, len(samples)]):
        if end - begin > 1:
            first, *middle, last = epoch = [each or 0 for each in samples[begin:end]]
            usual = round(median(middle or (first, last)))
            rest = sum(epoch) - usual * (len(epoch) - 1)
            if first > usual and 0 < rest <= usual and set(middle[:-1]) <= {usual}:
                samples[begin:end] = [*[usual] * (len(epoch) - 1), rest]
    ceased = len(samples)
    while ceased and not samples[ceased - 1]:
        ceased -= 1
    if len(samples) - ceased > UNUSUAL_SHARE * len(samples) and rank.forward_samples:
        samples[ceased:] = [round(rank.forward_samples)] * (len(samples) - ceased)
    return samples


def _looks_change(rank: ProbeRecord) -> bool:
    return any(samples != rank.forward_samples for _, samples in rank.forward_looks)


def _samples_by_looks(rank: ProbeRecord, steps: int) -> list[float]:
    """Return the samples of each step by the latest look at the inputs of forward passes."""
    looks, latest, found = dict(rank.forward_looks), rank.forward_samples or 0.0, []
    for index in range(steps):
        latest = looks.get(index, latest)
        found.append(latest)
    return found


def _usual(samples: Sequence[int | None]) -> float | None:
    if not samples:
        return 0.0
    if None in samples:
        return None
    return float(median(each for each in samples if each is not None))


@dataclass(frozen=True)
class StepSamples:
    """Samples of the steps of a run.

    Args:
        samples: Samples of a step, and their source.
        each: Samples of each step over all ranks; None if only the usual number is known.
        vary: Whether they vary by more than the last batches of epochs.
    """

    samples: Samples
    each: list[float] | None = None
    vary: bool = False

    def of(self, steps: Sequence[int]) -> float:
        """Return the samples of some steps over all ranks."""
        if self.each is not None:
            return sum(self.each[index] for index in steps)
        return (self.samples.per_step or 0.0) * len(steps)


def samples_of_steps(
    ranks: Sequence[ProbeRecord], clean: Sequence[int], planned: Planned
) -> tuple[StepSamples, set[int]]:
    """Samples of the steps, and the steps with an unusual number of them, where these are few."""
    if planned.samples_given:
        return StepSamples(Samples(float(planned.global_batch_size), "configuration")), set()
    seen = samples_seen(ranks)
    steps = min(rank.step_count for rank in ranks)
    if seen.source == "loader":
        of_ranks = [trained_samples(rank) for rank in ranks]
        each = [float(sum(samples[index] or 0 for samples in of_ranks if samples)) for index in range(steps)]
        unusual = unusual_steps(clean, of_ranks)
        if not unusual or (len(unusual) <= UNUSUAL_SHARE * len(clean) and not planned.samples_vary):
            return StepSamples(seen, each), unusual
    elif seen.source == "forward" and any(_looks_change(rank) for rank in ranks):
        each = [
            sum(of_rank) for of_rank in zip(*(_samples_by_looks(rank, steps) for rank in ranks), strict=True)
        ]
    elif (
        seen.per_step is not None
        and len({rank.backward_passes[index] for rank in ranks for index in clean}) > 1
    ):
        # forward passes are looked at in the first steps only; later ones may hold more of them or fewer
        first = median(ranks[0].backward_passes[:FORWARD_STEPS]) or 1
        each = [seen.per_step * number / first for number in ranks[0].backward_passes]
    else:
        return StepSamples(Samples(seen.per_step or float(planned.global_batch_size), seen.source)), set()
    mean = sum(each[index] for index in clean) / max(len(clean), 1)
    return StepSamples(Samples(mean, seen.source), each, vary=True), set()
