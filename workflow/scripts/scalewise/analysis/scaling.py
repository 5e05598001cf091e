"""Speedup, efficiency and what options gain, from a table of runs. Pure functions of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from scalewise.analysis.bottlenecks.step_breakdown import STEP_SECONDS
from scalewise.analysis.comparison.comparability import differences, named
from scalewise.analysis.comparison.comparable_runs import (
    Conditions,
    baseline_devices,
    comparable,
    left_out,
    like_for_like,
    reference_fingerprint,
)
from scalewise.analysis.memory import MEMORY_GAINS, memory_gain, peaks_of_one_kind
from scalewise.analysis.statistics.intervals import Interval, median_interval, ratio_interval
from scalewise.analysis.statistics.significance import is_faster
from scalewise.plan.config.shape import count_devices

THROUGHPUT = "throughput_samples_per_second"

AT_WORK = (
    "loader_wait_fraction", "communication_fraction", "mean_utilization", "energy_joules",
    "samples_per_joule", "evaluation_peak_memory_bytes",
)  # fmt: skip
"""Use of the devices' time and memory: medians over the repeats."""

STARTUP = (
    "launch_seconds", "imports_seconds", "process_group_seconds", "data_seconds", "model_seconds",
    "first_step_seconds",
)  # fmt: skip
"""The parts of a run before its second step."""

BOUNDED = ("time_to_accuracy_seconds", "final_accuracy", "peak_memory_bytes", "wall_seconds")
"""Medians over the repeats, with their intervals."""

READ = (
    "experiment", "nodes", "loader", "device_hours", "epochs_to_accuracy", THROUGHPUT,
    *BOUNDED, *STARTUP, *AT_WORK, *STEP_SECONDS, "train_seconds",
)  # fmt: skip
"""Columns that are read of a run where they are known: published figures and older records lack some."""

SCALING_COLUMNS = [
    "experiment", "series", "devices", "nodes", "n", "n_failed", "n_not_comparable",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high", "throughput_confidence", "baseline_devices",
    "speedup", "speedup_low", "speedup_high", "speedup_confidence",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high",
    "faster_than", "faster_p",
    "karp_flatt_fraction", "karp_flatt_fraction_low", "karp_flatt_fraction_high",
    "n_reached", "time_to_accuracy_seconds",
    "time_to_accuracy_seconds_low", "time_to_accuracy_seconds_high", "epochs_to_accuracy",
    "statistical_efficiency", "statistical_efficiency_low", "statistical_efficiency_high",
    "time_to_accuracy_speedup", "time_to_accuracy_speedup_low", "time_to_accuracy_speedup_high",
    "final_accuracy", "final_accuracy_low", "final_accuracy_high",
    "peak_memory_bytes", "peak_memory_bytes_low", "peak_memory_bytes_high", "device_hours",
    "wall_seconds", "wall_seconds_low", "wall_seconds_high", "wall_seconds_most",
    "wall_speedup", "wall_speedup_low", "wall_speedup_high", "startup_seconds",
    # medians over the repeats, each by itself: they need not sum up exactly
    *STEP_SECONDS,
    "loader", *AT_WORK,
    "note",
]  # fmt: skip

OF_WALLS = "of walls, which include start-up"

Rates = Callable[[pd.DataFrame], list[float]]
"""Gives the speed of each run, higher is faster; runs for which it is not known are left out."""


def karp_flatt(speedup: float, devices_ratio: float) -> float:
    """The experimentally determined serial fraction (Karp & Flatt, CACM 33(5), 1990).

    Args:
        speedup: Over the baseline.
        devices_ratio: Devices over the baseline's, above 1.
    """
    return (1 / speedup - 1 / devices_ratio) / (1 - 1 / devices_ratio)


def scaling_table(runs: pd.DataFrame, scaling: str, conditions: Conditions | None = None) -> pd.DataFrame:
    """One row for each series and device count.

    The baseline of a series is its fewest planned devices of which a run may still complete. Where no run of
    that point completed, the series has no speedup and its ``note`` says so. A run's rate is all its samples
    over all its seconds, which is the harmonic mean of its windows' rates; a point's is the median over
    runs, never a mean of ratios (Hoefler & Belli, SC'15, rules 3 and 4).

    A speedup joins comparable runs alone: those with the fingerprint that most of the baseline's runs have.
    Others count in ``n_not_comparable`` and in every column that is no ratio to the baseline, and ``note``
    names what differs. Where no run of a series knows its throughput, walls take its place, and ``note``
    says so.

    Karp-Flatt is for strong scaling: it asks what part of a fixed work is serial. Statistical efficiency is
    epochs to the target at the baseline over those here, and like the speedup of the time to accuracy it is
    given only where every run of both points reached the target: the median of those that did says nothing
    of the others. The speedup is not given either where one of them was resumed, whose time is not known.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``; published figures need ``series``,
            ``devices``, ``outcome`` and what they know of the rest.
        scaling: ``strong`` or ``weak``.
        conditions: The conditions behind each fingerprint.
    """
    runs = peaks_of_one_kind(runs)
    known = runs.reindex(columns=[*runs.columns, *(c for c in READ if c not in runs.columns)])
    numbers = [THROUGHPUT, "device_hours", *BOUNDED]
    known[numbers] = known[numbers].astype(float)  # a column of None alone is of no number type
    known["device_hours"] = known["device_hours"].fillna(known["wall_seconds"] * known["devices"] / 3600)
    rows = [
        row
        for _, series in known.groupby("series", sort=False)
        for row in _series_rows(series, scaling, conditions or {})
    ]
    return pd.DataFrame(rows, columns=SCALING_COLUMNS)


