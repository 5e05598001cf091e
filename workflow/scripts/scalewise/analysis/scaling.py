"""Speedup, efficiency and what options gain, from a table of runs. Pure functions of tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from scalewise.analysis.intervals import Interval, median_interval, ratio_interval

THROUGHPUT = "throughput_samples_per_second"

SCALING_COLUMNS = [
    "experiment", "series", "devices", "nodes", "n", "n_failed",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high", "throughput_confidence", "baseline_devices",
    "speedup", "speedup_low", "speedup_high", "speedup_confidence",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high",
    "karp_flatt_fraction", "n_reached", "time_to_accuracy_seconds",
    "time_to_accuracy_seconds_low", "time_to_accuracy_seconds_high", "epochs_to_accuracy",
    "final_accuracy", "final_accuracy_low", "final_accuracy_high",
    "peak_memory_bytes", "peak_memory_bytes_low", "peak_memory_bytes_high", "device_hours",
    "loader", "loader_wait_fraction", "communication_fraction", "mean_utilization",
    "energy_joules", "samples_per_joule",
    "note",
]  # fmt: skip

AT_WORK = (
    "loader_wait_fraction", "communication_fraction", "mean_utilization", "energy_joules",
    "samples_per_joule",
)  # fmt: skip
"""What the devices did with their time: medians over the repeats."""


def karp_flatt(speedup: float, devices_ratio: float) -> float:
    """The experimentally determined serial fraction (Karp & Flatt, CACM 33(5), 1990).

    Args:
        speedup: over the baseline.
        devices_ratio: devices over the baseline's, above 1.
    """
    return (1 / speedup - 1 / devices_ratio) / (1 - 1 / devices_ratio)


def scaling_table(runs: pd.DataFrame, scaling: str) -> pd.DataFrame:
    """One row for each series and device count.

    The baseline of a series is its fewest planned devices. Where no run of that point completed, the
    series has no speedup and its ``note`` says so. Karp-Flatt is for strong scaling: it asks what part
    of a fixed work is serial.

    Args:
        runs: as ``scalewise.analysis.tables.collect`` makes it.
        scaling: ``strong`` or ``weak``.
    """
    rows = [row for _, series in runs.groupby("series", sort=False) for row in _series_rows(series, scaling)]
    return pd.DataFrame(rows, columns=SCALING_COLUMNS)


def _series_rows(series: pd.DataFrame, scaling: str) -> Iterator[dict[str, Any]]:
    points = {int(point["devices"].iloc[0]): point for _, point in series.groupby("devices")}
    base = min(points)
    base_rates = _rates(points[base])
    for devices, point in points.items():
        done = point[point["outcome"] == "completed"]
        rates = _rates(point)
        row: dict[str, Any] = {
            "experiment": point["experiment"].iloc[0],
            "series": point["series"].iloc[0],
            "devices": devices,
            "nodes": point["nodes"].max(),
            "n": len(done),
            "n_failed": len(point) - len(done),
            "baseline_devices": base,
            "n_reached": int(done["time_to_accuracy_seconds"].notna().sum()),
            "epochs_to_accuracy": done["epochs_to_accuracy"].median(),
            "device_hours": done["device_hours"].median(),
            "loader": ", ".join(dict.fromkeys(done["loader"].dropna())),
            **{column: done[column].median() for column in AT_WORK},
            "note": _note(point, base, base_rates, rates, len(points)),
        }
        for column in ("time_to_accuracy_seconds", "final_accuracy", "peak_memory_bytes"):
            values = done[column].dropna().tolist()
            if values:
                row |= _columns(column, median_interval(values))
        if rates:
            throughput = median_interval(rates)
            row |= _columns(THROUGHPUT, throughput)
            row["throughput_confidence"] = throughput.confidence
        if rates and base_rates and len(points) > 1:
            row |= _relative(rates, base_rates, devices / base, scaling)
        yield row


def _relative(
    rates: Sequence[float], base_rates: Sequence[float], devices_ratio: float, scaling: str
) -> dict[str, Any]:
    if devices_ratio == 1:
        one = Interval(1.0, 1.0, 1.0, 1.0, len(rates))
        return {
            **_columns("speedup", one),
            "speedup_confidence": 1.0,
            **_columns("parallel_efficiency", one),
        }
    speedup = ratio_interval(rates, base_rates)
    row = _columns("speedup", speedup) | _columns("parallel_efficiency", speedup.scaled(1 / devices_ratio))
    row["speedup_confidence"] = speedup.confidence
    if scaling == "strong":
        row["karp_flatt_fraction"] = karp_flatt(speedup.estimate, devices_ratio)
    return row


def _rates(point: pd.DataFrame) -> list[float]:
    done = point[point["outcome"] == "completed"]
    return [float(rate) for rate in done[THROUGHPUT].dropna()]


def _columns(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _note(
    point: pd.DataFrame,
    base: int,
    base_rates: Sequence[float],
    rates: Sequence[float],
    device_counts: int,
) -> str:
    if not rates:
        outcomes = ", ".join(sorted(set(point["outcome"])))
        return f"no completed run ({outcomes})"
    if device_counts == 1:
        return "no baseline: the series has one device count"
    if not base_rates:
        return f"no baseline: no completed run on {base} {'device' if base == 1 else 'devices'}"
    if base > 1:
        return f"relative to {base} devices, not to 1"
    return ""


def option_table(runs: pd.DataFrame, swept: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """What each value of a swept option gains over its first value, all else and devices equal.

    This is an option's gain, never a speedup.

    Args:
        runs: as ``scalewise.analysis.tables.collect`` makes it.
        swept: the swept keys with their values, the reference first.
    """
    rows = []
    done = runs[runs["outcome"] == "completed"]
    for key, values in swept.items():
        others = [other for other in swept if other != key]
        for group, point in done.groupby(["devices", *others], dropna=False):
            reference = point[point[key] == values[0]]
            for value in values[1:]:
                chosen = point[point[key] == value]
                if len(reference) and len(chosen):
                    rows.append(_gain(key, value, values[0], others, group, chosen, reference))
    return pd.DataFrame(
        rows,
        columns=[
            "option", "value", "reference", "beside", "devices", "n", "throughput_ratio",
            "throughput_ratio_low", "throughput_ratio_high", "confidence", "peak_memory_ratio",
            "peak_memory_bytes", "reference_peak_memory_bytes",
        ],
    )  # fmt: skip


def _gain(
    key: str,
    value: Any,
    reference_value: Any,
    others: Sequence[str],
    group: tuple[Any, ...],
    chosen: pd.DataFrame,
    reference: pd.DataFrame,
) -> dict[str, Any]:
    ratio = ratio_interval(chosen[THROUGHPUT].tolist(), reference[THROUGHPUT].tolist())
    beside = ", ".join(f"{name} {item}" for name, item in zip(others, group[1:], strict=True))
    memory, reference_memory = (table["peak_memory_bytes"].median() for table in (chosen, reference))
    return {
        "option": key,
        "value": value,
        "reference": reference_value,
        "beside": beside,
        "devices": int(group[0]),
        "n": ratio.n,
        "confidence": ratio.confidence,
        "peak_memory_ratio": memory / reference_memory,
        "peak_memory_bytes": memory,
        "reference_peak_memory_bytes": reference_memory,
        **_columns("throughput_ratio", ratio),
    }
