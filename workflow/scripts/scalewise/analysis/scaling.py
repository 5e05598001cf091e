"""Speedup, efficiency and what options gain, from a table of runs. Pure functions of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import STARTUP, THROUGHPUT, WITH_NO_GRAD
from scalewise.analysis.comparison.confounding import has_trend, sessions
from scalewise.analysis.comparison.gains import (
    Gains,
    contrast,
    gains,
    has_reached,
    speeds,
    spent_in_vain,
    work_to_target,
)
from scalewise.analysis.conditions import (
    DEVICE_MODEL,
    OTHER_CONDITIONS,
    Conditions,
    baseline_devices,
    leave_out,
)
from scalewise.analysis.disturbed import disturbed_columns
from scalewise.analysis.memory import MEMORY_GAINS, memory_gain, peaks_of_one_kind
from scalewise.analysis.statistics.intervals import Interval, geometric_interval, mean_interval
from scalewise.analysis.statistics.ratios import holm, next_value_bound, ratio_interval
from scalewise.analysis.steps import STEP_SECONDS
from scalewise.plan.config.shape import count_devices

AT_WORK = (
    "loader_wait_fraction", "communication_fraction", "mean_utilization", "lowest_utilization",
    "energy_joules", "flops_per_step", "model_flops_utilization", "samples_per_joule",
    "evaluation_peak_memory_bytes", "device_memory_bytes", "smaller_batch_gain",
)  # fmt: skip
"""Use of the devices' time and memory: medians over the repeats."""

GEOMETRIC = ("time_to_accuracy_seconds", "wall_seconds", THROUGHPUT)
"""Geometric means over the repeats, with their intervals."""
ARITHMETIC = ("final_accuracy", "peak_memory_bytes")
"""Arithmetic means over the repeats, with their intervals."""

READ = (
    "experiment", "nodes", "loader", "mfu_note", "mfu_basis", "device_hours", "epochs_to_accuracy",
    "samples_to_target", *GEOMETRIC,
    *ARITHMETIC, *STARTUP, *AT_WORK, *STEP_SECONDS, "train_seconds", WITH_NO_GRAD, "disturbance",
)  # fmt: skip
"""Columns that are read of a run where they are known: published figures lack some."""

SCALING_COLUMNS = [
    "series", "devices", "n",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high",
    "speedup", "speedup_low", "speedup_high",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high",
    "device_hours", "wall_seconds", "wall_seconds_low", "wall_seconds_high",
    "time_to_accuracy_seconds", "time_to_accuracy_seconds_low", "time_to_accuracy_seconds_high",
    "time_to_accuracy_speedup", "time_to_accuracy_speedup_low", "time_to_accuracy_speedup_high",
    "final_accuracy", "final_accuracy_low", "final_accuracy_high",
    "peak_memory_bytes", "peak_memory_bytes_low", "peak_memory_bytes_high",
    "note",
    "experiment", "nodes", "baseline_devices", "speedup_n",
    "n_failed", "n_unsuccessful", "unsuccessful", "n_not_comparable", "n_disturbed", "n_set_apart",
    "disturbed",
    "karp_flatt_fraction", "karp_flatt_fraction_low", "karp_flatt_fraction_high",
    "n_reached", "epochs_to_accuracy", "expected_seconds_to_accuracy", "time_to_accuracy_baseline_devices",
    "statistical_efficiency", "statistical_efficiency_low", "statistical_efficiency_high",
    "wall_n", "wall_seconds_next", "wall_speedup", "wall_speedup_low", "wall_speedup_high",
    "startup_seconds", *STEP_SECONDS,
    "loader", *AT_WORK, "mfu_note", "mfu_basis", WITH_NO_GRAD,
]  # fmt: skip
"""Columns of the table; those that a person reads first come first."""

OF_WALLS = "of walls, which include start-up"

UNSUCCESSFUL = ("diverged", "out-of-memory", "failed", "timed-out")
"""Outcomes of runs that ended by themselves without a result, and so count against their point."""


def karp_flatt(speedup: float, devices_ratio: float) -> float:
    """The experimentally determined serial fraction (Karp & Flatt, CACM 33(5), 1990).

    Args:
        speedup: Over the baseline.
        devices_ratio: Devices over the baseline's, above 1.
    """
    return (1 / speedup - 1 / devices_ratio) / (1 - 1 / devices_ratio)


