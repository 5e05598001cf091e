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
from scipy.optimize import nnls

from scalewise.analysis.statistics import Interval, t_quantile
from scalewise.plan.config.shape import Shape, count_devices
from scalewise.records import AllReduce, AllReduceMeasurement

Values = npt.NDArray[np.float64]

LOW, CENTRAL, HIGH = range(3)
"""The three values of a time that is not known exactly: at best, as expected, at worst."""

LINE_MISSES = 0.3
"""A line that is off by more than this share at any size gives no latency and bandwidth."""

LARGE_BYTES = 1024 * 1024
"""They are then those of messages from here on, as are DistributedDataParallel's buckets."""


class NotMeasuredError(ValueError):
    """No all-reduce can be stated for a shape; the message says what is missing and the fix."""


@dataclass(frozen=True)
class AllReduceFit:
    """All-reduce over one measured shape.

    Args:
        shape: Nodes x devices per node, at least two ranks.
        sizes: Bytes that were measured, ascending, [sizes].
        medians: Median seconds at these with their 95 % intervals, [LOW CENTRAL HIGH, sizes].
        alpha: Latency in seconds; it and the next are those of large messages if the line over all sizes
            does not hold.
        seconds_per_byte: ``2(n-1)/n / bandwidth``.
        worst_miss: Largest distance of a measured size from the line over all sizes, a share of the measured.
    """

    shape: Shape
    sizes: Values
    medians: Values
    alpha: Interval
    seconds_per_byte: Interval
    worst_miss: float

    @property
    def is_line(self) -> bool:
        """Whether one line holds at every size; otherwise the protocol or the link changes with the size."""
        return self.worst_miss <= LINE_MISSES

    @property
    def bandwidth(self) -> Interval:
        """Bus bandwidth in bytes/s; infinite if size costs nothing."""
        volume = 2 * (1 - 1 / self.shape.world_size)
        slope = self.seconds_per_byte
        estimate, low, high = (
            volume / each if each else math.inf for each in (slope.estimate, slope.high, slope.low)
        )
        return Interval(estimate, low, high, slope.n)

    @property
    def latency_seconds(self) -> float:
        """Seconds that do not grow with size; at most those of the smallest message."""
        return min(self.alpha.estimate, float(self.medians[CENTRAL, 0]))

    def seconds(self, size: float) -> Values:
        """Seconds of one all-reduce of ``size`` bytes, [LOW CENTRAL HIGH].

        On straight lines between neighbouring sizes, which follow a link or a protocol that changes with
        the size; one line through all of them is off by some percent on the best of links. Below the
        smallest size as long as that, above the largest by the slope of the last two.
        """
        if len(self.sizes) == 1:
            scaled: Values = self.medians[:, 0] * size / self.sizes[0]
            return scaled
        if size <= self.sizes[0]:
            shortest: Values = self.medians[:, 0]
            return shortest
        above = min(int(np.searchsorted(self.sizes, size)), len(self.sizes) - 1)
        low, high = self.sizes[above - 1], self.sizes[above]
        # noise must not make a larger message the faster one
        rise = np.maximum(self.medians[:, above] - self.medians[:, above - 1], 0)
        between: Values = self.medians[:, above - 1] + rise * (size - low) / (high - low)
        return between


def fit_all_reduce(shape: Shape, reductions: Sequence[AllReduce]) -> AllReduceFit:
    """Latency and bandwidth by relative least squares over the sizes' medians, neither below zero.

    Relative, because sizes span decades and noise grows with the time.

    Args:
        shape: Ranks over which was reduced.
        reductions: One for each size, at least one.

    Raises:
        NotMeasuredError: There is no measurement.
    """
    measured = sorted((each for each in reductions if each.seconds), key=lambda each: each.bytes)
    if not measured:
        raise NotMeasuredError(f"the all-reduce over {shape} was not measured")
    sizes = np.array([each.bytes for each in measured], dtype=float)
    medians = np.stack([_median(each.seconds) for each in measured], axis=1)
    alpha, slope = _line(sizes, medians[CENTRAL])
    line = alpha.estimate + slope.estimate * sizes
    worst = float(np.max(np.abs(1 - line / medians[CENTRAL])))
    large = sizes >= LARGE_BYTES
    if worst > LINE_MISSES and large.sum() > 1:
        alpha, slope = _line(sizes[large], medians[CENTRAL, large])
    return AllReduceFit(shape, sizes, medians, alpha, slope, worst)


