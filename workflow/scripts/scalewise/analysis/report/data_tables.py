"""The tables of the report: a list of columns for each, which make its rows. What is not known is a dash."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.queue_waits import wait_rows
from scalewise.analysis.steps import START_PARTS, STEP_PARTS, Part, known_start_parts
from scalewise.plan.formatting import as_in_yaml, chance_text, format_3sig, percent, pluralize, significant

UNKNOWN = "–"
NOT_MEASURED = "not measured"
FOUR_DIGITS = partial(significant, digits=4)

LAW_NAMES = {
    "amdahl": "Amdahl (strong scaling)",
    "gustafson": "Gustafson (weak scaling)",
    "usl": "universal scalability law",
}
PARAMETER_NAMES = {
    "single_device_rate": "samples/s of one device",
    "peak_devices": "devices of the highest throughput",
}

Form = str | Callable[[float], str]
Source = pd.Series | Mapping[str, Any]
"""A row of a results table, or an item of laws.json."""


@dataclass(frozen=True)
class Cell:
    """A cell: a text, and a second line below it, which most have not."""

    value: str
    below: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Args:
        label: Heading, with the unit.
        source: Column of the results, or a function that makes the cell of a row.
        form: Format of a number, or the function that writes it; empty for what is shown as it is.
        factor: A number is multiplied by it, to get the unit of the heading.
        interval: Show the interval of a number below it, if it has one.
        is_text: Words, which begin at the left, and no numbers.
    """

    label: str
    source: str | Callable[[Any], Cell | str]
    form: Form = ""
    factor: float = 1.0
    interval: bool = False
    is_text: bool = False

    def cell(self, row: Source) -> Cell:
        """Return the cell of a row."""
        if callable(self.source):
            made = self.source(row)
            return made if isinstance(made, Cell) else Cell(made)
        if self.interval:
            return spread(row, self.source, self.form, self.factor)
        value = row.get(self.source)
        if self.form:
            return Cell(number(value, self.form, self.factor))
        return Cell(UNKNOWN if pd.isna(value) else str(value))


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Args:
        cells: One for each column.
        series: The series that it is of.
        kind: Class in the style sheet; empty for none.
        remark: Text that takes a row of its own below it; empty for none.
    """

    cells: Sequence[Cell]
    series: str
    kind: str
    remark: str


@dataclass(frozen=True)
class Table:
    """A table of one experiment.

    Args:
        name: Part of its id, and of the file that it is saved as.
        caption: Text for readers who do not see the heading above it.
        columns: The first names the row.
        rows: Empty if there is nothing to show.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]


def _nothing(_: Source) -> str:
    return ""


def _table(
    name: str,
    caption: str,
    columns: Iterable[Column | None],
    sources: pd.DataFrame | Iterable[Source],
    kind: Callable[[Any], str] = _nothing,
    remark: Callable[[Any], str] = _nothing,
) -> Table:
    """Make a table; a column that is None is left out."""
    shown = [column for column in columns if column is not None]
    found = (row for _, row in sources.iterrows()) if isinstance(sources, pd.DataFrame) else sources
    rows = [
        Row([column.cell(row) for column in shown], str(row["series"]), kind(row), remark(row))
        for row in found
    ]
    return Table(name, caption, shown, rows)


# --- columns of several tables --------------------------------------------------------------------------


def _count(row: Source) -> str:
    """Return the number of completed runs, and how many of them no speedup may join."""
    left_out = row.get("n_not_comparable")
    if pd.isna(left_out) or not left_out:
        return str(row["n"])
    return f"{row['n']} ({int(left_out)} not comparable)"


def _wall(row: Source) -> Cell:
    """Return the wall time of a whole run; with its n if some runs were resumed, which have none."""
    cell = spread(row, "wall_seconds", FOUR_DIGITS)
    runs = row.get("wall_n")
    if pd.isna(runs) or runs == row["n"]:
        return cell
    return Cell(cell.value, ", ".join(filter(None, (cell.below, f"n = {runs:.0f}"))))


