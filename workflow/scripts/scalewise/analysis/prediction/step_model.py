"""A model of a step on any number of devices, from one device's step and the all-reduce.

``step(n) = compute(b) + exposed communication(n) + loader wait(b)``, with the per-device batch ``b``. It is
an upper bound of what can be reached: nothing in it but gradients passes between devices, none is slower
than another, and none gets in another's way. Pure functions of numbers.

The built-in training measures how its backward pass overlaps with the exchange. A program does not: it is
modelled three times, with the best, a likely and the worst overlap (``Baseline.of_program``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from scalewise.analysis.prediction.all_reduce_model import CENTRAL, HIGH, LOW, Values
from scalewise.analysis.statistics import Interval, median_and_range
from scalewise.plan.runs.batches import step_sizes
from scalewise.records import Bucket, Measurements, Pass

HIDDEN_SHARE = 0.01
"""Communication is hidden while less of the step than this waits for it: the last bucket never hides."""

BACKWARD_SHARE = 2 / 3
"""Likely share of the backward pass in a program's computing: it makes two products of matrices for each one
of the forward pass."""

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""Sizes of DistributedDataParallel's buckets if a program sets none."""


class NoPredictionError(ValueError):
    """A run, or a device count, from which nothing can be predicted; the message says why and the fix."""


class MeanStep(NamedTuple):
    """A mean step after the warm-up."""

    seconds: float
    samples: float

    @classmethod
    def of(cls, measured: Measurements) -> MeanStep:
        """Average the steps of a run.

        Raises:
            NoPredictionError: All its steps are warm-up.
        """
        windows = [window for window in measured.windows if not window.warmup]
        steps = sum(window.steps for window in windows)
        if not steps:
            raise NoPredictionError("all its steps are warm-up; raise epochs or steps, or lower warmup_steps")
        seconds = sum(window.seconds for window in windows)
        return cls(seconds / steps, sum(window.samples for window in windows) / steps)


