"""The tables of the report: which columns each has, over the rows of ``page_tables``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scalewise.analysis.bottlenecks.time_parts import STEP_PARTS

REMARK = "remark"
"""Key of a row's text that takes a row of its own below it."""
KIND = "kind"
"""Key of a row's class in the style sheet."""


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        label: Heading, with the unit.
        key: Key of its cells in the rows; a cell is a text, or a value with its interval.
        is_text: Words, which begin at the left, and no numbers.
    """

    label: str
    key: str
    is_text: bool = False


@dataclass(frozen=True)
class Table:
    """A table of one experiment.

    Args:
        name: Part of its id, and of the file that it is saved as.
        caption: Said to those who do not see the heading above it.
        columns: The first names the row.
        rows: Cells by the keys of the columns; ``series`` and ``devices`` where a row is of a point.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]


SERIES, DEVICES, N = Column("series", "series", is_text=True), Column("devices", "devices"), Column("n", "n")


def options(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Gains of options in throughput and memory.

    Args:
        rows: One ``option_row`` for each value and device count.
    """
    named = [
        {
            **row,
            "name": f"{row['option']} {row['value']}",
            "throughput": _value(row["throughput"], row["interval"]),
        }
        for row in rows
    ]
    columns = [
        Column("option", "name", is_text=True),
        Column("instead of", "reference", is_text=True),
        Column("beside", "beside", is_text=True),
        DEVICES,
        N,
        Column("throughput ratio", "throughput"),
        Column("memory in training, per device (MB)", "memory"),
        Column("with what it replaces (MB)", "reference_memory"),
        Column("saved (MB)", "saved"),
        Column("in copies of the parameters", "saved_copies"),
        Column("memory in evaluation (MB)", "evaluation_memory"),
        Column("memory ratio", "memory_ratio"),
    ]
    return Table("options", "What options gain: throughput and memory per device", columns, named)


def cost(rows: Sequence[Mapping[str, Any]], *, with_target: bool) -> Table:
    """Time and device-hours of a run by device count.

    Args:
        rows: ``point_row`` and its costs, of the series that the answer is on.
        with_target: Some run reached the target.
    """
    columns = [
        DEVICES,
        N,
        Column("training to the target (s)", "time_to_accuracy") if with_target else None,
        Column("wall of a run (s)", "wall"),
        Column("device-hours of a run", "device_hours"),
        Column("over those of the fewest devices", "cost_ratio"),
    ]
    return Table("cost", "What a run costs by device count", _those(columns), rows)


def scaling(rows: Sequence[Mapping[str, Any]], *, with_target: bool, with_accuracy: bool) -> Table:
    """Throughput, speedup and what a run took, by series and device count.

    Args:
        rows: One ``point_row`` for each point.
        with_target: Some run reached the target.
        with_accuracy: The runs tell an accuracy.
    """
    columns = [
        SERIES,
        DEVICES,
        N,
        Column("throughput (samples/s)", "throughput"),
        Column("speedup", "speedup"),
        Column("efficiency", "efficiency"),
        Column("efficiency to the best baseline", "efficiency_to_best")
        if any(row["efficiency_to_best"] != row["efficiency"] for row in rows)
        else None,
        Column("serial fraction", "serial"),
        Column("time to target (s)", "time_to_accuracy") if with_target else None,
        Column("reached", "reached") if with_target else None,
        Column("final accuracy", "accuracy") if with_accuracy else None,
        Column("wall of a run (s)", "wall"),
        Column("device-hours of a run", "device_hours"),
    ]
    return Table("scaling", "Scaling by series and device count", _those(columns), rows)


def unmeasured(rows: Sequence[Mapping[str, Any]], *, to_target: bool) -> Table:
    """Expected values of device counts that were not measured.

    Args:
        rows: One ``expected_row`` for each.
        to_target: Speed is that of reaching the target.
    """
    to = " to the target" if to_target else ""
    columns = [
        SERIES,
        DEVICES,
        Column("status", "status", is_text=True),
        Column(f"expected speedup{to}", "speedup"),
        Column(f"expected efficiency{to}", "efficiency"),
        Column("chance that it is, or makes, another answer", "chance"),
        Column("device-hours of a run", "device_hours"),
    ]
    told = [
        {
            **row,
            "status": "not measured",
            "speedup": _value(row["speedup"], row["speedup_band"]),
            "efficiency": _value(row["efficiency"], row["efficiency_band"]),
            KIND: "unmeasured",
        }
        for row in rows
    ]
    return Table(
        "unmeasured", "Device counts that were not measured, and what is expected of them", columns, told
    )


def steps(rows: Sequence[Mapping[str, Any]], start_parts: Sequence[str]) -> Table:
    """The parts of a step and of a start.

    Args:
        rows: Output of ``step_rows``.
        start_parts: Names of the parts of a start.
    """
    columns = [
        SERIES,
        DEVICES,
        N,
        Column("step (ms)", "step"),
        *(Column(f"{part.name} (ms)", f"part{index}") for index, part in enumerate(STEP_PARTS)),
        Column("communication, cross-check (ms)", "crosscheck"),
        Column("start-up (s)", "startup"),
        *(Column(f"{label} (s)", f"start{index}") for index, label in enumerate(start_parts)),
    ]
    flat = [
        {
            **row,
            **{f"part{index}": cell for index, cell in enumerate(row["parts"])},
            **{f"start{index}": cell for index, cell in enumerate(row["starts"])},
        }
        for row in rows
    ]
    return Table("steps", "Where a step's time goes, and start-up", columns, flat)


def laws(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The fitted laws of scaling, and why others were not.

    Args:
        rows: Output of ``law_rows``.
    """
    columns = [
        SERIES,
        Column("law", "law", is_text=True),
        Column("n", "n", is_text=True),
        Column("parameters with 95 % intervals", "parameters", is_text=True),
    ]
    told = [{**row, "parameters": f"Not fitted: {row['refused']}"} if row["refused"] else row for row in rows]
    return Table("laws", "Laws of scaling", columns, told)


def predictions(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Predictions beside measurements.

    Args:
        rows: Output of ``prediction_rows``.
    """
    columns = [
        SERIES,
        DEVICES,
        Column("baseline n", "n"),
        Column("predicted step (ms)", "predicted"),
        Column("compute (ms)", "compute"),
        Column("all-reduce (ms)", "all_reduce"),
        Column("exposed (ms)", "exposed"),
        Column("measured step (ms)", "measured"),
        Column("n", "measured_n"),
        Column("predicted over measured", "ratio"),
        Column("predicted speedup", "speedup"),
        Column("predicted efficiency", "efficiency"),
        Column("device-hours per epoch", "device_hours"),
    ]
    told = [
        {
            **row,
            "all_reduce": _value(row["all_reduce"], "extrapolated" if row["extrapolated"] else ""),
            KIND: "unmeasured" if row["measured"]["value"] == "not measured" else "",
        }
        for row in rows
    ]
    return Table("predictions", "Prediction beside measurement", columns, told)


def devices(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Use that the devices made of their time.

    Args:
        rows: One ``point_row`` for each point.
    """
    columns = [
        SERIES,
        DEVICES,
        N,
        Column("busy", "busy"),
        Column("loader", "loader", is_text=True),
        Column("waiting for data", "wait"),
        Column("communication", "communication"),
        Column("memory in training (MB)", "memory"),
        Column("in evaluation (MB)", "evaluation_memory"),
        Column("energy per run (kJ)", "energy"),
        Column("samples per joule", "samples_per_joule"),
    ]
    return Table("devices", "Devices at work", columns, [{**row, REMARK: row["cause"]} for row in rows])


def runs(rows: Sequence[Mapping[str, Any]], *, with_accuracy: bool) -> Table:
    """Every run that was planned.

    Args:
        rows: One ``run_row`` for each.
        with_accuracy: The runs tell an accuracy.
    """
    columns = [
        Column("run", "run", is_text=True),
        DEVICES,
        Column("outcome", "outcome", is_text=True),
        Column("throughput (samples/s)", "throughput"),
        Column("training (s)", "train_seconds"),
        Column("time to target (s)", "time_to_accuracy"),
        Column("final accuracy", "accuracy") if with_accuracy else None,
        Column("memory in training (MB)", "memory"),
        Column("in evaluation (MB)", "evaluation_memory"),
        Column("waiting for data", "wait"),
        Column("busy", "busy"),
        Column("energy (kJ)", "energy"),
        Column("start-up (s)", "startup"),
        Column("fingerprint", "fingerprint", is_text=True)
        if len({row["fingerprint"] for row in rows}) > 1
        else None,
    ]
    told = [
        {**row, REMARK: row["reason"], KIND: "" if row["outcome"] == "completed" else "failed"}
        for row in rows
    ]
    return Table("runs", "Runs", _those(columns), told)


def _value(text: str, below: str) -> dict[str, str]:
    """A cell with a second line."""
    return {"value": text, "interval": below}


def _those(columns: Iterable[Column | None]) -> list[Column]:
    return [column for column in columns if column is not None]
