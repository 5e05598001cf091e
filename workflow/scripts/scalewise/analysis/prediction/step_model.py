"""A model of a step on any number of devices, from one device's computing and the all-reduce.

``step(n) = compute(b) + exposed communication(n) + loader wait(b)``, with the per-device batch ``b``. It is
an upper bound of what can be reached: nothing in it but gradients passes between devices, none is slower
than another, and none gets in another's way. Pure functions of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scalewise.analysis.prediction.all_reduce_model import CENTRAL, HIGH, LOW, Values
from scalewise.analysis.statistics.intervals import CONFIDENCE, Interval, median_and_range
from scalewise.plan.runs.batches import step_sizes
from scalewise.records import Bucket, Measurements, Pass

HIDDEN_SHARE = 0.01
"""Communication is hidden while less of the step than this waits for it: the last bucket never hides."""


class NoPredictionError(ValueError):
    """A run, or a device count, from which nothing can be predicted; the message says why and the cure."""


@dataclass(frozen=True)
class Baseline:
    """One run on one device.

    Args:
        passes: Times of a forward and backward pass, by ascending batch size.
        buckets: Buckets of gradients, in the order in which they travel.
        pass_scale: Time of a pass in training over that of one in ``passes``, at most 1.
        other_seconds: Seconds of a step besides passes and loader: optimizer, schedule, launches.
        loader_seconds_per_sample: Seconds of waiting for data.
        accumulation_steps: Passes of a step.
        train_samples: Samples of an epoch; None where no epoch was trained to its end.
    """

    passes: Sequence[Pass]
    buckets: Sequence[Bucket]
    pass_scale: float
    other_seconds: float
    loader_seconds_per_sample: float
    accumulation_steps: int
    train_samples: int | None

    @classmethod
    def of(cls, measured: Measurements, accumulation_steps: int) -> Baseline:
        """Take apart the measurements of a run on one device.

        The measured mean step is split into its passes, which were timed alone after the training, its
        loader wait and the rest. Where the passes alone exceed it, because the machine was slower after
        the training than during it, they are scaled: the step is the better measurement of the two.

        Raises:
            NoPredictionError: The run does not hold what it takes.
        """
        windows = [window for window in measured.windows if not window.warmup]
        if not windows:
            raise NoPredictionError("all its steps are warm-up; raise epochs or steps, or lower warmup_steps")
        if not measured.passes:
            raise NoPredictionError(
                "its record holds no timed passes, because an earlier version made it; delete its folder and "
                "run snakemake again"
            )
        if not measured.buckets:
            raise NoPredictionError("its record does not say in which buckets the gradients travel")
        steps = sum(window.steps for window in windows)
        samples = sum(window.samples for window in windows) / steps
        seconds = sum(window.seconds for window in windows) / steps
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

    def interpolates(self, devices: int, global_batch_size: int) -> bool:
        """Whether the passes of a step over so many devices lie between those that were timed.

        Where kernels switch between two sizes, interpolated passes may be off by 20 % and more.
        """
        batch = math.ceil(global_batch_size / (devices * self.accumulation_steps))
        return batch not in {each.batch_size for each in self.passes}


@dataclass(frozen=True)
class PredictedStep:
    """The parts of a mean step of an epoch, in seconds; ``[LOW CENTRAL HIGH, draws]`` where links matter.

    Args:
        compute: Passes, optimizer and the rest.
        loader: Waiting for data; None where it is not known, and in ``compute``.
        all_reduce: All-reduces of all buckets, hidden or not.
        exposed: Communication that the backward pass does not hide.
        steps: Steps of an epoch, or 1 where an epoch is not known.
        samples: Samples of these steps.
        spread: Seconds by which compute and loader together may be shorter or longer.
    """

    compute: float
    loader: float | None
    all_reduce: Values
    exposed: Values
    steps: int
    samples: int
    spread: Values = field(default_factory=lambda: np.zeros((3, 1)))

    @property
    def seconds(self) -> Values:
        """The whole step."""
        return self.compute + (self.loader or 0.0) + self.spread + self.exposed


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
    logs = np.log(sizes)
    forward, backward = (
        math.exp(float(np.interp(math.log(batch_size), logs, np.log(part))))
        for part in zip(*times, strict=True)
    )
    return forward, backward


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
    last = (ready[:, None, None] + remaining).max(axis=0)
    total: Values = remaining[0]
    return total, np.maximum(last - backward_seconds, 0.0)


def predict_step(
    base: Baseline,
    devices: int,
    global_batch_size: int,
    all_reduce: Callable[[int], Values] | None,
    unexplained_seconds: float = 0.0,
) -> PredictedStep:
    """The mean step of an epoch, whose last step may be smaller than the others.

    Args:
        base: One device of the same series.
        devices: Ranks.
        global_batch_size: Samples of a full step over all of them.
        all_reduce: Seconds of a message of so many bytes over these ranks; None for one.
        unexplained_seconds: Exposed in measured steps and not by the model; stays as it is.

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
    total: Values = np.zeros((3, 1))
    exposed: Values = np.zeros((3, 1))
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
        loader += share * base.loader_seconds_per_sample * size / devices
        if all_reduce is not None:
            this_total, this_exposed = exposed_seconds(base.buckets, backward, all_reduce)
            total, exposed = total + share * this_total, exposed + share * this_exposed
    return PredictedStep(compute, loader, total, exposed + unexplained_seconds, len(sizes), sum(sizes))


