"""The parts of a step's time, and of a start's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Patch

from scalewise.analysis.report.marks import PART, Drawing, tell, trace
from scalewise.analysis.report.series_lines import series_names, with_columns
from scalewise.analysis.report.style import GREY, grid, label_left, legend_below
from scalewise.analysis.steps import (
    COMPUTE_WITH_LOADER,
    STEP_PARTS,
    UNKNOWN,
    Part,
    known_start_parts,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS

STEP_MM, START_MM = 52.0, 38.0
_MICROSECONDS = 1e6
_LEAST_SHOWN = 0.005
"""Share of a bar below which its unexplained rest is rounding."""
BAR_WIDTH = 0.72
START_HATCHES = ("xxxx", "", "....", "", "////", "")
_LEAST_LABEL_MM = 8.5
"""Room for a bar from which on the number over it stands upright."""


@dataclass(frozen=True)
class _Bars:
    """Bars side by side, of one series.

    Args:
        devices: Device count of each bar.
        n: Runs behind each bar.
        unit: Unit of their heights.
    """

    series: str
    devices: list[int]
    n: list[int]
    unit: str


NOTHING = Part("", "", "", "white", "")


def start_parts(runs: pd.DataFrame) -> list[Part]:
    """The parts of a start that some run knows, in the order in which they come.

    Args:
        runs: Output of ``collect``.
    """
    named = known_start_parts(runs)
    shades = sns.light_palette("#5b3f8c", len(named) + 1)[1:]
    return [
        Part("", column, label, to_hex(shade), START_HATCHES[index % len(START_HATCHES)])
        for index, ((column, label), shade) in enumerate(zip(named.items(), shades, strict=True))
    ]


def step(scaling: pd.DataFrame, runs: pd.DataFrame) -> Drawing:
    """Device time for each sample by what it is spent on, and start-up below, a column for each series.

    A bar is devices over throughput: with ideal scaling all are equally high, strong or weak. Its parts
    have the shares that they have in a step, whose mean length stands over the bar.

    Args:
        scaling: Points with a throughput.
        runs: Output of ``collect``.
    """
    parts, starts = list(STEP_PARTS), start_parts(runs)
    table = with_columns(scaling, ["step_seconds", *(part.column for part in parts)])
    if table["loader_seconds"].isna().all() and table["compute_seconds"].notna().any():
        compute, *rest = (part for part in parts if part.column != "loader_seconds")
        parts = [replace(compute, name=COMPUTE_WITH_LOADER), *rest]
    names = series_names(table)
    panels = grid(names, (STEP_MM, START_MM), "scaling.csv", titles=names != [NO_OPTIONS])
    unknown = False
    for name, (upper, lower) in zip(names, panels.axes, strict=False):
        points = table[table["series"] == name].sort_values("devices")
        unknown |= _draw_step(upper, points, parts, panels.width_mm)
        upper.set_xlabel("")
        _draw_starts(lower, points["devices"].tolist(), runs[runs["series"] == name], starts, name)
    label_left(panels.row(0), "device time\nper sample (µs)")
    label_left(panels.row(1), "start-up of a run (s)")
    for quantity in (0, 1):
        tops = [axes.dataLim.ymax for axes in panels.row(quantity)]
        panels.axes[0][quantity].set_ylim(0, max([1e-9, *tops]) * (1.18 if quantity == 0 else 1.08))
    _legend(panels.figure, [*parts, UNKNOWN if unknown else NOTHING], starts, narrow=len(names) == 1)
    return panels.figure


def _legend(figure: Drawing, parts: Sequence[Part], starts: Sequence[Part], *, narrow: bool) -> None:
    """Both lists beside each other, or in a wide figure one below the other; a legend fills by columns."""
    rows = max(len(parts), len(starts))
    columns = [[*each, *[NOTHING] * (rows - len(each))] for each in (parts, starts)]
    pairs = list(zip(*columns, strict=True))
    shown = [*columns[0], *columns[1]] if narrow else [part for pair in pairs for part in pair]
    legend_below(
        figure,
        [_handle(part) for part in shown],
        [part.name for part in shown],
        columns=2 if narrow else len(pairs),
    )


def _handle(part: Part) -> Artist:
    """Return a part's handle in the legend."""
    return Patch(facecolor=part.colour, hatch=part.hatch, edgecolor="white", linewidth=0)


