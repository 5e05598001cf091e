"""The report on an experiment across its partitions: one HTML file that needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from matplotlib.text import Text

from scalewise import __version__
from scalewise.analysis.experiment_results import read_json, read_table
from scalewise.analysis.partitions.compare import TABLE, compare_partitions
from scalewise.analysis.partitions.wording import UNITS
from scalewise.analysis.report.data_tables import partition_points
from scalewise.analysis.report.figures import PARTITION_FIGURES
from scalewise.analysis.report.inline_figures import inline_figure
from scalewise.analysis.report.marks import TRACES
from scalewise.analysis.report.page import (
    content_security_policy,
    make_environment,
    style,
)
from scalewise.analysis.report.partition_figures import time_unit_of
from scalewise.analysis.report.style import message, set_style
from scalewise.analysis.report.svg_file import draw_svg
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import name_devices
from scalewise.plan.plan_file import COMPARISON, Comparison, ExperimentFacts
from scalewise.records import write_text


def report_partitions(
    comparison: Comparison, experiments: Mapping[str, ExperimentFacts], folder: Path
) -> None:
    """Compare the partitions of an experiment, draw the figures and write the report.

    Args:
        comparison: The comparison's part of the plan.
        experiments: Those of all experiments.
        folder: Receives the files; named like the experiment, next to the folders of its partitions.
    """
    found = compare_partitions(comparison, experiments, folder)
    draw_partitions(folder)
    decisions = {name: study.results.decision for name, study in found.points.studies.items()}
    title, description = comparison["title"], comparison["description"]
    write_partition_report(folder, decisions, title=title, description=description)


def draw_partitions(folder: Path) -> None:
    """Write the figures of a comparison as SVG and PDF, and ``traces.json``.

    Args:
        folder: Holds partitions.csv and partitions.json; receives ``figures``.
    """
    set_style()
    table, answer = _read(folder)
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    traces = {}
    for name, figure in PARTITION_FIGURES.items():
        needed = ["seconds", "cost"] if name == "time_cost" else ["seconds"]
        if table[needed].dropna().empty:
            unknown = "time and cost" if len(needed) > 1 else "time"
            drawing = message(f"{figure.title}: no point has a known {unknown}")
        else:
            drawing = figure.drawing(table, answer["cost_unit"], answer["clock"])
        for text in drawing.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(name_devices(text.get_text(), answer["device"]))
        svg, traces[name] = draw_svg(drawing, figure.title)
        write_text(figures / f"{name}.svg", svg)
        drawing.set_layout_engine("none")
        drawing.savefig(figures / f"{name}.pdf", metadata={"CreationDate": None})
    write_text(figures / TRACES, json.dumps(traces, allow_nan=False, separators=(",", ":")) + "\n")


def write_partition_report(
    folder: Path, decisions: Mapping[str, Mapping[str, Any]], *, title: str, description: str = ""
) -> None:
    """Write ``report.html`` on a comparison.

    Args:
        folder: Holds its tables and figures.
        decisions: Decision of each partition's experiment, by partition.
        title: Name of the experiment for readers.
        description: Text below the answer.
    """
    table, answer = _read(folder)
    traces = json.loads((folder / "figures" / TRACES).read_text(encoding="utf-8"))
    figures = []
    for number, (name, figure) in enumerate(PARTITION_FIGURES.items()):
        if traces[name]["message"]:
            continue
        drawn = inline_figure(folder / "figures" / f"{name}.svg", figure.title, f"{number}.", traces[name])
        figures.append(
            {"title": figure.title, "caption": figure.caption, "svg": drawn.svg, "wide": drawn.wide}
        )
    noun = str(answer["device"])
    time_unit = time_unit_of(table["seconds"])
    html = make_environment().get_template("partitions.html.j2").render(
        title=title,
        description=description,
        answer=answer,
        figures=figures,
        not_drawn="; ".join(each["message"] for each in traces.values() if each["message"]),
        # what the macro of tables reads of a section
        section={"name": "page", "series_names": [], "decision": {"device": noun}},
        single=True,
        table=partition_points(table, time_unit, UNITS[answer["cost_unit"]], best_points(answer)),
        partitions=[
            {
                "name": name,
                "link": f"../{quote(facts['experiment'])}/report.html",
                "card": decisions[name]["card"],
            }
            for name, facts in answer["partitions"].items()
        ],
        several=table["series"].nunique() > 1,
        plural=count_devices(2, noun).removeprefix("2 "),
        policy=content_security_policy(()),
        style=style(),
        version=__version__,
    )  # fmt: skip
    write_text(folder / "report.html", html)


def best_points(answer: Mapping[str, Any]) -> Sequence[tuple[str, str, int]]:
    """Return the best points of an answer, each as partition, series and devices."""
    points = (each["point"] for each in answer["best"].values() if each["point"] is not None)
    return [(each["partition"], each["series"], each["devices"]) for each in points]


def _read(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Return the table and the answer."""
    table = read_table(folder / TABLE)
    words = ("pareto", "dominated_by", "note")
    text = {name: table[name].astype(object).fillna("").astype(str) for name in words}
    answer: dict[str, Any] = read_json(folder / COMPARISON)
    return table.assign(**text), answer