def scaling_table(
    runs: pd.DataFrame,
    scaling: str,
    conditions: Mapping[str, Conditions] | None = None,
    compared: Gains | None = None,
) -> pd.DataFrame:
    """One row for each series and device count.

    The baseline of a series is its fewest planned devices of which a run may still complete. Where no run of
    that point completed, the series has no speedup and its ``note`` says so. A run's rate is all its samples
    over all its seconds, which is the harmonic mean of its windows' rates; a point's is the geometric mean
    over runs, never a mean of ratios (Hoefler & Belli, SC'15, rules 3 and 4).

    Every column of a row is of comparable runs alone. Runs under other conditions count in
    ``n_not_comparable``, and ``note`` says what differs. Disturbed runs that were set apart count there and
    in ``n_set_apart``, those that are used in ``n_disturbed``; ``disturbed`` names both. Where no run of a
    series knows its throughput, walls take its place, and ``note`` says so.

    Karp-Flatt is for strong scaling: it asks what part of a fixed work is serial. Statistical efficiency is
    epochs to the target at the baseline over those here, of a program samples, given only where every run of
    both points reached the target. The speedup of the time to accuracy is relative to
    ``time_to_accuracy_baseline_devices``, the fewest devices on which a run reached it, and counts what runs
    spent that did not.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``; published figures need ``series``,
            ``devices``, ``outcome`` and what they know of the rest.
        scaling: ``strong`` or ``weak``.
        conditions: The conditions behind each fingerprint.
        compared: Output of ``gains`` on the same runs; made here where it is not given.
    """
    known = known_columns(runs, conditions)
    compared = compared if compared is not None else gains(known)
    rows = [
        row
        for _, series in known.groupby("series", sort=False)
        for row in _series_rows(series, scaling, compared)
    ]
    return pd.DataFrame(rows, columns=SCALING_COLUMNS)


def known_columns(runs: pd.DataFrame, conditions: Mapping[str, Conditions] | None = None) -> pd.DataFrame:
    """The runs with all columns that are read, those under other conditions left out.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``, or published figures that lack some columns.
        conditions: The conditions behind each fingerprint.
    """
    runs = peaks_of_one_kind(runs)
    known = runs.reindex(columns=[*runs.columns, *(c for c in READ if c not in runs.columns)])
    numbers = ["device_hours", *GEOMETRIC, *ARITHMETIC]
    known[numbers] = known[numbers].astype(float)  # a column of None alone is of no number type
    known["device_hours"] = known["device_hours"].fillna(known["wall_seconds"] * known["devices"] / 3600)
    return leave_out(known.assign(session=sessions(known)), conditions)


def _series_rows(series: pd.DataFrame, scaling: str, compared: Gains) -> Iterator[dict[str, Any]]:
    """The rows of a series.

    Args:
        series: All its runs.
        scaling: ``strong`` or ``weak``.
        compared: The ratios of all pairs of points.
    """
    name = str(series["series"].iloc[0])
    done = series[series["outcome"] == "completed"]
    counts = sorted({*series["devices"].astype(int)})
    base = baseline_devices(series)
    reached = done.loc[has_reached(done), "devices"]
    target_base = int(reached.min()) if len(reached) else None
    rates = {devices: speeds(done[done["devices"] == devices]).tolist() for devices in counts}
    of_walls = done[THROUGHPUT].isna().all() and done["wall_seconds"].notna().any()
    for devices in counts:
        point, at_point = (table[table["devices"] == devices] for table in (series, done))
        others = point[point["outcome"] == OTHER_CONDITIONS]
        point = point[point["outcome"] != OTHER_CONDITIONS]
        row = _point_columns(point, at_point) | {
            "experiment": series["experiment"].iloc[0],
            "series": name,
            "devices": devices,
            "baseline_devices": base,
        }
        apart = row["n_set_apart"]
        row["n_not_comparable"] = len(others) + apart
        notes = list(_notes(point, base, rates[devices], rates[base], len(counts), len(others)))
        if rates[devices] and rates[base] and len(counts) > 1:
            row |= _relative(compared, (name, devices), base, scaling, len(rates[devices]))
            row |= _statistical_efficiency(at_point, done[done["devices"] == base])
            notes += [OF_WALLS] if of_walls else []
        if target_base is not None:
            row |= _to_target(compared, (name, devices), target_base, at_point)
        if len(others):
            verb = "is" if len(others) == 1 else "are"
            models = any(DEVICE_MODEL in reason for reason in others["reason"])
            fix = "; `partitions` in the site file compare kinds of GPU" if models else ""
            notes.append(
                f"{len(others)} of {len(at_point) + len(others)} runs on {count_devices(devices)} {verb} "
                f"left out: {'; '.join(dict.fromkeys(others['reason']))}{fix}"
            )
        if apart:
            notes.append(f"{apart} of {len(at_point) + apart} runs were disturbed and are set apart")
        yield row | {"note": "; ".join(filter(None, notes))}


