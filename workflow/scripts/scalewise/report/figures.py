"""The figures: an entry of ``FIGURES`` each, drawn by seaborn as SVG for the page and as PDF next to it."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
import seaborn.objects as so
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.steps import STEP_PARTS, UNKNOWN
from scalewise.analysis.words import HOUR, time_unit
from scalewise.records import write_text
from scalewise.report.section import Section

INK, LINE = "#1a1c1e", "#c9ccd1"
"""Colors of text and of the grid; the page replaces them by its own, for dark screens."""
COLUMN_INCHES, PAGE_INCHES, HEIGHT_INCHES = 85 / 25.4, 178 / 25.4, 62 / 25.4
"""Widths of a column and of a page of a journal, and the height of a panel."""
FONT_SIZE = 7
MARKERS = "osD^vPX<>*"
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 2)))
STYLE: dict[Any, Any] = {
    **sns.axes_style("ticks"),
    **dict.fromkeys(("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize"), FONT_SIZE),
    **dict.fromkeys(("legend.fontsize", "legend.title_fontsize"), FONT_SIZE),
    "axes.titlesize": 7.5,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.7),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 3),
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}

MOST_PANELS, PANELS_IN_A_ROW = 6, 3
MOST_COUNTS = 8
"""Device counts that an axis names; of more it names round ones."""
LOG_FROM = 4.0
"""Ratio of the largest to the smallest device count above which the axis of devices is logarithmic."""
LOG_VALUES_FROM = 6.0
MOST_BAR = 1.5
"""An axis ends there at the latest, as a multiple of the largest estimate: intervals do not set its range."""
NEAR = 0.07
"""Distance below which two labels touch, as a share of an axis."""
NUMBER = "{x:,.10g}"
ENDS = ("", "_low", "_high")
"""Ends of the names of a column and of the bounds of its interval."""

Draw = Callable[[Section], Drawing | None]
Reference = tuple[str, str, Sequence[float], Sequence[float]]
"""A line to compare with: its label, its dash, and x and y of its ends."""


@dataclass(frozen=True)
class Figure:
    """A figure.

    Args:
        title: Name for readers.
        caption: Meaning of the marks.
        draw: Draws it; returns None if there is nothing to show.
        is_first: It stands in the open, and not behind "More figures".
    """

    title: str
    caption: str
    draw: Draw
    is_first: bool = False


def draw(section: Section) -> None:
    """Write every figure that has something to show as SVG and PDF.

    Args:
        section: The experiment; its folder of figures receives the files, and loses those of earlier results.
    """
    section.figures.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        path = section.figures / f"{name}.svg"
        with mpl.rc_context({**STYLE, "svg.hashsalt": f"{section.name}.{name}"}):
            drawing = figure.draw(section)
            if drawing is None:
                path.unlink(missing_ok=True)
                path.with_suffix(".pdf").unlink(missing_ok=True)
                continue
            write_text(path, _svg(drawing, f"{section.title}: {figure.title}"))
            # without a date, so that equal results make equal files
            drawing.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})


def read_svg(path: Path) -> str:
    """Return a figure for the page, in the colors of the page."""
    text = path.read_text(encoding="utf-8")
    return text.replace(INK, "currentColor").replace(LINE, "var(--line)")


def _svg(drawing: Drawing, label: str) -> str:
    """Return a drawing as an element of the page."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawing.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    # several figures stand in one page: only ids that are made of the salt are its own
    text = re.sub(r'<g id="[^"]*"', "<g", text[text.index("<svg") :])
    # a hundredth of a point is less than anybody sees
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)
    text = re.sub(r">\s+<", "><", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


# --- parts of figures -------------------------------------------------------------------------------------


def palette(names: Sequence[str]) -> dict[str, Any]:
    """Return a color for each name, the same for equal lists."""
    colors = sns.color_palette("colorblind" if len(names) <= 10 else "husl", len(names))
    return dict(zip(names, colors, strict=True))


def plot_series(shown: pd.DataFrame) -> tuple[Any, list[Line2D]]:
    """Return a plot of points with their intervals, and its legend: none if there is one series.

    Args:
        shown: Has ``series``, and ``x`` and ``y``; ``_low`` and ``_high`` end the names of their bounds.
    """
    names = list(shown["series"].unique())
    colors, marks = palette(names), dict(zip(names, cycle(MARKERS), strict=False))
    plot = so.Plot(shown, x="x", y="y", color="series")
    for value, orient in (("y", "x"), ("x", "y")):
        if f"{value}_low" in shown:
            # seaborn draws a line from the lowest to the highest row of a place
            rows = [shown.assign(**{value: shown[f"{value}{end}"]}) for end in ("_low", "_high")]
            ends = pd.concat(rows, ignore_index=True).dropna(subset=[value])
            plot = plot.add(so.Range(linewidth=1), data=ends, orient=orient, legend=False)
    plot = plot.add(so.Dot(pointsize=4.5, edgecolor="white", edgewidth=0.4), marker="series", legend=False)
    legend = [
        Line2D([], [], color=colors[name], marker=marks[name], markersize=4.5, linewidth=1, label=name)
        for name in names
    ]
    scaled = plot.scale(color=so.Nominal(colors), marker=so.Nominal(marks))
    return scaled, legend if len(names) > 1 else []


def render(plot: Any, panels: int = 1) -> Drawing:
    """Draw a plot whose layers have no legend of their own."""
    width = PAGE_INCHES if panels > 1 else COLUMN_INCHES
    rows = math.ceil(panels / PANELS_IN_A_ROW)
    drawing = Drawing(figsize=(width, rows * HEIGHT_INCHES), layout="constrained")
    plot.theme(STYLE).on(drawing).plot()
    return drawing


def ring_answer(axes: Axes, shown: pd.DataFrame) -> None:
    """Draw a ring around the recommended point."""
    best = shown[shown["recommended"]]
    if len(best):
        axes.plot(
            best["x"], best["y"], "o", color=INK, markersize=9, markeredgewidth=0.9, fillstyle="none",
            label="the answer",
        )  # fmt: skip


def with_legend(drawing: Drawing, entries: Sequence[Any], title: str | None = None) -> Drawing:
    """Put a legend below a drawing, which gets higher by it.

    Args:
        drawing: The drawing.
        entries: Artists with their labels.
        title: Title of the legend.
    """
    if not entries:
        return drawing
    # a character is about half as wide as the font is high, and a handle takes six
    longest = 0.5 * FONT_SIZE / 72 * (max(len(entry.get_label()) for entry in entries) + 6)
    columns = max(1, min(len(entries), int(0.97 * drawing.get_figwidth() / longest)))
    lines = math.ceil(len(entries) / columns) + bool(title)
    drawing.set_figheight(drawing.get_figheight() + 0.15 * lines)
    drawing.legend(
        handles=entries, loc="outside lower center", ncols=columns, frameon=False, title=title,
        handlelength=2.2, columnspacing=1.4, labelspacing=0.35, borderpad=0,
    )  # fmt: skip
    return drawing


def faceted(plot: Any, names: Sequence[str]) -> Any:
    """Give each series a panel below its name; a single one needs neither."""
    if len(names) == 1:
        return plot
    return plot.facet("series", order=names, wrap=PANELS_IN_A_ROW).label(title=str)


def apart(places: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of places whose labels do not touch, the first ones first.

    Args:
        places: Coordinates as shares of the axes.
    """
    kept: list[int] = []
    for index, place in enumerate(places):
        if all(max(abs(a - b) for a, b in zip(place, places[k], strict=True)) >= NEAR for k in kept):
            kept.append(index)
    return kept


def value_scale(values: pd.Series, log_from: float) -> Any:
    """Return a scale: logarithmic if the largest value is so many times the smallest one, or more."""
    low, high = values.min(), values.max()
    scale = so.Continuous()
    if 0 < low <= high / log_from:
        ticks = LogLocator(subs=(1,) if high / low > 500 else (1, 2, 5))
        scale = so.Continuous(trans="log").tick(locator=ticks, minor=0)
    return scale.label(like=NUMBER)


def value_limits(values: pd.Series, scale: Any) -> tuple[float, float]:
    """Return the limits of an axis of values: from zero, if it is not logarithmic."""
    return (values.min() / 1.35, values.max() * 1.45) if scale.trans == "log" else (0.0, 1.15 * values.max())


# --- quantities of points ---------------------------------------------------------------------------------


def draw_points(
    section: Section,
    column: str,
    label: str,
    factor: float = 1.0,
    *,
    references: Sequence[Reference] = (),
    is_ratio: bool = False,
) -> Drawing | None:
    """Draw a column of scaling.csv against devices, with its intervals.

    Args:
        section: The experiment.
        column: Name of the column.
        label: Name of the axis.
        factor: Values are multiplied by it.
        references: Lines to compare with.
        is_ratio: It grows with the devices: both axes are logarithmic if the counts differ by much.
    """
    points = section.points.dropna(subset=[column])
    if points.empty:
        return None
    counts = sorted(set(points["devices"]))
    names = list(points["series"].unique())
    is_log = counts[-1] / counts[0] > LOG_FROM
    # marks of several series on as many devices stand next to each other
    place = points["series"].map(names.index) - (len(names) - 1) / 2
    x = points["devices"] * 1.02**place if is_log else points["devices"] + 0.012 * counts[-1] * place
    shown = points.assign(x=x, **{f"y{end}": factor * points[f"{column}{end}"] for end in ENDS})
    highest = max([shown["y"].max(), *(y for *_, ys in references for y in ys)])
    top = min(MOST_BAR * highest, max(highest, shown[["y", "y_high"]].max(axis=None)))
    if is_log:
        x_scale, x_ends = so.Continuous(trans="log2").tick(minor=0), (counts[0] / 1.2, counts[-1] * 1.2)
    else:
        room = max(0.5, 0.05 * (counts[-1] - counts[0]))
        x_scale, x_ends = so.Continuous(), (counts[0] - room, counts[-1] + room)
    if len(counts) <= MOST_COUNTS:
        x_scale = x_scale.tick(at=counts, minor=0)
    if is_log and is_ratio:
        y_scale = so.Continuous(trans="log2").tick(minor=0)
        y_ends = min(shown["y"].min(), 1.0) / 1.25, 1.15 * top
    else:
        y_scale, y_ends = so.Continuous(), (0.0, 1.07 * top)
    plot, legend = plot_series(shown)
    plot = (
        plot.add(so.Line(linewidth=1), legend=False)
        .scale(x=x_scale.label(like=NUMBER), y=y_scale.label(like=NUMBER))
        .limit(x=x_ends, y=y_ends)
        .label(x=section.plural, y=label)
    )
    drawing = render(plot)
    (axes,) = drawing.axes
    for name, dash, xs, ys in references:
        axes.plot(xs, ys, color=INK, linestyle=dash, linewidth=0.8, label=name)
    ring_answer(axes, shown)
    return with_legend(drawing, [*legend, *axes.get_legend_handles_labels()[0]])


def _speedup(section: Section) -> Drawing | None:
    points = section.points.dropna(subset=["speedup"])
    most = points["devices"].max()
    ideal: list[Reference] = [
        ("ideal", ":", (base, most), (1.0, most / base))
        for base in points["baseline_devices"].unique()
        if base < most
    ]
    return draw_points(section, "speedup", "speedup", references=ideal, is_ratio=True)


def _efficiency(section: Section) -> Drawing | None:
    ends = section.points["devices"].min() * 0.5, section.points["devices"].max() * 2
    references: list[Reference] = [("ideal", ":", ends, (100, 100))]
    if section.answer.min_efficiency is not None:
        least = 100 * section.answer.min_efficiency
        references.append((f"required: {least:.10g} %", "--", ends, (least, least)))
    return draw_points(section, "parallel_efficiency", "efficiency (%)", 100.0, references=references)


def _memory(section: Section) -> Drawing | None:
    divisor, unit = (1e9, "GB") if section.points["peak_memory_bytes"].max() >= 2e9 else (1e6, "MB")
    return draw_points(section, "peak_memory_bytes", f"peak memory per device ({unit})", 1 / divisor)


# --- time against cost ------------------------------------------------------------------------------------


def _time_cost(section: Section) -> Drawing | None:
    points = section.points.dropna(subset=["seconds", "cost"])
    if len(points) < 2:
        return None
    second, unit = time_unit(points["seconds"].max())
    factor, cost_unit = 1.0, section.cost_unit
    if cost_unit.endswith("-hours"):
        part, name = time_unit(HOUR * points["cost"].max())
        factor = HOUR / part
        cost_unit = cost_unit.replace("hours", {"s": "seconds", "min": "minutes", "h": "hours"}[name])
    shown = points.assign(
        **{f"x{end}": factor * points[f"cost{end}"] for end in ENDS},
        **{f"y{end}": points[f"seconds{end}"] / second for end in ENDS},
    )
    x, y = (value_scale(shown[axis], LOG_VALUES_FROM) for axis in ("x", "y"))
    plot, legend = plot_series(shown)
    drawing = render(
        plot.scale(x=x, y=y)
        .limit(x=value_limits(shown["x"], x), y=value_limits(shown["y"], y))
        .label(x=f"cost ({cost_unit})", y=f"time ({unit})")
    )
    (axes,) = drawing.axes
    ring_answer(axes, shown)
    ordered = shown.sort_values("recommended", ascending=False, kind="stable")
    places = (axes.transData - axes.transAxes).transform(ordered[["x", "y"]])
    for index in apart(places.tolist()):
        row = ordered.iloc[index]
        axes.annotate(f"{row['devices']:,}", (row["x"], row["y"]), (4, 4), textcoords="offset points")
    return with_legend(drawing, [*legend, *axes.get_legend_handles_labels()[0]])


# --- parts of a step --------------------------------------------------------------------------------------


def _step(section: Section) -> Drawing | None:
    """Draw the device time of a sample by its parts: with ideal scaling all bars are equally high."""
    columns = [part.column for part in STEP_PARTS]
    points = section.points.dropna(subset=[THROUGHPUT, "step_seconds"]).dropna(subset=columns, how="all")
    if points.empty:
        return None
    names = list(points["series"].unique())[:MOST_PANELS]
    points = points[points["series"].isin(names)]
    counts = [f"{count:,}" for count in sorted(set(points["devices"]))]
    total = 1e6 * points["devices"] / points[THROUGHPUT]
    heights = points[columns].div(points["step_seconds"], axis=0).mul(total, axis=0)
    rest = total - heights.sum(axis=1)
    colors = {part.name: part.colour for part in (*STEP_PARTS, UNKNOWN)}
    bars = (
        heights.assign(rest=rest.where(rest > 0.005 * total))
        .set_axis(list(colors), axis=1)
        .assign(series=points["series"], devices=points["devices"].map("{:,}".format))
        .melt(["series", "devices"], var_name="part", value_name="time")
    )
    bars = bars[bars["time"] > 0]
    used = [name for name in colors if name in set(bars["part"])]
    plot = (
        faceted(so.Plot(bars, x="devices", y="time", color="part"), names)
        .add(so.Bar(alpha=1, width=0.75, edgecolor="white", edgewidth=0.4), so.Stack(), legend=False)
        .scale(
            x=so.Nominal(order=counts), y=so.Continuous().label(like=NUMBER),
            color=so.Nominal(colors, order=used),
        )
        .limit(y=(0, 1.05 * total.max()))
        .label(x=section.plural, y=f"{section.noun} time per sample (µs)")
    )  # fmt: skip
    drawing = render(plot, len(names))
    for axes in drawing.axes:
        axes.grid(visible=False, axis="x")
        if len(counts) * len(names) > 16:
            axes.tick_params(axis="x", labelrotation=90)
    return with_legend(drawing, [Patch(color=colors[name], label=name) for name in used])


# --- learning curves --------------------------------------------------------------------------------------


def draw_learning(
    section: Section,
    column: str,
    label: str,
    factor: float = 1.0,
    *,
    target: float | None = None,
    log_from: float = math.inf,
) -> Drawing | None:
    """Draw learning curves: the median of the repeats, and a band from lowest to highest.

    Args:
        section: The experiment.
        column: Column of epochs.csv.
        label: Name of the axis.
        factor: Values are multiplied by it.
        target: Value that counts as trained; None without one.
        log_from: Ratio of the largest to the smallest value from which on the axis is logarithmic.
    """
    if column not in section.epochs:
        return None
    epochs = section.epochs.replace([np.inf, -np.inf], np.nan).dropna(subset=[column])
    if epochs.empty:
        return None
    names = list(epochs["series"].unique())[:MOST_PANELS]
    epochs = epochs[epochs["series"].isin(names)]
    counts = [f"{count:,}" for count in sorted(set(epochs["devices"]))]
    curves = epochs.assign(y=factor * epochs[column], devices=epochs["devices"].map("{:,}".format))
    # a program that writes no epochs has losses by step
    against = "epoch" if "epoch" in curves and curves["epoch"].notna().all() else "step"
    colors, dashes = palette(counts), dict(zip(counts, cycle(DASHES), strict=False))
    marker = "o" if curves[against].nunique() <= 12 else "none"
    plot = (
        faceted(so.Plot(curves, x=against, y="y", color="devices"), names)
        .add(so.Band(alpha=0.15, edgewidth=0), legend=False)
        .add(
            so.Line(linewidth=1, marker=marker, pointsize=2.5), so.Agg("median"), linestyle="devices",
            legend=False,
        )
        .scale(
            x=so.Continuous().tick(locator=MaxNLocator(6, integer=True)).label(like="{x:,.0f}"),
            y=value_scale(curves["y"], log_from),
            color=so.Nominal(colors, order=counts), linestyle=so.Nominal(dashes, order=counts),
        )
        .label(x=against, y=label)
    )  # fmt: skip
    drawing = render(plot, len(names))
    legend = [
        Line2D([], [], color=colors[name], linestyle=dashes[name], linewidth=1, label=name) for name in counts
    ]
    if target is not None:
        for axes in drawing.axes:
            line = axes.axhline(factor * target, color=INK, linestyle=":", linewidth=0.8, label="target")
        legend.append(line)
    return with_legend(drawing, legend, section.plural)


def _accuracy(section: Section) -> Drawing | None:
    return draw_learning(section, "test_accuracy", "test accuracy (%)", 100.0, target=section.target_accuracy)


def _loss(section: Section) -> Drawing | None:
    """Draw the loss on the test set, or the one that is known."""
    labels = {"test_loss": "test loss", "train_loss": "training loss", "loss": "loss"}
    drawn = (draw_learning(section, column, label, log_from=20.0) for column, label in labels.items())
    return next((drawing for drawing in drawn if drawing is not None), None)


FIGURES: dict[str, Figure] = {
    "speedup": Figure(
        "Speedup",
        "How many times as fast as the fewest devices of the series, by the time that decides. Bars are 95 % "
        "intervals, from three runs on. The dotted line is ideal.",
        _speedup,
        is_first=True,
    ),
    "efficiency": Figure(
        "Efficiency",
        "Speedup divided by the ratio of device counts: 100 % is ideal. Bars are 95 % intervals.",
        _efficiency,
        is_first=True,
    ),
    "time_cost": Figure(
        "Time against cost",
        "A mark is a number of devices, written next to it. Farther left is cheaper, farther down is faster. "
        "Lines are 95 % intervals.",
        _time_cost,
        is_first=True,
    ),
    "step": Figure(
        "Parts of a step",
        "Device time of one sample. With ideal scaling all bars are equally high; what is above the first "
        "bar is the cost of scaling.",
        _step,
        is_first=True,
    ),
    "throughput": Figure(
        "Throughput",
        "Samples per second of all devices, without warm-up, evaluation and start-up. Bars are 95 % "
        "intervals.",
        partial(draw_points, column=THROUGHPUT, label="samples/s"),
    ),
    "memory": Figure(
        "Peak memory",
        "Peak while training, of the device that used most. Bars are 95 % intervals.",
        _memory,
    ),
    "accuracy": Figure(
        "Accuracy",
        "Accuracy on the test set. Lines are medians over the repeats, bands reach from the lowest to the "
        "highest.",
        _accuracy,
    ),
    "loss": Figure(
        "Loss",
        "Lines are medians over the repeats, bands reach from the lowest to the highest.",
        _loss,
    ),
}  # fmt: skip