SERIES = Column("series", "series", is_text=True)
DEVICES = Column("devices", "devices")
N = Column("n", "n")
COMPARABLE_N = Column("n", _count)
WALL = Column("time of a run (s)", _wall)
RATE = Column("throughput (samples/s)", THROUGHPUT, format_3sig, interval=True)
DEVICE_HOURS = Column("device-hours of a run", "device_hours", format_3sig)
EFFICIENCY = Column("efficiency", "parallel_efficiency", "{:.2f}", interval=True)
EFFICIENCY_TO_BEST = Column("efficiency to the best baseline", "efficiency_to_best", "{:.2f}", interval=True)
MEMORY = Column("memory in training (MB)", "peak_memory_bytes", "{:,.0f}", 1e-6)
EVALUATION_MEMORY = Column("in evaluation (MB)", "evaluation_peak_memory_bytes", "{:,.0f}", 1e-6)
LOWEST = Column("least busy device", "lowest_utilization", partial(percent, places=0))
MFU = Column("MFU", "model_flops_utilization", percent)
BUSY = Column("busy", "mean_utilization", partial(percent, places=0))
WAIT = Column("waiting for data", "loader_wait_fraction", percent)


# --- the tables -----------------------------------------------------------------------------------------


def options(gains: pd.DataFrame) -> Table:
    """Make the table of what options gain in throughput and memory.

    Args:
        gains: Contents of options.csv, and ``series``: the series that has the option's value.
    """
    columns = [
        Column("option", lambda row: f"{row['option']} {as_in_yaml(row['value'])}", is_text=True),
        Column("instead of", lambda row: as_in_yaml(row["reference"]), is_text=True),
        Column(
            "together with", lambda row: row["beside"] if isinstance(row["beside"], str) else "", is_text=True
        ),
        DEVICES,
        N,
        Column("throughput ratio", "throughput_ratio", "{:.2f}", interval=True),
        Column("memory in training, per device (MB)", "peak_memory_bytes", "{:,.0f}", 1e-6),
        Column("with the value it replaces (MB)", "reference_peak_memory_bytes", "{:,.0f}", 1e-6),
        Column("saved (MB)", "peak_memory_saved_bytes", "{:,.0f}", 1e-6),
        Column("memory in evaluation (MB)", "evaluation_peak_memory_bytes", "{:,.0f}", 1e-6),
        Column("memory ratio", "peak_memory_ratio", "{:.3f}"),
    ]
    return _table("options", "What options gain: throughput and memory per device", columns, gains)


def cost(scaling: pd.DataFrame, series: str | None, *, with_target: bool) -> Table:
    """Make the table of what a run of one series costs by device count.

    Args:
        scaling: Contents of scaling.csv.
        series: The series; None for no row.
        with_target: Some run reached the target.
    """
    points = scaling[(scaling["series"] == series) & scaling["device_hours"].notna()].sort_values("devices")
    fewest = points["device_hours"].iloc[0] if len(points) else 0
    columns = [
        DEVICES,
        COMPARABLE_N,
        Column("training to the target (s)", "time_to_accuracy_seconds", FOUR_DIGITS, interval=True)
        if with_target
        else None,
        WALL,
        DEVICE_HOURS,
        Column(
            "relative to the fewest devices", "device_hours", "{:.2f}", 1 / fewest if fewest else math.nan
        ),
    ]
    return _table("cost", "What a run costs by device count", columns, points)


