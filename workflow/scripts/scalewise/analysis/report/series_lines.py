"""Estimates with their intervals against devices: a colour, marker and dash for each series."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import Formatter

from scalewise.analysis.report.style import (
    COLUMN_MM,
    PANEL_MM,
    Handle,
    dash,
    device_axis,
    inches,
    legend_below,
    marker,
)
from scalewise.plan.runs.runs import NO_OPTIONS

DODGE = 0.02


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
        devices = points["devices"] * (1 + together * DODGE * (index - (len(names) - 1) / 2))
        style = "none" if not joined else dash(index) if together else "-"
        below = (points[column] - points[f"{column}_low"]).clip(lower=0).fillna(0)
        above = (points[f"{column}_high"] - points[column]).clip(lower=0).fillna(0)
        axes.errorbar(
            devices, points[column], yerr=[below, above], fmt="none", ecolor=colours[index], elinewidth=1.0,
            capsize=2.5, capthick=1.0, zorder=2.5,
        )  # fmt: skip
        axes.plot(
            devices, points[column], color=colours[index], linestyle=style,
            marker=marker(index), markeredgecolor="white", markeredgewidth=0.3, label=str(name), zorder=3,
        )  # fmt: skip


def points_figure(
    table: pd.DataFrame, column: str, label: str, form: str | Formatter, least_top: float = 0.0
) -> tuple[Figure, Axes]:
    """A figure of one panel: a column of a table of points against devices, its values from zero on.

    Args:
        table: A row for each series and device count.
        column: Estimates; their bounds are in the columns of that name with ``_low`` and ``_high``.
        label: Name of the value axis.
        form: Format of the values at the axis.
        least_top: Value that the axis holds at least.
    """
    figure = Figure(figsize=inches(COLUMN_MM, PANEL_MM))
    axes = figure.subplots()
    names = series_names(table)
    draw_series(axes, table, column, names)
    from_zero(axes, table, column, least_top)
    axes.yaxis.set_major_formatter(form)
    axes.set_ylabel(label)
    device_axis(axes, table["devices"])
    legend_below(figure, *series_legend(names))
    return figure, axes


def from_zero(axes: Axes, table: pd.DataFrame, column: str, least_top: float = 0.0) -> None:
    """Let the value axis begin at zero and hold every interval."""
    known = with_columns(table, bounds(column))
    top = max(known[[column, f"{column}_high"]].max().max(), least_top)
    axes.set_ylim(0, top * 1.12 if top > 0 else 1)


def series_legend(names: Sequence[str], *, joined: bool = True) -> tuple[list[Handle], list[str]]:
    """Handles and labels; none for an experiment without a sweep, which has one series without a name."""
    if list(names) == [NO_OPTIONS]:
        return [], []
    colours = sns.color_palette("colorblind", len(names))
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
        for index in range(len(names))
    ]
    return handles, list(names)
