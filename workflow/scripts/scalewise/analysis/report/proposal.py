"""The table that computing centres ask for in a proposal: as CSV, Markdown and LaTeX.

A table for each series, the decided one first. Each says its method in two sentences, with the absolute
figure that its speedups are relative to (Hoefler & Belli, SC'15, rule 1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.rounds.choice_summary import ChoiceSummary
from scalewise.analysis.scaling import OF_WALLS
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import chance_text, counts_text, format_3sig, format_ratio, name_devices
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.records import write_text

PROPOSAL = "proposal"

_WITH_BOUNDS = ("wall_seconds", "throughput_samples_per_second", "speedup", "parallel_efficiency")
COLUMNS = [
    "experiment", "series", "recommended", "devices", "nodes", "n",
    *(f"{name}{bound}" for name in _WITH_BOUNDS for bound in ("", "_low", "_high")),
    "device_hours", "baseline_devices",
]  # fmt: skip
"""Columns of proposal.csv: unrounded, under the names and in the units of scaling.csv."""

_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
_MANY = 600
"""Seconds, or minutes, from which the next unit is easier to read."""

_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


@dataclass(frozen=True)
class _Cell:
    text: str
    bounds: str = ""


@dataclass(frozen=True)
class _Table:
    """One series as text, without markup.

    Args:
        heading: Experiment and series.
        columns: Headings, units included.
        rows: A cell for each column.
        recommended: Index of the row that the decision names, if any.
        method: Two sentences; a third where counts were not measured.
    """

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[_Cell]]
    recommended: int | None
    method: str


def write_proposal(results: ExperimentResults) -> None:
    """Write proposal.csv, proposal.md and proposal.tex into the experiment's folder."""
    points, unmeasured, choice = _ordered(results), results.unmeasured, results.choice
    tables = []
    for name, series in points.groupby("series", sort=False):
        left_out = unmeasured.loc[unmeasured["series"] == name, "devices"].tolist()
        further = "" if choice is None or not left_out else _not_measured(choice, str(name), left_out)
        tables.append(_table(series, results.name, results.noun, further))
    csv = points[COLUMNS].to_csv(index=False, lineterminator="\n")
    write_text(results.folder / f"{PROPOSAL}.csv", csv)
    write_text(results.folder / f"{PROPOSAL}.md", "\n".join(map(_markdown, tables)))
    comment = "% needs \\usepackage{booktabs} in the preamble\n"
    write_text(results.folder / f"{PROPOSAL}.tex", comment + "\n".join(map(_latex, tables)))


def latex_text(text: str) -> str:
    """The text with what LaTeX would read as a command made plain."""
    return re.sub(r"[&%$#_{}~^\\]", lambda found: _SPECIAL[found[0]], text)


def _ordered(results: ExperimentResults) -> pd.DataFrame:
    """Every planned point, the decided series first, each in order of devices."""
    known = results.points.reindex(columns=list(dict.fromkeys([*results.points.columns, *COLUMNS])))
    decided = known["series"] == results.series
    recommended = decided & (known["devices"] == results.devices)
    known = known.assign(recommended=recommended)
    groups = [known[decided], *(rest for _, rest in known[~decided].groupby("series", sort=False))]
    return pd.concat([group.sort_values("devices") for group in groups if len(group)], ignore_index=True)


def _not_measured(choice: ChoiceSummary, series: str, left_out: Sequence[int]) -> str:
    """The sentence on counts of a series that were not measured."""
    chance = chance_text(choice.chance_of_another(series))
    return (
        f" Single runs have no interval. Of the possible counts, {counts_text(left_out)} were not measured: "
        f"that one gives another answer has a probability of {chance}, by a model of those measured."
    )


def _table(points: pd.DataFrame, experiment: str, noun: str, further: str) -> _Table:
    unit, seconds = _unit(points["wall_seconds"].max())
    series = str(points["series"].iloc[0])
    name = experiment if series == NO_OPTIONS else f"{experiment}, {series}"
    columns: dict[str, Callable[[pd.Series], _Cell]] = {
        name_devices("devices", noun): lambda row: _plain(row["devices"], "{:.0f}".format),
        "nodes": lambda row: _plain(row["nodes"], "{:.0f}".format),
        "n": lambda row: _plain(row["n"], "{:.0f}".format),
        f"run ({unit})": lambda row: _bounded(row, "wall_seconds", format_3sig, 1 / seconds),
        "samples/s": lambda row: _bounded(row, "throughput_samples_per_second", format_3sig),
        "speedup": lambda row: _bounded(row, "speedup", format_ratio),
        "efficiency": lambda row: _bounded(row, "parallel_efficiency", "{:.2f}".format),
        "device-hours": lambda row: _plain(row["device_hours"], format_3sig),
    }
    rows = [[cell(row) for cell in columns.values()] for _, row in points.iterrows()]
    marked = [index for index, flag in enumerate(points["recommended"]) if flag]
    method = name_devices(_method(points) + further, noun)
    heading = name_devices(name, noun)
    return _Table(heading, list(columns), rows, marked[0] if marked else None, method)


