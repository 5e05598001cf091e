"""The tables of a proposal: of scaling, and of the devices' use.

Speedups are stated with the absolute figure that they are relative to (Hoefler & Belli, SC'15, rule 1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.requirement import Clock
from scalewise.plan.config.centre import COLUMNS as CENTRE_COLUMNS
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    format_3sig,
    format_ratio,
    name_devices,
    percent,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS

_WITH_BOUNDS = ("wall_seconds", "throughput_samples_per_second", "speedup", "parallel_efficiency")
_OF_TOTAL_TIME = {"speedup": "wall_speedup", "parallel_efficiency": "wall_efficiency"}
"""Columns of table.csv by steps -> by total time."""
_IN_TABLE = (*_WITH_BOUNDS, *_OF_TOTAL_TIME.values())
COLUMNS = [
    "experiment", "series", "recommended", "devices", "nodes", "n",
    *(f"{name}{bound}" for name in _IN_TABLE for bound in ("", "_low", "_high")),
    "device_hours", "baseline_devices",
    "mean_utilization", "lowest_utilization", "peak_memory_bytes", "loader_wait_fraction", "energy_joules",
    "flops_per_step", "model_flops_utilization", "mfu_note",
]  # fmt: skip
"""Columns of table.csv: unrounded, under the names and in the units of scaling.csv."""

SHARED = ("devices", "nodes", "n")
"""Columns of both tables of the text."""
OF_SCALING = (*SHARED, *_WITH_BOUNDS, "device_hours")
OF_USE = tuple(column for column in CENTRE_COLUMNS if column not in OF_SCALING)

CLOCKS: dict[Clock, str] = {"throughput": "steps", "total time": "total time"}
"""Names of the clocks in headings and captions."""

_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
_MANY = 600
"""Seconds, or minutes, from which the next unit is easier to read."""
_GB = 1e9
_TERA = 1e12


@dataclass(frozen=True)
class Cell:
    """A value as text, and its interval; empty without one."""

    text: str
    bounds: str = ""


@dataclass(frozen=True)
class Table:
    """One series as text, without markup.

    Args:
        caption: Title of the table.
        label: Name by which LaTeX refers to it.
        columns: Headings, units included.
        rows: A cell for each column.
        recommended: Index of the row that the decision names, if any.
    """

    caption: str
    label: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    recommended: int | None


def ordered_points(results: ExperimentResults) -> pd.DataFrame:
    """Return every planned point, the decided series first, each in order of devices."""
    known = results.points.reindex(columns=list(dict.fromkeys([*results.points.columns, *COLUMNS])))
    decided = known["series"] == results.series
    recommended = decided & (known["devices"] == results.devices)
    known = known.assign(experiment=results.name, recommended=recommended)
    for bound in ("", "_low", "_high"):
        over = known[f"wall_speedup{bound}"].astype(float)
        known[f"wall_efficiency{bound}"] = over * known["baseline_devices"] / known["devices"]
    groups = [known[decided], *(rest for _, rest in known[~decided].groupby("series", sort=False))]
    return pd.concat([group.sort_values("devices") for group in groups if len(group)], ignore_index=True)


def shown_points(results: ExperimentResults, clock: Clock) -> pd.DataFrame:
    """Return the points of the text and of its figures: the series of the answer; the first without one.

    Args:
        results: The study.
        clock: Speedup and efficiency are by it.
    """
    points = ordered_points(results)
    shown: pd.DataFrame = points[points["series"] == points["series"].iloc[0]]
    return shown.assign(
        **{
            f"{name}{bound}": shown[f"{column_by(clock, name)}{bound}"]
            for name in _OF_TOTAL_TIME
            for bound in ("", "_low", "_high")
        }
    )


def column_by(clock: Clock, name: str) -> str:
    """Return the column of table.csv that has a quantity by a clock."""
    return _OF_TOTAL_TIME.get(name, name) if clock == "total time" else name


def scaling_of(points: pd.DataFrame, noun: str, clock: Clock) -> Table:
    """Make the table of times, throughput, speedup, efficiency and cost.

    Args:
        points: Output of ``shown_points``.
        noun: Name of a device.
        clock: Speedup and efficiency are by it.
    """
    return _table(points, OF_SCALING, "Scaling", noun, clock)


def use_of(points: pd.DataFrame, columns: Sequence[str], noun: str) -> Table | None:
    """Make the table of the devices' use; None if nothing of these columns is known.

    Args:
        points: Output of ``shown_points``.
        columns: Those of ``OF_USE`` that are shown, if any of their values is known.
        noun: Name of a device.
    """
    known = [column for column in columns if points[column].notna().any()]
    return _table(points, (*SHARED, *known), "Use of the devices", noun) if known else None


def hours_name(noun: str) -> str:
    """Return the name of device-hours for a reader."""
    return "GPU-hours" if noun == "GPU" else "device-hours"


def _table(
    points: pd.DataFrame, columns: Sequence[str], caption: str, noun: str, clock: Clock = "throughput"
) -> Table:
    unit, seconds = time_unit(points["wall_seconds"].max())
    memory, size = ("MB", 1e6) if points["peak_memory_bytes"].max() < _GB else ("GB", _GB)

    def plain(name: str, form: Callable[[float], str], scale: float = 1.0) -> Callable[[pd.Series], Cell]:
        return lambda row: Cell("–" if pd.isna(row[name]) else form(row[name] * scale))

    def bounded(name: str, form: Callable[[float], str], scale: float = 1.0) -> Callable[[pd.Series], Cell]:
        return lambda row: _bounded(row, name, form, scale)

    known: dict[str, tuple[str, Callable[[pd.Series], Cell]]] = {
        "devices": (name_devices("devices", noun), plain("devices", "{:.0f}".format)),
        "nodes": ("nodes", plain("nodes", "{:.0f}".format)),
        "n": ("n", plain("n", "{:.0f}".format)),
        "wall_seconds": (f"total time ({unit})", bounded("wall_seconds", format_3sig, 1 / seconds)),
        "throughput_samples_per_second": (
            f"samples/s, {CLOCKS['throughput']}",
            bounded("throughput_samples_per_second", format_3sig),
        ),
        "speedup": (f"speedup, {CLOCKS[clock]}", bounded("speedup", format_ratio)),
        "parallel_efficiency": (
            f"efficiency, {CLOCKS[clock]}",
            bounded("parallel_efficiency", "{:.2f}".format),
        ),
        "device_hours": (hours_name(noun), plain("device_hours", format_3sig)),
        "mean_utilization": ("utilization, mean", plain("mean_utilization", lambda it: percent(it, 0))),
        "lowest_utilization": (
            name_devices("utilization, lowest device", noun),
            plain("lowest_utilization", lambda it: percent(it, 0)),
        ),
        "peak_memory_bytes": (
            name_devices(f"memory a device ({memory})", noun),
            plain("peak_memory_bytes", format_3sig, 1 / size),
        ),
        "loader_wait_fraction": ("wait for data", plain("loader_wait_fraction", percent)),
        "energy_joules": ("energy of a run (kJ)", plain("energy_joules", format_3sig, 1e-3)),
        "flops_per_step": ("TFLOP a step", plain("flops_per_step", format_3sig, 1 / _TERA)),
        "model_flops_utilization": ("MFU", plain("model_flops_utilization", percent)),
    }
    shown = [known[column] for column in columns]
    rows = [[cell(row) for _, cell in shown] for _, row in points.iterrows()]
    marked = [index for index, flag in enumerate(points["recommended"]) if flag]
    experiment, series = points["experiment"].iloc[0], str(points["series"].iloc[0])
    name = experiment if series == NO_OPTIONS else f"{experiment}, {series}"
    caption = name_devices(f"{caption}: {name}", noun)
    return Table(
        caption, caption.split(":")[0], [head for head, _ in shown], rows, marked[0] if marked else None
    )


def method_text(results: ExperimentResults, clock: Clock) -> str:
    """Return sentences on how the figures were made, and what the speedups are relative to.

    Args:
        results: The study.
        clock: Speedup and efficiency are by it.
    """
    points = shown_points(results, clock)
    return name_devices(" ".join(_method(points, clock)), results.noun)


def _method(points: pd.DataFrame, clock: Clock) -> Iterator[str]:
    """Yield sentences on how the figures were made, and what the speedups are relative to."""
    yield (
        "Each row is the geometric mean of n runs, each a separate job; 95 % intervals by Student's t on "
        "logarithms; fewer than 3 runs have no interval."
    )
    base = points[points["devices"] == points["baseline_devices"]]
    if base.empty or points["speedup"].isna().all():
        yield "There is no baseline, and so no speedup."
    else:
        reference, by_time = base.iloc[0], clock == "total time"
        compared = "total times of whole runs" if by_time else "the throughput of training steps"
        unit, seconds = time_unit(reference["wall_seconds"])
        absolute = (
            f"{format_3sig(reference['wall_seconds'] / seconds)} {unit}"
            if by_time
            else f"{format_3sig(reference['throughput_samples_per_second'])} samples/s"
        )
        others = int(points["n_not_comparable"].sum()) if "n_not_comparable" in points else 0
        left_out = f", and leave out {others} runs under other conditions" if others else ""
        where = count_devices(int(reference["devices"]))
        yield f"Speedup and efficiency compare {compared}, relative to {where}, {absolute}{left_out}."
    if points["wall_seconds"].isna().all():
        yield "Total times and device-hours are unknown: no run is a whole one."
    else:
        yield "Total times and device-hours are of whole runs, start-up and evaluation included."
    if points["throughput_samples_per_second"].notna().any():
        yield "Steps are timed after the warm-up."


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit that whole runs are read in, and its seconds."""
    for unit, seconds in _UNITS[:-1]:
        if not longest / seconds >= _MANY:  # also if unknown
            return unit, seconds
    return _UNITS[-1]


def _bounded(row: pd.Series, name: str, form: Callable[[float], str], scale: float = 1.0) -> Cell:
    value, low, high = (row[f"{name}{bound}"] for bound in ("", "_low", "_high"))
    if pd.isna(value):
        return Cell("–")
    # one run, and the baseline over itself, have no interval
    bounds = "" if low == high or pd.isna(low) else f"{form(low * scale)} to {form(high * scale)}"
    return Cell(form(value * scale), bounds)
