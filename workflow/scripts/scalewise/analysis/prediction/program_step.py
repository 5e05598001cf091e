"""A model of a program's step on any number of devices: what is known of it, and a band for the rest.

A program of the user's own tells the length of its step and the bytes of its gradients, but neither its
backward pass nor what it would take for a smaller batch. Both are bounded instead:

- The exchange of gradients hides behind all of the computing at best, and behind nothing of it at worst:
  DistributedDataParallel sends while the backward pass computes, whose share of the step is not known.
- A smaller batch on each device takes computing in proportion at best, and as long as the whole at worst.

Pure functions of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from scalewise.analysis.prediction.all_reduce_model import CENTRAL, HIGH, LOW, Values
from scalewise.analysis.prediction.step_model import NoPredictionError, PredictedStep, exposed_seconds
from scalewise.analysis.statistics.intervals import Interval, median_and_range
from scalewise.plan.config.shape import Shape
from scalewise.records import Bucket, Measurements, ProgramMeasurements

BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in computing, for the middle of the band alone: it makes two products of
matrices for each one of the forward pass."""

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""Sizes of DistributedDataParallel's buckets where a program sets none."""

REPLICAS = frozenset({"DistributedDataParallel"})
"""Wrappers that exchange gradients and nothing else."""


@dataclass(frozen=True)
class ProgramBaseline:
    """One run of a program on one device.

    Args:
        samples: Samples of a step.
        compute_seconds: Step without the wait for data, or with it where that is not known.
        loader_seconds: Wait for data in a step; None where it is not known.
        gradient_bytes: Bytes that each rank sends in a step.
        accumulation_steps: Passes of a step.
        wrapped: DistributedDataParallel was seen; many programs wrap their model on several devices alone.
    """

    samples: float
    compute_seconds: float
    loader_seconds: float | None
    gradient_bytes: int
    accumulation_steps: int
    wrapped: bool

    @classmethod
    def of(cls, measured: Measurements, accumulation_steps: int) -> ProgramBaseline:
        """Take apart the measurements of a run on one device.

        Raises:
            NoPredictionError: The run does not hold what it takes, or exchanges other things than gradients.
        """
        program = measured.program
        assert program is not None, "the run is one of a program"
        check_exchange(program)
        seconds, samples = _mean_step(measured)
        if not program.gradient_bytes:
            why = program.unknown.get("bytes of gradients", "the program did not show any")
            raise NoPredictionError(f"the bytes of its gradients are not known: {why}")
        wait = measured.loader_wait_fraction
        loader = None if wait is None else wait * seconds
        return cls(
            samples=samples,
            compute_seconds=seconds - (loader or 0.0),
            loader_seconds=loader,
            gradient_bytes=program.gradient_bytes,
            accumulation_steps=accumulation_steps,
            wrapped=bool(program.parallelism),
        )

    @property
    def buckets(self) -> list[Bucket]:
        """DistributedDataParallel's buckets as it makes them by default, ready one after the other."""
        sizes: list[int] = []
        left = self.gradient_bytes
        while left > 0:
            sizes.append(min(left, BUCKET_BYTES if sizes else FIRST_BUCKET_BYTES))
            left -= sizes[-1]
        ready = np.cumsum(sizes) / self.gradient_bytes
        return [
            Bucket(bytes=size, ready_fraction=min(float(part), 1.0))
            for size, part in zip(sizes, ready, strict=True)
        ]


@dataclass(frozen=True)
class CountedStep:
    """The mean step of runs on several devices in which DistributedDataParallel counted its exchange.

    Args:
        shape: Nodes x devices per node.
        samples_per_device: Samples of a step on one device.
        compute: Seconds of a step without what waited for the exchange, over the repeats.
        exposed: Seconds that waited for it, over the repeats.
    """

    shape: Shape
    samples_per_device: float
    compute: Interval
    exposed: Interval

    @classmethod
    def of(cls, shape: Shape, runs: Sequence[Measurements]) -> CountedStep | None:
        """The step of a shape's runs; None where none of them has counted its exchange."""
        counted = [
            (*_mean_step(run), run.communication_fraction)
            for run in runs
            if run.communication_fraction is not None
        ]
        if not counted:
            return None
        return cls(
            shape,
            median(samples for _, samples, _ in counted) / shape.world_size,
            median_and_range([seconds * (1 - share) for seconds, _, share in counted]),
            median_and_range([seconds * share for seconds, _, share in counted]),
        )


def check_exchange(program: ProgramMeasurements, *, several: bool = False) -> None:
    """Refuse a program that is seen to exchange other things than gradients.

    Args:
        program: Findings on a run.
        several: True for a run on several devices, which must have been seen to exchange gradients.

    Raises:
        NoPredictionError: It does, or nothing was seen.
    """
    others = [name for name in program.parallelism if name not in REPLICAS]
    others += [name for name in program.optimizers if "ZeroRedundancy" in name]
    if others:
        raise NoPredictionError(
            f"{' and '.join(others)} exchanges more than gradients, which is not modelled; "
            "DistributedDataParallel is"
        )
    if several and not program.parallelism:
        raise NoPredictionError(
            "on several devices nothing was seen that exchanges gradients; DistributedDataParallel is "
            "modelled"
        )


