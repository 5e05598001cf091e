"""The figures of an experiment on several partitions: time against cost, and time against devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D

from scalewise.analysis.partitions.wording import UNITS
from scalewise.analysis.report.marks import MEASURED, Drawing, tell, tell_legend, trace
from scalewise.analysis.report.series_lines import points_figure, series_names, value_range, with_columns
from scalewise.analysis.report.style import (
    COLUMN_MM,
    GREY,
    PANEL_MM,
    Handle,
    legend_below,
    marker,
    plain_values,
)
from scalewise.plan.formatting import HOUR, MINUTE

LEAST_LOGARITHMIC = 6.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

_HOLLOW_GREY = {"color": "0.6", "markerfacecolor": "white", "markeredgecolor": "0.6"}


def time_cost(table: pd.DataFrame, unit: str, clock: str) -> Drawing:
    """Draw time against cost: a mark for each point, grey if it is dominated.

    Args:
        table: Contents of partitions.csv.
        unit: Unit of costs, a key of ``UNITS``.
        clock: The compared time, a key of ``CLOCKS``.
    """
    known = _named(table).dropna(subset=["seconds", "cost"])
    names = series_names(known)
    colours = sns.color_palette("colorblind", len(names))
    factor, time_unit = time_unit_of(known["seconds"])
    figure = Drawing(COLUMN_MM, PANEL_MM * 1.15)
    axes = figure.subplots()
    for name, points in known.groupby("series", sort=False):
        index = names.index(str(name))
        for is_dominated, part in points.groupby(points["pareto"] == "dominated"):
            colour = "0.6" if is_dominated else colours[index]
            values = {end: part[f"seconds{end}"] / factor for end in ("", "_low", "_high")}
            _bars(axes, part, values, colour)
            look = _HOLLOW_GREY if is_dominated else {"color": colour, "markeredgecolor": "white"}
            (marks,) = axes.plot(
                part["cost"], values[""], linestyle="none", marker=marker(index), markersize=5.5,
                markeredgewidth=0.8 if is_dominated else 0.4, zorder=3, **look,
            )  # fmt: skip
            facts = {"value": values[""], "low": values["_low"], "high": values["_high"], "n": part["n"]}
            values_of_marks = trace(MEASURED, str(name), f"time|{time_unit}", part["devices"], facts)
            tell(marks, series=str(name), trace=values_of_marks)
            for (_, row), height in zip(part.iterrows(), values[""], strict=True):
                axes.annotate(
                    f"{int(row['devices'])}",
                    (row["cost"], height),
                    xytext=(4, 3),
                    textcoords="offset points",
                    fontsize=7,
                    color=GREY if is_dominated else colour,
                )
    _value_axis(axes, axes.xaxis, value_range(known, "cost"))
    _value_axis(axes, axes.yaxis, [end / factor for end in value_range(known, "seconds")])
    axes.set_xlabel(f"cost ({UNITS[unit]})")
    axes.set_ylabel(f"{_clock_label(clock)} ({time_unit})")
    handles, labels = _legend(names, colours, with_dominated=bool((known["pareto"] == "dominated").any()))
    legend_below(figure, handles, labels)
    tell_legend(figure, names)
    return figure


def time_devices(table: pd.DataFrame, unit: str, clock: str) -> Drawing:  # noqa: ARG001  like time_cost
    """Draw time against devices, a line for each partition.

    Args:
        table: Contents of partitions.csv.
        unit: Unit of costs, which it does not need.
        clock: The compared time, a key of ``CLOCKS``.
    """
    known = _named(table).dropna(subset=["seconds"])
    factor, time_unit = time_unit_of(known["seconds"])
    column = f"time|{time_unit}"
    drawn = known.assign(
        **{f"{column}{end}": known[f"seconds{end}"] / factor for end in ("", "_low", "_high")}
    )
    figure, _ = points_figure(drawn, column, f"{_clock_label(clock)} ({time_unit})", "{x:,.10g}")
    return figure


def time_unit_of(seconds: pd.Series) -> tuple[float, str]:
    """Return the divisor and the name of a unit in which the largest of some times is easy to read."""
    longest = float(seconds.max()) if len(seconds) else 0.0
    if longest < 2 * MINUTE:
        return 1.0, "s"
    return (float(MINUTE), "min") if longest < 3 * HOUR else (float(HOUR), "h")


def _named(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a series for each partition, and for each of its series if there are several."""
    ends = [f"{column}{end}" for column in ("seconds", "cost") for end in ("", "_low", "_high")]
    known = with_columns(table, ends)
    several = known["series"].nunique() > 1
    names = known["partition"] + (", " + known["series"] if several else "")
    return known.assign(series=names)


def _bars(axes: Axes, points: pd.DataFrame, seconds: dict[str, pd.Series], colour: object) -> None:
    """Draw both intervals of each point, which a single run has not."""
    for (_, row), middle, low, high in zip(
        points.iterrows(), seconds[""], seconds["_low"], seconds["_high"], strict=True
    ):
        lines = [([row["cost"]] * 2, [low, high]), ([row["cost_low"], row["cost_high"]], [middle] * 2)]
        for x, y in lines:
            if np.isfinite([*x, *y]).all():
                axes.plot(x, y, color=colour, linewidth=1.0, zorder=2.5)


def _value_axis(axes: Axes, axis: Axis, ends: Sequence[float]) -> None:
    """Let an axis begin at zero, or be logarithmic if its ends, the least and the largest, differ by much."""
    low, high = (0.0, 1.0) if math.isnan(ends[0]) else ends
    is_x = axis is axes.xaxis
    if low > 0 and high / low >= LEAST_LOGARITHMIC:
        (axes.set_xscale if is_x else axes.set_yscale)("log")
        (axes.set_xlim if is_x else axes.set_ylim)(low / 1.25, high * 1.35)
        plain_values(axis)
    else:
        (axes.set_xlim if is_x else axes.set_ylim)(0, high * 1.15 if high > 0 else 1)


def _legend(
    names: Sequence[str], colours: Sequence[object], *, with_dominated: bool
) -> tuple[list[Handle], list[str]]:
    handles: list[Handle] = [
        Line2D([], [], color=colours[index], marker=marker(index), markeredgecolor="white", linestyle="none")  # type: ignore[arg-type]
        for index in range(len(names))
    ]
    labels = list(names)
    if with_dominated:
        handles.append(Line2D([], [], marker="o", linestyle="none", **_HOLLOW_GREY))  # type: ignore[arg-type]
        labels.append("dominated")
    return handles, labels


def _clock_label(clock: str) -> str:
    return {"time to target": "time to target", "total time": "time of a run"}.get(
        clock, "time of a million samples"
    )