def _point_columns(point: pd.DataFrame, done: pd.DataFrame) -> dict[str, Any]:
    """The columns of a point by itself, over its completed runs.

    Args:
        point: All its runs.
        done: Those of them that completed.
    """
    of_disturbed = disturbed_columns(point)
    ended = point["outcome"][point["outcome"].isin(UNSUCCESSFUL)].value_counts()
    row: dict[str, Any] = {
        "nodes": point["nodes"].max(),
        "n": len(done),
        "n_failed": len(point) - len(done) - of_disturbed["n_set_apart"],
        "n_unsuccessful": int(ended.sum()),
        "unsuccessful": ", ".join(f"{count} {outcome}" for outcome, count in ended.items()),
        **of_disturbed,
        "n_reached": int(has_reached(done).sum()),
        "epochs_to_accuracy": done["epochs_to_accuracy"].median(),
        "device_hours": math.exp(done["device_hours"].map(math.log).mean()),
        "startup_seconds": startup_seconds(done).median(),
        "loader": ", ".join(dict.fromkeys(done["loader"].dropna())),
        "mfu_note": " ".join(dict.fromkeys(filter(None, done["mfu_note"].dropna()))),
        "mfu_basis": "; ".join(dict.fromkeys(filter(None, done["mfu_basis"].dropna()))),
        **{column: done[column].median() for column in AT_WORK},
        # arithmetic means: the parts sum to the step
        **{column: done[column].astype(float).mean() for column in STEP_SECONDS},
    }
    for columns, interval in ((GEOMETRIC, geometric_interval), (ARITHMETIC, mean_interval)):
        for column in columns:
            if values := done[column].dropna().tolist():
                found = interval(values)
                if column == "final_accuracy":
                    found = replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))
                row |= found.as_columns(column)
    if walls := done["wall_seconds"].dropna().tolist():
        row |= {"wall_n": len(walls), "wall_seconds_next": next_value_bound(walls)}
    with_passes = done[WITH_NO_GRAD].astype(float)
    if with_passes.notna().any():
        # where a run knows whether they belong to the training, it has one rate
        row[WITH_NO_GRAD] = geometric_mean(with_passes.fillna(done[THROUGHPUT].astype(float)).dropna())
    return row


def startup_seconds(done: pd.DataFrame) -> pd.Series:
    """Return the seconds of each run before its second step: of the slowest rank in each part."""
    parts = done[list(STARTUP)].astype(float)
    of_program = parts["preparation_seconds"].notna()
    # published figures do not know the launch
    launch = parts["launch_seconds"].where(of_program, parts["launch_seconds"].fillna(0.0))
    built_in = parts[["process_group_seconds", "data_seconds", "model_seconds"]].sum(axis=1, skipna=False)
    between = parts["preparation_seconds"].where(of_program, built_in)
    total = launch + parts["imports_seconds"] + between + parts["first_step_seconds"]
    # parts in which different ranks are slow may overlap
    walls, trained = done["wall_seconds"].astype(float), done["train_seconds"].astype(float)
    room = walls - trained + parts["first_step_seconds"]
    return total.where(~(total > room), room)


def _relative(compared: Gains, point: tuple[str, int], base: int, scaling: str, n: int) -> dict[str, Any]:
    """Speedups and efficiency over the baseline, with the serial fraction of strong scaling."""
    series, devices = point
    if devices == base:
        one = Interval(1.0, 1.0, 1.0, n)
        names = ["speedup", "parallel_efficiency"]
        names += ["wall_speedup"] if compared.points[point]["wall_seconds"].notna().any() else []
        return {column: value for name in names for column, value in one.as_columns(name).items()}
    ratio = compared.of("throughput", point, (series, base))
    if ratio is None:
        return {}
    speedup, more = ratio.interval(), devices / base
    row = speedup.as_columns("speedup") | speedup.scaled(1 / more).as_columns("parallel_efficiency")
    row["speedup_n"] = ratio.n
    if (of_walls := compared.of("total time", point, (series, base))) is not None:
        row |= of_walls.interval().as_columns("wall_speedup")
    if scaling == "strong":
        # more speedup is less of a serial fraction: the bounds change places
        ends = {"": speedup.estimate, "_low": speedup.high, "_high": speedup.low}
        row |= {f"karp_flatt_fraction{end}": karp_flatt(at, more) for end, at in ends.items()}
    return row


