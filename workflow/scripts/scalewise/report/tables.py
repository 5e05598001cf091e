"""The tables of the page: an entry of ``TABLES`` each, whose columns are an entry each. Unknown is a dash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scalewise.analysis.steps import STEP_PARTS
from scalewise.plan.formatting import HOUR, MINUTE, as_in_yaml, format_3sig, format_ratio, percent
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.report.section import Section

UNKNOWN = "–"
MOST_OPEN = 14
"""Rows of a table in the open; a longer one is behind its title."""

Form = Callable[[float], tuple[float, str, Callable[[float], str]]]
"""Gives a number's factor, unit and format; the ends of its interval have the same."""


def _form(form: Callable[[float], str], factor: float = 1.0, unit: str = "") -> Form:
    return lambda _: (factor, unit, form)


def time(seconds: float) -> tuple[float, str, Callable[[float], str]]:
    """Return the form of a time: ``106 ms``, ``8.20 s``, ``12.5 min``, ``3.10 h``."""
    if seconds < 1:
        return 1e3, " ms", format_3sig
    if seconds < 2 * MINUTE:
        return 1.0, " s", format_3sig
    return (1 / MINUTE, " min", format_3sig) if seconds < 2 * HOUR else (1 / HOUR, " h", format_3sig)


def hours(value: float) -> tuple[float, str, Callable[[float], str]]:
    """Return the form of a number of hours, as that of a time."""
    factor, unit, form = time(value * HOUR)
    return factor * HOUR, unit, form


COUNT, RATE, RATIO = _form("{:,.0f}".format), _form(format_3sig), _form(format_ratio)
SHARE, WHOLE_SHARE = _form(percent), _form(lambda value: percent(value, 0))
MEGABYTES = _form("{:,.0f}".format, 1e-6)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        heading: Heading with the unit; ``{device}`` and ``{devices}`` are replaced.
        column: Column of the results; the ends of its interval have ``_low`` and ``_high`` at the end.
        form: Form of a number; None for text.
    """

    heading: str
    column: str
    form: Form | None = None


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
    for name, table in TABLES.items():
        rows = table.rows(section)
        if rows.empty:
            continue
        columns = [
            column
            for column in table.columns
            if column.column in rows and rows[column.column].map(_is_known).any()
        ]
        names = {"device": section.noun, "devices": section.plural}
        best = rows["recommended"] if "recommended" in rows else pd.Series(False, rows.index)
        yield Filled(
            name,
            table.title,
            table.is_open and len(rows) <= MOST_OPEN,
            [(column.heading.format(**names), column.form is None) for column in columns],
            [
                ([_cell(row, column) for column in columns], bool(is_best))
                for (_, row), is_best in zip(rows.iterrows(), best, strict=True)
            ],
        )


def _is_known(value: Any) -> bool:
    return not pd.isna(value) and value != ""


def _cell(row: pd.Series, column: Column) -> Cell:
    value = row[column.column]
    if not _is_known(value):
        return Cell(UNKNOWN)
    if column.form is None:
        return Cell(as_in_yaml(value))
    factor, unit, form = column.form(float(value))
    ends: list[Any] = [row.get(f"{column.column}{end}") for end in ("_low", "_high")]
    # a baseline's speedup is 1 by definition
    is_interval = all(map(_is_known, ends)) and ends[0] != ends[1]
    below = " to ".join(form(float(end) * factor) for end in ends) if is_interval else ""
    return Cell(f"{form(float(value) * factor)}{unit}", below, f"{float(value):.6g}")


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows; without the name of the series if that is the only one."""
    return rows.drop(columns="series") if "series" in rows and set(rows["series"]) <= {NO_OPTIONS} else rows


def _steps(section: Section) -> pd.DataFrame:
    points = _named(section.points)
    if "step_seconds" not in points:
        return points.iloc[:0]
    return points[points["step_seconds"].notna()]


def _options(section: Section) -> pd.DataFrame:
    if section.options.empty:
        return section.options
    values = {name: section.options[name].map(as_in_yaml) for name in ("value", "reference")}
    beside = section.options["beside"].astype(object).fillna("").astype(str)
    values["beside"] = beside.str.replace(r" (True|False)\b", lambda found: found[0].lower(), regex=True)
    return section.options.assign(name=section.options["option"] + " " + values["value"], **values)


def _candidates(section: Section) -> pd.DataFrame:
    return pd.DataFrame([vars(candidate) for candidate in section.answer.candidates])


SERIES, DEVICES, N = (
    Column("series", "series"),
    Column("{devices}", "devices", COUNT),
    Column("n", "n", COUNT),
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
            Column("samples/s", "throughput_samples_per_second", RATE),
            Column("speedup", "speedup", RATIO),
            Column("efficiency", "parallel_efficiency", RATIO),
            Column("time to target", "time_to_accuracy_seconds", time),
            Column("accuracy", "final_accuracy", SHARE),
            Column("time of a run", "wall_seconds", time),
            Column("cost in time of one {device}", "device_hours", hours),
            Column("memory (MB)", "peak_memory_bytes", MEGABYTES),
            Column("MFU", "model_flops_utilization", SHARE),
            Column("note", "note"),
        ],
        lambda section: _named(section.points),
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
            Column("throughput ratio", "throughput_ratio", RATIO),
            Column("memory (MB)", "peak_memory_bytes", MEGABYTES),
            Column("saved (MB)", "peak_memory_saved_bytes", MEGABYTES),
            Column("memory ratio", "peak_memory_ratio", _form("{:.3f}".format)),
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
            Column("step", "step_seconds", time),
            *(Column(part.name, part.column, time) for part in STEP_PARTS),
            Column("start-up of a run", "startup_seconds", time),
            Column("{device} busy", "mean_utilization", WHOLE_SHARE),
        ],
        _steps,
    ),
    "runs": Table(
        "Runs",
        [
            Column("run", "run"),
            Column("outcome", "outcome"),
            Column("samples/s", "throughput_samples_per_second", RATE),
            Column("time of a run", "wall_seconds", time),
            Column("time to target", "time_to_accuracy_seconds", time),
            Column("accuracy", "final_accuracy", SHARE),
            Column("memory (MB)", "peak_memory_bytes", MEGABYTES),
            Column("hosts", "hosts"),
            Column("disturbed by", "disturbance"),
            Column("reason", "reason"),
        ],
        lambda section: section.runs,
    ),
}