def _series_rows(series: pd.DataFrame, scaling: str, conditions: Conditions) -> Iterator[dict[str, Any]]:
    done = series[series["outcome"] == "completed"]
    points = {int(point["devices"].iloc[0]): point for _, point in series.groupby("devices")}
    base = baseline_devices(series)
    reference = reference_fingerprint(done, base)
    walls_alone = done[THROUGHPUT].isna().all() and done["wall_seconds"].notna().any()
    rates_of: Rates = _wall_rates if walls_alone else _throughputs
    joined = {devices: comparable(done[done["devices"] == devices], reference) for devices in points}
    for devices, point in points.items():
        at_point = done[done["devices"] == devices]
        rates, base_rates = rates_of(joined[devices]), rates_of(joined[base])
        notes = list(_notes(point, base, rates_of(at_point), base_rates, len(points)))
        row = _point_columns(point, at_point) | {
            "baseline_devices": base,
            # without a baseline there is nothing to be comparable with
            "n_not_comparable": len(at_point) - len(joined[devices]) if len(joined[base]) else 0,
        }
        if rates and base_rates and len(points) > 1:
            row |= _relative(rates, base_rates, devices / base, scaling)
            row |= _over_baseline(joined[devices], joined[base])
            row |= _faster(rates, {other: rates_of(joined[other]) for other in points if other < devices})
            notes += [OF_WALLS] if walls_alone else []
        notes += left_out(at_point, done[done["devices"] == base], reference, conditions)
        notes += like_for_like(done, devices, reference, conditions)
        yield row | {"note": "; ".join(notes)}


def _point_columns(point: pd.DataFrame, done: pd.DataFrame) -> dict[str, Any]:
    """The columns of a point by itself, over all its completed runs."""
    row: dict[str, Any] = {
        "experiment": point["experiment"].iloc[0],
        "series": point["series"].iloc[0],
        "devices": int(point["devices"].iloc[0]),
        "nodes": point["nodes"].max(),
        "n": len(done),
        "n_failed": len(point) - len(done),
        "n_reached": int(done["epochs_to_accuracy"].notna().sum()),
        "epochs_to_accuracy": done["epochs_to_accuracy"].median(),
        "device_hours": done["device_hours"].median(),
        "wall_seconds_most": done["wall_seconds"].max(),
        "startup_seconds": _startup(done).median(),
        "loader": ", ".join(dict.fromkeys(done["loader"].dropna())),
        **{column: done[column].median() for column in (*AT_WORK, *STEP_SECONDS)},
    }
    for column in BOUNDED:
        values = done[column].dropna().tolist()
        if values:
            row |= median_interval(values).as_columns(column)
    if rates := _throughputs(done):
        throughput = median_interval(rates)
        row |= throughput.as_columns(THROUGHPUT)
        row["throughput_confidence"] = throughput.confidence
    return row


def _startup(done: pd.DataFrame) -> pd.Series:
    """Seconds of each run before its second step: the slowest rank of each part, within the run's wall."""
    # records of an earlier version do not know the launch
    total = done[list(STARTUP)].fillna({"launch_seconds": 0.0}).sum(axis=1, skipna=False)
    # parts in which different ranks are slow may overlap
    room = done["wall_seconds"] - done["train_seconds"] + done["first_step_seconds"]
    return total.where(~(total > room), room)


def _relative(
    rates: Sequence[float], base_rates: Sequence[float], devices_ratio: float, scaling: str
) -> dict[str, Any]:
    if devices_ratio == 1:
        one = Interval(1.0, 1.0, 1.0, 1.0, len(rates))
        return {
            **one.as_columns("speedup"),
            "speedup_confidence": 1.0,
            **one.as_columns("parallel_efficiency"),
        }
    speedup = ratio_interval(rates, base_rates)
    efficiency = speedup.scaled(1 / devices_ratio)
    row = speedup.as_columns("speedup") | efficiency.as_columns("parallel_efficiency")
    row["speedup_confidence"] = speedup.confidence
    if scaling == "strong":
        # more speedup is less of a serial fraction: the bounds change places
        ends = {"": speedup.estimate, "_low": speedup.high, "_high": speedup.low}
        row |= {f"karp_flatt_fraction{end}": karp_flatt(at, devices_ratio) for end, at in ends.items()}
    return row