def scaling(
    points: pd.DataFrame, *, with_target: bool, with_accuracy: bool, kind: Callable[[pd.Series], str]
) -> Table:
    """Make the table of throughput, speedup and what a run took, by series and device count.

    Args:
        points: Contents of scaling.csv.
        with_target: Some run reached the target.
        with_accuracy: The runs have an accuracy.
        kind: Class of a point in the style sheet.
    """
    differ = any(EFFICIENCY_TO_BEST.cell(row) != EFFICIENCY.cell(row) for _, row in points.iterrows())
    columns = [
        SERIES,
        DEVICES,
        COMPARABLE_N,
        RATE,
        Column("speedup", "speedup", "{:.2f}", interval=True),
        EFFICIENCY,
        EFFICIENCY_TO_BEST if differ else None,
        Column("serial fraction", "karp_flatt_fraction", "{:.3f}", interval=True),
        Column("time to target (s)", "time_to_accuracy_seconds", FOUR_DIGITS, interval=True)
        if with_target
        else None,
        Column("reached", lambda row: f"{row['n_reached']} of {row['n']}") if with_target else None,
        Column("final accuracy", "final_accuracy", percent, interval=True) if with_accuracy else None,
        WALL,
        DEVICE_HOURS,
    ]
    return _table(
        "scaling",
        "Scaling by series and device count",
        columns,
        points,
        kind,
        lambda row: row["note"] if isinstance(row["note"], str) else "",
    )


def unmeasured(expected: pd.DataFrame, *, to_target: bool) -> Table:
    """Make the table of expected values of device counts that were not measured.

    Args:
        expected: ``ExperimentResults.unmeasured``.
        to_target: Speed is that of reaching the target.
    """
    to = " to the target" if to_target else ""
    columns = [
        SERIES,
        DEVICES,
        Column("status", lambda _: NOT_MEASURED, is_text=True),
        Column(f"expected speedup{to}", "speedup", "{:.2f}", interval=True),
        Column(f"expected efficiency{to}", "parallel_efficiency", "{:.2f}", interval=True),
        Column("chance that it is, or makes, another answer", "chance", chance_text),
        DEVICE_HOURS,
    ]
    caption = "Device counts that were not measured, and what is expected of them"
    return _table("unmeasured", caption, columns, expected, lambda _: "unmeasured")


def steps(scaling: pd.DataFrame, runs: pd.DataFrame) -> Table:
    """Make the table of the parts of a step and of a start, for each point with a completed run.

    Args:
        scaling: Contents of scaling.csv.
        runs: Contents of runs.csv.
    """
    starts = known_start_parts(runs)
    done = runs[runs["outcome"] == "completed"]
    medians = (
        done.reindex(columns=list(starts)).astype(float).groupby([done["series"], done["devices"]]).median()
    )
    points = scaling[scaling["n"] > 0].drop(columns=list(starts), errors="ignore")
    columns = [
        SERIES,
        DEVICES,
        N,
        Column("step (ms)", "step_seconds", FOUR_DIGITS, 1e3, interval=True),
        *(_part_of_step(part) for part in STEP_PARTS),
        Column("communication, cross-check (ms)", "crosscheck_communication_seconds", format_3sig, 1e3),
        Column("start-up (s)", lambda row: _startup(row, starts)),
        *(Column(f"{label} (s)", column, "{:.2f}") for column, label in starts.items()),
    ]
    return _table(
        "steps",
        "Where a step's time goes, and start-up",
        columns,
        points.join(medians, on=["series", "devices"]),
    )


def _part_of_step(part: Part) -> Column:
    """Return a column of milliseconds, and below them the share of the step."""

    def cell(row: Source) -> Cell:
        seconds: Any = row.get(part.column)
        step: Any = row.get("step_seconds")
        unknown = pd.isna(seconds) or pd.isna(step) or not step
        return Cell(number(seconds, format_3sig, 1e3), "" if unknown else percent(seconds / step))

    return Column(f"{part.name} (ms)", cell)


def _startup(row: Source, starts: Iterable[str]) -> str:
    """Return the seconds of a start; the sum of its known parts if the whole is unknown."""
    known = [row[column] for column in starts if pd.notna(row[column])]
    total = row.get("startup_seconds")
    return number(sum(known) if pd.isna(total) and known else total, "{:.1f}")


