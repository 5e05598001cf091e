"""The tables of the page: an entry of ``TABLES`` each, whose columns are an entry each. Unknown is a dash."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from scalewise.analysis.steps import STEP_PARTS
from scalewise.analysis.words import HOUR, as_in_yaml, format_ratio, time_unit
from scalewise.plan.formatting import format_3sig, percent
from scalewise.plan.run_definition import NO_OPTIONS
from scalewise.report.section import Section

UNKNOWN = "–"
MOST_OPEN = 14
"""Rows of a table in the open; a longer one is behind its title."""

Form = Callable[[float], str]
Unit = Callable[[float], tuple[float, str]]


def no_unit(_value: float) -> tuple[float, str]:
    """Return the unit of a number without one."""
    return 1.0, ""


def seconds(value: float) -> tuple[float, str]:
    """Return the unit of a number of seconds: ``106 ms``, ``8.20 s``, ``12.5 min``, ``3.10 h``."""
    return (1e-3, "ms") if value < 1 else time_unit(value)


def hours(value: float) -> tuple[float, str]:
    """Return the unit of a number of hours, as that of a time."""
    divisor, unit = seconds(value * HOUR)
    return divisor / HOUR, unit


count = "{:,.0f}".format
three_places = "{:.3f}".format


def whole_percent(fraction: float) -> str:
    """Format a share without a place after the point: ``61 %``."""
    return percent(fraction, 0)


def megabytes(value: float) -> str:
    """Format a number of bytes: ``3,000``."""
    return count(value / 1e6)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        heading: Heading with the unit; ``{device}`` and ``{devices}`` are replaced.
        column: Column of the results; the ends of its interval have ``_low`` and ``_high`` at the end.
        form: Formats a number; None for text.
        unit: Returns divisor and name of the unit of a number; the ends of its interval have the same.
    """

    heading: str
    column: str
    form: Form | None = None
    unit: Unit = no_unit


