"""Efficiency of hardware and of learning against devices."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from scalewise.analysis.report.marks import Drawing, tell_legend
from scalewise.analysis.report.series_lines import (
    bounds,
    draw_series,
    points_figure,
    series_legend,
    series_names,
    value_range,
    with_columns,
)
from scalewise.analysis.report.style import (
    GREY,
    PAGE_MM,
    PANEL_MM,
    device_axis,
    legend_below,
    line_label,
    say,
)
from scalewise.plan.formatting import Goal, format_exact, goal_text
from scalewise.plan.runs.run_definition import NO_OPTIONS

HARDWARE, STATISTICAL, BOTH = "parallel_efficiency", "statistical_efficiency", "accuracy_efficiency"
MAX_NAMED = 3
"""Places that one panel names."""


def efficiency(
    scaling: pd.DataFrame, min_efficiency: float | None, expected: pd.DataFrame | None = None
) -> Drawing:
    """Parallel efficiency against devices, with the least that was asked for.

    Args:
        scaling: Points with a speedup.
        min_efficiency: The least that was asked for, a fraction; None without that criterion.
        expected: ``ExperimentResults.expected``; None of a study that measures every count.
    """
    figure, axes = points_figure(
        scaling,
        HARDWARE,
        "parallel efficiency",
        PercentFormatter(1, symbol=" %"),
        least_top=1.0,
        expected=expected,
    )
    _ideal(axes)
    _asked_for(axes, min_efficiency)
    return figure


def efficiencies(scaling: pd.DataFrame, target: Goal | None, min_efficiency: float | None = None) -> Drawing:
    """Hardware and statistical efficiency and what they come to together, each in a panel.

    Args:
        scaling: Points with a speedup.
        target: The goal that counts as trained; None where there is none, and two panels say so.
        min_efficiency: The least that was asked for of both together, a fraction; None without that.
    """
    ratio = scaling["devices"] / scaling["baseline_devices"]
    faster = bounds("time_to_accuracy_speedup")
    table = with_columns(scaling, [*bounds(HARDWARE), *bounds(STATISTICAL), *faster])
    reached = _reached_n(table)
    table = table.assign(**{f"{STATISTICAL}_n": reached, f"{BOTH}_n": reached})
    table = table.assign(
        **{
            name: table[source] / ratio
            for name, source in zip(bounds(BOTH), faster, strict=True)
        }
    )  # fmt: skip
    names = series_names(table)
    figure = Drawing(PAGE_MM, PANEL_MM)
    panels = figure.subplots(1, 3, sharey=True)
    needed = "samples" if isinstance(target, str) else "epochs"
    titles = (
        "hardware: samples per second",
        f"statistical: {needed} to the target",
        "both: time to the target",
    )
    for axes, column, title in zip(panels, (HARDWARE, STATISTICAL, BOTH), titles, strict=True):
        axes.set_title(title)
        if column != HARDWARE and not _reached(table, column):
            say(axes, _why_nothing(target))
        else:
            _ideal(axes)
            draw_series(axes, table, column, names)
            if column == BOTH:
                _asked_for(axes, min_efficiency)
                _name_unreached(axes, table, names)
        device_axis(axes, table["devices"], PAGE_MM / 3)
    tops = [value_range(table, column)[1] for column in (HARDWARE, STATISTICAL, BOTH)]
    panels[0].set_ylim(0, max([1.0, *(top for top in tops if pd.notna(top))]) * 1.12)
    panels[0].yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    panels[0].set_ylabel("efficiency")
    legend_below(figure, *series_legend(names))
    tell_legend(figure, names)
    return figure


def _reached_n(table: pd.DataFrame) -> pd.Series:
    """Runs behind a ratio to the target: those that reached it, of the smaller of its two sides."""
    told = with_columns(table, ["n_reached", "time_to_accuracy_baseline_devices"])
    by_point = told.set_index(["series", "devices"])["n_reached"]
    base = [
        by_point.get(key, float("nan"))
        for key in zip(told["series"], told["time_to_accuracy_baseline_devices"], strict=True)
    ]
    return told["n_reached"].clip(upper=pd.Series(base, index=told.index))


def _ideal(axes: Axes) -> None:
    axes.axhline(1.0, color=GREY, linestyle=":", linewidth=0.9)
    line_label(axes, 1.0, "ideal: 100 %", right=True)


def _asked_for(axes: Axes, least: float | None) -> None:
    if least is not None:
        axes.axhline(least, color=GREY, linestyle="--", linewidth=0.9)
        line_label(axes, least, f"required: {format_exact(100 * least)} %")


def _reached(table: pd.DataFrame, column: str) -> bool:
    """Whether a point other than a baseline has a value."""
    return bool(table.loc[table["devices"] > table["baseline_devices"], column].notna().any())


def _why_nothing(target: Goal | None) -> str:
    if target is None:
        return "not known:\nno target is set"
    return f"not known: {goal_text(target)}\nwas not reached on the baseline\nand on more devices"


def _name_unreached(axes: Axes, table: pd.DataFrame, names: list[str]) -> None:
    """Say which points have no time because the target was not reached there."""
    missing = table[table[BOTH].isna() & (table["devices"] > table["baseline_devices"])]
    if missing.empty:
        return
    places = [
        f"{devices}" if names == [NO_OPTIONS] else f"{series} on {devices}"
        for series, devices in zip(missing["series"], missing["devices"], strict=True)
    ]
    named = ", ".join(places) if len(places) <= MAX_NAMED else f"{len(places)} of {len(table)} points"
    unit = " devices" if names == [NO_OPTIONS] and len(places) <= MAX_NAMED else ""
    axes.text(
        0.03, 0.03, f"not reached: {named}{unit}", transform=axes.transAxes, color=GREY, fontsize=7
    )  # fmt: skip