def laws(fits: Sequence[Mapping[str, Any]], scaling: pd.DataFrame) -> Table:
    """Make the table of the fitted laws of scaling, and why others were not fitted.

    Args:
        fits: Contents of laws.json.
        scaling: Contents of scaling.csv, for the number of runs that a fit rests on.
    """

    def runs(law: Source) -> str:
        points = scaling[scaling["series"] == law["series"]]
        return f"{int(points['n'].sum())} runs on {int((points['n'] > 0).sum())} device counts"

    columns = [
        SERIES,
        Column("law", lambda law: LAW_NAMES.get(law["law"], law["law"]), is_text=True),
        Column("n", runs, is_text=True),
        Column("parameters with 95 % intervals", _parameters, is_text=True),
    ]
    return _table("laws", "Laws of scaling", columns, fits)


def _parameters(law: Source) -> str:
    """Return the parameters of a fit, or the reason why there is none."""
    if law["refused"]:
        return f"Not fitted: {law['refused']}"
    largest = max((point["devices"] for point in law["curve"]), default=math.inf)
    return "; ".join(_parameter(name, value, largest) for name, value in law["parameters"].items())


def _parameter(name: str, value: Mapping[str, float | None], largest: float) -> str:
    """Return a parameter with its bounds; without a value it is infinite, as a peak that is never reached."""
    estimate, low, high = (
        "∞" if value[key] is None else f"{value[key]:,.4g}" for key in ("estimate", "low", "high")
    )
    text = f"{PARAMETER_NAMES.get(name, name.replace('_', ' '))} {estimate} ({low} to {high})"
    peak = value["estimate"]
    beyond = name == "peak_devices" and peak is not None and peak > largest
    return f"{text}, {NOT_MEASURED}" if beyond else text


def predictions(prediction: pd.DataFrame | None, scaling: pd.DataFrame) -> Table:
    """Make the table of predictions and measurements.

    Args:
        prediction: Contents of prediction.csv; None if nothing was predicted.
        scaling: Contents of scaling.csv.
    """
    place = ["series", "devices"]
    step = ["step_seconds", "step_seconds_low", "step_seconds_high"]
    measured = scaling.reindex(columns=[*place, "n", *step])
    measured = measured.rename(columns={column: f"measured_{column}" for column in ("n", *step)})
    predicted = pd.DataFrame(columns=place) if prediction is None else prediction
    rows = predicted.merge(measured, how="left", on=place)

    def is_measured(row: Source) -> bool:
        return bool(pd.notna(row["measured_step_seconds"]))

    def all_reduce(row: Source) -> Cell:
        seconds = number(row["all_reduce_seconds"], format_3sig, 1e3)
        return Cell(seconds, "extrapolated" if row["extrapolated"] else "")

    measured_step = Column("measured step (ms)", "measured_step_seconds", FOUR_DIGITS, 1e3, interval=True)
    columns = [
        SERIES,
        Column("devices", lambda row: Cell(f"{row['devices']:,}", row["shape"])),
        Column("baseline n", "n", "{:.0f}"),
        Column("predicted step (ms)", "step_seconds", FOUR_DIGITS, 1e3, interval=True),
        Column("compute (ms)", "compute_seconds", format_3sig, 1e3),
        Column("all-reduce (ms)", all_reduce),
        Column("exposed (ms)", "exposed_seconds", format_3sig, 1e3),
        Column(
            "measured step (ms)", lambda row: measured_step.cell(row) if is_measured(row) else NOT_MEASURED
        ),
        Column("n", lambda row: f"{row['measured_n']:.0f}" if is_measured(row) else UNKNOWN),
        Column(
            "predicted over measured",
            lambda row: number(row["step_seconds"] / row["measured_step_seconds"], "{:.2f}"),
        ),
        Column("predicted speedup", "speedup", format_3sig, interval=True),
        Column("predicted efficiency", "parallel_efficiency", "{:.2f}", interval=True),
        Column("device-hours per epoch", "device_hours_per_epoch", format_3sig),
    ]
    return _table(
        "predictions",
        "Prediction beside measurement",
        columns,
        rows,
        lambda row: "" if is_measured(row) else "unmeasured",
    )