@dataclass(frozen=True)
class Table:
    """A table of an experiment.

    Args:
        title: Heading.
        columns: The first names the row.
        rows: Returns the rows; none if there is nothing to show.
        is_open: It stands in the open, and not behind its title.
    """

    title: str
    columns: Sequence[Column]
    rows: Callable[[Section], pd.DataFrame]
    is_open: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell: text, interval below it, and the number by which its column is sorted; empty for text."""

    text: str
    below: str = ""
    number: str = ""


@dataclass(frozen=True)
class Filled:
    """A table with its rows.

    Args:
        name: Part of its id.
        headings: Headings, each with whether the column is text.
        rows: Cells of each row, with whether it is the answer.
    """

    name: str
    title: str
    is_open: bool
    headings: Sequence[tuple[str, bool]]
    rows: Sequence[tuple[Sequence[Cell], bool]]


def filled_tables(section: Section) -> Iterator[Filled]:
    """Yield the tables of an experiment that have a row, without columns of which nothing is known."""
    names = {"device": section.noun, "devices": section.plural}
    for name, table in TABLES.items():
        rows = table.rows(section).dropna(axis="columns", how="all")
        if rows.empty:
            continue
        columns = [column for column in table.columns if column.column in rows]
        yield Filled(
            name,
            table.title,
            table.is_open and len(rows) <= MOST_OPEN,
            [(column.heading.format(**names), column.form is None) for column in columns],
            [
                ([_cell(row, column) for column in columns], bool(row.get("recommended")))
                for _, row in rows.iterrows()
            ],
        )


def _cell(row: pd.Series, column: Column) -> Cell:
    value = row[column.column]
    if pd.isna(value):
        return Cell(UNKNOWN)
    if column.form is None:
        return Cell(as_in_yaml(value))
    divisor, unit = column.unit(value)
    low, high = (row.get(f"{column.column}{end}", math.nan) for end in ("_low", "_high"))
    # a baseline's speedup is 1 by definition
    is_interval = not pd.isna(low) and low != high
    below = f"{column.form(low / divisor)} to {column.form(high / divisor)}" if is_interval else ""
    return Cell(f"{column.form(value / divisor)} {unit}".rstrip(), below, f"{float(value):.6g}")


def _points(section: Section) -> pd.DataFrame:
    """Return the points; without the name of the series if that is the only one."""
    points = section.points
    return points.drop(columns="series") if set(points["series"]) == {NO_OPTIONS} else points


def _options(section: Section) -> pd.DataFrame:
    options = section.options
    values = {name: options[name].map(as_in_yaml) for name in ("value", "reference")}
    beside = options["beside"].map(
        lambda text: re.sub(r" (True|False)\b", lambda found: found[0].lower(), text), na_action="ignore"
    )
    return options.assign(name=options["option"] + " " + values["value"], beside=beside, **values)


def _candidates(section: Section) -> pd.DataFrame:
    return pd.DataFrame([asdict(each) for each in section.answer.candidates]).replace("", None)


SERIES, DEVICES, N = (
    Column("series", "series"),
    Column("{devices}", "devices", count),
    Column("n", "n", count),
)

TABLES: dict[str, Table] = {
    "candidates": Table(
        "What was compared",
        [
            Column("candidate", "label"),
            Column("time", "time"),
            Column("cost", "cost"),
            Column("energy", "energy"),
            Column("wait in the queue", "wait"),
            Column("", "verdict"),
        ],
        _candidates,
        is_open=True,
    ),
    "points": Table(
        "Scaling",
        [
            SERIES,
            DEVICES,
            N,
            Column("samples/s", "throughput_samples_per_second", format_3sig),
            Column("speedup", "speedup", format_ratio),
            Column("efficiency", "parallel_efficiency", format_ratio),
            Column("time to target", "time_to_accuracy_seconds", format_3sig, seconds),
            Column("accuracy", "final_accuracy", percent),
            Column("time of a run", "wall_seconds", format_3sig, seconds),
            Column("cost in time of one {device}", "device_hours", format_3sig, hours),
            Column("memory (MB)", "peak_memory_bytes", megabytes),
            Column("MFU", "model_flops_utilization", percent),
            Column("note", "note"),
        ],
        _points,
        is_open=True,
    ),
    "options": Table(
        "What options gain",
        [
            Column("option", "name"),
            Column("instead of", "reference"),
            Column("with", "beside"),
            DEVICES,
            N,
            Column("throughput ratio", "throughput_ratio", format_ratio),
            Column("memory (MB)", "peak_memory_bytes", megabytes),
            Column("saved (MB)", "peak_memory_saved_bytes", megabytes),
            Column("memory ratio", "peak_memory_ratio", three_places),
        ],
        _options,
        is_open=True,
    ),
    "steps": Table(
        "Parts of a step",
        [
            SERIES,
            DEVICES,
            N,
            Column("step", "step_seconds", format_3sig, seconds),
            *(Column(part.name, part.column, format_3sig, seconds) for part in STEP_PARTS),
            Column("start-up of a run", "startup_seconds", format_3sig, seconds),
            Column("{device} busy", "mean_utilization", whole_percent),
        ],
        lambda section: _points(section).dropna(subset=["step_seconds"]),
    ),
    "runs": Table(
        "Runs",
        [
            Column("run", "run"),
            Column("outcome", "outcome"),
            Column("samples/s", "throughput_samples_per_second", format_3sig),
            Column("time of a run", "wall_seconds", format_3sig, seconds),
            Column("time to target", "time_to_accuracy_seconds", format_3sig, seconds),
            Column("accuracy", "final_accuracy", percent),
            Column("memory (MB)", "peak_memory_bytes", megabytes),
            Column("hosts", "hosts"),
            Column("disturbed by", "disturbance"),
            Column("reason", "reason"),
        ],
        lambda section: section.runs,
    ),
}
