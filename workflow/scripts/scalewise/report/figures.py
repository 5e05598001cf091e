"""The figures: an entry of ``FIGURES`` each, drawn by seaborn as SVG for the page and as PDF next to it."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
import seaborn.objects as so
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from scalewise.analysis.steps import STEP_PARTS, UNKNOWN
from scalewise.records import write_text
from scalewise.report.section import Section

INK, LINE = "#1a1c1e", "#c9ccd1"
"""Colors of text and of the grid; the page replaces them by its own, for dark screens."""
COLUMN_INCHES, PAGE_INCHES, HEIGHT_INCHES = 85 / 25.4, 178 / 25.4, 62 / 25.4
"""Widths of a column and of a page of a journal, and the height of a panel."""
MARKERS = "osD^vPX<>*"
STYLE: dict[Any, Any] = {
    **sns.axes_style("ticks"),
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.5,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color"),
        INK,
    ),
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}

MOST_PANELS = 6
LOG_FROM = 4.0
"""Ratio of the largest to the smallest device count above which the axis of devices is logarithmic."""
LOG_VALUES_FROM = 6.0
MOST_BAR = 1.5
"""An axis ends there at the latest, as a multiple of the largest estimate: intervals do not set its range."""
NEAR = 0.07
"""Distance below which two labels touch, as a share of an axis."""

Lines = Callable[[Section, pd.DataFrame], Iterable[tuple[str, Any, pd.DataFrame]]]
"""Gives label, dash, and ``x``, ``y``, ``group`` of each line."""
Draw = Callable[[Section], Drawing | None]


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
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    drawing.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # several figures stand in one page: only ids that are made of the salt are its own
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    # a hundredth of a point is less than anybody sees
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", " ".join(tag[0].split())), text)
    text = re.sub(r">\s+<", "><", text)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


# --- parts of figures -------------------------------------------------------------------------------------


RING = so.Dot(pointsize=9, fill=False, color=INK, edgecolor=INK, edgewidth=0.9)


def ring_entry() -> tuple[Any, str]:
    """Return the entry of the ring around the answer in a legend."""
    ring = Line2D([], [], color=INK, marker="o", markersize=7, fillstyle="none", linestyle="none")
    return ring, "the answer"


def palette(names: Sequence[str]) -> dict[str, Any]:
    """Return a color for each name, the same for equal lists."""
    colors = sns.color_palette("colorblind" if len(names) <= 10 else "husl", len(names))
    return dict(zip(names, colors, strict=True))


def markers(names: Sequence[str]) -> dict[str, str]:
    """Return a mark for each name."""
    return {name: MARKERS[index % len(MARKERS)] for index, name in enumerate(names)}


def apart(places: Sequence[tuple[float, ...]], near: float = NEAR) -> list[int]:
    """Return the indices of places whose labels do not touch, the first ones first.

    Args:
        places: Coordinates as shares of the axes.
        near: Distance below which labels touch.
    """
    kept: list[int] = []
    for index, place in enumerate(places):
        if all(max(abs(a - b) for a, b in zip(place, places[k], strict=True)) >= near for k in kept):
            kept.append(index)
    return kept


def count_ticks(counts: Iterable[int], is_log: bool) -> list[int]:
    """Return the device counts that an axis can name without overlap, the first and the last among them."""
    ordered = sorted(set(counts))
    if len(ordered) == 1:
        return ordered
    values = [math.log(count) if is_log else float(count) for count in ordered]
    span = values[-1] - values[0]
    order = [len(ordered) - 1, *range(len(ordered) - 1)]
    # powers of two are preferred to what is between them
    order.sort(key=lambda index: (index not in {0, len(ordered) - 1}, ordered[index] & (ordered[index] - 1)))
    kept = apart([((values[index] - values[0]) / span,) for index in order])
    return sorted(ordered[order[index]] for index in kept)


def value_ticks(low: float, high: float) -> list[float]:
    """Return round values between two ends of a logarithmic axis: 1, 2, 5, 10 and so on."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0,) if high / low > 500 else (1.0, 2.0, 5.0)
    return [step * 10.0**decade for decade in decades for step in steps if low <= step * 10.0**decade <= high]


