"""A computing-time proposal: the study's values in the template of a centre, by the clock it demands."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, nodes

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.points import Clock
from scalewise.analysis.statistics import ENOUGH_REPEATS, ROUNDING, Interval, Ratio, runs_to_tell
from scalewise.analysis.study import Analysis
from scalewise.plan.catalog.centres import template_of
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import format_3sig, format_ratio, percent, pluralize
from scalewise.plan.plan_file import Plan, questions_of
from scalewise.records import RecordError, write_text
from scalewise.report.job import answer_job
from scalewise.report.totals import GPU_HOURS, Totals, interval_of, totals, training_hours

FOLDER, TEXT, TABLE, JOB_SCRIPT = "proposal", "proposal.md", "table.csv", "job.sh"

ABOUT = ("experiment", "series", "recommended", "clock", "devices", "baseline_devices", "nodes", "n")
BOUNDS = ("", "_low", "_high")
CLOCKS = {"total time": ("wall_seconds", "wall_n"), "throughput": (THROUGHPUT, "n")}
"""Columns of scaling.csv by clock: the compared quantity, and the runs that know it."""
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


def facts_of(found: Analysis, plan: Plan, question: str) -> dict[str, Any]:
    """Return all that a proposal reads of an experiment.

    Args:
        found: The analysis, by the clock that the centre demands.
        plan: The study.
        question: Name of the experiment.
    """
    answer, points = found.answer, found.case.points
    place = found.case.best or found.case.group[0]
    name = questions_of(plan)[question][place.partition]
    spec = AnalysisSpec.from_json(plan["experiments"][name]["definition"]).spec
    runs = found.runs[found.runs["partition"] == place.partition]
    scaling = found.scaling[found.scaling["partition"] == place.partition]
    samples = runs.groupby(["series", "devices"])["samples"].median()
    keys = list(zip(scaling["series"], scaling["devices"], strict=True))
    rank = {each: rank for rank, each in enumerate(dict.fromkeys([place.series, *scaling["series"]]))}

    def faster(clock: str, more: int, fewer: int) -> Ratio | None:
        one, other = (place._replace(devices=int(each)) for each in (more, fewer))
        return points.faster(one, other, "runs" if clock == "total time" else "steps")

    return {
        "name": name,
        "question": question,
        "title": (plan["comparisons"].get(question) or plan["experiments"][name])["title"] or question,
        "partition": place.partition,
        "noun": answer.device,
        "experiment": spec,
        # unknown of a program with weak scaling
        "is_equal_work": spec.scaling == "strong" or isinstance(spec, Experiment),
        "series": place.series,
        "devices": answer.devices,
        "points": scaling.assign(run_samples=[samples.get(key, math.nan) for key in keys]).sort_values(
            ["series", "devices"], key=lambda column: column.map(rank) if column.name == "series" else column
        ),
        "runs": runs[runs["series"] == place.series],
        "origins": found.origins,
        "rule": answer.rule,
        "decided_by": CLOCK_NAMES[answer.clock],
        "certainty": answer.certainty,
        "reason": answer.reason,
        "limit": answer.limit,
        "faster": faster,
    }


@dataclass(frozen=True)
class Doubling:
    """Two points of which the second has twice the nodes, or devices, of the first.

    Args:
        fewer: Nodes or devices of the first.
        ratio: Speed of the second over that of the first; None if unknown.
        required: The least ratio.
        is_requested: The recommended point is the second one, or larger.
    """

    fewer: int
    ratio: Ratio | None
    required: float
    is_requested: bool

    @property
    def verdict(self) -> str:
        """``met`` or ``missed`` if the whole 95 % interval lies on one side, else ``open``."""
        if self.ratio is None or self.ratio.n < ENOUGH_REPEATS:
            return "open"
        if self.ratio.at_least >= self.required * (1 - ROUNDING):
            return "met"
        return "missed" if self.ratio.at_most < self.required else "open"

    @property
    def repeats(self) -> int | None:
        """Runs of each point that would tell; None if unknown."""
        return None if self.ratio is None else runs_to_tell(self.ratio, self.required)


def find_doublings(facts: Mapping[str, Any], clock: str, of: str, required: float) -> list[Doubling]:
    """Compare each point of the answer's series with the one of twice the nodes or devices.

    Args:
        facts: Output of ``facts_of``.
        clock: What must get faster.
        of: ``nodes`` or ``devices``.
        required: The least speedup of a doubling.
    """
    points = facts["points"]
    rows = points[points["series"] == facts["series"]].to_dict("records")
    return [
        Doubling(
            int(fewer[of]),
            facts["faster"](clock, more["devices"], fewer["devices"]),
            required,
            bool(facts["devices"] and more["devices"] <= facts["devices"]),
        )
        for fewer, more in combinations(rows, 2)
        if more["devices"] == 2 * fewer["devices"] and more[of] == 2 * fewer[of]
    ]


def verdict_of(found: Sequence[Doubling]) -> str:
    """Return the verdict on the recommended point: of all doublings up to it."""
    verdicts = {each.verdict for each in found if each.is_requested} or {"open"}
    return "missed" if "missed" in verdicts else "open" if "open" in verdicts else "met"


def in_clock(facts: Mapping[str, Any], clock: str, asked: Mapping[str, Any]) -> pd.DataFrame:
    """Return the points with runs, speedup, efficiency and cost by one clock.

    Args:
        facts: Output of ``facts_of``.
        clock: Key of ``CLOCKS``.
        asked: Has ``samples_per_training``.

    Returns:
        The points; ``hours`` are those of a training, or the reason why they are unknown.
    """
    points, (_, n) = facts["points"], CLOCKS[clock]
    why, samples = unknown(facts, "wall_seconds"), asked["samples_per_training"]
    hours = [training_hours(row, clock, samples, why) for row in points.to_dict("records")]
    known = [math.nan if isinstance(each, str) else each.estimate for each in hours]
    comparable = 1.0 if clock == "throughput" or facts["is_equal_work"] else math.nan
    speedups = pd.DataFrame([_speedup(facts, row, clock) for row in points.to_dict("records")], points.index)
    ratios = {end: speedups[f"speedup{end}"] * comparable for end in BOUNDS}
    share = points["baseline_devices"] / points["devices"]
    table: pd.DataFrame = points.assign(
        clock=clock,
        n=points[n].fillna(0).astype(int),
        hours=hours,
        device_hours=known * points["billed_devices"],
        **{f"speedup{end}": ratio for end, ratio in ratios.items()},
        **{f"parallel_efficiency{end}": ratio * share for end, ratio in ratios.items()},
    )
    return table


def _speedup(facts: Mapping[str, Any], row: Mapping[str, Any], clock: str) -> dict[str, float]:
    """Return the speedup of a point of the answer's series by a clock."""
    if row["devices"] == row["baseline_devices"] and not pd.isna(row[CLOCKS[clock][0]]):
        return Interval(1.0, 1.0, 1.0, 0).as_columns("speedup")
    own = row["series"] == facts["series"]
    ratio = facts["faster"](clock, row["devices"], row["baseline_devices"]) if own else None
    return (Interval(math.nan, math.nan, math.nan, 0) if ratio is None else ratio.interval()).as_columns(
        "speedup"
    )