def predict_program_step(
    base: ProgramBaseline,
    devices: int,
    global_batch_size: int,
    all_reduce: Callable[[int], Values] | None,
    counted: CountedStep | None = None,
    counted_all_reduce: Callable[[int], Values] | None = None,
) -> PredictedStep:
    """The step of a program on so many devices, from the fastest to the slowest that it may be.

    Args:
        base: One device of the same series.
        devices: Ranks.
        global_batch_size: Samples of a step over all of them.
        all_reduce: Seconds of a message of so many bytes over these ranks; None for one.
        counted: A measured step on fewer of several devices, which narrows the band.
        counted_all_reduce: The same as ``all_reduce``, over the ranks of that step.
    """
    own = global_batch_size / devices
    share = own / base.samples
    loader = base.loader_seconds
    if all_reduce is None:
        nothing = np.zeros((3, 1))
        return _step(_triple(base.compute_seconds), loader, nothing, nothing, global_batch_size)
    compute = _scaled(base.compute_seconds, share)
    waits = None if loader is None else _scaled(loader, share)
    total = _exchange(base, all_reduce)
    if counted is not None and counted_all_reduce is not None:
        compute = _between(base, counted, own)
        waits = None if waits is None else _triple(0.0)  # it is in what was counted as computing
        exposed = _narrowed(counted, own, total, _exchange(base, counted_all_reduce))
    else:
        _, middle = exposed_seconds(
            base.buckets,
            BACKWARD_SHARE * float(compute[CENTRAL, 0]) / base.accumulation_steps,
            all_reduce,
        )
        worst = base.accumulation_steps * total[HIGH]  # a program may exchange in every pass
        exposed = np.stack([np.maximum(total[LOW] - compute[LOW], 0.0), middle[CENTRAL], worst])
    wait = None if waits is None else float(waits[CENTRAL, 0])
    spread = compute - compute[CENTRAL] + (0.0 if waits is None else waits - waits[CENTRAL])
    return _step(compute, wait, total, exposed, global_batch_size, spread)


def _step(
    compute: Values,
    loader: float | None,
    total: Values,
    exposed: Values,
    samples: int,
    spread: Values | None = None,
) -> PredictedStep:
    more = {} if spread is None else {"spread": spread}
    return PredictedStep(float(compute[CENTRAL, 0]), loader, total, exposed, 1, samples, **more)


def _mean_step(measured: Measurements) -> tuple[float, float]:
    """Seconds and samples of a mean step after the warm-up.

    Raises:
        NoPredictionError: There is none.
    """
    windows = [window for window in measured.windows if not window.warmup]
    steps = sum(window.steps for window in windows)
    if not steps:
        raise NoPredictionError("all its steps are warm-up; train for longer or lower warmup_steps")
    return (
        sum(window.seconds for window in windows) / steps,
        sum(window.samples for window in windows) / steps,
    )


def _triple(*seconds: float) -> Values:
    """``[LOW CENTRAL HIGH, 1]``; one value stands for all three."""
    return np.array(seconds if len(seconds) == 3 else seconds * 3, dtype=float)[:, None]


def _scaled(seconds: float, share: float) -> Values:
    """The time of so much more or less work: in proportion, or as long as the whole did."""
    part = seconds * share
    return _triple(min(part, seconds), part, max(part, seconds))


def _exchange(base: ProgramBaseline, all_reduce: Callable[[int], Values]) -> Values:
    """Seconds of all gradients' all-reduces, ``[LOW CENTRAL HIGH, draws]``: in buckets, or in one message."""
    by_size = {size: all_reduce(size) for size in {bucket.bytes for bucket in base.buckets}}
    buckets = np.sum([by_size[bucket.bytes] for bucket in base.buckets], axis=0)
    whole = all_reduce(base.gradient_bytes)
    return np.stack(
        [np.minimum(buckets[LOW], whole[LOW]), buckets[CENTRAL], np.maximum(buckets[HIGH], whole[HIGH])]
    )


def _between(base: ProgramBaseline, counted: CountedStep, own: float) -> Values:
    """Computing of so many samples on a device, from steps that were measured on one and on several devices.

    Beyond the smaller batch of the two it is proportional at best and constant at worst. The middle is on the
    line through both.
    """
    low, high = counted.compute.low, counted.compute.high
    share = own / counted.samples_per_device
    bounds = sorted((low * min(share, 1.0), high * max(share, 1.0)))
    middle = counted.compute.estimate
    if base.samples > counted.samples_per_device:
        whole = base.compute_seconds + (base.loader_seconds or 0.0)
        slope = (whole - middle) / (base.samples - counted.samples_per_device)
        middle += slope * (own - counted.samples_per_device)
    return _triple(bounds[0], min(max(middle, bounds[0]), bounds[1]), bounds[1])


def _narrowed(counted: CountedStep, own: float, total: Values, counted_total: Values) -> Values:
    """Exposed seconds, from those of a measured step on fewer devices.

    At best as large a share of the exchange hides as did there. If only as many seconds hide, all that the
    exchange takes longer is exposed; behind the shorter backward pass of a smaller batch fewer hide.
    """
    exposed = _triple(counted.exposed.low, counted.exposed.estimate, counted.exposed.high)
    of_share = total * exposed / counted_total
    hidden = np.maximum(counted_total - exposed, 0.0)
    as_much = np.maximum(total - hidden, 0.0)
    less = np.maximum(total - hidden * min(own / counted.samples_per_device, 1.0), 0.0)
    both = np.stack([of_share, as_much, less])
    low, high = both.min(axis=0)[LOW], both.max(axis=0)[HIGH]
    middle = (of_share[CENTRAL] + less[CENTRAL]) / 2
    return np.stack([low, np.clip(middle, low, high), high])