def value_scale(low: float, high: float) -> tuple[Any, tuple[float, float]]:
    """Return scale and limits of positive values: from zero, or logarithmic if they differ by much."""
    if low > 0 and high / low >= LOG_VALUES_FROM:
        limits = (low / 1.35, high * 1.45)
        scale = so.Continuous(trans="log").tick(at=value_ticks(*limits), minor=0)
        return scale.label(like="{x:,.10g}"), limits
    return so.Continuous().label(like="{x:,.10g}"), (0.0, 1.15 * high if high > 0 else 1.0)


def ends_on(scale: Any, values: pd.Series) -> pd.Series:
    """Return ends of intervals as seaborn needs them on a scale.

    Its 0.13 takes ``ymin`` and its kind for already transformed if ``y`` has a logarithmic scale.
    """
    transform = {"log2": np.log2, "log": np.log10}.get(scale.trans)
    return values if transform is None else transform(values.where(values > 0))


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the divisor and the name of the unit in which a time is easy to read."""
    if seconds < 120:
        return 1.0, "s"
    return (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")


def byte_unit(count: float) -> tuple[float, str]:
    """Return the divisor and the name of the unit in which a number of bytes is easy to read."""
    return (1e9, "GB") if count >= 2e9 else (1e6, "MB")


def finish(plot: Any, entries: Sequence[tuple[Any, str]], *, panels: int = 1, title: str = "") -> Drawing:
    """Draw a plot with its legend below.

    Args:
        plot: A plot of seaborn.objects whose layers have no legend of their own.
        entries: Handles and labels of the legend.
        panels: Number of panels.
        title: Title of the legend.
    """
    columns = min(panels, 3)
    rows = math.ceil(panels / columns)
    is_wide = panels > 1
    lines = 0
    width = PAGE_INCHES if is_wide else COLUMN_INCHES
    if entries:
        # a character is about half as wide as the font is high, and a handle takes five
        longest = 0.5 * 7 / 72 * (max(len(label) for _, label in entries) + 6)
        per_row = max(1, min(len(entries), int(width * 0.97 / longest)))
        lines = math.ceil(len(entries) / per_row) + bool(title)
    drawing = Drawing(figsize=(width, rows * HEIGHT_INCHES + lines * 0.15), layout="constrained")
    plot.theme(STYLE).on(drawing).plot()
    for axes in drawing.axes:
        axes.set_axisbelow(True)
    if entries:
        handles, labels = zip(*entries, strict=True)
        drawing.legend(
            handles, labels, loc="outside lower center", ncols=per_row, frameon=False, title=title or None,
            title_fontsize=7, handlelength=2.2, columnspacing=1.4, labelspacing=0.35, borderpad=0,
        )  # fmt: skip
    return drawing


def _titles(names: Sequence[str]) -> dict[str, Any]:
    """Return the titles of panels: the names of series, and none of a single one."""
    return {"title": str} if len(names) > 1 else {}


# --- quantities of points ---------------------------------------------------------------------------------


def of_points(
    column: str,
    label: str,
    factor: float = 1.0,
    *,
    lines: Lines = lambda _section, _points: (),
    unit: Callable[[float], tuple[float, str]] | None = None,
    is_ratio: bool = False,
) -> Draw:
    """Return what draws a column of scaling.csv against devices, with its intervals.

    Args:
        column: Name of the column; its bounds have ``_low`` and ``_high`` at the end.
        label: Name of the axis; ``{unit}`` is replaced.
        factor: Values are multiplied by it.
        lines: Further lines.
        unit: Returns divisor and name of a unit for the largest value, in place of ``factor``.
        is_ratio: It grows with the devices: both axes are logarithmic if the counts differ by much.
    """

    def make(section: Section) -> Drawing | None:
        if section.points.empty or column not in section.points:
            return None
        points = section.points[section.points[column].notna()].sort_values("devices")
        if points.empty:
            return None
        scaled, named = factor, label
        if unit is not None:
            divisor, name = unit(float(points[column].max()))
            scaled, named = 1 / divisor, label.format(unit=name)
        return _draw_points(section, points, column, named, scaled, list(lines(section, points)), is_ratio)

    return make


def _draw_points(
    section: Section,
    points: pd.DataFrame,
    column: str,
    label: str,
    factor: float,
    lines: Sequence[tuple[str, Any, pd.DataFrame]],
    is_ratio: bool,
) -> Drawing:
    names = list(dict.fromkeys(points["series"].astype(str)))
    counts = [int(count) for count in points["devices"]]
    is_log = max(counts) / min(counts) > LOG_FROM
    place = points["series"].astype(str).map(names.index) - (len(names) - 1) / 2
    value, low, high = (
        points[name].astype(float) * factor if (name := f"{column}{end}") in points else math.nan
        for end in ("", "_low", "_high")
    )
    # marks of several series on as many devices stand next to each other
    beside = points["devices"] * 1.02**place if is_log else points["devices"] + 0.012 * max(counts) * place
    shown = pd.DataFrame({"x": beside, "y": value, "low": low, "high": high, "series": points["series"]})
    bars = shown.dropna(subset=["low", "high"])
    bars = bars[bars["high"] > bars["low"]]
    colors, marks = palette(names), markers(names)
    drawn = pd.concat([shown["y"], *(line["y"] for _, _, line in lines if len(line))])
    top = max(drawn.max(), min(bars["high"].max() if len(bars) else 0, MOST_BAR * drawn.max()))
    if is_log and is_ratio and shown["y"].min() > 0:
        bottom = min(shown["y"].min(), 1.0)
        powers = [2.0**k for k in range(math.floor(math.log2(bottom)), math.ceil(math.log2(top)) + 1)]
        y, limits = so.Continuous(trans="log2").tick(at=powers, minor=0), (bottom / 1.25, top * 1.15)
    else:
        y, limits = so.Continuous(), (0, 1.07 * top if top > 0 else 1.0)
    plot = so.Plot(shown, x="x", y="y", color="series").add(so.Line(linewidth=1), legend=False)
    if len(bars):
        bars = bars.assign(**{end: ends_on(y, bars[end].clip(lower=limits[0])) for end in ("low", "high")})
        plot = plot.add(so.Range(linewidth=1), data=bars, ymin="low", ymax="high", legend=False)
    plot = plot.add(so.Dot(pointsize=4.5, edgecolor="white", edgewidth=0.4), marker="series", legend=False)
    entries: list[tuple[Any, str]] = []
    if len(names) > 1:
        entries = [
            (Line2D([], [], color=colors[name], marker=marks[name], markersize=4.5, linewidth=1), name)
            for name in names
        ]
    for text, dash, line in lines:
        plot = plot.add(
            so.Line(color=INK, linestyle=dash, linewidth=0.8), data=line, x="x", y="y", color=None,
            group="group", legend=False,
        )  # fmt: skip
        entries.append((Line2D([], [], color=INK, linestyle=dash, linewidth=0.8), text))
    if "recommended" in points and (best := points["recommended"].astype(bool)).any():
        plot = plot.add(RING, data=shown[best.to_numpy()], x="x", y="y", color=None, legend=False)
        entries.append(ring_entry())
    ticks = count_ticks(counts, is_log)
    x = so.Continuous(trans="log2") if is_log else so.Continuous()
    x = x.tick(at=ticks, minor=0).label(like="{x:,.0f}")
    room = max(0.5, 0.05 * (max(counts) - min(counts)))
    ends = (min(counts) / 1.2, max(counts) * 1.2) if is_log else (min(counts) - room, max(counts) + room)
    plot = (
        plot.scale(x=x, y=y.label(like="{x:,.10g}"), color=so.Nominal(colors), marker=so.Nominal(marks))
        .limit(x=ends, y=limits)
        .label(x=section.plural, y=label)
    )
    return finish(plot, entries)


def _ideal_speedup(_section: Section, points: pd.DataFrame) -> Iterable[tuple[str, Any, pd.DataFrame]]:
    most = points["devices"].max()
    bases = sorted(set(points["baseline_devices"].dropna()) - {most})
    if bases:
        line = pd.concat(
            [
                pd.DataFrame({"x": x, "y": x / base, "group": str(base)})
                for base in bases
                for x in [np.geomspace(base, most, 20)]
            ]
        )
        yield "ideal", ":", line


def _efficiencies(section: Section, points: pd.DataFrame) -> Iterable[tuple[str, Any, pd.DataFrame]]:
    ends = [points["devices"].min() * 0.5, points["devices"].max() * 2]
    yield "ideal", ":", pd.DataFrame({"x": ends, "y": [100.0, 100.0], "group": "ideal"})
    if section.required_efficiency is not None:
        least = 100 * section.required_efficiency
        yield f"required: {least:.10g} %", "--", pd.DataFrame({"x": ends, "y": [least] * 2, "group": "least"})


# --- time against cost ------------------------------------------------------------------------------------


def _time_cost(section: Section) -> Drawing | None:
    if not {"seconds", "cost"} <= set(section.points):
        return None
    costs = section.points.dropna(subset=["seconds", "cost"])
    if len(costs) < 2:
        return None
    names = list(dict.fromkeys(costs["series"].astype(str)))
    colors, marks = palette(names), markers(names)
    divisor, unit = time_unit(float(costs["seconds"].max()))
    ends = ("", "_low", "_high")
    shown = costs.assign(**{f"seconds{end}": costs[f"seconds{end}"] / divisor for end in ends})
    cost_unit = section.cost_unit
    if cost_unit.endswith("-hours"):
        part, name = time_unit(3600 * float(costs["cost"].max()))
        kind = {"s": "seconds", "min": "minutes", "h": "hours"}[name]
        cost_unit = f"{cost_unit.removesuffix('hours')}{kind}"
        shown = shown.assign(**{f"cost{end}": costs[f"cost{end}"] * 3600 / part for end in ends})
    x, x_ends = value_scale(float(shown["cost"].min()), float(shown["cost"].max()))
    y, y_ends = value_scale(float(shown["seconds"].min()), float(shown["seconds"].max()))
    plot = so.Plot(shown, x="cost", y="seconds", color="series")
    for low, high, orient in (("seconds_low", "seconds_high", "x"), ("cost_low", "cost_high", "y")):
        bars = shown.dropna(subset=[low, high])
        if len(bars):
            scale = y if orient == "x" else x
            bars = bars.assign(**{end: ends_on(scale, bars[end]) for end in (low, high)})
            bounds = {"ymin": low, "ymax": high} if orient == "x" else {"xmin": low, "xmax": high}
            plot = plot.add(so.Range(linewidth=1), data=bars, orient=orient, legend=False, **bounds)
    plot = plot.add(so.Dot(pointsize=5, edgecolor="white", edgewidth=0.4), marker="series", legend=False)
    best = shown[shown["recommended"].astype(bool)]
    entries: list[tuple[Any, str]] = []
    if len(names) > 1:
        entries = [
            (Line2D([], [], color=colors[name], marker=marks[name], markersize=5, linestyle="none"), name)
            for name in names
        ]
    if len(best):
        plot = plot.add(RING, data=best, x="cost", y="seconds", color=None, legend=False)
        entries.append(ring_entry())
    ordered = shown.sort_values("recommended", ascending=False)
    places = list(
        zip(_shares(ordered["cost"], x_ends, x), _shares(ordered["seconds"], y_ends, y), strict=True)
    )
    named = ordered.iloc[apart(places)]
    named = named.assign(text=[f"{int(count):,}" for count in named["devices"]])
    plot = plot.add(
        so.Text(halign="left", valign="bottom", offset=4, fontsize=7, color=INK), data=named, x="cost",
        y="seconds", text="text", color=None, legend=False,
    )  # fmt: skip
    plot = (
        plot.scale(x=x, y=y, color=so.Nominal(colors), marker=so.Nominal(marks))
        .limit(x=x_ends, y=y_ends)
        .label(x=f"cost ({cost_unit})", y=f"time ({unit})")
    )
    return finish(plot, entries)


def _shares(values: pd.Series, ends: tuple[float, float], scale: Any) -> list[float]:
    """Return where values lie on an axis, from 0 to 1."""
    if scale.trans == "log":
        low, high = map(math.log, ends)
        return [(math.log(value) - low) / (high - low) for value in values]
    return [(value - ends[0]) / (ends[1] - ends[0]) for value in values]


# --- parts of a step --------------------------------------------------------------------------------------


def _step(section: Section) -> Drawing | None:
    """Draw the device time of a sample by its parts: with ideal scaling all bars are equally high."""
    parts = [part for part in STEP_PARTS if part.column in section.points]
    columns = [part.column for part in parts]
    needed = ["throughput_samples_per_second", "step_seconds"]
    if not parts or not set(needed) <= set(section.points):
        return None
    points = section.points.dropna(subset=needed)
    points = points[points[columns].notna().any(axis=1)].sort_values("devices")
    names = list(dict.fromkeys(points["series"].astype(str)))[:MOST_PANELS]
    points = points[points["series"].isin(names)]
    if points.empty:
        return None
    total = 1e6 * points["devices"] / points["throughput_samples_per_second"]
    shares = points[columns].astype(float).div(points["step_seconds"], axis=0).clip(lower=0).fillna(0.0)
    shares = shares.div(np.maximum(shares.sum(axis=1), 1.0), axis=0)
    rest = 1 - shares.sum(axis=1)
    heights = shares.assign(rest=rest.where(rest > 0.005, 0.0)).mul(total, axis=0)
    labels = {part.column: part.name for part in parts} | {"rest": UNKNOWN.name}
    colors = {part.name: part.colour for part in parts} | {UNKNOWN.name: UNKNOWN.colour}
    long = (
        heights.rename(columns=labels)
        .assign(series=points["series"].astype(str), devices=[f"{int(c):,}" for c in points["devices"]])
        .melt(["series", "devices"], var_name="part", value_name="time")
    )
    used = [name for name in colors if long.loc[long["part"] == name, "time"].max() > 0]
    long = long[long["part"].isin(used)]
    counts = [f"{count:,}" for count in sorted({int(count) for count in points["devices"]})]
    plot = so.Plot(long, x="devices", y="time", color="part").add(
        so.Bar(alpha=1, width=0.75, edgecolor="white", edgewidth=0.4), so.Stack(), legend=False
    )
    if len(names) > 1:
        plot = plot.facet("series", order=names, wrap=3)
    plot = (
        plot.scale(
            x=so.Nominal(order=counts), y=so.Continuous().label(like="{x:,.10g}"),
            color=so.Nominal({name: colors[name] for name in used}, order=used),
        )
        .limit(y=(0, 1.05 * total.max()))
        .label(x=section.plural, y=f"{section.noun} time per sample (µs)", **_titles(names))
    )  # fmt: skip
    drawing = finish(plot, [(Patch(color=colors[name]), name) for name in used], panels=len(names))
    for axes in drawing.axes:
        axes.grid(visible=False, axis="x")
        if len(counts) * len(names) > 16:
            axes.tick_params(axis="x", labelrotation=90)
    return drawing


# --- learning curves --------------------------------------------------------------------------------------


def learning(columns: Mapping[str, str], factor: float = 1.0, *, with_target: bool = False) -> Draw:
    """Return what draws learning curves: the median of the repeats, and a band from lowest to highest.

    Args:
        columns: Columns of epochs.csv with their labels; the first that has values is drawn.
        factor: Values are multiplied by it.
        with_target: Draw the accuracy that counts as trained.
    """

    def make(section: Section) -> Drawing | None:
        known = [name for name in columns if name in section.epochs and section.epochs[name].notna().any()]
        if not known:
            return None
        return _draw_learning(section, known[0], columns[known[0]], factor, with_target)

    return make


def _draw_learning(section: Section, column: str, label: str, factor: float, with_target: bool) -> Drawing:
    epochs = section.epochs.replace([np.inf, -np.inf], np.nan).dropna(subset=[column])
    against = "epoch" if "epoch" in epochs and epochs["epoch"].notna().any() else "step"
    names = list(dict.fromkeys(epochs["series"].astype(str)))[:MOST_PANELS]
    epochs = epochs[epochs["series"].isin(names)]
    curves = (
        (factor * epochs[column].astype(float))
        .groupby([epochs["series"].astype(str), epochs["devices"].astype(int), epochs[against]])
        .agg(["median", "min", "max"])
        .reset_index()
        .rename(columns={against: "x"})
    )
    counts = sorted(set(curves["devices"]))
    curves["devices"] = [f"{count:,}" for count in curves["devices"]]
    labels = [f"{count:,}" for count in counts]
    colors = palette(labels)
    dashes: dict[str, Any] = dict(
        zip(
            labels, ["-", "--", "-.", (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (6, 2))] * len(labels), strict=False
        )
    )
    few = curves["x"].nunique() <= 12
    y, low, high = so.Continuous().label(like="{x:,.10g}"), curves["median"].min(), curves["median"].max()
    limits = None
    if not with_target and low > 0 and high / low > 20:
        y, limits = value_scale(low, high)
    curves = curves.assign(**{end: ends_on(y, curves[end]) for end in ("min", "max")})
    plot = (
        so.Plot(curves, x="x", y="median", color="devices")
        .add(so.Band(alpha=0.15, edgewidth=0), ymin="min", ymax="max", legend=False)
        .add(
            so.Line(linewidth=1, marker="o" if few else "none", pointsize=2.5),
            linestyle="devices",
            legend=False,
        )
    )
    entries: list[tuple[Any, str]] = [
        (Line2D([], [], color=colors[name], linestyle=dashes[name], linewidth=1), name) for name in labels
    ]
    if with_target and section.target_accuracy is not None:
        ends = pd.DataFrame(
            [{"x": x, "median": factor * section.target_accuracy, "series": name}
             for x in (curves["x"].min(), curves["x"].max()) for name in names]
        )  # fmt: skip
        plot = plot.add(
            so.Line(color=INK, linestyle=":", linewidth=0.8),
            data=ends,
            color=None,
            linestyle=None,
            legend=False,
        )
        entries.append((Line2D([], [], color=INK, linestyle=":", linewidth=0.8), "target"))
    if len(names) > 1:
        plot = plot.facet("series", order=names, wrap=3)
    if limits is not None:
        plot = plot.limit(y=limits)
    plot = plot.scale(
        x=so.Continuous().tick(locator=MaxNLocator(6, integer=True)).label(like="{x:,.0f}"), y=y,
        color=so.Nominal(colors, order=labels), linestyle=so.Nominal(dashes, order=labels),
    ).label(x=against, y=label, **_titles(names))  # fmt: skip
    return finish(plot, entries, panels=len(names), title=section.plural)


FIGURES: dict[str, Figure] = {
    "speedup": Figure(
        "Speedup",
        "Throughput divided by that of the fewest devices of the series. Bars are 95 % intervals, from three "
        "runs on. The dotted line is ideal.",
        of_points("speedup", "speedup", lines=_ideal_speedup, is_ratio=True),
        is_first=True,
    ),
    "efficiency": Figure(
        "Efficiency",
        "Speedup divided by the ratio of device counts: 100 % is ideal. Bars are 95 % intervals.",
        of_points("parallel_efficiency", "efficiency (%)", 100.0, lines=_efficiencies),
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
        of_points("throughput_samples_per_second", "samples/s"),
    ),
    "memory": Figure(
        "Peak memory",
        "Peak while training, of the device that used most. Bars are 95 % intervals.",
        of_points("peak_memory_bytes", "peak memory per device ({unit})", unit=byte_unit),
    ),
    "accuracy": Figure(
        "Accuracy",
        "Accuracy on the test set. Lines are medians over the repeats, bands reach from the lowest to the "
        "highest.",
        learning({"test_accuracy": "test accuracy (%)"}, 100.0, with_target=True),
    ),
    "loss": Figure(
        "Loss",
        "Lines are medians over the repeats, bands reach from the lowest to the highest.",
        learning({"test_loss": "test loss", "train_loss": "training loss", "loss": "loss"}),
    ),
}  # fmt: skip
