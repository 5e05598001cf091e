"""Amdahl's, Gustafson's and the universal scalability law, fitted to runs, or refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.conditions import baseline_devices
from scalewise.analysis.statistics.intervals import CONFIDENCE, Interval, t_quantile, welch_error
from scalewise.analysis.statistics.law_models import (
    AMDAHL,
    GUSTAFSON,
    USL,
    Array,
    LawModel,
    RunLogs,
    fit_freely,
    fit_within_bounds,
    not_carried,
    too_little,
)

LAWS = {"strong": (AMDAHL, USL), "weak": (GUSTAFSON, USL)}
CURVE_POINTS = 30


@dataclass(frozen=True)
class CurvePoint:
    """The law's speedup over the baseline at a device count, with the bounds of its band."""

    devices: int
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Law:
    """A law fitted to the runs of a series.

    Args:
        law: ``amdahl``, ``gustafson`` or ``usl``.
        parameters: Intervals by name: ``single_device_rate`` in the unit of the rates, ``serial_fraction`` or
            ``contention`` and ``coherency``, and ``peak_devices`` of the universal scalability law, infinite
            where throughput never falls, not measured where it lies beyond the curve. Empty where refused.
        curve: Speedups from the baseline to the most devices measured. Empty where refused.
        refused: Reason that the runs do not carry the law; empty where they do.
        confidence: Confidence of every bound, each by itself.
    """

    series: str
    law: str
    parameters: Mapping[str, Interval]
    curve: Sequence[CurvePoint]
    refused: str = ""
    confidence: float = CONFIDENCE

    def as_dict(self) -> dict[str, Any]:
        """The law as an entry of laws.json."""
        return {
            "series": self.series,
            "law": self.law,
            "parameters": {name: value.as_dict() for name, value in self.parameters.items()},
            "confidence": self.confidence,
            "refused": self.refused,
            "curve": [vars(point) for point in self.curve],
        }


def study_laws(runs: pd.DataFrame, scaling: str) -> list[Law]:
    """The laws of every series, fitted to its completed runs that are comparable with its baseline.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
        scaling: ``strong`` or ``weak``.
    """
    laws: list[Law] = []
    for name, series in runs.groupby("series", sort=False):
        base = baseline_devices(series)
        done = series[series["outcome"] == "completed"]
        done = done[done[THROUGHPUT].notna()]
        rates = {
            int(devices): done.loc[done["devices"] == devices, THROUGHPUT].tolist()
            for devices in done["devices"].unique()
        }
        laws += fit_laws(str(name), rates, scaling, base)
    return laws


def fit_laws(
    series: str, rates: Mapping[int, Sequence[float]], scaling: str, base: int | None = None
) -> list[Law]:
    """Fit the laws of a kind of scaling to the runs of one series.

    Least squares of relative errors, over all runs. The rate of a single device is a parameter of the fit,
    so nothing hangs on the baseline's runs only and the baseline may have more devices than one. Bounds
    are by Welch's t, from the scatter of each device count's repeats. Weighs all device counts by their
    repeats, as if rates scattered by the same factor everywhere.

    Args:
        series: Name of the series.
        rates: Throughput of each comparable run, by device count; positive, any unit.
        scaling: ``strong``: Amdahl's law; ``weak``: Gustafson's. Both: the universal scalability law.
        base: Device count that speedups relate to; by default the least that was measured.
    """
    measured = {devices: rates[devices] for devices in sorted(rates) if rates[devices]}
    return [_fit(series, model, measured, base or min(measured, default=1)) for model in LAWS[scaling]]