@dataclass(frozen=True)
class Baseline:
    """One run on one device, with what hides its exchange.

    Args:
        passes: Times of a forward and backward pass, by ascending batch size.
        buckets: Buckets of gradients, in the order in which they travel.
        pass_scale: Time of a pass in training over that of one in ``passes``, at most 1.
        other_seconds: Seconds of a step that no pass and no loader takes: optimizer, schedule, launches.
        loader_seconds_per_sample: Seconds of waiting for data; None if unknown, and in ``passes``.
        accumulation_steps: Passes of a step.
        train_samples: Samples of an epoch; None if no epoch was trained to its end.
    """

    passes: Sequence[Pass]
    buckets: Sequence[Bucket]
    pass_scale: float
    other_seconds: float
    loader_seconds_per_sample: float | None
    accumulation_steps: int
    train_samples: int | None

    @classmethod
    def of(cls, measured: Measurements, accumulation_steps: int) -> Baseline:
        """Divide the measured step of the built-in training on one device into its parts.

        The measured mean step is split into its passes, which were timed by themselves after the training,
        its loader wait and the rest. If the passes exceed it, because the machine was slower after the
        training than during it, they are scaled: the step is the better measurement of the two.

        Raises:
            NoPredictionError: The run lacks a measurement.
        """
        seconds, samples = MeanStep.of(measured)
        if not measured.passes:
            raise NoPredictionError(
                "its record holds no timed passes; delete its folder and run snakemake again"
            )
        if not measured.buckets:
            raise NoPredictionError("its record does not say in which buckets the gradients travel")
        loader = (measured.loader_wait_fraction or 0.0) * seconds
        passes = sorted(measured.passes, key=lambda each: each.batch_size)
        computing = accumulation_steps * sum(pass_seconds(passes, samples / accumulation_steps))
        return cls(
            passes=passes,
            buckets=measured.buckets,
            pass_scale=min((seconds - loader) / computing, 1.0),
            other_seconds=max(seconds - loader - computing, 0.0),
            loader_seconds_per_sample=loader / samples,
            accumulation_steps=accumulation_steps,
            train_samples=round(
                sum(window.samples for window in measured.windows) / measured.epochs_completed
            )
            if measured.epochs_completed
            else None,
        )

    @classmethod
    def of_program(
        cls,
        computing: Mapping[float, Interval],
        loader_seconds_per_sample: float | None,
        gradient_bytes: int,
        accumulation_steps: int,
    ) -> list[Baseline]:
        """Model a program's step with the best, a likely and the worst overlap.

        A program does not show its backward pass, nor what a smaller batch takes. The exchange of gradients
        hides behind all of the computing at best, and behind nothing of it at worst, in each of its passes.
        Computing falls in proportion to the batch at best, and not at all at worst.

        Args:
            computing: Seconds of a step without its exchange and the wait for data, by its samples.
            loader_seconds_per_sample: Seconds of waiting for data; None if unknown, and in ``computing``.
            gradient_bytes: Bytes that each rank sends in a step.
            accumulation_steps: Passes of a step.
        """
        buckets = _buckets_of_ddp(gradient_bytes)
        smallest, most = min(computing), max(computing)

        def passes(bound: str, parts: int, backward: float, *, shrinks: bool = True) -> list[Pass]:
            seconds = {samples: getattr(step, bound) for samples, step in computing.items()}
            # a batch of one sample, as far as its time can be from that of the smallest that was measured
            least = seconds[smallest] / (smallest / parts if shrinks else 1)
            sizes = {1: least} | {max(round(samples / parts), 1): each for samples, each in seconds.items()}
            return [
                Pass(
                    batch_size=size,
                    forward_seconds=(1 - backward) * sizes[size] / parts,
                    backward_seconds=backward * sizes[size] / parts,
                )
                for size in sorted(sizes)
            ]

        likely = cls(
            passes("estimate", accumulation_steps, BACKWARD_SHARE),
            buckets, 1.0, 0.0, loader_seconds_per_sample, accumulation_steps, None,
        )  # fmt: skip
        best = replace(
            likely,
            passes=passes("low", 1, 1.0),
            buckets=[Bucket(bytes=gradient_bytes, ready_fraction=0.0)],
            accumulation_steps=1,
        )
        worst = replace(
            likely,
            passes=passes("high", accumulation_steps, 0.0, shrinks=False),
            buckets=accumulation_steps * buckets,
            other_seconds=most * (loader_seconds_per_sample or 0.0),
            loader_seconds_per_sample=None,
        )
        return [best, likely, worst]

    def interpolates(self, devices: int, global_batch_size: int) -> bool:
        """Whether the passes of a step over so many devices lie between those that were timed.

        Where kernels switch between two sizes, interpolated passes may be off by 20 % and more.
        """
        batch = math.ceil(global_batch_size / (devices * self.accumulation_steps))
        return batch not in {each.batch_size for each in self.passes}


class Exchange(NamedTuple):
    """The exchange of gradients over some devices.

    Args:
        all_reduce: Gives the seconds of a message of so many bytes, ``[LOW CENTRAL HIGH]``.
        unexplained_seconds: Exposed in measured steps and not by the model; stays as it is.
    """

    all_reduce: Callable[[int], Values]
    unexplained_seconds: float = 0.0


@dataclass(frozen=True)
class PredictedStep:
    """The parts of a mean step of an epoch, in seconds; ``[LOW CENTRAL HIGH]`` of what links change.

    Args:
        seconds: The whole step.
        compute: Passes, optimizer and the rest.
        loader: Waiting for data; None if unknown, and in ``compute``.
        all_reduce: All-reduces of all buckets, hidden or not.
        exposed: Communication that the backward pass does not hide.
        steps: Steps of an epoch, or 1 if an epoch is not known.
        samples: Samples of these steps.
    """

    seconds: Values
    compute: float
    loader: float | None
    all_reduce: Values
    exposed: Values
    steps: int
    samples: int


def pass_seconds(passes: Sequence[Pass], batch_size: float) -> tuple[float, float]:
    """Forward and backward seconds at a batch size.

    On straight lines between measured sizes on logarithmic scales, which power laws are. Below the
    smallest a pass takes as long as that: what remains is launch. Above the largest it is proportional.

    Args:
        passes: Ascending in batch size, at least one.
        batch_size: Samples of a pass.
    """
    sizes = [each.batch_size for each in passes]
    times = [(each.forward_seconds, each.backward_seconds) for each in passes]
    if batch_size <= sizes[0]:
        return times[0]
    if batch_size >= sizes[-1]:
        growth = batch_size / sizes[-1]
        return times[-1][0] * growth, times[-1][1] * growth
    forward, backward = (_between(batch_size, sizes, part) for part in zip(*times, strict=True))
    return forward, backward