def _statistical_efficiency(point: pd.DataFrame, base: pd.DataFrame) -> dict[str, float]:
    """The baseline's epochs, or samples, to the target over the point's."""
    name, here, there = "statistical_efficiency", work_to_target(point), work_to_target(base)
    if here.isna().any() or there.isna().any():
        return {}
    if point["devices"].iloc[0] == base["devices"].iloc[0]:
        return Interval(1.0, 1.0, 1.0, len(here)).as_columns(name)
    return ratio_interval(there.tolist(), here.tolist()).as_columns(name)


def _to_target(compared: Gains, point: tuple[str, int], base: int, done: pd.DataFrame) -> dict[str, float]:
    """Columns on how much sooner a point reaches the target than the fewest devices that do."""
    series, devices = point
    row: dict[str, float] = {"time_to_accuracy_baseline_devices": base}
    name = "time_to_accuracy_speedup"
    if devices == base:
        row |= Interval(1.0, 1.0, 1.0, len(done)).as_columns(name)
    else:
        ratio = compared.of("time to target", point, (series, base))
        row |= ratio.interval().as_columns(name) if ratio else {}
    times = done["time_to_accuracy_seconds"]
    if times.notna().any():
        row["expected_seconds_to_accuracy"] = geometric_mean(times.dropna()) * spent_in_vain(done)
    return row


def _notes(
    point: pd.DataFrame,
    base: int,
    rates: Sequence[float],
    base_rates: Sequence[float],
    device_counts: int,
    others: int,
) -> Iterator[str]:
    if not rates:
        outcomes = ", ".join(sorted(set(point["outcome"])))
        if (point["outcome"] == "completed").any():
            yield "no throughput: all steps were warm-up"
        elif outcomes or not others:
            yield f"no completed run ({outcomes})"
    elif device_counts == 1:
        if others:
            return  # why those are not comparable is the note
        yield "no baseline: the series has one device count"
    elif not base_rates:
        yield f"no baseline: no completed run on {count_devices(base)}"
    elif base > 1:
        yield f"relative to {base} devices, not to 1"


def option_table(runs: pd.DataFrame, swept: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    """The gain of each value of a swept option over its first value, all else and devices equal.

    This is an option's gain, never a speedup. ``p`` is that of no difference, two-sided; ``p_adjusted`` is it
    for all rows together, by Holm: of a study's sentences on options, one or more is false in at most 5 % of
    the studies.

    Args:
        runs: Output of ``scalewise.analysis.tables.collect``.
        swept: The swept keys with their values, the reference first.
    """
    rows = []
    done = peaks_of_one_kind(runs[runs["outcome"] == "completed"])
    if swept:
        done = done.assign(session=sessions(done))
        done = done[done[THROUGHPUT].notna()].astype({THROUGHPUT: float})
    for key, values in swept.items():
        others = [other for other in swept if other != key]
        for group, point in done.groupby(["devices", *others], dropna=False):
            reference = _having(point, key, values[0])
            for value in values[1:]:
                chosen = _having(point, key, value)
                if len(reference) and len(chosen):
                    rows.append(_gain(key, value, values[0], others, group, chosen, reference))
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_adjusted"] = adjusted
    return pd.DataFrame(
        rows,
        columns=[
            "option", "value", "reference", "beside", "devices", "n", "throughput_ratio",
            "throughput_ratio_low", "throughput_ratio_high", "p", "p_adjusted",
            *MEMORY_GAINS,
        ],
    )  # fmt: skip


def _having(runs: pd.DataFrame, key: str, value: Any) -> pd.DataFrame:
    """The runs with a value of an option; null is one, the option's default."""
    return runs[runs[key].isna() if value is None else runs[key] == value]


def _gain(
    key: str,
    value: Any,
    reference_value: Any,
    others: Sequence[str],
    group: tuple[Any, ...],
    chosen: pd.DataFrame,
    reference: pd.DataFrame,
) -> dict[str, Any]:
    blocked = has_trend(chosen) or has_trend(reference)
    found = contrast(chosen, reference, speeds, blocked=blocked)
    assert found is not None, "both sides have runs with a throughput"
    ratio, above = found.interval(), found.p_above()
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
        "p": float("nan") if found.assumed else 2 * min(above, 1 - above),
        **memory_gain(chosen, reference),
        **ratio.as_columns("throughput_ratio"),
    }
