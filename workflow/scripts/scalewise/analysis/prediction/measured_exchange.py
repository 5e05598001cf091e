"""The exchange of gradients in steps that were measured, as the base of predictions for more nodes.

An all-reduce that is measured alone does not compete with computing, waits for no rank and meets an idle
network. Once a training has run on a few nodes, what its steps take beyond computing says more. Pure
functions of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from scalewise.analysis.prediction.all_reduce_model import (
    CENTRAL,
    AllReduceFit,
    AllReduceModel,
    NotMeasuredError,
    Values,
)
from scalewise.analysis.prediction.step_model import HIDDEN_SHARE, Baseline, PredictedStep, predict_step
from scalewise.analysis.statistics.intervals import Interval
from scalewise.plan.config.shape import Shape

HALVINGS = 40
"""Halvings of an interval in which a scale is looked for: to a billionth of a power of two."""

LARGEST_SCALE = 2.0**20
"""An exchange in training a million times as long as alone: no measured step asks for more."""


@dataclass(frozen=True)
class MeasuredStep:
    """The mean step of a training on several nodes.

    Args:
        shape: Nodes x devices per node.
        global_batch_size: Samples of a full step.
        seconds: Over the repeats.
        bases: One for each repeat of the baseline, at least one.
    """

    shape: Shape
    global_batch_size: int
    seconds: Interval
    bases: Sequence[Baseline]


@dataclass(frozen=True)
class MeasuredExchange:
    """The exchange of a training on a few nodes, for predictions on more.

    Args:
        network: The all-reduces of the site, scaled to what the training's steps show.
        anchors: Shapes whose measured steps count, ascending.
        unexplained_seconds: Seconds of a step on the largest of them that the model does not give.
    """

    network: AllReduceModel
    anchors: Sequence[Shape]
    unexplained_seconds: float


def measured_exchange(
    network: AllReduceModel, steps: Sequence[MeasuredStep], *, absolute: bool = True
) -> MeasuredExchange | None:
    """Scale the all-reduces of the shapes of measured steps, so that the model gives these steps.

    The exchange is a difference of two times, so it is known no better than to ``HIDDEN_SHARE`` of the step,
    however close the repeats. A step that shows less, because the backward pass hides it, tells no more than
    that: between the all-reduce measured alone and one that would just show, anything may be true.

    Args:
        network: All-reduces of the site, measured alone.
        steps: Measured steps on two nodes and more, all with as many devices per node.
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
        solved = [_scale(fits[step.shape], base, step, absolute=absolute) for base in step.bases]
        scales[step.shape] = np.median([scale for scale, _ in solved], axis=0)
        unexplained = median(rest for _, rest in solved)
    if not anchors:
        return None
    shapes = [step.shape for step in anchors]
    # other numbers of nodes, on which no training ran: as much slower than alone as on the nearest that has
    for shape in fits:
        if shape.nodes > 1 and shape.devices_per_node == shapes[0].devices_per_node:
            nearest = min(shapes, key=lambda anchor: abs(anchor.nodes - shape.nodes))
            scales.setdefault(shape, scales[nearest])
    return MeasuredExchange(replace(network, fits=fits, scales=scales), shapes, unexplained)


def _inferred(network: AllReduceModel, shape: Shape) -> AllReduceFit:
    """The all-reduce over a shape on which a training ran and the all-reduce alone was not measured."""
    bases = network.bases(shape)
    if not bases:
        network.all_reduce(shape, 1.0)
        raise NotMeasuredError(f"the all-reduce over {shape} was not measured")
    base = network.fits[bases[-1]]
    seconds = [network.all_reduce(shape, float(size))[CENTRAL] for size in base.sizes]
    medians = np.stack(np.broadcast_arrays(*seconds), axis=1)
    return replace(base, shape=shape, medians=medians, alpha_seconds=medians[:, 0])


def _scale(fit: AllReduceFit, base: Baseline, step: MeasuredStep, *, absolute: bool) -> tuple[Values, float]:
    """``[LOW CENTRAL HIGH]`` of the scale at one shape, and the exposed seconds that CENTRAL leaves."""
    alone = {bucket.bytes: fit.seconds(bucket.bytes)[0] for bucket in base.buckets}

    def at(scale: float) -> PredictedStep:
        return predict_step(
            base,
            step.shape.world_size,
            step.global_batch_size,
            lambda size: np.full((3, 1), scale * alone[size]),
        )

    def exposed(scale: float) -> float:
        return float(at(scale).exposed[0, 0])

    def solve(seconds: float) -> float:
        """The scale that exposes so many seconds, by halving: a larger one never exposes less."""
        low, high = 0.0, 1.0
        while exposed(high) < seconds and high < LARGEST_SCALE:
            low, high = high, 2 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if exposed(middle) < seconds else (low, middle)
        return high

    computing = float(at(0.0).seconds[0, 0])
    doubt = HIDDEN_SHARE * step.seconds.estimate
    shown = max(step.seconds.estimate - computing, 0.0)
    most = solve(max(step.seconds.high - computing, shown + doubt))
    if shown >= doubt:
        least = min(step.seconds.low - computing, shown - doubt)
        return np.array([solve(least), solve(shown), most]), 0.0
    # of an exchange that may be anything up to this, half is the middle
    central = min(1.0, most) if absolute else most / 2
    least = central if absolute else 0.0
    return np.array([least, central, most]), max(shown - exposed(central), 0.0)
