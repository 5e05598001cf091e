"""The figures of a proposal: linear axes from zero, an ideal line, and the points of its table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from scalewise.analysis.proposal.table import CLOCKS, time_unit
from scalewise.analysis.report.marks import Drawing
from scalewise.analysis.report.series_lines import bounds, from_zero
from scalewise.analysis.report.style import COLUMN_MM, GREY, PANEL_MM, legend_below, message, set_style
from scalewise.analysis.report.svg_file import draw_svg
from scalewise.analysis.requirement import Clock
from scalewise.plan.config.centre import FigureName
from scalewise.plan.config.shape import count_devices
from scalewise.records import write_text

_COLOUR = "#0173b2"
_ROOM = 0.07
"""Least distance between two labels of the horizontal axis, as a share of it."""


@dataclass(frozen=True)
class LinearFigure:
    """A quantity against nodes or devices.

    Args:
        column: A column of the points.
        label: Name of the vertical axis.
        subject: The quantity, for a sentence.
        with_clock: The quantity is by the clock of the points.
    """

    column: str
    label: str
    subject: str
    with_clock: bool = False


FIGURES: dict[FigureName, LinearFigure] = {
    "time": LinearFigure("wall_seconds", "total time", "total time of whole runs, start-up included,"),
    "throughput": LinearFigure(
        "throughput_samples_per_second", "throughput of steps (samples/s)", "throughput of the training steps"
    ),
    "speedup": LinearFigure("speedup", "speedup", "speedup", with_clock=True),
    "efficiency": LinearFigure(
        "parallel_efficiency", "parallel efficiency", "parallel efficiency", with_clock=True
    ),
}


@dataclass(frozen=True)
class CountAxis:
    """The horizontal axis: nodes if a point has several, else devices.

    Args:
        label: Name with the size of a node.
        places: Place of each device count.
    """

    label: str
    places: dict[int, float]

    @classmethod
    def of(cls, points: pd.DataFrame, noun: str) -> CountAxis:
        """Choose the axis of points; part of a node is a fraction of one."""
        devices = points["devices"].astype(int)
        plural = count_devices(2, noun).removeprefix("2 ")
        several = points[points["nodes"] > 1]
        sizes = (several["devices"] / several["nodes"]).unique()
        if len(sizes) == 1:
            size = float(sizes[0])
            label = f"nodes (of {count_devices(int(size), noun)})"
            return cls(label, {count: count / size for count in devices})
        return cls(plural, {count: float(count) for count in devices})

    def draw(self, axes: Axes) -> None:
        """Name the places on a linear axis from zero, as many as have room."""
        largest = max(self.places.values())
        axes.set_xlim(0, largest * 1.08)
        shown: list[float] = []
        for place in sorted(self.places.values(), reverse=True):
            if not shown or shown[-1] - place >= _ROOM * largest:
                shown.append(place)
        axes.set_xticks(shown, [f"{place:g}" for place in shown])
        axes.set_xlabel(self.label)


def subjects(points: pd.DataFrame, noun: str, clock: Clock) -> dict[FigureName, str]:
    """Return the contents of each figure, for a sentence.

    Args:
        points: Output of ``shown_points``.
        noun: Name of a device.
        clock: The clock of these points.
    """
    what = (
        "nodes" if CountAxis.of(points, noun).label.startswith("nodes") else f"the number of {_plural(noun)}"
    )
    return {
        name: f"{figure.subject}{f' by {CLOCKS[clock]}' if figure.with_clock else ''} against {what}"
        for name, figure in FIGURES.items()
    }


def missing_figures(points: pd.DataFrame) -> dict[FigureName, str]:
    """Return the figures that have nothing to show, with the reason."""
    return {
        name: f"no run of these points has a known {figure.label.removesuffix(' (samples/s)')}"
        for name, figure in FIGURES.items()
        if points[figure.column].isna().all()
    }


def draw_linear(points: pd.DataFrame, folder: Path, noun: str, clock: Clock, *, is_fixed_work: bool) -> None:
    """Write each figure as SVG and PDF; one that has nothing to show says so.

    Args:
        points: Output of ``shown_points``.
        folder: Receives the files.
        noun: Name of a device.
        clock: The clock of these points.
        is_fixed_work: Every run does the same work, so that its ideal time falls with the devices.
    """
    set_style()
    folder.mkdir(parents=True, exist_ok=True)
    missing = missing_figures(points)
    for name, figure in FIGURES.items():
        if name in missing:
            drawing = message(f"{name}: {missing[name]}")
        else:
            label = f"{figure.label}, {CLOCKS[clock]}" if figure.with_clock else figure.label
            drawing = _drawing(points, figure, label, noun, with_ideal=is_fixed_work or name != "time")
        svg, _ = draw_svg(drawing, figure.subject)
        write_text(folder / f"{name}.svg", svg)
        drawing.set_layout_engine("none")  # the PDF has the layout of the SVG
        # without dates, so that equal data make equal files
        drawing.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})


def _drawing(
    points: pd.DataFrame, figure: LinearFigure, label: str, noun: str, *, with_ideal: bool
) -> Drawing:
    drawing = Drawing(COLUMN_MM, PANEL_MM)
    axes = drawing.subplots()
    known = points.dropna(subset=[figure.column]).sort_values("devices")
    unit, seconds = time_unit(known[figure.column].max()) if figure.column == "wall_seconds" else ("", 1.0)
    known = known.assign(**{name: known[name].astype(float) / seconds for name in bounds(figure.column)})
    axis = CountAxis.of(points, noun)
    places = np.array([axis.places[int(count)] for count in known["devices"]])
    value, low, high = (known[name].to_numpy(float) for name in bounds(figure.column))
    handles, labels = [], []
    if with_ideal:
        x = np.linspace(places[0] if figure.column == "wall_seconds" else 0, places[-1], 200)
        (line,) = axes.plot(
            x, _ideal(figure.column, x, places[0], value[0]), color=GREY, linestyle=":", linewidth=0.9
        )
        handles, labels = [line], ["ideal"]
    reach = [np.nan_to_num(np.clip(value - low, 0, None)), np.nan_to_num(np.clip(high - value, 0, None))]
    axes.errorbar(
        places, value, yerr=reach, fmt="none", ecolor=_COLOUR, elinewidth=1.0, capsize=2.5, capthick=1.0
    )
    (line,) = axes.plot(
        places, value, color=_COLOUR, marker="o", markeredgecolor="white", markeredgewidth=0.3
    )
    top = float(_ideal(figure.column, places, places[0], value[0]).max())
    from_zero(axes, known, figure.column, top)
    axes.yaxis.set_major_formatter(
        PercentFormatter(1, symbol=" %")
        if "efficiency" in figure.column
        else FuncFormatter(lambda it, _: f"{it:,.0f}" if it >= 10 else f"{it:g}")
    )
    axes.set_ylabel(f"{label} ({unit})" if unit else label)
    axis.draw(axes)
    legend_below(drawing, [line, *handles], ["measured", *labels])
    return drawing


def _ideal(column: str, x: np.ndarray, first: float, value: float) -> np.ndarray:
    """Return the values of ideal scaling from the first point on."""
    if column == "parallel_efficiency":
        return np.full_like(x, value)
    return value * first / x if column == "wall_seconds" else value * x / first


def _plural(noun: str) -> str:
    return count_devices(2, noun).removeprefix("2 ")