def _draw_step(axes: Axes, points: pd.DataFrame, parts: Sequence[Part], width_mm: float) -> bool:
    """Draw the bars of one series; whether a part of them is unknown."""
    totals = (points["devices"] / points["throughput_samples_per_second"] * _MICROSECONDS).to_numpy()
    # jitter that is not known is in the communication
    points = points.assign(jitter_seconds=points["jitter_seconds"].astype(float).fillna(0.0))
    shares = np.array(
        [(points[part.column] / points["step_seconds"]).fillna(0).clip(lower=0) for part in parts]
    )
    # parts that were not measured leave a rest
    known = points[[part.column for part in parts]].notna().all(axis=1).to_numpy()
    shares = shares / np.where(known, shares.sum(axis=0), np.maximum(shares.sum(axis=0), 1.0))
    rest = 1 - shares.sum(axis=0)
    rest[rest < _LEAST_SHOWN] = 0.0
    bars = _Bars(points["series"].iloc[0], points["devices"].tolist(), points["n"].tolist(), "µs per sample")
    _stack(axes, totals * np.vstack([shares, rest]), [*parts, UNKNOWN], bars)
    crowded = width_mm / len(points) < _LEAST_LABEL_MM
    for place, (total, seconds) in enumerate(zip(totals, points["step_seconds"], strict=True)):
        if pd.notna(seconds):
            text = axes.annotate(
                f"{seconds * 1e3:.3g}", (place, total), xytext=(0, 1.5), textcoords="offset points",
                ha="center", va="bottom", fontsize=6.5, rotation=90 if crowded else 0,
            )  # fmt: skip
            tell(text, series=bars.series)
    if points["step_seconds"].notna().any():
        axes.text(
            0.02, 0.985, "over the bars: ms per step", transform=axes.transAxes, va="top", fontsize=6.5,
            color=GREY,
        )  # fmt: skip
    _name_bars(axes, points["devices"].tolist())
    return bool((rest > 0).any())


def _draw_starts(
    axes: Axes, devices: list[int], runs: pd.DataFrame, parts: Sequence[Part], series: str
) -> None:
    columns = [part.column for part in parts]
    done = with_columns(runs[runs["outcome"] == "completed"], columns)
    by_devices = done.groupby("devices")
    medians = by_devices[columns].median().reindex(devices).fillna(0)
    counts = by_devices.size().reindex(devices, fill_value=0)
    _stack(axes, medians.to_numpy().T, parts, _Bars(series, devices, counts.tolist(), "s"))
    _name_bars(axes, devices)


def _stack(axes: Axes, heights: np.ndarray, parts: Sequence[Part], bars: _Bars) -> None:
    """Draw bars side by side.

    Args:
        axes: Panel to draw in.
        heights: Heights of shape (parts, bars).
        parts: Parts from the bottom to the top.
        bars: Series and device counts of the bars.
    """
    places = np.arange(heights.shape[1])
    bottoms = np.cumsum(heights, axis=0) - heights
    for part, height, bottom in zip(parts, heights, bottoms, strict=True):
        drawn = axes.bar(
            places, height, BAR_WIDTH, bottom=bottom, color=part.colour, hatch=part.hatch, edgecolor="white",
            linewidth=0, zorder=2,
        )  # fmt: skip
        quantity = f"{part.name}|{bars.unit}"
        facts = trace(PART, bars.series, quantity, bars.devices, {"value": height, "n": bars.n})
        for index, patch in enumerate(drawn):
            tell(patch, series=bars.series, trace=facts, index=index)


def _name_bars(axes: Axes, devices: Sequence[int]) -> None:
    axes.set_xticks(range(len(devices)), [f"{count:,}" for count in devices])
    axes.set_xlim(-0.6, len(devices) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("devices")
