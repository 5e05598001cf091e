"""A model of the all-reduce: from measured sizes to any size, from a few nodes to many.

Over ``n`` ranks a message of ``m`` bytes takes ``alpha + 2(n-1)/n * m / bandwidth``: the ring all-reduce
moves each byte that often through the slowest link (Patarasuk & Yuan, J. Parallel Distrib. Comput. 69(2),
2009; latency and bandwidth as in Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005). ``bandwidth`` is
therefore what nccl-tests call the bus bandwidth. Pure functions of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
"""An all-reduce beyond the measured nodes: at best, as expected, at worst."""


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
        low, high = _quantiles(self.alpha_seconds)
        return Interval(float(self.alpha_seconds[0]), low, high, len(self.sizes))

    @property
    def bandwidth(self) -> Interval:
        """Bus bandwidth in bytes/s, with the interval of the draws; infinite where size costs nothing."""
        volume = 2 * (1 - 1 / self.shape.world_size)
        slow, fast = reversed(_quantiles(self.seconds_per_byte))
        slopes = (float(self.seconds_per_byte[0]), slow, fast)
        estimate, low, high = (volume / slope if slope else math.inf for slope in slopes)
        return Interval(estimate, low, high, len(self.sizes))

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
        scales: Time of an exchange in training over that of the all-reduce measured alone, by shape,
            ``[LOW CENTRAL HIGH]``; 1 where nothing is known.
    """

    fits: Mapping[Shape, AllReduceFit]
    errors: Mapping[Shape, str]
    backend: str
    scales: Mapping[Shape, Values] = field(default_factory=dict)

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

    def bases(self, shape: Shape) -> list[Shape]:
        """The measured shapes of several nodes that the all-reduce of a shape is inferred from, ascending."""
        return sorted(
            base
            for base in self.fits
            if base.devices_per_node == shape.devices_per_node and base.nodes > 1 and base != shape
        )

    def all_reduce(self, shape: Shape, size: float) -> Values:
        """Seconds of one all-reduce, ``[LOW CENTRAL HIGH, draws]``.

        A measured shape has its own fit. Any other of several nodes is inferred from all
        measured numbers of nodes, because one alone is no safe base: two nodes can be slower than four.

        - CENTRAL: the median of what may be expected: from each base a ring over nodes and one over all
          ranks, and from the largest base no growth at all.
        - LOW: no growth beyond the fastest base.
        - HIGH: the slowest base, or the largest one with all that it takes across nodes growing as latency
          does: by ``log2(N)`` for a tree, and what is latency by ``N-1`` for a ring.

        Raises:
            NotMeasuredError: The shapes that this needs were not measured.
        """
        if shape in self.fits:
            seconds = self.fits[shape].seconds(size)
            return np.stack([scale * seconds for scale in self._scale(shape)])
        bases = self.bases(shape)
        if not bases:
            self._fit(Shape(2, shape.devices_per_node), shape)
        grown = [
            [self._grown(base, shape, size, float(self._scale(base)[bound])) for base in bases]
            for bound in (LOW, CENTRAL, HIGH)
        ]
        expected = [each for base in grown[CENTRAL] for each in (base.over_nodes, base.over_ranks)]
        central = np.median(np.broadcast_arrays(*expected, grown[CENTRAL][-1].constant), axis=0)
        low = _least([central, *(base.constant for base in grown[LOW])])
        last = grown[HIGH][-1]
        high = _most([central, *(base.constant for base in grown[HIGH]), last.as_latency, last.ring_latency])
        return np.stack(np.broadcast_arrays(low, central, high))

    def is_extrapolated(self, shape: Shape) -> bool:
        """Whether the shape's all-reduce is inferred from others."""
        return shape.world_size > 1 and shape not in self.fits

    def _scale(self, shape: Shape) -> Values:
        return self.scales.get(shape, np.ones(3))

    def _grown(self, base: Shape, shape: Shape, size: float, scale: float) -> _Grown:
        """The all-reduce of a base and what it may be over another number of nodes.

        Inside a node it stays; what several nodes take beyond it is volume and latency.
        """
        across_nodes = self.fits[base]
        whole = scale * across_nodes.seconds(size)
        inside, inside_alpha = np.zeros_like(whole), np.zeros_like(whole)
        if shape.devices_per_node > 1:
            node = self._fit(Shape(1, shape.devices_per_node), shape)
            inside, inside_alpha = np.minimum(node.seconds(size), whole), node.latency_seconds
        across = whole - inside
        latency = np.minimum(np.maximum(scale * across_nodes.latency_seconds - inside_alpha, 0), across)
        volume = across - latency
        tree, ring = math.log2(shape.nodes) / math.log2(base.nodes), (shape.nodes - 1) / (base.nodes - 1)
        over_nodes = (1 - 1 / shape.nodes) / (1 - 1 / base.nodes)
        over_ranks = (1 - 1 / shape.world_size) / (1 - 1 / base.world_size)
        expected = inside + latency * (tree if self.backend == "nccl" else ring)
        return _Grown(
            constant=whole,
            over_nodes=expected + volume * over_nodes,
            over_ranks=expected + volume * over_ranks,
            as_latency=inside + across * tree,
            ring_latency=inside + volume * over_nodes + latency * ring,
        )

    def _fit(self, needed: Shape, wanted: Shape) -> AllReduceFit:
        if needed in self.fits:
            return self.fits[needed]
        if wanted.nodes == 1 or wanted in self.errors:
            needed = wanted
        why = f" ({self.errors[needed]})" if needed in self.errors else ""
        devices = count_devices(wanted.world_size)
        raise NotMeasuredError(f"{devices} ({wanted}): the all-reduce over {needed} was not measured{why}")


class _Grown(NamedTuple):
    """Ways in which an all-reduce may grow from a measured number of nodes, in seconds, [draws] each.

    Args:
        constant: No growth.
        over_nodes: Hierarchical: volume grows as that of a ring over the nodes, latency as the backend sends.
        over_ranks: One ring over all ranks: volume grows as that of it, latency as the backend sends.
        as_latency: All that several nodes take beyond one grows as the depth of a tree.
        ring_latency: Volume grows as that of a ring over the nodes, and so does latency.
    """

    constant: Values
    over_nodes: Values
    over_ranks: Values
    as_latency: Values
    ring_latency: Values


def _least(values: Sequence[Values]) -> Values:
    least: Values = np.min(np.broadcast_arrays(*values), axis=0)
    return least


def _most(values: Sequence[Values]) -> Values:
    most: Values = np.max(np.broadcast_arrays(*values), axis=0)
    return most
