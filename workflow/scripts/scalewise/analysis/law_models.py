"""The three laws as formulas, their least-squares fits, and whether the runs support them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls
from scipy.special import fdtrc

from scalewise.analysis.statistics import ENOUGH_REPEATS
from scalewise.plan.config.shape import count_devices

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


LEAST_REPEATS = 2
SIGNIFICANCE = 0.01
"""A law that misses its points by more than repeats do so rarely is refused."""
SMALLEST_MISS = 0.005
"""A smaller miss does not matter: machines do not keep their speed so well from day to day."""
WIDEST_FRACTION = 0.5
"""A fraction whose interval spans more than half of 0 to 1 is as good as not known."""

FRACTIONS = ("serial_fraction", "contention")
COEFFICIENTS = (*FRACTIONS, "coherency")


@dataclass(frozen=True)
class RunLogs:
    """Logarithms of the rates of the runs.

    Args:
        means: Mean of each device count; shape (counts,).
        repeats: Runs of each; shape (counts,).
        deviations: Standard deviation of each, of two runs or more; shape (counts,).
    """

    means: Array
    repeats: Array
    deviations: Array

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the pooled scatter."""
        return float((self.repeats - 1).sum())

    @property
    def variance(self) -> float:
        """Variance of a run, pooled."""
        return float((self.deviations**2 * (self.repeats - 1)).sum()) / self.freedom


def too_little(model: LawModel, rates: Mapping[int, Sequence[float]], base: int) -> Iterator[str]:
    """Reasons not to fit at all.

    Args:
        model: The law.
        rates: Throughput of each run, by device count.
        base: Device count that speedups relate to.
    """
    if base not in rates:
        yield f"no comparable run of the baseline ({count_devices(base)}) has a throughput"
    if len(rates) < model.least_counts:
        counts = ", ".join(str(devices) for devices in rates) or "none"
        yield (
            f"{model.title} needs runs on {model.least_counts} or more device counts; "
            f"there are {len(rates)} ({counts})"
        )
    for devices, values in rates.items():
        if len(values) < LEAST_REPEATS:
            yield (
                f"a single comparable run on {count_devices(devices)} shows no spread; {model.title} needs "
                f"{ENOUGH_REPEATS} on each device count"
            )
    if max(map(len, rates.values()), default=0) == LEAST_REPEATS:
        yield f"2 runs of each device count show too little of their spread; {model.title} needs 3"


def not_carried(
    model: LawModel,
    devices: Array,
    seen: RunLogs,
    coefficients: Array,
    low: Array,
    high: Array,
) -> Iterator[str]:
    """Reasons not to state what was fitted.

    Args:
        model: The law.
        devices: Shape (counts,).
        seen: Logarithms of the rates.
        coefficients: Coefficients of the best fit that the law allows.
        low: Bounds of its parameters, fitted freely; shape (parameters,).
        high: Likewise.
    """
    residuals = seen.means - model.log_rates(devices, coefficients)
    if np.abs(np.expm1(residuals)).max() >= SMALLEST_MISS:
        yield from _beyond_bounds(model, low, high)
        yield from _lack_of_fit(model, devices, seen, residuals)
    yield from _unknown(model, low, high)


def _beyond_bounds(model: LawModel, low: Array, high: Array) -> Iterator[str]:
    """Parameters that lie beyond what the law allows with all of their interval."""
    for name, lower, upper, (least, most) in zip(model.names, low, high, model.bounds, strict=True):
        if name not in COEFFICIENTS:
            continue
        found = f"({lower:.2g} to {upper:.2g})"
        if upper < least:
            yield (
                f"throughput grows by more than {model.title} allows: its {_words(name)} would be below "
                f"{least:g} {found}. Look for what changes together with the devices"
            )
        if lower > most:
            yield (
                f"throughput grows by less than {model.title} allows: its {_words(name)} would be above "
                f"{most:g} {found}"
            )


def _lack_of_fit(model: LawModel, devices: Array, seen: RunLogs, residuals: Array) -> Iterator[str]:
    """The F test: distances of the points from the law against the repeats' own spread."""
    left = len(devices) - model.terms(devices).shape[1]
    variance = max(seen.variance, float(np.finfo(np.float64).tiny))
    statistic = float((seen.repeats * residuals**2).sum()) / left / variance
    if fdtrc(left, seen.freedom, statistic) < SIGNIFICANCE:
        worst = int(np.argmax(np.abs(residuals) * np.sqrt(seen.repeats)))
        miss = math.expm1(float(residuals[worst]))
        yield (
            f"{count_devices(int(devices[worst]))} ran {100 * abs(miss):.1f} % "
            f"{'faster' if miss > 0 else 'slower'} than the best fit of {model.title}, while repeats scatter "
            f"by {100 * math.sqrt(seen.variance):.2g} %: the law leaves out something that matters here"
        )


def _unknown(model: LawModel, low: Array, high: Array) -> Iterator[str]:
    """Fractions about which the runs say next to nothing."""
    for name, lower, upper, (least, most) in zip(model.names, low, high, model.bounds, strict=True):
        lowest, highest = max(lower, least), min(upper, most)
        if name in FRACTIONS and highest - lowest > WIDEST_FRACTION:
            yield (
                f"the runs leave the {_words(name)} of {model.title} anywhere between {lowest:.2f} and "
                f"{highest:.2f}: more repeats, or more device counts, narrow it"
            )


def _words(name: str) -> str:
    return name.replace("_", " ")
