"""A model of the all-reduce: from measured sizes to any size, from one and two nodes to many.

Over ``n`` ranks a message of ``m`` bytes takes ``alpha + 2(n-1)/n * m / bandwidth``: the ring all-reduce
moves each byte that often through the slowest link (Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2),
2009; latency and bandwidth as in Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005). ``bandwidth`` is
therefore what nccl-tests call the bus bandwidth. Pure functions of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalewise.analysis.statistics.intervals import CONFIDENCE, Interval
from scalewise.plan.config.shape import Shape, count_devices
from scalewise.records import AllReduce, AllReduceMeasurement

Values = npt.NDArray[np.float64]

DRAWS = 400
"""Fits from resampled measurements, the first of them from the measurements themselves."""

LINE_MISSES = 0.3
"""A line that is off by more than this share at any size gives no latency and bandwidth."""

LARGE_BYTES = 1024 * 1024
"""They are then those of messages from here on, as are DistributedDataParallel's buckets."""

LOW, CENTRAL, HIGH = range(3)
"""Growth of an all-reduce beyond the measured nodes: at best, as expected, at worst."""


class NotMeasuredError(ValueError):
    """No all-reduce can be stated for a shape; the message says what is missing and the cure."""


@dataclass(frozen=True)
class AllReduceFit:
    """All-reduce over one measured shape.

    Args:
        shape: Nodes x devices per node, at least two ranks.
        sizes: Bytes that were measured, ascending, [sizes].
        medians: Seconds at these, [draws, sizes].
        alpha_seconds: Latency, [draws]; it and the next of large messages alone where the line over all
            sizes does not hold.
        seconds_per_byte: ``2(n-1)/n / bandwidth``, [draws].
        worst_miss: Largest distance of a measured size from the line over all sizes, a share of the measured.
    """

    shape: Shape
    sizes: Values
    medians: Values
    alpha_seconds: Values
    seconds_per_byte: Values
    worst_miss: float

    @property
    def is_line(self) -> bool:
        """Whether one line holds at every size; otherwise the protocol or the link changes with the size."""
        return self.worst_miss <= LINE_MISSES

    @property
    def alpha(self) -> Interval:
        """Seconds, with the interval of the draws."""
        return Interval(
            float(self.alpha_seconds[0]), *_quantiles(self.alpha_seconds), CONFIDENCE, len(self.sizes)
        )

    @property
    def bandwidth(self) -> Interval:
        """Bus bandwidth in bytes/s, with the interval of the draws; infinite where size costs nothing."""
        volume = 2 * (1 - 1 / self.shape.world_size)
        slow, fast = reversed(_quantiles(self.seconds_per_byte))
        slopes = (float(self.seconds_per_byte[0]), slow, fast)
        estimate, low, high = (volume / slope if slope else math.inf for slope in slopes)
        return Interval(estimate, low, high, CONFIDENCE, len(self.sizes))

    @property
    def latency_seconds(self) -> Values:
        """Seconds that do not grow with size, [draws]; at most those of the smallest message."""
        return np.minimum(self.alpha_seconds, self.medians[:, 0])

    def seconds(self, size: float) -> Values:
        """Seconds of one all-reduce of ``size`` bytes, [draws].

        On straight lines between neighbouring sizes, which follow a link or a protocol that changes with
        the size; one line through all of them is off by some percent on the best of links. Below the
        smallest size as long as that, above the largest by the slope of the last two.
        """
        if len(self.sizes) == 1:
            return self.alpha_seconds + self.seconds_per_byte * size
        if size <= self.sizes[0]:
            shortest: Values = self.medians[:, 0]
            return shortest
        above = min(int(np.searchsorted(self.sizes, size)), len(self.sizes) - 1)
        low, high = self.sizes[above - 1], self.sizes[above]
        # noise must not make a larger message the faster one
        rise = np.maximum(self.medians[:, above] - self.medians[:, above - 1], 0)
        between: Values = self.medians[:, above - 1] + rise * (size - low) / (high - low)
        return between


def _quantiles(draws: Values) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def fit_all_reduce(shape: Shape, reductions: Sequence[AllReduce], seed: int = 0) -> AllReduceFit:
    """Latency and bandwidth by relative least squares over the sizes' medians, neither below zero.

    Relative, because sizes span decades and noise grows with the time. Each draw resamples the
    repetitions of each size and spreads the line's relative residuals over the sizes (residual bootstrap:
    Efron & Tibshirani, An Introduction to the Bootstrap, 1993, section 9.4), so that both noise and the
    line's misfit widen the intervals.

    Args:
        shape: Ranks over which was reduced.
        reductions: One for each size, at least one.
        seed: Seed of the draws.

    Raises:
        NotMeasuredError: There is no measurement.
    """
    measured = sorted((each for each in reductions if each.seconds), key=lambda each: each.bytes)
    if not measured:
        raise NotMeasuredError(f"the all-reduce over {shape} was not measured")
    random = np.random.default_rng(seed)
    sizes = np.array([each.bytes for each in measured], dtype=float)
    medians = np.stack([_resampled_medians(each.seconds, random) for each in measured], axis=1)
    alpha, slope = _line(sizes, medians[:1])
    worst = float(np.max(np.abs(1 - (alpha + slope * sizes) / medians[0])))
    large = sizes >= LARGE_BYTES
    if worst <= LINE_MISSES or large.sum() < 2:
        large[:] = True
    alphas, slopes = _resampled_lines(sizes[large], medians[:, large], random)
    return AllReduceFit(shape, sizes, medians, alphas, slopes, worst)


