"""Speedup with the laws that were fitted to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from scalewise.analysis.report.marks import LAW, Drawing, tell, tell_legend, trace
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
    Handle,
    device_axis,
    grid,
    label_left,
    legend_below,
)

Law = Mapping[str, Any]

LAWS = {
    "amdahl": ("Amdahl's law", "-", 0.30),
    "gustafson": ("Gustafson's law", "-", 0.30),
    "usl": ("universal scalability law", "-.", 0.16),
}
"""Key -> name, line style, opacity of its band."""


def speedup(
    scaling: pd.DataFrame,
    laws: Sequence[Law] = (),
    expected: pd.DataFrame | None = None,
) -> Drawing:
    """Speedup over the baseline against devices, with the ideal line and fitted laws.

    Where laws are drawn, each series has a panel of its own, and a law's curve stands in place of lines that
    join the points. Where counts were not measured, no line passes over them.

    Args:
        scaling: Points with a speedup.
        laws: Contents of laws.json; the refused are left out.
        expected: ``ExperimentResults.expected``; None of a study that measures every count.
    """
    expected = pd.DataFrame(columns=["series", "devices"]) if expected is None else expected
    devices = sorted({*scaling["devices"], *expected["devices"]})
    names = series_names(scaling)
    fitted = [law for law in laws if law["series"] in names and not law["refused"]]
    bases = sorted({int(base) for base in scaling["baseline_devices"]})
    apart = len(names) > 1 and bool(fitted)
    if apart:
        panels = grid(names, (52.0,), "scaling.csv")
        figure, shown, width = panels.figure, panels.row(0), panels.width_mm
        groups = [[name] for name in names[: len(shown)]]
    else:
        width = shared_width_mm(names)
        figure = Drawing(width, PANEL_MM)
        shown, groups = [figure.subplots()], [names]
    for axes, group in zip(shown, groups, strict=True):
        mine = scaling[scaling["series"].isin(group)]
        for base in sorted({int(each) for each in mine["baseline_devices"]}) or bases:
            _ideal(axes, [each for each in devices if each >= base], base)
        curved = False
        for name in group:
            colour = sns.color_palette("colorblind", len(names))[names.index(name)]
            for law in fitted:
                if law["series"] == name:
                    _law(axes, law, colour)
                    curved = True
        draw_series(axes, mine, "speedup", names, joined=expected.empty and not curved, together=not apart)
        device_axis(axes, devices, width)
        of_group = expected[expected["series"].isin(group)]
        draw_expected(axes, of_group, "speedup", names, together=not apart)
    others = [expected] if len(expected) else []
    _speedup_axis(shown, scaling, others, devices[-1] / bases[0])
    over = (
        f"{bases[0]} {'device' if bases[0] == 1 else 'devices'}"
        if len(bases) == 1
        else "the series' baseline"
    )
    label_left(shown, f"speedup over {over}")
    legend_below(figure, *_speedup_legend([] if apart else names, fitted, len(expected) > 0))
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


def _law(axes: Axes, law: Law, colour: tuple[float, float, float]) -> None:
    label, style, opacity = LAWS[law["law"]]
    curve = pd.DataFrame(law["curve"])
    band = axes.fill_between(
        curve["devices"], curve["low"], curve["high"], color=colour, alpha=opacity, linewidth=0, zorder=1.5
    )
    (line,) = axes.plot(curve["devices"], curve["speedup"], color=colour, linestyle=style, linewidth=1.0)
    values = {"value": curve["speedup"], "low": curve["low"], "high": curve["high"]}
    tell(band, series=law["series"])
    facts = trace(LAW, law["series"], f"speedup by {label}|x", curve["devices"], values, 0)
    tell(line, series=law["series"], trace=facts)


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


def _speedup_legend(
    names: Sequence[str], fitted: Sequence[Law], expected: bool
) -> tuple[list[Handle], list[str]]:
    handles, labels = series_legend(names, joined=not expected, with_expected=expected)
    for key in dict.fromkeys(law["law"] for law in fitted):
        name, style, _ = LAWS[key]
        handles.append(_with_band(style))
        labels.append(f"{name}, 95 % band")
    return handles, labels


def _with_band(style: Any) -> Handle:
    return Patch(facecolor="0.8", linewidth=0), Line2D([], [], color="0.2", linestyle=style, linewidth=1.0)
