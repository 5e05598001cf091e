"""Speedup and the ideal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from scalewise.analysis.report.marks import Drawing, tell, tell_legend
from scalewise.analysis.report.series_lines import (
    bounds,
    draw_expected,
    draw_series,
    series_legend,
    series_names,
    shared_width_mm,
    value_range,
    with_columns,
)
from scalewise.analysis.report.style import (
    GREY,
    PANEL_MM,
    device_axis,
    label_left,
    legend_below,
)


def speedup(scaling: pd.DataFrame, expected: pd.DataFrame | None = None) -> Drawing:
    """Speedup over the baseline against devices, with the ideal line.

    Where counts were not measured, no line passes over them.

    Args:
        scaling: Points with a speedup.
        expected: ``ExperimentResults.expected``; None of a study that measures every count.
    """
    expected = pd.DataFrame(columns=["series", "devices"]) if expected is None else expected
    devices = sorted({*scaling["devices"], *expected["devices"]})
    names = series_names(scaling)
    bases = sorted({int(base) for base in scaling["baseline_devices"]})
    width = shared_width_mm(names)
    figure = Drawing(width, PANEL_MM)
    axes = figure.subplots()
    for base in bases:
        _ideal(axes, [each for each in devices if each >= base], base)
    draw_series(axes, scaling, "speedup", names, joined=expected.empty)
    device_axis(axes, devices, width)
    draw_expected(axes, expected, "speedup", names)
    others = [expected] if len(expected) else []
    _speedup_axis([axes], scaling, others, devices[-1] / bases[0])
    over = (
        f"{bases[0]} {'device' if bases[0] == 1 else 'devices'}"
        if len(bases) == 1
        else "the series' baseline"
    )
    label_left([axes], f"speedup over {over}")
    with_expected = len(expected) > 0
    legend_below(figure, *series_legend(names, joined=not with_expected, with_expected=with_expected))
    tell_legend(figure, names)
    return figure


def _ideal(axes: Axes, devices: Sequence[int], base: int) -> None:
    ideal = [count / base for count in devices]
    axes.plot(devices, ideal, color=GREY, linestyle=":", linewidth=0.9)
    text = axes.annotate(
        "ideal", (devices[-1], ideal[-1]), xytext=(-5, 1), textcoords="offset points", ha="right",
        color=GREY, fontsize=7,
    )  # fmt: skip
    tell(text, moves=True)


def _speedup_axis(
    shown: Sequence[Axes], scaling: pd.DataFrame, others: Sequence[pd.DataFrame], ideal: float
) -> None:
    """Linear from zero, or logarithmic where the device axis is, so that the ideal is a straight line."""
    first = shown[0]
    tables = [with_columns(scaling, bounds("speedup")), *others]
    ranges = np.array([value_range(table, "speedup") for table in tables])
    values = ranges[ranges > 0]
    top = max(values.max(), ideal)
    if first.get_xscale() != "log":
        first.set_ylim(0, top * 1.12)
        return
    for axes in shown:
        axes.set_yscale("log", base=2)
    low = min(1.0, values.min())
    low, high = low / 1.25, top * 1.4
    first.set_ylim(low, high)
    ticks = [2.0**power for power in range(int(np.ceil(np.log2(low))), int(np.log2(high)) + 1)]
    first.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    for axes in shown:
        axes.minorticks_off()