def _median(seconds: Sequence[float]) -> Values:
    """The median with the order statistics that hold it in 95 %; the least and the largest of up to six."""
    values = np.sort(np.asarray(seconds, dtype=float))
    n = len(values)
    rank = max(int((n - 1.96 * math.sqrt(n)) / 2), 0)
    return np.array([values[rank], np.median(values), values[n - 1 - rank]])


def _line(sizes: Values, seconds: Values) -> tuple[Interval, Interval]:
    """Intercept and slope of least relative squares, neither below zero, with their intervals by t.

    With fewer than three sizes nothing is left to tell how well the line holds: the bounds are NaN.
    """
    design = np.stack([1 / seconds, sizes / seconds], axis=1)
    scale = np.linalg.norm(design, axis=0)
    found, rest = nnls(design / scale, np.ones(len(sizes)))
    n, halves = len(sizes), np.full(2, math.nan)
    if n > 2:
        inverse = np.linalg.pinv((design / scale).T @ (design / scale))
        halves = t_quantile(n - 2) * rest * np.sqrt(np.diag(inverse) / (n - 2))
    alpha, slope = (
        Interval(float(each), float(np.maximum(each - half, 0)), float(each + half), n)
        for each, half in zip(found / scale, halves / scale, strict=True)
    )
    return alpha, slope


@dataclass(frozen=True)
class AllReduceModel:
    """The measured all-reduces of a site, and a model of the others.

    Args:
        fits: Fits by measured shape.
        errors: Reason that a shape has no measurement, by shape.
        backend: ``gloo`` or ``nccl``.
        scales: Time of an exchange in training over that of the all-reduce measured alone, by shape,
            ``[LOW CENTRAL HIGH]``; 1 if nothing is known.
    """

    fits: Mapping[Shape, AllReduceFit]
    errors: Mapping[Shape, str]
    backend: str
    scales: Mapping[Shape, Values] = field(default_factory=dict)

    @classmethod
    def of(cls, measured: Sequence[AllReduceMeasurement]) -> AllReduceModel:
        """Fit the records of a site, one for each shape."""
        fits, errors = {}, {}
        for record in measured:
            shape = record.shape
            if record.error or not any(each.seconds for each in record.reductions):
                errors[shape] = record.error or "it holds no measurement"
            else:
                fits[shape] = fit_all_reduce(shape, record.reductions)
        return cls(fits, errors, measured[0].backend if measured else "")

    def bases(self, shape: Shape) -> list[Shape]:
        """The measured shapes of several nodes that the all-reduce of a shape is inferred from, ascending."""
        return sorted(
            base
            for base in self.fits
            if base.devices_per_node == shape.devices_per_node and base.nodes > 1 and base != shape
        )

    def all_reduce(self, shape: Shape, size: float) -> Values:
        """Seconds of one all-reduce, ``[LOW CENTRAL HIGH]``.

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
            return self._scaled(shape, size)
        bases = self.bases(shape)
        if not bases:
            self._fit(Shape(2, shape.devices_per_node), shape)
        grown = [self._grown(base, shape, size) for base in bases]
        last = grown[-1]
        expected = [rings[CENTRAL] for each in grown for rings in (each.over_nodes, each.over_ranks)]
        central = float(np.median([*expected, last.constant[CENTRAL]]))
        constant = np.array([each.constant for each in grown])
        low = min(central, *constant[:, LOW])
        high = max(central, *constant[:, HIGH], last.as_latency[HIGH], last.ring_latency[HIGH])
        return np.array([low, central, high])

    def is_extrapolated(self, shape: Shape) -> bool:
        """Whether the shape's all-reduce is inferred from others."""
        return shape.world_size > 1 and shape not in self.fits

    def _scaled(self, shape: Shape, size: float) -> Values:
        """Seconds over a measured shape, as long as they are in training."""
        scaled: Values = self.scales.get(shape, np.ones(3)) * self.fits[shape].seconds(size)
        return scaled

    def _grown(self, base: Shape, shape: Shape, size: float) -> _Grown:
        """The all-reduce of a base and what it may be over another number of nodes.

        Inside a node it stays; what several nodes take beyond it is volume and latency.
        """
        whole = self._scaled(base, size)
        inside, inside_alpha = np.zeros(3), 0.0
        if shape.devices_per_node > 1:
            node = self._fit(Shape(1, shape.devices_per_node), shape)
            inside, inside_alpha = np.minimum(node.seconds(size), whole), node.latency_seconds
        across = whole - inside
        alone = self.scales.get(base, np.ones(3)) * self.fits[base].latency_seconds
        latency = np.minimum(np.maximum(alone - inside_alpha, 0), across)
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
    """Ways in which an all-reduce may grow from a measured number of nodes, [LOW CENTRAL HIGH] seconds each.

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
