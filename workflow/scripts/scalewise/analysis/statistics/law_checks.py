"""Reasons that the runs of a series do not carry a law, with their numbers, and the cure if there is one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.analysis.statistics.law_models import Array, LawModel
from scalewise.plan.config.shape import count_devices

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