def devices(points: pd.DataFrame, *, kind: Callable[[pd.Series], str]) -> Table:
    """Make the table of the use that the devices made of their time.

    Args:
        points: Contents of scaling.csv.
        kind: Class of a point in the style sheet.
    """
    columns = [
        SERIES,
        DEVICES,
        COMPARABLE_N,
        BUSY,
        LOWEST if points["lowest_utilization"].notna().any() else None,
        MFU if points["model_flops_utilization"].notna().any() else None,
        Column("loader", "loader", is_text=True),
        WAIT,
        Column("communication", "communication_fraction", percent),
        MEMORY,
        EVALUATION_MEMORY,
        Column("energy per run (kJ)", "energy_joules", "{:,.2f}", 1e-3),
        Column("samples per joule", "samples_per_joule", "{:,.1f}"),
    ]
    return _table("devices", "Devices at work", columns, points, kind)


def jobstats(jobs: pd.DataFrame, planned: pd.DataFrame) -> Table:
    """Make the table of what jobstats measured of the jobs, next to what Scalewise did; empty without any.

    Args:
        jobs: Contents of jobstats.csv.
        planned: Contents of runs.csv.
    """
    # published figures lack some
    own = planned.reindex(columns=["run", "mean_utilization", "lowest_utilization", "peak_memory_bytes"])
    if jobs["gpus"].isna().all():
        jobs = jobs.iloc[:0]
    columns = [
        Column("run", "run", is_text=True),
        Column("job", "slurm_job_id", is_text=True),
        Column("GPUs busy", "mean_utilization", percent),
        Column("by jobstats", "gpu_utilization", percent),
        Column("least busy GPU", "lowest_utilization", percent),
        Column("by jobstats", "lowest_gpu_utilization", percent),
        Column("peak memory (GB)", "peak_memory_bytes", "{:,.2f}", 1e-9),
        Column("by jobstats", "gpu_memory_bytes", "{:,.2f}", 1e-9),
    ]
    return _table("jobstats", "What jobstats measured", columns, jobs.merge(own, on="run"), remark=_note)


def queue_waits(waits: pd.DataFrame) -> Table:
    """Make the table of the waits in the queue, by device count and partition; empty if none is known.

    Args:
        waits: Contents of queue_waits.csv.
    """
    columns = [
        DEVICES,
        Column("partition", "partition", is_text=True),
        N,
        Column("median wait (min)", "median", format_3sig, 1 / 60),
        Column("shortest", "lowest", format_3sig, 1 / 60),
        Column("longest", "highest", format_3sig, 1 / 60),
        Column("first start", "first", is_text=True),
        Column("last start", "last", is_text=True),
    ]
    return _table("queue_waits", "Waits in the queue", columns, wait_rows(waits))


def _note(row: Source) -> str:
    note = row["note"]
    return "" if pd.isna(note) else str(note)


