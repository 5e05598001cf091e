"""Estimates with their intervals against devices: a colour, marker and dash for each series."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import Formatter

from scalewise.analysis.report.marks import EXPECTED as EXPECTED_KIND
from scalewise.analysis.report.marks import MEASURED as MEASURED_KIND
from scalewise.analysis.report.marks import Drawing, point_values, tell, tell_legend, trace
from scalewise.analysis.report.style import (
    COLUMN_MM,
    GREY,
    PAGE_MM,
    PANEL_MM,
    Handle,
    dash,
    device_axis,
    legend_below,
    marker,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.plan.runs.runs import shown_names

DODGE = 0.02
MOST_IN_A_COLUMN = 5
"""Series that can share a panel one column wide."""
MEASURED, EXPECTED = "measured", "not measured: expected, with 95 % band"
"""Labels of a legend, where a study has not measured every device count."""
_HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 0.9, "markersize": 3.4}
_BAND_OPACITY = 0.5


def series_names(table: pd.DataFrame) -> list[str]:
    """The names of the series, in the order of the table."""
    return [str(name) for name in dict.fromkeys(table["series"])]


def with_columns(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The table with these columns too; those it lacks are of unknown values."""
    missing = [column for column in columns if column not in table.columns]
    return table.assign(**dict.fromkeys(missing, float("nan")))


def bounds(column: str) -> list[str]:
    """A column and those of its interval."""
    return [column, f"{column}_low", f"{column}_high"]


def draw_series(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    names: Sequence[str],
    *,
    joined: bool = True,
    together: bool = True,
) -> None:
    """Draw a column of a table of points against devices, and its interval as bars.

    Args:
        axes: Panel to draw in.
        table: A row for each series and device count; unknown values are left out.
        column: Estimates; their bounds are in the columns of that name with ``_low`` and ``_high``.
        names: Every series of the figure, drawn here or not: a series looks the same in all its panels.
        joined: Connect the points of a series by a line, as a trend.
        together: The series share a panel: move them sideways, so that equal values do not hide each other,
            and give each its own dashes.
    """
    colours = sns.color_palette("colorblind", len(names))
    known = with_columns(table, bounds(column)).dropna(subset=[column])
    for name, points in known.sort_values("devices").groupby("series", sort=False):
        index = names.index(str(name))
        devices = points["devices"] * _aside(index, len(names), together)
        style = "none" if not joined else dash(index) if together else "-"
        below = (points[column] - points[f"{column}_low"]).clip(lower=0).fillna(0)
        above = (points[f"{column}_high"] - points[column]).clip(lower=0).fillna(0)
        # not even the caps of a bar where a point has no interval and others have
        known_bounds = points[f"{column}_low"].notna()
        height = points[column].where(known_bounds | (not known_bounds.any()))
        _, caps, lines = axes.errorbar(
            devices, height, yerr=[below, above], fmt="none", ecolor=colours[index], elinewidth=1.0,
            capsize=2.5, capthick=1.0, zorder=2.5,
        )  # fmt: skip
        for part in (*caps, *lines):
            tell(part, series=str(name))
        (line,) = axes.plot(
            devices, points[column], color=colours[index], linestyle=style,
            marker=marker(index), markeredgecolor="white", markeredgewidth=0.3, label=str(name), zorder=3,
        )  # fmt: skip
        facts = point_values(points, column)
        tell(line, series=str(name), trace=trace(MEASURED_KIND, str(name), column, points["devices"], facts))


def draw_expected(
    axes: Axes, expected: pd.DataFrame, column: str, names: Sequence[str], *, together: bool = True
) -> None:
    """Draw device counts that were not measured: hollow marks, on bars without caps for their bands.

    Where counts lie close to each other, not all are drawn.

    Args:
        axes: Panel to draw in, with its device axis.
        expected: ``ExperimentResults.expected``.
        column: Estimates; their bounds are in the columns of that name with ``_low`` and ``_high``.
        names: Every series of the figure, drawn here or not: a series looks the same in all its panels.
        together: The series share a panel: move them sideways as the measured points.
    """
    colours = sns.color_palette("colorblind", len(names))
    for name, points in expected[expected["series"].isin(names)].groupby("series", sort=False):
        index = names.index(str(name))
        shown = _not_touching(axes, points.sort_values("devices"))
        devices = shown["devices"] * _aside(index, len(names), together)
        value, low, high = (shown[each] for each in bounds(column))
        bars = axes.vlines(
            devices, low, high, color=colours[index], linewidth=1.0, alpha=_BAND_OPACITY, zorder=2.0
        )
        tell(bars, series=str(name))
        (line,) = axes.plot(
            devices,
            value,
            color=colours[index],
            linestyle="none",
            marker=marker(index),
            zorder=2.2,
            **_HOLLOW,
        )
        facts = point_values(shown, column)
        tell(line, series=str(name), trace=trace(EXPECTED_KIND, str(name), column, shown["devices"], facts))


