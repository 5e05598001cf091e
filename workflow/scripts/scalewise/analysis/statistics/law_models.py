"""The three laws as formulas, each a sum of terms, and their least-squares fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

Array = npt.NDArray[np.float64]

TINY = 1e-12
"""Keeps a quotient finite where a draw of noisy runs takes its denominator to 0."""


@dataclass(frozen=True)
class LawModel:
    """A law whose seconds per sample, or samples per second, are a sum of terms of the device count.

    Args:
        key: Short name, as in laws.json.
        title: Name inside a sentence.
        least_counts: Device counts that a fit needs.
        names: Names of the parameters.
        bounds: Lowest and highest value of each parameter that the law allows.
        is_rate: The sum is of samples per second.
        terms: Device counts of shape (counts,) -> terms of shape (counts, coefficients).
        parameters: Coefficients of shape (..., coefficients) -> parameters of shape (..., parameters).
    """

    key: str
    title: str
    least_counts: int
    names: tuple[str, ...]
    bounds: tuple[tuple[float, float], ...]
    is_rate: bool
    terms: Callable[[Array], Array]
    parameters: Callable[[Array], Array]

    def log_rates(self, devices: Array, coefficients: Array) -> Array:
        """Logarithms of the throughput.

        Args:
            devices: Shape (counts,).
            coefficients: Shape (..., coefficients).

        Returns:
            Shape (..., counts).
        """
        sums = np.log(np.maximum(coefficients @ self.terms(devices).T, TINY))
        return np.asarray(sums if self.is_rate else -sums)

    def relative_terms(self, devices: Array, log_rates: Array) -> Array:
        """Terms over the measured values: the coefficients are to make each row's sum 1.

        Args:
            devices: Shape (counts,).
            log_rates: Measured; shape (..., counts).

        Returns:
            Shape (..., counts, coefficients).
        """
        measured = np.exp(log_rates if self.is_rate else -log_rates)
        return np.asarray(self.terms(devices) / measured[..., None])


SERIAL = ("single_device_rate", "serial_fraction")
SERIAL_BOUNDS = ((0.0, np.inf), (0.0, 1.0))

AMDAHL = LawModel(
    key="amdahl",
    title="Amdahl's law",
    least_counts=3,
    names=SERIAL,
    bounds=SERIAL_BOUNDS,
    is_rate=False,
    terms=lambda devices: np.stack([np.ones_like(devices), 1 / devices], axis=1),
    parameters=lambda sums: np.stack([1 / _total(sums), sums[..., 0] / _total(sums)], axis=-1),
)
"""Seconds per sample are (s + (1 - s) / n) / rate (Amdahl, AFIPS 1967)."""

GUSTAFSON = LawModel(
    key="gustafson",
    title="Gustafson's law",
    least_counts=3,
    names=SERIAL,
    bounds=SERIAL_BOUNDS,
    is_rate=True,
    terms=lambda devices: np.stack([np.ones_like(devices), devices], axis=1),
    parameters=lambda sums: np.stack([_total(sums), sums[..., 0] / _total(sums)], axis=-1),
)
"""Samples per second are rate * (n - s * (n - 1)) (Gustafson, CACM 31(5), 1988)."""

USL = LawModel(
    key="usl",
    title="the universal scalability law",
    least_counts=6,
    names=("single_device_rate", "contention", "coherency", "inverse_square_of_peak"),
    bounds=((0.0, np.inf), (0.0, 1.0), (0.0, np.inf), (0.0, 1.0)),
    is_rate=False,
    terms=lambda devices: np.stack([1 / devices, (devices - 1) / devices, devices - 1], axis=1),
    parameters=lambda sums: _usl_parameters(np.maximum(sums[..., 0], TINY), sums[..., 1], sums[..., 2]),
)
"""Samples per second are rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1)); they peak at
sqrt((1 - contention) / coherency) devices (Gunther, Guerrilla Capacity Planning, 2007)."""


def _total(coefficients: Array) -> Array:
    return np.asarray(np.maximum(coefficients.sum(axis=-1), TINY))


def _usl_parameters(free: Array, contended: Array, coherent: Array) -> Array:
    contention, coherency = contended / free, coherent / free
    # the peak itself is infinite wherever coherency is 0; its inverse square has no such place
    peak = coherency / np.maximum(1 - contention, TINY)
    return np.stack([1 / free, contention, coherency, peak], axis=-1)


def fit_within_bounds(model: LawModel, devices: Array, log_rates: Array, repeats: Array) -> Array:
    """The coefficients, none below 0, that make the squares of the relative errors least.

    Args:
        model: The law.
        devices: Shape (counts,).
        log_rates: Mean over the repeats; shape (counts,).
        repeats: Weights; shape (counts,).

    Returns:
        Shape (coefficients,).
    """
    weights = np.sqrt(repeats)
    terms = model.relative_terms(devices, log_rates) * weights[:, None]
    scale = terms.max(axis=0)
    coefficients, _ = nnls(terms / scale, weights)
    return np.asarray(coefficients / scale)


def fit_freely(model: LawModel, devices: Array, log_rates: Array, repeats: Array) -> Array:
    """Fit without bounds, for many sets of runs at once.

    An estimate that is kept at its bound does not scatter as noise makes it; a free one does.

    Args:
        model: The law.
        devices: Shape (counts,).
        log_rates: Mean over the repeats; shape (..., counts).
        repeats: Weights; shape (counts,).

    Returns:
        Shape (..., coefficients).
    """
    terms = model.relative_terms(devices, log_rates)
    scale = terms.max(axis=-2, keepdims=True)
    terms = terms / scale
    weighted = np.swapaxes(terms * repeats[:, None], -1, -2)
    solved = np.linalg.solve(weighted @ terms, weighted.sum(axis=-1)[..., None])
    return np.asarray(solved[..., 0] / scale[..., 0, :])