def partition_points(
    points: pd.DataFrame,
    time_unit: tuple[float, str],
    cost_unit: str,
    best: Collection[tuple[str, str, int]],
) -> Table:
    """Make the table of an experiment's points on all of its partitions.

    Args:
        points: Contents of partitions.csv.
        time_unit: Seconds of the unit of times, and its name.
        cost_unit: Name of the unit of costs.
        best: Points that are the best by some aim, each as partition, series and devices.
    """
    seconds, name = time_unit

    def is_known(column: str) -> bool:
        return bool(points[column].notna().any())

    columns = [
        Column("partition", "partition", is_text=True),
        SERIES if points["series"].nunique() > 1 else None,
        DEVICES,
        N,
        Column(f"time ({name})", "seconds", format_3sig, 1 / seconds, interval=True),
        Column(f"cost ({cost_unit})", "cost", format_3sig, interval=True) if is_known("cost") else None,
        Column("energy (kWh)", "energy_kwh", format_3sig, interval=True) if is_known("energy_kwh") else None,
        Column("median wait (min)", _queue) if is_known("queue_seconds") else None,
        Column(f"wait and run ({name})", "seconds_with_queue", format_3sig, 1 / seconds, interval=True)
        if is_known("seconds_with_queue")
        else None,
        Column("time and cost", _pareto, is_text=True),
    ]

    def kind(row: Source) -> str:
        if not row["n"]:
            return "failed"
        return "chosen" if (row["partition"], row["series"], row["devices"]) in best else ""

    return _table("partitions", "All points of all partitions", columns, points, kind, _note)


def _queue(row: Source) -> Cell:
    """Return the median of the waits, with their number."""
    if pd.isna(row["queue_seconds"]):
        return Cell(UNKNOWN)
    return Cell(format_3sig(row["queue_seconds"] / 60), f"n = {row['queue_n']:.0f}")


def _pareto(row: Source) -> str:
    """Return whether a point may be worth choosing by time and cost, and the point that is better."""
    if row["pareto"] != "dominated":
        return "may be worth choosing" if row["pareto"] else UNKNOWN
    return f"worse than {row['dominated_by']}"


def runs(planned: pd.DataFrame, *, with_accuracy: bool) -> Table:
    """Make the table of every run that was planned.

    Args:
        planned: Contents of runs.csv.
        with_accuracy: The runs have an accuracy.
    """
    starts = [column for column in START_PARTS if column in planned.columns]
    fingerprint = Column("fingerprint", "fingerprint", is_text=True)
    columns = [
        Column("run", "run", is_text=True),
        DEVICES,
        Column("outcome", "outcome", is_text=True),
        RATE,
        Column("training (s)", "train_seconds", FOUR_DIGITS),
        Column("time to target (s)", "time_to_accuracy_seconds", FOUR_DIGITS),
        Column("final accuracy", "final_accuracy", partial(percent, places=2)) if with_accuracy else None,
        MEMORY,
        EVALUATION_MEMORY,
        WAIT,
        BUSY,
        Column("energy (kJ)", "energy_joules", "{:,.2f}", 1e-3),
        Column("start-up (s)", lambda row: number(row[starts].sum(min_count=1), "{:.1f}")),
        fingerprint if len({fingerprint.cell(row) for _, row in planned.iterrows()}) > 1 else None,
    ]
    return _table(
        "runs",
        "Runs",
        columns,
        planned,
        lambda row: "" if row["outcome"] == "completed" else "failed",
        _remark,
    )


def _remark(row: Source) -> str:
    """Return the reason that a run has no result, or a remark on the one it has."""
    reason = row["reason"] if isinstance(row["reason"], str) else ""
    resumes = row.get("resumes")
    if pd.isna(resumes) or not resumes:
        return reason
    resumed = f"Resumed {pluralize(str(int(resumes)), 'time')}."
    return f"{reason} {resumed}" if reason else resumed


# --- numbers --------------------------------------------------------------------------------------------


def number(value: Any, form: Form, factor: float = 1.0) -> str:
    """Return a value times a factor in this form, or a dash; what rounds to nothing has no sign."""
    if pd.isna(value) or pd.isna(factor):
        return UNKNOWN
    text = form(value * factor) if callable(form) else form.format(value * factor)
    return text if text.strip("-0. %") else text.removeprefix("-")


def spread(row: Source, name: str, form: Form, factor: float = 1.0) -> Cell:
    """Return a value with its interval, which is left out if there is none."""
    value, low, high = (
        number(row.get(column), form, factor) for column in (name, f"{name}_low", f"{name}_high")
    )
    return Cell(value, "" if low == high or UNKNOWN in (low, high) else f"{low} to {high}")