def _over_baseline(point: pd.DataFrame, base: pd.DataFrame) -> dict[str, float]:
    """The baseline's seconds, or epochs, over the point's."""
    row: dict[str, float] = {}
    for name, column in (
        ("wall_speedup", "wall_seconds"),
        ("statistical_efficiency", "epochs_to_accuracy"),
        ("time_to_accuracy_speedup", "time_to_accuracy_seconds"),
    ):
        here, there = point[column], base[column]
        if here.isna().any() or there.isna().any():
            continue
        if point is base:
            row |= Interval(1.0, 1.0, 1.0, 1.0, len(here)).as_columns(name)
        else:
            row |= ratio_interval(there.tolist(), here.tolist()).as_columns(name)
    return row


def _faster(rates: Sequence[float], fewer: Mapping[int, Sequence[float]]) -> dict[str, float]:
    """The next smaller point that has rates, and the p value that this one is faster."""
    measured = [devices for devices, others in fewer.items() if others]
    if not measured:
        return {}
    return {"faster_than": max(measured), "faster_p": is_faster(rates, fewer[max(measured)])}


def _throughputs(runs: pd.DataFrame) -> list[float]:
    return [float(rate) for rate in runs[THROUGHPUT].dropna()]


def _wall_rates(runs: pd.DataFrame) -> list[float]:
    return [1 / float(seconds) for seconds in runs["wall_seconds"].dropna()]


def _notes(
    point: pd.DataFrame,
    base: int,
    rates: Sequence[float],
    base_rates: Sequence[float],
    device_counts: int,
) -> Iterator[str]:
    if not rates:
        outcomes = ", ".join(sorted(set(point["outcome"])))
        measured = (point["outcome"] == "completed").any()
        yield "no throughput: all steps were warm-up" if measured else f"no completed run ({outcomes})"
    elif device_counts == 1:
        yield "no baseline: the series has one device count"
    elif not base_rates:
        yield f"no baseline: no completed run on {count_devices(base)}"
    elif base > 1:
        yield f"relative to {base} devices, not to 1"


def option_table(
    runs: pd.DataFrame, swept: Mapping[str, Sequence[Any]], conditions: Conditions | None = None
) -> pd.DataFrame:
    """The gain of each value of a swept option over its first value, all else and devices equal.

    This is an option's gain, never a speedup. What most runs of the two differ in beside the option, such
    as the CPU model, stands in ``also_differs``: the gain is then that of both.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
        swept: The swept keys with their values, the reference first.
        conditions: The conditions behind each fingerprint.
    """
    rows = []
    done = peaks_of_one_kind(runs[runs["outcome"] == "completed"])
    if swept:
        done = done[done[THROUGHPUT].notna()].astype({THROUGHPUT: float})
    for key, values in swept.items():
        others = [other for other in swept if other != key]
        for group, point in done.groupby(["devices", *others], dropna=False):
            reference = _alike(_having(point, key, values[0]))
            for value in values[1:]:
                chosen = _alike(_having(point, key, value))
                if len(reference) and len(chosen):
                    gain = _gain(key, value, values[0], others, group, chosen, reference)
                    rows.append(gain | {"also_differs": _also_differs(key, chosen, reference, conditions)})
    return pd.DataFrame(
        rows,
        columns=[
            "option", "value", "reference", "beside", "devices", "n", "throughput_ratio",
            "throughput_ratio_low", "throughput_ratio_high", "confidence", *MEMORY_GAINS,
            "also_differs",
        ],
    )  # fmt: skip


def _having(runs: pd.DataFrame, key: str, value: Any) -> pd.DataFrame:
    """The runs with a value of an option; null is one, the option's default."""
    return runs[runs[key].isna() if value is None else runs[key] == value]


def _alike(runs: pd.DataFrame) -> pd.DataFrame:
    """Those of one device count that share the fingerprint of most of them."""
    return comparable(runs, reference_fingerprint(runs, int(runs["devices"].iloc[0]))) if len(runs) else runs


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
    beside = ", ".join(
        f"{name} {'default' if pd.isna(item) else item}" for name, item in zip(others, group[1:], strict=True)
    )
    return {
        "option": key,
        "value": value,
        "reference": reference_value,
        "beside": beside,
        "devices": int(group[0]),
        "n": ratio.n,
        "confidence": ratio.confidence,
        **memory_gain(chosen, reference),
        **ratio.as_columns("throughput_ratio"),
    }


def _also_differs(
    key: str, chosen: pd.DataFrame, reference: pd.DataFrame, conditions: Conditions | None
) -> str:
    sides = [
        (conditions or {}).get(reference_fingerprint(runs, int(runs["devices"].iloc[0])), {})
        for runs in (reference, chosen)
    ]
    return named([difference for difference in differences(*sides) if difference.field != key])
