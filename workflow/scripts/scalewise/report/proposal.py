"""A computing-time proposal: the study's values in the template of a centre, by the clock it demands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, nodes

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.points import Clock
from scalewise.analysis.statistics import Interval, Ratio
from scalewise.analysis.study import Analysis, parts_of, read_and_conclude
from scalewise.config.experiment import template_of
from scalewise.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, format_ratio, percent, pluralize
from scalewise.plan.plan_file import Plan
from scalewise.records import RecordError, write_text
from scalewise.report.facts import CLOCKS, Facts, facts_of, find_doublings, in_clock, verdict_of
from scalewise.report.job import answer_job
from scalewise.report.totals import GPU_HOURS, totals

FOLDER, TEXT, TABLE, JOB_SCRIPT = "proposal", "proposal.md", "table.csv", "job.sh"

ABOUT = ("experiment", "series", "recommended", "clock", "devices", "baseline_devices", "nodes", "n")
BOUNDS = ("", "_low", "_high")
USE = (
    "mean_utilization", "lowest_utilization", "peak_memory_bytes", "loader_wait_fraction", "energy_joules",
    "model_flops_utilization",
)  # fmt: skip
"""Columns on the use of the devices, which no clock changes."""
CLOCK_NAMES: Mapping[Clock, str] = {
    "steps": "throughput",
    "epochs": "throughput",
    "target": "time to target",
    "runs": "total time",
}
UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))


# --- words ----------------------------------------------------------------------------------------------


def shown(value: Interval | Ratio | None, form: Callable[[float], str] = format_ratio) -> str:
    """Write a value with its interval, or with its few runs: ``3.09 (3.02 to 3.16)``, ``3.09 (2 runs)``."""
    if value is None:
        return "unknown"
    known = value.interval() if isinstance(value, Ratio) else value
    if known.low == known.high:
        return form(known.estimate)
    bounds = f"{form(known.low)} to {form(known.high)}"
    if math.isnan(known.low):
        bounds = pluralize(str(known.n), "run")
    return f"{form(known.estimate)} ({bounds})"


def rounded(value: float) -> str:
    """Write a cost in three digits: ``0.547``, ``98,400``."""
    return format_3sig(float(f"{value:.3g}"))


def table(facts: Facts, rows: Sequence[Mapping[str, Any]], *columns: str) -> str:
    """Write points as a table in Markdown, the recommended row in bold, and why a column is unknown.

    Args:
        facts: The measurements.
        rows: Rows of ``in_clock``.
        columns: Names of its columns.
    """
    noun = facts.noun
    longest = pd.DataFrame(rows)["wall_seconds"].max()
    unit, seconds = next((each for each in UNITS if not longest / each[1] >= 1000), UNITS[-1])
    kinds: dict[str, tuple[str, Callable[[float], str]]] = {
        "devices": (facts.plural, "{:.0f}".format),
        "nodes": ("nodes", "{:.0f}".format),
        "n": ("runs", "{:.0f}".format),
        "wall_seconds": (f"total time ({unit})", lambda it: format_3sig(it / seconds)),
        THROUGHPUT: ("samples/s", format_3sig),
        "speedup": ("speedup", format_ratio),
        "parallel_efficiency": ("efficiency", "{:.2f}".format),
        "device_hours": ("GPU-hours" if noun == "GPU" else "device-hours", format_3sig),
        "mean_utilization": ("utilization, mean", lambda it: percent(it, 0)),
        "lowest_utilization": (f"utilization, lowest {noun}", lambda it: percent(it, 0)),
        "peak_memory_bytes": (f"memory of a {noun} (GB)", lambda it: format_3sig(it / 1e9)),
        "loader_wait_fraction": ("wait for data", percent),
        "energy_joules": ("energy of the measured steps (kJ)", lambda it: format_3sig(it / 1e3)),
        "model_flops_utilization": ("MFU", percent),
    }

    def cell(row: Any, column: str) -> str:
        value, low, high = (row.get(f"{column}{end}", math.nan) for end in BOUNDS)
        form = kinds[column][1]
        text = "unknown" if pd.isna(value) else form(value)
        bounds = "" if pd.isna(low) or low == high else f" [{form(low)} to {form(high)}]"
        return f"{f'**{text}**' if row['recommended'] else text}{bounds}"

    lines = [[kinds[column][0] for column in columns], ["---:"] * len(columns)]
    lines += [[cell(row, column) for column in columns] for row in rows]
    reasons = [
        f"\n\nThe {kinds[column][0]} is unknown: {facts.unknown(column)}"
        for column in columns
        if all(pd.isna(row[column]) for row in rows)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "".join(reasons)


# --- the folder -----------------------------------------------------------------------------------------


def values_of(facts: Facts, header: Mapping[str, Any], requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a template of a centre may use.

    Args:
        facts: The measurements.
        header: What the template sets at its top: ``clock``, ``unit``, ``doubling``.
        requested: The experiment's ``trainings``, ``samples_per_training`` and ``unit_factor``.
    """
    clock, doubling = header["clock"], header["doubling"]
    points = in_clock(facts, clock, requested["samples_per_training"])
    rows = [row for row in points if row["series"] == facts.place.series]
    point = next((row for row in rows if row["recommended"]), None)
    found = find_doublings(facts, clock, doubling["of"], doubling["speedup"]) if doubling else []
    started = [row for row in rows if not pd.isna(row["startup_share"])]
    return {
        **header,
        **requested,
        "facts": facts,
        "title": facts.title,
        "experiment": facts.experiment,
        "gpu": facts.noun,
        "gpus": facts.plural,
        "result": facts.found.answer,
        "decided_by": CLOCK_NAMES[facts.found.answer.clock],
        "points": points,
        "rows": rows,
        "point": point,
        "base": next((row for row in rows if row["devices"] == row["baseline_devices"]), None),
        "larger": next(
            (row for row in rows if point and row["devices"] > point["devices"] and row["n"]), None
        ),
        "totals": totals(point, header["unit"], requested) if point else "the study recommends no row.",
        "doublings": found,
        "verdict": verdict_of(found),
        "startup": max(started, key=itemgetter("startup_share"), default=None),
        "measured_nodes": sorted({row["nodes"] for row in rows if row["n"] and not pd.isna(row["nodes"])}),
        "outcomes": facts.runs["outcome"].value_counts().to_dict(),
        "jobs": list(facts.runs["slurm_job_id"].dropna().unique()),
        "table": partial(table, facts, rows),
        "devices_text": lambda number: count_devices(int(number), facts.noun),
        "nodes_text": lambda number: count_devices(int(number), "node"),
    }


