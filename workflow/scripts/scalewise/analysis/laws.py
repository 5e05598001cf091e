"""The serial fraction by Amdahl's law (strong scaling) or Gustafson's (weak). It decides nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import curve_fit

from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval, t_quantile

Array = npt.NDArray[np.float64]

LAW_NAMES = {"strong": "Amdahl", "weak": "Gustafson"}
LEAST_COUNTS = 3


def amdahl(devices: Array, log_rate: float, serial: float) -> Array:
    """Logarithms of the throughput by Amdahl's law (AFIPS 1967), from that of one device."""
    return np.asarray(log_rate - np.log(serial + (1 - serial) / devices))


def gustafson(devices: Array, log_rate: float, serial: float) -> Array:
    """Logarithms of the throughput by Gustafson's law (CACM 31(5), 1988), from that of one device."""
    return np.asarray(log_rate + np.log(devices - serial * (devices - 1)))


def serial_fraction(rates: Mapping[int, Sequence[float]], scaling: str) -> Interval | None:
    """Fit the serial fraction by least squares of logarithms, with its interval by t.

    The scatter is pooled over the device counts. If they miss the law by more than it explains, the interval
    is wider by that factor.

    Args:
        rates: Throughput of each comparable run, by device count; positive, any unit.
        scaling: ``strong`` or ``weak``.

    Returns:
        The fraction, 0 to 1; None with fewer than three device counts of three runs.
    """
    logs = {devices: np.log(values) for devices, values in rates.items() if len(values) >= ENOUGH_REPEATS}
    if len(logs) < LEAST_COUNTS:
        return None
    law = amdahl if scaling == "strong" else gustafson
    devices = np.array(list(logs), dtype=np.float64)
    means = np.array([each.mean() for each in logs.values()])
    runs = np.array([len(each) for each in logs.values()])
    freedom = int((runs - 1).sum())
    variance = sum(float(((each - each.mean()) ** 2).sum()) for each in logs.values()) / freedom
    # not zero, by which the fit divides
    errors = np.sqrt(max(variance, 1e-12) / runs)
    found, covariance = curve_fit(
        law, devices, means, (means[0] - math.log(devices[0]), 0.05), errors,
        absolute_sigma=True, bounds=([-np.inf, 0], [np.inf, 1]),
    )  # fmt: skip
    misses = (means - law(devices, *found)) / errors
    excess = math.sqrt(max(1.0, float((misses**2).sum()) / (len(logs) - 2)))
    estimate, half = float(found[1]), t_quantile(freedom) * excess * math.sqrt(covariance[1, 1])
    return Interval(estimate, max(estimate - half, 0.0), min(estimate + half, 1.0), int(runs.sum()))