def _method(points: pd.DataFrame) -> str:
    """Two sentences on how the figures were made, and what the speedups are relative to."""
    intervals = "95 % intervals by Student's t on logarithms; one run has no interval"
    timed = "" if points["throughput_samples_per_second"].isna().all() else ", timed after the warm-up steps"
    first = f"Each row is the geometric mean of n runs, each a job of its own{timed}; {intervals}"
    base = points[points["devices"] == points["baseline_devices"]]
    if base.empty or points["speedup"].isna().all():
        return f"{first}. There is no baseline, and so no speedup."
    reference = base.iloc[0]
    where = count_devices(int(reference["devices"]))
    rate = reference["throughput_samples_per_second"]
    if pd.isna(rate):
        absolute = f"{where}, {format_3sig(reference['wall_seconds'])} s a run, {OF_WALLS}"
    else:
        absolute = f"{where}, {format_3sig(rate)} samples/s"
    others = int(points["n_not_comparable"].sum()) if "n_not_comparable" in points else 0
    left_out = f", and leave out {others} runs under other conditions" if others else ""
    relative = f"{first}. Speedup and efficiency are relative to {absolute}{left_out}"
    if points["wall_seconds"].isna().all():
        return f"{relative}; the time and the device-hours of a whole run are not known."
    return f"{relative}; times and device-hours are of whole runs, start-up and evaluation included."


def _unit(longest: float) -> tuple[str, float]:
    """The unit that whole runs are read in, and its seconds."""
    for unit, seconds in _UNITS[:-1]:
        if not longest / seconds >= _MANY:
            return unit, seconds
    return _UNITS[-1]


def _bounded(row: pd.Series, name: str, form: Callable[[float], str], scale: float = 1.0) -> _Cell:
    value, low, high = (row[f"{name}{bound}"] for bound in ("", "_low", "_high"))
    if pd.isna(value):
        return _Cell("–")
    # one run, and the baseline over itself, have no interval
    bounds = "" if low == high or pd.isna(low) else f"{form(low * scale)} to {form(high * scale)}"
    return _Cell(form(value * scale), bounds)


def _plain(value: float, form: Callable[[float], str]) -> _Cell:
    return _Cell("–" if pd.isna(value) else form(value))


def _markdown(table: _Table) -> str:
    def line(cells: Iterator[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    lines = [f"**{table.heading}**", "", line(iter(table.columns))]
    lines.append(f"|{'---:|' * len(table.columns)}")
    for index, row in enumerate(table.rows):
        strong = "**" if index == table.recommended else ""
        lines.append(line(f"{strong}{c.text}{strong}" + (f" [{c.bounds}]" if c.bounds else "") for c in row))
    marked = "" if table.recommended is None else " The recommended row is in bold."
    return "\n".join([*lines, "", f"{table.method}{marked}", ""])


def _latex(table: _Table) -> str:
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{latex_text(f'Scaling of {table.heading}. {table.method}')}}}",
        rf"  \label{{tab:{re.sub('[^a-z0-9]+', '-', table.heading.lower()).strip('-')}}}",
        r"  \small",
        rf"  \begin{{tabular}}{{{'r' * len(table.columns)}}}",
        r"    \toprule",
        f"    {_latex_row(table.columns)}",
        r"    \midrule",
    ]
    for index, row in enumerate(table.rows):
        bold = r"\textbf{%s}" if index == table.recommended else "%s"
        lines.append("    " + _latex_row([cell.text for cell in row], bold))
        if any(cell.bounds for cell in row):
            # below the figures, so that the table fits the width of a page
            bounds = _latex_row([cell.bounds for cell in row], r"{\scriptsize %s}")
            lines.append(f"    {bounds}[2pt]")
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _latex_row(texts: Sequence[str], form: str = "%s") -> str:
    cells = (latex_text(text).replace("–", "--") for text in texts)
    return " & ".join(form % cell if cell else "" for cell in cells) + r" \\"
