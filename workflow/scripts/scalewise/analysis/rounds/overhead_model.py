"""The speeds of device counts that were not measured, as far as those that were tell: a Gaussian process.

Modelled is the overhead ``u = 1 / efficiency - 1``, the part of a step that a perfect division of the work
would not have, over the baseline's step. Of its logarithm it is assumed, before anything is measured:

- within a node it rises by some power of the devices;
- the network between nodes adds a jump of unknown size, then a power of the nodes: nearly none where the
  batch grows with the devices, for an all-reduce's time hardly depends on their number (Patarasuk & Yuan,
  JPDC 69, 2009), and their number itself where a batch is divided, for then the computing shrinks;
- every count departs from that by a part of its own, of a fifth, or half or twice as much: placement,
  algorithms that switch, batch sizes that suit the kernels. Published steps of GPUs on several nodes lie
  within 15 % of an all-reduce extrapolated from two in about half of all cases, as such a scatter makes them.
  Two nodes depart by twice as much: of a ring of two, each link carries both directions. Counts next to each
  other share some of it;

What was measured then pulls the model through itself (Rasmussen & Williams, Gaussian Processes for Machine
Learning, 2006, section 2.2). The numbers above are not fitted to any study; ``python benchmarks/run.py
design`` holds the answers that follow against published measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FLOOR = 0.05
"""Added to the overhead before its logarithm is taken: without any, the speed itself scatters by 1 %."""
LEAST_OVERHEAD = -0.045
"""Overhead below which a measured one is taken to lie there: faster than the ideal by 5 %."""

OWN_PART, OWN_PART_OF_TWO_NODES = 0.2, 0.4
"""Standard deviation of a count's own part of the logarithm."""
NEIGHBOURS = 1.25
"""Factor between two device counts over which their own parts come to differ (correlation 1/e): among the
whole nodes of a large site the parts of neighbours are no independent draws."""
OWN_PART_FACTORS = (0.5, 1.0, 2.0)
"""Factors on these, equally probable until counts are measured: how rough a cluster's curves are is not
known, and the measured counts tell."""
WANDER_PER_DOUBLING = 0.1
"""Standard deviation by which the law itself bends with each doubling of the nodes."""
WITHIN_NODE = (math.log(0.1 + FLOOR), 1.2)
"""Mean and standard deviation of the logarithm on two devices of a node."""
SLOPE_WITHIN_NODE = (0.3, 0.4)
"""The same of its rise with each doubling of the devices of a node."""
JUMP = (1.0, 1.5)
"""The same of its jump from a full node to two."""
SLOPE_OVER_NODES = {"weak": (0.15, 0.2), "strong": (math.log(2) + 0.15, 0.3)}
"""The same of its rise with each doubling of the nodes, by what grows with the devices."""


@dataclass(frozen=True)
class MeasuredSpeed:
    """Speeds of a device count's completed runs.

    Args:
        log_speed: Mean logarithm.
        n: Runs.
    """

    log_speed: float
    n: int


