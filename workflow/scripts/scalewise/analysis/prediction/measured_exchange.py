"""The exchange of gradients in steps that were measured, as the base of predictions for more devices.

An all-reduce that is measured by itself does not compete with computing, waits for no rank and meets an idle
network. Once a training has run on several devices, what its steps take beyond computing says more. Pure
functions of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from scipy.optimize import brentq

from scalewise.analysis.prediction.all_reduce_model import (
    CENTRAL,
    AllReduceFit,
    AllReduceModel,
    NotMeasuredError,
    Values,
)
from scalewise.analysis.prediction.step_model import HIDDEN_SHARE, Baseline, Exchange, predict_step
from scalewise.analysis.statistics import Interval
from scalewise.plan.config.shape import Shape

LARGEST_SCALE = 2.0**20
"""An exchange in training a million times as long as by itself: no measured step needs more."""


@dataclass(frozen=True)
class MeasuredStep:
    """The mean step of a training on several devices.

    Args:
        shape: Nodes x devices per node.
        global_batch_size: Samples of a full step.
        seconds: Over the repeats.
        exposed: Seconds that waited for the exchange, over the repeats; None if they were not counted.
    """

    shape: Shape
    global_batch_size: int
    seconds: Interval
    exposed: Interval | None = None


@dataclass(frozen=True)
class MeasuredExchange:
    """The exchange of a training on a few devices, for predictions on more.

    Args:
        network: The all-reduces of the site, scaled to what the training's steps show.
        anchors: Shapes whose measured steps count, ascending.
        unexplained_seconds: Seconds of a step on the largest of them that the model does not give.
    """

    network: AllReduceModel
    anchors: Sequence[Shape]
    unexplained_seconds: float


def measured_exchange(
    network: AllReduceModel,
    steps: Sequence[MeasuredStep],
    bases: Sequence[Baseline],
    *,
    absolute: bool = True,
) -> MeasuredExchange | None:
    """Scale the all-reduces of the shapes of measured steps, so that the model gives these steps.

    The exchange is a difference of two times, so it is known no better than to ``HIDDEN_SHARE`` of the step,
    however close the repeats. If a step shows less, because the backward pass hides it, then anything between
    the all-reduce measured by itself and one that would just show may be true.

    Args:
        network: All-reduces of the site, measured by themselves.
        steps: Measured steps on several devices.
        bases: One for each repeat of the baseline, at least one.
        absolute: Whether the measured all-reduces are seconds, and not shares of an unknown time.

    Returns:
        None without a step whose all-reduce was measured or can be inferred.

    Raises:
        NoPredictionError: As ``predict_step``.
    """
    anchors = sorted(steps, key=lambda step: step.shape)
    fits, scales, unexplained = dict(network.fits), {}, 0.0
    for step in anchors:
        if step.shape not in fits:
            try:
                fits[step.shape] = _inferred(network, step.shape)
            except NotMeasuredError:
                return None
        solved = [_scale(fits[step.shape], base, step, absolute=absolute) for base in bases]
        scales[step.shape] = np.median([scale for scale, _ in solved], axis=0)
        unexplained = median(rest for _, rest in solved)
    if not anchors:
        return None
    shapes = [step.shape for step in anchors]
    # other shapes, on which no training ran: as much slower than alone as on the nearest that has
    for shape in fits:
        nearest = min(shapes, key=lambda anchor: abs(anchor.nodes - shape.nodes))
        scales.setdefault(shape, scales[nearest])
    return MeasuredExchange(replace(network, fits=fits, scales=scales), shapes, unexplained)


def _inferred(network: AllReduceModel, shape: Shape) -> AllReduceFit:
    """The all-reduce over a shape on which a training ran and the all-reduce itself was not measured."""
    bases = network.bases(shape)
    if not bases:
        raise NotMeasuredError(f"the all-reduce over {shape} was not measured")
    base = network.fits[bases[-1]]
    central = [network.all_reduce(shape, float(size))[CENTRAL] for size in base.sizes]
    alpha = replace(base.alpha, estimate=float(central[0]))
    return replace(base, shape=shape, medians=np.tile(central, (3, 1)), alpha=alpha)


def _scale(fit: AllReduceFit, base: Baseline, step: MeasuredStep, *, absolute: bool) -> tuple[Values, float]:
    """``[LOW CENTRAL HIGH]`` of the scale at one shape, and the exposed seconds that CENTRAL leaves."""
    alone = {bucket.bytes: fit.seconds(bucket.bytes)[CENTRAL] for bucket in base.buckets}
    devices, batch = step.shape.world_size, step.global_batch_size

    def exposed(scale: float) -> float:
        exchange = Exchange(lambda size: np.full(3, scale * alone[size]))
        return float(predict_step(base, devices, batch, exchange).exposed[CENTRAL])

    def solve(seconds: float) -> float:
        """The scale that exposes so many seconds: a larger one never exposes less."""
        if seconds <= 0:
            return 0.0
        if exposed(LARGEST_SCALE) < seconds:
            return LARGEST_SCALE
        found: float = brentq(lambda scale: exposed(scale) - seconds, 0.0, LARGEST_SCALE, rtol=1e-10)
        return found

    seen = step.exposed
    if seen is None:
        computing = float(predict_step(base, devices, batch, None).seconds[CENTRAL])
        took = step.seconds
        seen = Interval(took.estimate - computing, took.low - computing, took.high - computing, took.n)
    doubt = HIDDEN_SHARE * step.seconds.estimate
    shown = max(seen.estimate, 0.0)
    most = solve(max(seen.high, shown + doubt))
    if shown >= doubt:
        return np.array([solve(min(seen.low, shown - doubt)), solve(shown), most]), 0.0
    # of an exchange that may be anything up to this, half is the middle
    central = min(1.0, most) if absolute else most / 2
    least = central if absolute else 0.0
    return np.array([least, central, most]), max(shown - exposed(central), 0.0)