def header_of(template: Path) -> dict[str, Any]:
    """Return the constants that a template sets at its top, and the usual ones.

    Raises:
        RecordError: Its clock is unknown.
    """
    header: dict[str, Any] = {"clock": "throughput", "doubling": None, "unit": {}}
    for each in Environment().parse(template.read_text(encoding="utf-8")).body:  # noqa: S701  Markdown
        match each:
            case nodes.Assign(target=nodes.Name(name=name), node=nodes.Const() | nodes.Dict() as value):
                header[name] = value.as_const()
    header["unit"] = {**GPU_HOURS, **header["unit"]}
    if header["clock"] not in CLOCKS:
        raise RecordError(f"{template}: clock is {header['clock']!r}. Write one of {', '.join(CLOCKS)}.")
    return header


def demands_total_times(plan: Plan, name: str) -> bool:
    """Return whether an experiment is for a centre that demands the times of whole runs."""
    requested = plan["experiments"][name]["proposal"]
    return bool(requested) and header_of(template_of(requested["centre"]))["clock"] == "total time"


def analysis_of(plan: Plan, name: str, results: Path) -> Analysis:
    """Answer an experiment from the records of its runs, by the clock that its centre demands.

    Args:
        plan: The study.
        name: Name of the experiment.
        results: Folder of all experiments.
    """
    total_times = demands_total_times(plan, name)
    return read_and_conclude(name, parts_of(plan, name, results), total_times=total_times)


def write_proposal(found: Analysis, plan: Plan, name: str, results: Path) -> None:
    """Write the text, the table and the job script of an experiment that names a centre.

    Args:
        found: The analysis, by the clock that the centre demands.
        plan: The study.
        name: Name of the experiment.
        results: Results of the experiment; receives the folder of the proposal.

    Raises:
        RecordError: It names no centre, or the centre's template uses a value that there is not.
    """
    facts, requested = facts_of(found, plan, name), plan["experiments"][name]["proposal"]
    if not requested:
        raise RecordError(f"{name} names no centre. Add `proposal: {{centre: ...}}`.")
    template, folder = template_of(requested["centre"]), results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        values = values_of(facts, header_of(template), requested)
        environment = Environment(  # noqa: S701  Markdown
            loader=FileSystemLoader([template.parent, Path(__file__).parent]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"shown": shown, "amount": lambda it: shown(it, rounded)}
        environment.filters |= {"rounded": rounded, "sig": format_3sig}
        text = environment.get_template(template.name).render(values)
    except TemplateError as error:
        raise RecordError(f"{template}: {error}. Correct the template of the centre.") from error
    write_text(folder / TEXT, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    bounded = (CLOCKS[values["clock"]][0], "speedup", "parallel_efficiency")
    columns = [*ABOUT, *(f"{name}{end}" for name in bounded for end in BOUNDS), "device_hours", *USE]
    csv = pd.DataFrame(values["points"])[columns].to_csv(index=False, lineterminator="\n")
    write_text(folder / TABLE, csv)
    write_text(folder / JOB_SCRIPT, answer_job(facts, plan, Path("results") / name / FOLDER / JOB_SCRIPT))