def _resampled_lines(sizes: Values, medians: Values, random: np.random.Generator) -> tuple[Values, Values]:
    """The line through the medians themselves, then through resampled ones; [draws] each."""
    alpha, slope = _line(sizes, medians[:1])
    line = alpha + slope * sizes
    moved = random.choice(medians[0] / line, medians.shape)
    moved[0] = medians[0] / line
    return _line(sizes, line * moved * (medians / medians[0]))


def _resampled_medians(seconds: Sequence[float], random: np.random.Generator) -> Values:
    """The median of the repetitions themselves, then medians of resampled ones, [draws]."""
    values = np.asarray(seconds, dtype=float)
    drawn: Values = np.median(random.choice(values, (DRAWS, len(values))), axis=1)
    drawn[0] = np.median(values)
    return drawn


def _line(sizes: Values, seconds: Values) -> tuple[Values, Values]:
    """Intercepts and slopes, neither below zero, of least relative squares; [draws, sizes] -> [draws].

    Two unknowns need no iteration: the optimum is inside, or on the better of the two edges.
    """
    weight, scaled = 1 / seconds, sizes / seconds
    ww, ws, ss = (weight**2).sum(1), (weight * scaled).sum(1), (scaled**2).sum(1)
    w, s = weight.sum(1), scaled.sum(1)
    determinant = ww * ss - ws**2
    with np.errstate(divide="ignore", invalid="ignore"):
        alpha, slope = (w * ss - s * ws) / determinant, (s * ww - w * ws) / determinant
    flat, steep = w / ww, s / ss
    # what an edge explains: the larger, the smaller the rest
    use_flat = w**2 / ww > s**2 / ss
    inside = (determinant > 1e-12 * ww * ss) & (alpha >= 0) & (slope >= 0)
    return (
        np.where(inside, alpha, np.where(use_flat, flat, 0.0)),
        np.where(inside, slope, np.where(use_flat, 0.0, steep)),
    )


@dataclass(frozen=True)
class AllReduceModel:
    """The measured all-reduces of a site, and a model of the others.

    Args:
        fits: Fits by measured shape.
        errors: Reason that a shape has no measurement, by shape.
        backend: ``gloo`` or ``nccl``.
    """

    fits: Mapping[Shape, AllReduceFit]
    errors: Mapping[Shape, str]
    backend: str

    @classmethod
    def of(cls, measured: Sequence[AllReduceMeasurement]) -> AllReduceModel:
        """Fit the records of a site, one for each shape."""
        fits, errors = {}, {}
        for index, record in enumerate(measured):
            shape = Shape.parse(record.shape)
            if record.error or not any(each.seconds for each in record.reductions):
                errors[shape] = record.error or "it holds no measurement"
            else:
                fits[shape] = fit_all_reduce(shape, record.reductions, seed=index)
        return cls(fits, errors, measured[0].backend if measured else "")

    def all_reduce(self, shape: Shape, size: float) -> Values:
        """Seconds of one all-reduce, ``[LOW CENTRAL HIGH, draws]``.

        A measured shape has its own fit, three times. Any other of several nodes is hierarchical: inside a
        node, then across. Across takes what two nodes need beyond one; its volume grows by ``2(N-1)/N``,
        at best as that of one ring over all ranks; its latency by ``log2(N)`` for a tree, by ``N-1`` for a
        ring: as expected, what the backend does for small messages (NCCL: trees; gloo: a ring).

        Raises:
            NotMeasuredError: The shapes that this needs were not measured.
        """
        if shape in self.fits:
            return np.stack([self.fits[shape].seconds(size)] * 3)
        pair = self._fit(Shape(2, shape.devices_per_node), shape)
        one = pair.seconds(size)
        inside, inside_alpha = np.zeros_like(one), np.zeros_like(one)
        if shape.devices_per_node > 1:
            node = self._fit(Shape(1, shape.devices_per_node), shape)
            inside, inside_alpha = node.seconds(size), node.latency_seconds
        across = np.maximum(one - inside, 0)
        latency = np.minimum(np.maximum(pair.latency_seconds - inside_alpha, 0), across)
        volume = across - latency
        tree, ring = math.log2(shape.nodes), shape.nodes - 1.0
        expected = tree if self.backend == "nccl" else ring
        one_ring = (1 - 1 / shape.world_size) / (1 - 1 / pair.shape.world_size)
        hierarchical = inside + volume * 2 * (1 - 1 / shape.nodes)
        return np.stack(
            [
                inside + volume * one_ring + latency * tree,
                hierarchical + latency * expected,
                hierarchical + latency * ring,
            ]
        )

    def is_extrapolated(self, shape: Shape) -> bool:
        """Whether the shape's all-reduce is inferred from others."""
        return shape.world_size > 1 and shape not in self.fits

    def _fit(self, needed: Shape, wanted: Shape) -> AllReduceFit:
        if needed in self.fits:
            return self.fits[needed]
        if wanted.nodes == 1:
            needed = wanted
        why = f" ({self.errors[needed]})" if needed in self.errors else ""
        devices = count_devices(wanted.world_size)
        raise NotMeasuredError(f"{devices} ({wanted}): the all-reduce over {needed} was not measured{why}")
