"""The figures of an experiment: colour-blind safe, readable in grey, intervals drawn."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import offset_copy

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.marks import RUN, TRACES, Drawing, tell, trace
from scalewise.analysis.report.series_lines import bounds, points_figure, with_columns
from scalewise.analysis.report.style import message, set_style
from scalewise.analysis.report.svg_file import draw_svg
from scalewise.plan.formatting import name_devices
from scalewise.records import write_text

_BYTES_PER_MB = 1e6
_BESIDE_POINTS = 4.5
"""Distance of single runs from the mark of their median."""


def throughput(scaling: pd.DataFrame, runs: pd.DataFrame, expected: pd.DataFrame | None = None) -> Drawing:
    """Samples per second against devices; each run is a small ring beside its median.

    Where counts were not measured, crosses stand in for rings, of points that have several runs.

    Args:
        scaling: Points with a throughput.
        runs: Output of ``collect``.
        expected: ``ExperimentResults.expected``; None of a study that measures every count.
    """
    done = runs[runs["outcome"] == "completed"]
    figure, axes = points_figure(
        scaling,
        THROUGHPUT,
        "throughput (samples/s)",
        FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 10 else f"{value:g}"),
        least_top=done[THROUGHPUT].max(),
        expected=expected,
    )
    mark: dict[str, Any] = {"marker": "o", "markersize": 2.6, "markerfacecolor": "none"}
    if expected is not None:
        # hollow marks stand for what was not measured, and one run alone is the mark that is there
        done = done[done.duplicated(["series", "devices"], keep=False)]
        mark = {"marker": "x", "markersize": 3.0}
    beside = offset_copy(axes.transData, figure, x=_BESIDE_POINTS, units="points")
    for name, of_series in done.groupby("series", sort=False):
        (rings,) = axes.plot(
            of_series["devices"], of_series[THROUGHPUT], transform=beside, linestyle="none", zorder=3,
            markeredgecolor="0.4", markeredgewidth=0.6, **mark,
        )  # fmt: skip
        values = {"value": of_series[THROUGHPUT]}
        places = of_series.groupby("devices").cumcount().tolist()
        facts = trace(RUN, str(name), THROUGHPUT, of_series["devices"], values, place=places)
        tell(rings, series=str(name), trace=facts, shift=_BESIDE_POINTS)
    return figure


def memory(scaling: pd.DataFrame, runs: pd.DataFrame) -> Drawing:
    """Peak memory of the fullest device against devices."""
    column = "peak_memory_bytes"
    known = with_columns(scaling, bounds(column))
    in_mb = known.assign(**{name: known[name] / _BYTES_PER_MB for name in bounds(column)})
    kinds = ", ".join(runs["peak_memory_kind"].dropna().unique())
    figure, _ = points_figure(in_mb, column, f"peak memory per device (MB)\n{kinds}", "{x:,.0f}")
    return figure


def draw(results: ExperimentResults) -> None:
    """Write every figure as SVG and PDF, and ``traces.json``; one that has nothing to show says so."""
    set_style()
    folder = results.folder / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    traces = {}
    for name, figure in FIGURES.items():
        missing = figure.missing(results)
        drawing = message(f"{name}: {missing}") if missing else figure.drawing(results)
        for text in drawing.findobj(Text):
            assert isinstance(text, Text)
            text.set_text(name_devices(text.get_text(), results.noun))
        svg, traces[name] = draw_svg(drawing, figure.title)
        write_text(folder / f"{name}.svg", svg)
        drawing.set_layout_engine("none")  # the PDF has the layout of the SVG, and costs less
        # without dates, so that equal data make equal files
        drawing.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})
    write_text(folder / TRACES, json.dumps(traces, allow_nan=False, separators=(",", ":")) + "\n")