def unknown(facts: Mapping[str, Any], column: str) -> str:
    """Return why a column is unknown, with the fix where there is one."""
    if column in ("speedup", "parallel_efficiency") and not facts["is_equal_work"]:
        return "runs on more devices do more work, so their total times do not compare. Use strong scaling."
    if column in ("wall_seconds", "speedup", "parallel_efficiency", "device_hours"):
        if facts["experiment"].steps is not None:
            return "`steps` ends every run, so no total time was measured. Measure whole runs."
        return "no run was measured whole and without a resumption. Run the study again."
    notes = facts["points"]["mfu_note"].dropna().unique()
    if column == "model_flops_utilization" and len(notes):
        return str(notes[0])
    return "no run could measure it."


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
        bounds = "no interval" if known.n >= ENOUGH_REPEATS else pluralize(str(known.n), "run")
    return f"{form(known.estimate)} ({bounds})"


def rounded(value: float) -> str:
    """Write a cost in three digits: ``0.547``, ``98,400``."""
    return format_3sig(float(f"{value:.3g}"))


def table(facts: Mapping[str, Any], points: pd.DataFrame, *columns: str) -> str:
    """Write points as a table in Markdown, the recommended row in bold, and why a column is unknown.

    Args:
        facts: Output of ``facts_of``.
        points: Rows of ``in_clock``.
        columns: Names of its columns.
    """
    noun = facts["noun"]
    plural, hours = _plural(noun), "GPU-hours" if noun == "GPU" else "device-hours"
    longest = points["wall_seconds"].max()
    unit, seconds = next((each for each in UNITS if not longest / each[1] >= 1000), UNITS[-1])
    kinds: dict[str, tuple[str, Callable[[float], str]]] = {
        "devices": (plural, "{:.0f}".format),
        "nodes": ("nodes", "{:.0f}".format),
        "n": ("runs", "{:.0f}".format),
        "wall_seconds": (f"total time ({unit})", lambda it: format_3sig(it / seconds)),
        THROUGHPUT: ("samples/s", format_3sig),
        "speedup": ("speedup", format_ratio),
        "parallel_efficiency": ("efficiency", "{:.2f}".format),
        "device_hours": (hours, format_3sig),
        "mean_utilization": ("utilization, mean", lambda it: percent(it, 0)),
        "lowest_utilization": (f"utilization, lowest {noun}", lambda it: percent(it, 0)),
        "peak_memory_bytes": (f"memory of a {noun} (GB)", lambda it: format_3sig(it / 1e9)),
        "loader_wait_fraction": ("wait for data", percent),
        "energy_joules": ("energy of a run (kJ)", lambda it: format_3sig(it / 1e3)),
        "model_flops_utilization": ("MFU", percent),
    }

    def cell(row: Any, column: str) -> str:
        value, low, high = (row.get(f"{column}{end}", math.nan) for end in BOUNDS)
        form = kinds[column][1]
        text = "unknown" if pd.isna(value) else form(value)
        bounds = "" if pd.isna(low) or low == high else f" [{form(low)} to {form(high)}]"
        return f"{f'**{text}**' if row['recommended'] else text}{bounds}"

    lines = [[kinds[column][0] for column in columns], ["---:"] * len(columns)]
    lines += [[cell(row, column) for column in columns] for row in points.to_dict("records")]
    reasons = [
        f"\n\nThe {kinds[column][0]} is unknown: {unknown(facts, column)}"
        for column in columns
        if points[column].isna().all()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "".join(reasons)


def _plural(noun: str) -> str:
    return count_devices(2, noun).removeprefix("2 ")


# --- the folder -----------------------------------------------------------------------------------------


def values_of(
    facts: Mapping[str, Any], header: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values that a template of a centre may use.

    Args:
        facts: Output of ``facts_of``.
        header: What the template sets at its top: ``clock``, ``unit``, ``doubling``.
        asked: The experiment's ``trainings``, ``samples_per_training``, ``margin`` and ``unit_factor``.
    """
    clock, doubling, noun = header["clock"], header["doubling"], facts["noun"]
    if clock == "total time" and not facts["is_equal_work"]:
        facts = {**facts, "faster": lambda *_: None}
    points = in_clock(facts, clock, asked)
    points = points[points["series"] == facts["series"]]
    rows = points.to_dict("records")
    point = next((row for row in rows if row["recommended"]), None)
    requested: Totals | str = "the study recommends no row."
    if point is not None:
        requested = totals(point, header["unit"], asked)
    found = find_doublings(facts, clock, doubling["of"], doubling["speedup"]) if doubling else []
    shares = (points["startup_seconds"] / points["wall_seconds"]).dropna()
    jobs = [re.sub(r"\.0$", "", str(job)) for job in facts["runs"]["slurm_job_id"].dropna()]

    def origin(name: str, most: int = 6) -> str:
        values = [part for each in facts["origins"].get(name, ()) for part in each.split(", ")]
        more = [f"and {len(values) - most} more"] if len(values) > most else []
        return ", ".join([*values[:most], *more]) or "unknown"

    return {
        **{key: value for key, value in facts.items() if key not in ("points", "runs")},
        **header,
        **asked,
        "gpu": noun,
        "gpus": _plural(noun),
        "rows": rows,
        "point": point,
        "base": next((row for row in rows if row["devices"] == row["baseline_devices"]), None),
        "larger": next(
            (row for row in rows if point and row["devices"] > point["devices"] and row["n"]), None
        ),
        "totals": requested,
        "doublings": found,
        "verdict": verdict_of(found),
        "startup": points.loc[shares.idxmax()].to_dict() if len(shares) else None,
        "measured_nodes": sorted(points.loc[points["n"] > 0, "nodes"].dropna().unique()),
        "outcomes": facts["runs"]["outcome"].value_counts().to_dict(),
        "jobs": list(dict.fromkeys(jobs)),
        "value": lambda row, column: interval_of(row, column, row["n"]),
        "unknown": lambda column: unknown(facts, column),
        "table": lambda *columns: table(facts, points, *columns),
        "devices_text": lambda number: count_devices(int(number), noun),
        "nodes_text": lambda number: count_devices(int(number), "node"),
        "origin": origin,
    }


def header_of(template: Path) -> dict[str, Any]:
    """Return the constants that a template sets at its top, and the usual ones.

    Raises:
        RecordError: Its clock is unknown.
    """
    body = Environment().parse(template.read_text(encoding="utf-8")).body  # noqa: S701  Markdown
    found = {
        each.target.name: each.node.as_const()
        for each in body
        if isinstance(each, nodes.Assign)
        and isinstance(each.target, nodes.Name)
        and isinstance(each.node, (nodes.Const, nodes.Dict))
    }
    header = {
        "clock": "throughput",
        "doubling": None,
        **found,
        "unit": {**GPU_HOURS, **found.get("unit", {})},
    }
    if header["clock"] not in CLOCKS:
        raise RecordError(f"{template}: clock is {header['clock']!r}. Write one of {', '.join(CLOCKS)}.")
    return header


def demands_total_times(plan: Plan, question: str) -> bool:
    """Return whether an experiment is for a centre that demands the times of whole runs."""
    asked = [plan["experiments"][name]["proposal"] for name in questions_of(plan)[question].values()]
    return any(
        header_of(template_of(json.loads(each)["centre"]))["clock"] == "total time" for each in asked if each
    )


def write_proposal(found: Analysis, plan: Plan, question: str, results: Path) -> None:
    """Write the text, the table and the job script of an experiment that names a centre.

    Args:
        found: The analysis, by the clock that the centre demands.
        plan: The study.
        question: Name of the experiment.
        results: Results of the experiment; receives the folder of the proposal.

    Raises:
        RecordError: It names no centre, or the centre's template uses a value that there is not.
    """
    facts = facts_of(found, plan, question)
    proposal = plan["experiments"][facts["name"]]["proposal"]
    if not proposal:
        raise RecordError(f"{question} names no centre. Add `proposal: {{centre: ...}}`.")
    asked = json.loads(proposal)
    template, folder = template_of(asked["centre"]), results / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    try:
        header = header_of(template)
        environment = Environment(  # noqa: S701  Markdown
            loader=FileSystemLoader([template.parent, Path(__file__).parent]),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {"shown": shown, "amount": lambda it: shown(it, rounded)}
        environment.filters |= {"rounded": rounded, "sig": format_3sig}
        text = environment.get_template(template.name).render(values_of(facts, header, asked))
    except TemplateError as error:
        raise RecordError(f"{template}: {error}. Correct the template of the centre.") from error
    write_text(folder / TEXT, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")
    clock = header["clock"]
    bounded = (CLOCKS[clock][0], "speedup", "parallel_efficiency")
    columns = [*ABOUT, *(f"{name}{end}" for name in bounded for end in BOUNDS), "device_hours", *USE]
    csv = in_clock(facts, clock, asked)[columns].to_csv(index=False, lineterminator="\n")
    write_text(folder / TABLE, csv)
    write_text(folder / JOB_SCRIPT, answer_job(facts, plan, Path("results") / question / FOLDER / JOB_SCRIPT))
