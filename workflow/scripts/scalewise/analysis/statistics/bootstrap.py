"""Intervals of what is computed from several samples at once, by drawing the runs again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scalewise.analysis.statistics.intervals import CONFIDENCE

Array = npt.NDArray[np.float64]

DRAWS = 2000
SEED = 1
LEAST_SPREAD = 1e-3
"""Least spread of a draw, as a share of the spread seen: a draw may take the same run again and again."""


@dataclass(frozen=True)
class PooledSample:
    """Samples that scatter alike, by their means and by the one spread of all of them.

    Args:
        means: Mean of each sample; shape (..., samples).
        spread: Standard deviation within the samples, pooled; shape (...).
    """

    means: Array
    spread: Array


def pooled(samples: Sequence[Array]) -> PooledSample:
    """Means and pooled spread.

    Args:
        samples: Arrays of shape (..., values); all with the same leading shape, each of its own length.
            Together they have more values than samples.
    """
    means = np.stack([sample.mean(axis=-1) for sample in samples], axis=-1)
    squares = sum(((sample - sample.mean(axis=-1, keepdims=True)) ** 2).sum(axis=-1) for sample in samples)
    freedom = sum(sample.shape[-1] - 1 for sample in samples)
    return PooledSample(means, np.sqrt(np.asarray(squares) / freedom))


def resample(
    residuals: Sequence[Array], centres: Array, draws: int = DRAWS, seed: int = SEED
) -> PooledSample:
    """Samples drawn anew, with replacement and each from its own residuals, around given centres.

    Args:
        residuals: Residuals of each sample about its mean.
        centres: Centres of the drawn samples; shape (samples,).
        draws: Number of times that all samples are drawn.
        seed: Seed of the generator.
    """
    generator = np.random.default_rng(seed)
    return pooled(
        [
            centre + sample[generator.integers(0, len(sample), (draws, len(sample)))]
            for sample, centre in zip(residuals, centres, strict=True)
        ]
    )


def studentised_bounds(
    estimate: Array, spread: float, redrawn: Array, spreads: Array, confidence: float = CONFIDENCE
) -> tuple[Array, Array]:
    """Bounds by the studentised bootstrap (Efron & Tibshirani 1993, chapter 12).

    How far a draw's estimate lies from the truth it was drawn from is counted in that draw's own spread.
    With 3 repeats a draw's spread is mostly too small and now and then far too small, so the bounds are
    wider than the percentiles of the draws, which cover a law's parameter in 75 to 85 % of the studies
    instead of 95 %.

    Args:
        estimate: Estimates from the runs; shape (quantities,).
        spread: Spread of the runs.
        redrawn: Estimates from each draw; shape (draws, quantities).
        spreads: Spread of each draw; shape (draws,).
        confidence: Confidence to reach.
    """
    least = max(LEAST_SPREAD * spread, np.finfo(np.float64).tiny)
    distances = (redrawn - estimate) / np.maximum(spreads, least)[:, None]
    tail = (1 - confidence) / 2
    below, above = np.quantile(distances, [tail, 1 - tail], axis=0)
    return estimate - spread * above, estimate - spread * below