def _fit(series: str, model: LawModel, rates: Mapping[int, Sequence[float]], base: int) -> Law:
    if refused := next(too_little(model, rates, base), ""):
        return Law(series, model.key, {}, [], refused)
    devices = np.array(list(rates), dtype=np.float64)
    logs = [np.log(values) for values in rates.values()]
    seen = RunLogs(
        means=np.array([each.mean() for each in logs]),
        repeats=np.array([len(each) for each in logs], dtype=np.float64),
        deviations=np.array([each.std(ddof=1) for each in logs]),
    )
    bounded = fit_within_bounds(model, devices, seen.means, seen.repeats)
    low, high = _bounds(model, devices, seen, model.parameters)
    if refused := next(not_carried(model, devices, seen, bounded, low, high), ""):
        return Law(series, model.key, {}, [], refused)
    grid = _grid(rates, base)
    band = _bounds(model, devices, seen, lambda found: _log_speedups(model, grid, base, found))
    parameters = _parameters(model, model.parameters(bounded), low, high, int(seen.repeats.sum()))
    curve = list(_curve(grid, base, _log_speedups(model, grid, base, bounded), *band))
    return Law(series, model.key, parameters, curve)


def _bounds(
    model: LawModel, devices: Array, seen: RunLogs, of: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Bounds of quantities that follow from the coefficients: first order of the error, by Welch's t.

    Args:
        model: The law.
        devices: Shape (counts,).
        seen: Logarithms of the rates.
        of: Coefficients of shape (..., coefficients) -> quantities of shape (..., quantities).
    """
    errors = seen.deviations / np.sqrt(seen.repeats)
    # each mean moved by its own error: the others stay
    moved = seen.means + np.stack([np.diag(errors), -np.diag(errors)])
    above, below = of(fit_freely(model, devices, moved, seen.repeats))
    estimate = of(fit_freely(model, devices, seen.means, seen.repeats))
    # [counts, quantities]
    parts = ((above - below) / 2) ** 2
    half = np.empty_like(estimate)
    for index, column in enumerate(parts.T):
        error, freedom = welch_error(
            list(zip(column.tolist(), seen.repeats.astype(int).tolist(), strict=True))
        )
        half[index] = t_quantile(freedom) * error
    return estimate - half, estimate + half


def _parameters(model: LawModel, estimates: Array, low: Array, high: Array, runs: int) -> dict[str, Interval]:
    """The parameters with their bounds, moved inside what the law allows."""
    found = {}
    for name, value, lower, upper, (least, most) in zip(
        model.names, estimates, low, high, model.bounds, strict=True
    ):
        estimate, below, above = (float(np.clip(bound, least, most)) for bound in (value, lower, upper))
        ends = (estimate, min(estimate, below), max(estimate, above))
        if name == "inverse_square_of_peak":
            # the larger it is, the sooner the peak: the bounds change places
            peaks = (_peak(ends[0]), _peak(ends[2]), _peak(ends[1]))
            found["peak_devices"] = Interval(*peaks, runs)
        else:
            found[name] = Interval(*ends, runs)
    return found


def _peak(inverse_square: float) -> float:
    return 1 / math.sqrt(inverse_square) if inverse_square > 0 else math.inf


def _grid(rates: Mapping[int, Sequence[float]], base: int) -> list[int]:
    """Device counts of the curve: those measured and some between, evenly on a logarithmic axis."""
    between = np.geomspace(base, max(rates), CURVE_POINTS).round().astype(int).tolist()
    return sorted({*between, *(devices for devices in rates if devices >= base)})


def _log_speedups(model: LawModel, grid: Sequence[int], base: int, coefficients: Array) -> Array:
    at_grid = model.log_rates(np.array(grid, dtype=np.float64), coefficients)
    at_base = model.log_rates(np.array([base], dtype=np.float64), coefficients)
    return np.asarray(at_grid - at_base)


def _curve(grid: Sequence[int], base: int, logs: Array, low: Array, high: Array) -> Iterator[CurvePoint]:
    for devices, at, lower, upper in zip(grid, logs, low, high, strict=True):
        # no law allows more than the ideal
        highest = max(min(upper, math.log(devices / base)), at)
        yield CurvePoint(devices, math.exp(at), math.exp(min(lower, at)), math.exp(highest))