def predict_point(
    bases: Sequence[Baseline],
    devices: int,
    global_batch_size: int,
    base_batch_size: int,
    all_reduce: Callable[[int], Values] | None,
    unexplained_seconds: float = 0.0,
) -> dict[str, Any]:
    """The columns of a device count that rest on the model.

    Each repeat of the baseline predicts for itself; what is stated is the median. The interval joins the
    repeats' own with that of the all-reduce's fits and, beyond the measured shapes, of how it grows.

    Args:
        bases: One for each repeat, at least one.
        devices: Ranks.
        global_batch_size: Samples of a full step over all of them.
        base_batch_size: The same on one device.
        all_reduce: The same function that ``predict_step`` takes.
        unexplained_seconds: The same that ``predict_step`` takes.

    Raises:
        NoPredictionError: As ``predict_step``.
    """
    steps = [
        predict_step(base, devices, global_batch_size, all_reduce, unexplained_seconds) for base in bases
    ]
    alone = [predict_step(base, 1, base_batch_size, None) for base in bases]
    columns, samples = point_columns(steps, alone, devices), bases[0].train_samples
    if samples is not None:
        rate = columns["throughput_samples_per_second"]
        columns["device_hours_per_epoch"] = devices * samples / rate / 3600
    return columns


def point_columns(
    steps: Sequence[PredictedStep], alone: Sequence[PredictedStep], devices: int
) -> dict[str, Any]:
    """The columns of a device count, from the steps that are predicted for it.

    Args:
        steps: One for each repeat of the baseline, at least one.
        alone: Those of one device, in the same order.
        devices: Ranks.
    """
    rates = [step.samples / step.steps / step.seconds for step in steps]
    base_rates = [step.samples / step.steps / float(step.seconds[CENTRAL, 0]) for step in alone]
    seconds = over_repeats([step.seconds for step in steps])
    # a rate is low where the step is slow
    throughput = over_repeats([rate[::-1] for rate in rates])
    ratios = over_repeats([rate[::-1] / base for rate, base in zip(rates, base_rates, strict=True)])
    # a ratio of medians, as the measured one, and not a median of ratios
    gain = throughput.estimate / float(np.median(base_rates))
    speedup = replace(ratios, estimate=gain, low=min(ratios.low, gain), high=max(ratios.high, gain))
    exposed = over_repeats([step.exposed for step in steps]).estimate
    waits = [step.loader for step in steps if step.loader is not None]
    return {
        **seconds.as_columns("step_seconds"),
        "compute_seconds": float(np.median([step.compute for step in steps])),
        "loader_seconds": float(np.median(waits)) if waits else None,
        "all_reduce_seconds": over_repeats([step.all_reduce for step in steps]).estimate,
        "exposed_seconds": exposed,
        **throughput.as_columns("throughput_samples_per_second"),
        **speedup.as_columns("speedup"),
        **speedup.scaled(1 / devices).as_columns("parallel_efficiency"),
        "device_hours_per_epoch": None,
        "hidden": exposed < HIDDEN_SHARE * seconds.estimate,
    }


def over_repeats(values: Sequence[Values]) -> Interval:
    """The median over repeats of ``[LOW CENTRAL HIGH, draws]``, with bounds that join both kinds of doubt."""
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    central = [float(value[CENTRAL, 0]) for value in values]
    low = median_and_range([float(np.quantile(value[LOW], tails[0])) for value in values]).low
    high = median_and_range([float(np.quantile(value[HIGH], tails[1])) for value in values]).high
    own = median_and_range(central)
    return Interval(own.estimate, min(low, own.estimate), max(high, own.estimate), len(values))
