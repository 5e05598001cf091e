"""Efficiency against devices."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from scalewise.analysis.report.marks import Drawing
from scalewise.analysis.report.series_lines import (
    points_figure,
)
from scalewise.analysis.report.style import (
    GREY,
    line_label,
)
from scalewise.plan.formatting import format_exact


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
        "parallel_efficiency",
        "parallel efficiency",
        PercentFormatter(1, symbol=" %"),
        least_top=1.0,
        expected=expected,
    )
    _ideal(axes)
    _asked_for(axes, min_efficiency)
    return figure


def _ideal(axes: Axes) -> None:
    axes.axhline(1.0, color=GREY, linestyle=":", linewidth=0.9)
    line_label(axes, 1.0, "ideal: 100 %", right=True)


def _asked_for(axes: Axes, least: float | None) -> None:
    if least is not None:
        axes.axhline(least, color=GREY, linestyle="--", linewidth=0.9)
        line_label(axes, least, f"required: {format_exact(100 * least)} %")
