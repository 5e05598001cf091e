"""Speedup with the laws that were fitted to it, and measurement beside prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from scalewise.analysis.report.marks import LAW, Drawing, tell, tell_legend, trace
from scalewise.analysis.report.marks import PREDICTED as PREDICTED_KIND
from scalewise.analysis.report.series_lines import (
    bounds,
    draw_expected,
    draw_series,
    from_zero,
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
    plain_values,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS

Law = Mapping[str, Any]

LAWS = {
    "amdahl": ("Amdahl's law", "-", 0.30),
    "gustafson": ("Gustafson's law", "-", 0.30),
    "usl": ("universal scalability law", "-.", 0.16),
}
"""Key -> name, line style, opacity of its band."""
PREDICTED = "predicted bound"
_PREDICTED_DASH = (0, (4, 2))
_BAND = 0.15
_UNMEASURED = "0.93"


def speedup(
    scaling: pd.DataFrame,
    laws: Sequence[Law] = (),
    prediction: pd.DataFrame | None = None,
    expected: pd.DataFrame | None = None,
) -> Drawing:
    """Speedup over the baseline against devices, with the ideal line, fitted laws and the predicted bound.

    Where laws or predictions are drawn, each series has a panel of its own, and a law's curve stands in
    place of lines that join the points. Where counts were not measured, no line passes over them, and the
    bound is drawn without its band, which would lie under theirs.

    Args:
        scaling: Points with a speedup.
        laws: Contents of laws.json; the refused are left out.
        prediction: Contents of prediction.csv; its planned device counts are drawn.
        expected: ``ExperimentResults.expected``; None of a study that measures every count.
    """
    expected = pd.DataFrame(columns=["series", "devices"]) if expected is None else expected
    devices = sorted({*scaling["devices"], *expected["devices"]})
    names = series_names(scaling)
    fitted = [law for law in laws if law["series"] in names and not law["refused"]]
    predicted = _of_series(prediction, names)
    predicted = predicted[predicted["measured_point"].astype(bool)] if len(predicted) else predicted
    bases = sorted({int(base) for base in scaling["baseline_devices"]})
    apart = len(names) > 1 and (bool(fitted) or len(predicted) > 0)
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
            if len(predicted):
                bound = predicted[predicted["series"] == name].sort_values("devices")
                _bound(axes, bound, "speedup", colour, name, with_band=expected.empty)
            for law in fitted:
                if law["series"] == name:
                    _law(axes, law, colour)
                    curved = True
        draw_series(axes, mine, "speedup", names, joined=expected.empty and not curved, together=not apart)
        device_axis(axes, devices, width)
        of_group = expected[expected["series"].isin(group)]
        draw_expected(axes, of_group, "speedup", names, together=not apart)
    others = [table for table in (predicted, expected) if len(table)]
    _speedup_axis(shown, scaling, others, devices[-1] / bases[0])
    over = (
        f"{bases[0]} {'device' if bases[0] == 1 else 'devices'}"
        if len(bases) == 1
        else "the series' baseline"
    )
    label_left(shown, f"speedup over {over}")
    legend_below(
        figure, *_speedup_legend([] if apart else names, fitted, len(predicted) > 0, len(expected) > 0)
    )
    tell_legend(figure, names)
    return figure


def prediction(scaling: pd.DataFrame, predicted: pd.DataFrame) -> Drawing:
    """Predicted step time and efficiency against devices, with what was measured.

    Device counts beyond the largest that was measured lie in a pale area with the words "not measured".

    Args:
        scaling: Points with a throughput; may be empty.
        predicted: Contents of prediction.csv.
    """
    columns = ["step_seconds", "speedup", "parallel_efficiency"]
    scaling = with_columns(scaling, [name for column in columns for name in bounds(column)])
    names = series_names(predicted)
    panels = grid(names, (50.0, 46.0), "prediction.csv", titles=names != [NO_OPTIONS])
    for name, (upper, lower) in zip(names, panels.axes, strict=False):
        colour = sns.color_palette("colorblind", len(names))[names.index(name)]
        mine = predicted[predicted["series"] == name].sort_values("devices")
        points = scaling[scaling["series"] == name]
        _bound(upper, _in_ms(mine), "step_seconds", colour, name)
        alone = mine["compute_seconds"] * 1e3
        (line,) = upper.plot(mine["devices"], alone, color=GREY, linestyle=":", linewidth=0.9)
        facts = trace(PREDICTED_KIND, name, "compute alone|ms", mine["devices"], {"value": alone}, 0)
        tell(line, series=name, trace=facts)
        draw_series(upper, _in_ms(points), "step_seconds", names, joined=False, together=False)
        _bound(lower, mine, "parallel_efficiency", colour, name)
        draw_series(lower, points, "parallel_efficiency", names, joined=False, together=False)
        for axes in (upper, lower):
            device_axis(axes, [*predicted["devices"], *scaling["devices"]], panels.width_mm)
            _pale(axes, mine, points)
        upper.set_yscale("log")
        upper.set_xlabel("")
    _step_axis(panels.row(0))
    label_left(panels.row(0), "step (ms)")
    first = panels.axes[0][1]
    from_zero(first, pd.concat([predicted, scaling]), "parallel_efficiency", 1.0)
    first.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    label_left(panels.row(1), "parallel efficiency")
    measured, labels = series_legend(["measured"], joined=False)
    handles = [*measured, _with_band(_PREDICTED_DASH), Line2D([], [], color=GREY, linestyle=":")]
    if not scaling["step_seconds"].notna().any() and not scaling["parallel_efficiency"].notna().any():
        handles, labels = handles[1:], []
    legend_below(panels.figure, handles, [*labels, "predicted", "compute alone"])
    return panels.figure


def _of_series(prediction: pd.DataFrame | None, names: Sequence[str]) -> pd.DataFrame:
    if prediction is None or prediction.empty:
        return pd.DataFrame()
    return prediction[prediction["series"].isin(names)]


def _in_ms(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: table[name] * 1e3 for name in bounds("step_seconds")})


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


def _bound(
    axes: Axes,
    table: pd.DataFrame,
    column: str,
    colour: tuple[float, float, float],
    series: str,
    *,
    with_band: bool = True,
) -> None:
    low, high = table[f"{column}_low"], table[f"{column}_high"]
    if with_band:
        band = axes.fill_between(
            table["devices"], low, high, color=colour, alpha=_BAND, linewidth=0, zorder=1.2
        )
        tell(band, series=series)
    (line,) = axes.plot(
        table["devices"], table[column], color=colour, linestyle=_PREDICTED_DASH, linewidth=0.9
    )
    values = {"value": table[column], "low": low, "high": high}
    tell(line, series=series, trace=trace(PREDICTED_KIND, series, column, table["devices"], values, 0))


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


def _step_axis(row: Sequence[Axes]) -> None:
    """Ticks that a reader can name, on every panel that shows them."""
    low, high = row[0].get_ylim()
    row[0].set_ylim(low / 1.1, high * 1.1)
    for axes in row:
        plain_values(axes.yaxis)


def _pale(axes: Axes, predicted: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Mark what lies beyond the largest device count that was measured."""
    largest = measured["devices"].max() if len(measured) else predicted["devices"].min()
    beyond = predicted.loc[predicted["devices"] > largest, "devices"]
    if beyond.empty:
        return
    edge = float(np.sqrt(largest * beyond.min()))
    right = axes.get_xlim()[1]
    axes.axvspan(edge, right, color=_UNMEASURED, zorder=0, linewidth=0)
    axes.text(
        0.985, 0.97, "not measured", transform=axes.transAxes, ha="right", va="top", fontsize=7, color=GREY,
    )  # fmt: skip


def _speedup_legend(
    names: Sequence[str], fitted: Sequence[Law], predicted: bool, expected: bool
) -> tuple[list[Handle], list[str]]:
    handles, labels = series_legend(names, joined=not expected, with_expected=expected)
    for key in dict.fromkeys(law["law"] for law in fitted):
        name, style, _ = LAWS[key]
        handles.append(_with_band(style))
        labels.append(f"{name}, 95 % band")
    if predicted:
        line = Line2D([], [], color="0.2", linestyle=_PREDICTED_DASH, linewidth=1.0)
        handles.append(line if expected else _with_band(_PREDICTED_DASH))
        labels.append(PREDICTED)
    return handles, labels


def _with_band(style: Any) -> Handle:
    return Patch(facecolor="0.8", linewidth=0), Line2D([], [], color="0.2", linestyle=style, linewidth=1.0)