@dataclass(frozen=True)
class OverheadModel:
    """The overhead of each candidate before anything is measured.

    Args:
        devices: Candidates, the baseline first; shape (counts,).
        mean: Mean of ``log(overhead + FLOOR)``; shape (counts,).
        of_law: Covariance of its part that counts share; shape (counts, counts).
        own: Standard deviation of the part that each has of its own; shape (counts,).
    """

    devices: Array
    mean: Array
    of_law: Array
    own: Array

    @classmethod
    def before_measuring(
        cls,
        devices: Sequence[int],
        nodes: Sequence[int],
        scaling: str,
    ) -> OverheadModel:
        """The model that knows the site.

        Args:
            devices: Candidates, fewest first: the baseline.
            nodes: Nodes of each.
            scaling: ``strong`` or ``weak``.
        """
        counts, on_nodes = np.array(devices, dtype=np.float64), np.array(nodes, dtype=np.float64)
        several = on_nodes > 1
        per_node = float(counts[several][0] / on_nodes[several][0]) if several.any() else float(counts[-1])
        in_node = np.log2(np.minimum(counts, per_node)) - 1
        doublings = np.where(several, np.log2(on_nodes), 0.0)
        terms = np.stack(
            [np.ones_like(counts), in_node, several * 1.0, np.where(several, doublings - 1, 0.0)], axis=1
        )
        slope = SLOPE_OVER_NODES[scaling]
        means, deviations = np.array([WITHIN_NODE, SLOPE_WITHIN_NODE, JUMP, slope]).T
        if scaling == "strong":
            means[1] = slope[0]
        mean = terms @ means
        wander = WANDER_PER_DOUBLING**2 * np.minimum.outer(doublings, doublings)
        own = np.where(on_nodes == 2, OWN_PART_OF_TWO_NODES, OWN_PART)
        return cls(counts, mean, (terms * deviations**2) @ terms.T + wander, own)

    def among(self, indices: Sequence[int]) -> OverheadModel:
        """The model of some of the candidates, the baseline among them."""
        kept = list(indices)
        return OverheadModel(
            self.devices[kept],
            self.mean[kept],
            self.of_law[np.ix_(kept, kept)],
            self.own[kept],
        )

    def log_speeds(
        self,
        measured: Mapping[int, MeasuredSpeed],
        scatter: float,
        freedom: float,
        generator: np.random.Generator,
        draws: int,
    ) -> Array:
        """Possible logarithms of the speeds of all candidates, given those measured.

        Args:
            measured: Index of the candidate -> its speeds; index 0, the baseline, among them.
            scatter: Standard deviation of the logarithm of one run's speed.
            freedom: Degrees of freedom that it rests on.
            generator: Source of the draws.
            draws: Number of possibilities.

        Returns:
            Shape (draws, counts).
        """
        base = measured[0]
        known = [index for index in measured if index > 0]
        free = [index for index in range(len(self.devices)) if index not in measured]
        seen, doubts = self._overheads(measured, known, scatter)
        speeds = np.empty((draws, len(self.devices)))
        if free:
            normal = generator.standard_normal((draws, len(free)))
            mixed = [self._given(seen, doubts, known, factor) for factor in OWN_PART_FACTORS]
            likelihood = np.array([each[2] for each in mixed])
            weights = np.exp(likelihood - likelihood.max())
            ends = np.rint(draws * np.cumsum(weights) / weights.sum()).astype(int)
            logs = np.empty((draws, len(free)))
            for (mean, covariance, _), start, end in zip(mixed, [0, *ends[:-1]], ends, strict=True):
                root = np.linalg.cholesky(covariance[np.ix_(free, free)] + 1e-9 * np.eye(len(free)))
                logs[start:end] = mean[free] + normal[start:end] @ root.T
            # beyond e^8 nothing is told apart
            overhead = np.maximum(np.exp(np.minimum(logs, 8.0)) - FLOOR, LEAST_OVERHEAD)
            speeds[:, free] = (
                base.log_speed + np.log(self.devices[free] / self.devices[0]) - np.log1p(overhead)
            )
        # a factor that all points share: how large the scatter of runs really is
        scale = np.sqrt(freedom / generator.chisquare(freedom, draws))
        for index, each in measured.items():
            noise = generator.standard_normal(draws) * scale * (scatter / math.sqrt(each.n))
            speeds[:, index] = each.log_speed + noise
        return speeds

    def _overheads(
        self, measured: Mapping[int, MeasuredSpeed], known: Sequence[int], scatter: float
    ) -> tuple[Array, Array]:
        """Logarithms of the measured overheads and their standard errors; shape (known,) each."""
        base = measured[0]
        seen, doubts = np.empty(len(known)), np.empty(len(known))
        for place, index in enumerate(known):
            each = measured[index]
            efficiency = math.exp(each.log_speed - base.log_speed) * self.devices[0] / self.devices[index]
            overhead = max(1 / efficiency - 1, LEAST_OVERHEAD)
            error = scatter * math.sqrt(1 / each.n + 1 / base.n)
            seen[place] = math.log(overhead + FLOOR)
            doubts[place] = error * (1 + overhead) / (overhead + FLOOR)
        return seen, doubts

    def _given(
        self, seen: Array, doubts: Array, known: Sequence[int], factor: float
    ) -> tuple[Array, Array, float]:
        """Mean and covariance of all counts given those measured, and the logarithm of the likelihood.

        Args:
            seen: Logarithms of the measured overheads; shape (known,).
            doubts: Their standard errors; shape (known,).
            known: Indices of the measured counts.
            factor: Own parts over those expected.
        """
        logs = np.log(self.devices)
        alike = np.exp(-np.abs(logs[:, None] - logs) / math.log(NEIGHBOURS))
        covariance = self.of_law + factor**2 * np.outer(self.own, self.own) * alike
        among = covariance[np.ix_(known, known)] + np.diag(doubts**2)
        gain = np.linalg.solve(among, covariance[known]).T
        miss = seen - self.mean[known]
        likelihood = -0.5 * (miss @ np.linalg.solve(among, miss) + np.linalg.slogdet(among)[1])
        return self.mean + gain @ miss, covariance - gain @ covariance[known], float(likelihood)