def _between(batch_size: float, sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Time at a batch size between two measured ones."""
    if not all(seconds):
        # a part that takes no time has no logarithm
        return float(np.interp(batch_size, sizes, seconds))
    return math.exp(float(np.interp(math.log(batch_size), np.log(sizes), np.log(seconds))))


def exposed_seconds(
    buckets: Sequence[Bucket], backward_seconds: float, all_reduce: Callable[[int], Values]
) -> tuple[Values, Values]:
    """Seconds of all buckets' all-reduces, and seconds by which they outlast the backward pass.

    As DistributedDataParallel sends them: a bucket once its last gradient is there and the bucket before
    it has been sent (Li et al., VLDB 13(12), 2020, section 3.2.3).

    Args:
        buckets: Buckets in the order in which they travel.
        backward_seconds: Backward part of the step's last pass, the one that exchanges gradients.
        all_reduce: Gives the seconds of a message of so many bytes.
    """
    by_size = {size: all_reduce(size) for size in dict.fromkeys(bucket.bytes for bucket in buckets)}
    seconds = np.stack([by_size[bucket.bytes] for bucket in buckets])
    # of a bucket and all behind it: sent(i) = max(sent(i-1), ready(i)) + t(i), written as one maximum
    remaining = np.cumsum(seconds[::-1], axis=0)[::-1]
    ready = np.array([bucket.ready_fraction * backward_seconds for bucket in buckets])
    last = (ready[:, None] + remaining).max(axis=0)
    total: Values = remaining[0]
    return total, np.maximum(last - backward_seconds, 0.0)


def predict_step(
    base: Baseline, devices: int, global_batch_size: int, exchange: Exchange | None
) -> PredictedStep:
    """Predict the mean step of an epoch, whose last step may be smaller than the others.

    Args:
        base: One device of the same series.
        devices: Ranks.
        global_batch_size: Samples of a full step over all of them.
        exchange: The exchange over these ranks; None for one.

    Raises:
        NoPredictionError: A device would have no sample in a pass, or far fewer than were timed.
    """
    parts = devices * base.accumulation_steps
    if global_batch_size < parts:
        raise NoPredictionError(
            f"{devices} devices: a step has {global_batch_size} samples for {parts} passes; "
            "raise global_batch_size"
        )
    # a dataset smaller than a step cannot train at this size; one that is large enough would have full steps
    known = base.train_samples
    short = known is None or global_batch_size > known
    sizes = [global_batch_size] if known is None or short else step_sizes(known, global_batch_size, parts)
    compute = loader = 0.0
    total, exposed = np.zeros(3), np.zeros(3)
    for size in sorted(set(sizes)):
        share = sizes.count(size) / len(sizes)
        # the rank with most samples counts
        batch = math.ceil(size / parts)
        if 2 * batch < base.passes[0].batch_size:
            raise NoPredictionError(
                f"{devices} devices: passes of {batch} samples were not timed, only down to "
                f"{base.passes[0].batch_size}; train for longer, so that there is time for them"
            )
        forward, backward = (base.pass_scale * part for part in pass_seconds(base.passes, batch))
        compute += share * (base.accumulation_steps * (forward + backward) + base.other_seconds)
        loader += share * (base.loader_seconds_per_sample or 0.0) * size / devices
        if exchange is not None:
            this_total, this_exposed = exposed_seconds(base.buckets, backward, exchange.all_reduce)
            total, exposed = total + share * this_total, exposed + share * this_exposed
    if exchange is not None:
        exposed += exchange.unexplained_seconds
    known_loader = None if base.loader_seconds_per_sample is None else loader
    seconds = compute + loader + exposed
    return PredictedStep(seconds, compute, known_loader, total, exposed, len(sizes), sum(sizes))


def predict_run(
    assumptions: Sequence[Baseline],
    devices: int,
    global_batch_size: int,
    exchanges: Sequence[Exchange] | None,
) -> PredictedStep:
    """Predict the step of one run under each assumption: the middle one, from the fastest to the slowest.

    Args:
        assumptions: One if the overlap is measured, else the best, a likely and the worst.
        devices: Ranks.
        global_batch_size: Samples of a full step over all of them.
        exchanges: The exchange over these ranks under each assumption; None for one.

    Raises:
        NoPredictionError: As ``predict_step``.
    """
    steps = [
        predict_step(base, devices, global_batch_size, None if exchanges is None else exchanges[index])
        for index, base in enumerate(assumptions)
    ]
    middle = steps[len(steps) // 2]
    seconds, exposed = (
        np.array([min(each[LOW] for each in values), center[CENTRAL], max(each[HIGH] for each in values)])
        for values, center in (
            ([step.seconds for step in steps], middle.seconds),
            ([step.exposed for step in steps], middle.exposed),
        )
    )
    return replace(middle, seconds=seconds, exposed=exposed)


def predict_point(
    runs: Sequence[Sequence[Baseline]],
    devices: int,
    global_batch_size: int,
    base_batch_size: int,
    exchanges: Sequence[Exchange] | None,
    alone: Sequence[Sequence[Baseline]] | None = None,
) -> dict[str, Any]:
    """Predict the columns of a device count.

    Each repeat of the baseline predicts for itself; the median is stated. The bounds are the fastest and the
    slowest of all repeats, each with the bounds of its exchange and of what is assumed.

    Args:
        runs: The assumptions of each repeat of the baseline, at least one.
        devices: Ranks.
        global_batch_size: Samples of a full step over all of them.
        base_batch_size: The same on one device.
        exchanges: The exchange over these ranks under each assumption; None for one.
        alone: The assumptions on one device if ``runs`` hold what was measured on several.

    Raises:
        NoPredictionError: As ``predict_step``.
    """
    steps = [predict_run(run, devices, global_batch_size, exchanges) for run in runs]
    ones = [predict_run(run, 1, base_batch_size, None) for run in alone or runs]
    rates = [step.samples / step.steps / step.seconds[::-1] for step in steps]
    base_rates = [step.samples / step.steps / float(step.seconds[CENTRAL]) for step in ones]
    seconds = _over_repeats([step.seconds for step in steps])
    throughput = _over_repeats(rates)
    ratios = _over_repeats([rate / base for rate, base in zip(rates, base_rates, strict=True)])
    # a ratio of medians, as the measured one, and not a median of ratios
    gain = throughput.estimate / float(np.median(base_rates))
    speedup = replace(ratios, estimate=gain, low=min(ratios.low, gain), high=max(ratios.high, gain))
    waits = [step.loader for step in steps if step.loader is not None]
    samples = runs[0][0].train_samples
    # of an overlap that was not measured even the worst must hide
    bound = CENTRAL if len(runs[0]) == 1 else HIGH
    return {
        **seconds.as_columns("step_seconds"),
        "compute_seconds": float(np.median([step.compute for step in steps])),
        "loader_seconds": float(np.median(waits)) if waits else None,
        "all_reduce_seconds": _over_repeats([step.all_reduce for step in steps]).estimate,
        "exposed_seconds": _over_repeats([step.exposed for step in steps]).estimate,
        **throughput.as_columns("throughput_samples_per_second"),
        **speedup.as_columns("speedup"),
        **speedup.scaled(1 / devices).as_columns("parallel_efficiency"),
        "device_hours_per_epoch": None if samples is None else devices * samples / throughput.estimate / 3600,
        "hidden": all(step.exposed[bound] < HIDDEN_SHARE * seconds.estimate for step in steps),
    }


def _over_repeats(values: Sequence[Values]) -> Interval:
    """The median over repeats of ``[LOW CENTRAL HIGH]``, with the least and the largest bound."""
    own = median_and_range([float(value[CENTRAL]) for value in values])
    return replace(
        own,
        low=min(own.low, *(float(value[LOW]) for value in values)),
        high=max(own.high, *(float(value[HIGH]) for value in values)),
    )


def _buckets_of_ddp(gradient_bytes: int) -> list[Bucket]:
    """DistributedDataParallel's buckets by default, ready one after the other."""
    sizes: list[int] = []
    left = gradient_bytes
    while left > 0:
        sizes.append(min(left, BUCKET_BYTES if sizes else FIRST_BUCKET_BYTES))
        left -= sizes[-1]
    ready = np.cumsum(sizes) / gradient_bytes
    return [
        Bucket(bytes=size, ready_fraction=min(float(part), 1.0))
        for size, part in zip(sizes, ready, strict=True)
    ]