def _aside(index: int, of: int, together: bool) -> float:
    """Factor by which series number ``index`` of some is moved sideways where they share a panel."""
    return 1 + together * DODGE * (index - (of - 1) / 2)


def _not_touching(axes: Axes, points: pd.DataFrame) -> pd.DataFrame:
    """Those of the points whose marks do not touch, the one of the most devices among them.

    Args:
        axes: Panel with its device axis.
        points: Rows of one series, fewest devices first.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    pixels = axes.transData.transform([(devices, axes.get_ylim()[1]) for devices in points["devices"]])[:, 0]
    room = 1.3 * _HOLLOW["markersize"] / 72 * figure.dpi
    kept: list[int] = []
    for place in reversed(range(len(points))):
        if not kept or pixels[kept[-1]] - pixels[place] >= room:
            kept.append(place)
    return points.iloc[kept[::-1]]


def shared_width_mm(names: Sequence[str]) -> float:
    """Width of a figure whose series share a panel: many need both columns to be told apart.

    Args:
        names: Names of the series.
    """
    return COLUMN_MM if len(names) <= MOST_IN_A_COLUMN else PAGE_MM


def points_figure(
    table: pd.DataFrame,
    column: str,
    label: str,
    form: str | Formatter,
    least_top: float = 0.0,
    expected: pd.DataFrame | None = None,
) -> tuple[Drawing, Axes]:
    """A figure of one panel: a column of a table of points against devices, its values from zero on.

    Args:
        table: A row for each series and device count.
        column: Estimates; their bounds are in the columns of that name with ``_low`` and ``_high``.
        label: Name of the value axis.
        form: Format of the values at the axis.
        least_top: Value that the axis holds at least.
        expected: ``ExperimentResults.expected``; None of a study that measures every count.
    """
    if expected is None:
        expected = pd.DataFrame(columns=["series", "devices", *bounds(column)])
    names = series_names(table)
    width = shared_width_mm(names)
    figure = Drawing(width, PANEL_MM)
    axes = figure.subplots()
    # a line would pass over counts of which something else is expected
    draw_series(axes, table, column, names, joined=expected.empty)
    from_zero(axes, table, column, max(least_top, expected[f"{column}_high"].max() if len(expected) else 0.0))
    axes.yaxis.set_major_formatter(form)
    axes.set_ylabel(label)
    device_axis(axes, [*table["devices"], *expected["devices"]], width)
    draw_expected(axes, expected, column, names)
    legend_below(figure, *series_legend(names, joined=expected.empty, with_expected=len(expected) > 0))
    tell_legend(figure, names)
    return figure, axes


BARS_BEYOND = 1.5
"""Factor by which bars may reach beyond the values before the axis cuts them: an axis follows the values."""


def value_range(table: pd.DataFrame, column: str) -> tuple[float, float]:
    """Return the least and the largest value that an axis should hold; NaN without any.

    Args:
        table: A row for each series and device count.
        column: Estimates; their bounds are in the columns of that name with ``_low`` and ``_high``.
    """
    known = with_columns(table, bounds(column))
    values, lows, highs = (known[each].astype(float) for each in bounds(column))
    low, high = float(values.min()), float(values.max())
    # a missing bound is none
    lowest, highest = max(lows.min(), low / BARS_BEYOND), min(highs.max(), high * BARS_BEYOND)
    return float(np.fmin(low, lowest)), float(np.fmax(high, highest))


def from_zero(axes: Axes, table: pd.DataFrame, column: str, least_top: float = 0.0) -> None:
    """Let the value axis begin at zero and hold the values."""
    top = np.fmax(value_range(table, column)[1], least_top)
    axes.set_ylim(0, top * 1.12 if top > 0 else 1)


def series_legend(
    names: Sequence[str], *, joined: bool = True, with_expected: bool = False
) -> tuple[list[Handle], list[str]]:
    """Handles and labels; none for an experiment without a sweep, which has one series without a name.

    Args:
        names: Every series of the figure that the legend tells apart.
        joined: The points of a series are joined by a line.
        with_expected: Device counts that were not measured are drawn too.
    """
    alone = list(names) == [NO_OPTIONS]
    labels = shown_names(names) if not alone else [MEASURED] if with_expected else []
    colours = sns.color_palette("colorblind", len(labels))
    handles: list[Handle] = [
        Line2D(
            [],
            [],
            color=colours[index],
            marker=marker(index),
            markeredgecolor="white",
            markeredgewidth=0.3,
            linestyle=dash(index) if joined else "none",
        )
        for index in range(len(labels))
    ]
    if with_expected:
        colour: Any = colours[0] if alone else GREY
        band = Line2D([], [], color=colour, marker="|", markersize=9, alpha=_BAND_OPACITY, linestyle="none")
        mark = Line2D([], [], color=colour, marker=marker(0), linestyle="none", **_HOLLOW)
        handles.append((band, mark))
        labels.append(EXPECTED)
    return handles, labels
