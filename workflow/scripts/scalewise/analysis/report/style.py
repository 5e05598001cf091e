"""The look of the figures: a column wide, colour-blind safe, lines told apart by mark and dash too.

A figure is drawn once, at the size it has in print; the report shows the same drawing larger.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from scalewise.analysis.report.marks import DEVICE_AXIS, MM_PER_INCH, Drawing
from scalewise.plan.runs.runs import shown_names

Handle = Artist | tuple[Artist, ...]
"""A handle of a legend; the artists of a tuple are drawn over each other."""

COLUMN_MM = 85.0
"""Width of a column in most journals and proceedings."""
PAGE_MM = 178.0
"""Width of both columns."""
PANEL_MM = 62.0
"""Height of a figure of one panel, without its legend."""
LEGEND_ROW_MM = 3.9

MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["", (4, 1.5), (1, 1), (3, 1, 1, 1), (6, 2), (2, 2), (5, 1, 1, 1, 1, 1), (1, 3)]
GREY = "0.35"

_TICK_POINTS = 7.0
_CHARACTER_WIDTH = 0.62
"""Mean width of a character over the size of the font."""
_HANDLE_CHARACTERS = 8
"""Width of a legend's handle and the room around it, in characters."""


def set_style() -> None:
    """Set the style of all figures drawn from now on."""
    sns.set_theme(
        context="paper",
        style="whitegrid",
        palette="colorblind",
        rc={
            "figure.constrained_layout.use": True,
            "font.size": 8,
            "axes.titlesize": 8,
            "axes.labelsize": 8,
            "xtick.labelsize": _TICK_POINTS,
            "ytick.labelsize": _TICK_POINTS,
            "legend.fontsize": 7,
            "legend.title_fontsize": 7,
            "legend.frameon": False,
            "axes.linewidth": 0.7,
            "axes.facecolor": "none",
            "grid.linewidth": 0.5,
            "lines.linewidth": 1.2,
            "lines.markersize": 4.0,
            "lines.solid_capstyle": "butt",  # as in SVG where nothing is said
            "hatch.linewidth": 0.6,
            "text.parse_math": False,  # a dollar sign in a name is one
            "pdf.fonttype": 42,
        },
    )


def dash(index: int) -> Any:
    """Line style number ``index``; beyond eight, the same marker comes with another dash."""
    pattern = DASHES[(index + index // len(MARKERS)) % len(DASHES)]
    return (0, pattern) if pattern else "-"


def marker(index: int) -> str:
    """Marker number ``index``."""
    return MARKERS[index % len(MARKERS)]


def wrapped(title: str, width_mm: float) -> str:
    """A title on as many lines as it needs over a panel of this width."""
    characters = width_mm / MM_PER_INCH * 72 / (8 * _CHARACTER_WIDTH)
    return textwrap.fill(title, max(8, math.floor(characters)))


def device_axis(axes: Axes, devices: Iterable[int], width_mm: float = COLUMN_MM) -> None:
    """Name the device axis, with as many of the counts at it as have room.

    Args:
        axes: The panel; its axis becomes logarithmic from a ratio of 8 on.
        devices: Every count that is drawn.
        width_mm: Width of the panel with its labels.
    """
    ticks = sorted(set(devices))
    # a fifth of the width goes to the labels of the other axis
    points = 0.8 * width_mm / MM_PER_INCH * 72
    logarithmic = max(ticks) / min(ticks) >= 8
    if logarithmic:
        axes.set_xscale("log", base=2)
        low, high = min(ticks) / 1.25, max(ticks) * 1.25
        places = [points * math.log(tick / low) / math.log(high / low) for tick in ticks]
    else:
        low, high = min(ticks) - 0.3, max(ticks) + 0.3
        places = [points * (tick - low) / (high - low) for tick in ticks]
    axes.set_xlim(low, high)
    shown = _with_room(ticks, places)
    axes.set_xticks(shown, [f"{tick:,}" for tick in shown])
    axes.minorticks_off()
    axes.set_xlabel("devices")
    axes.xaxis.set_gid(DEVICE_AXIS)


def _with_room(ticks: Sequence[int], places: Sequence[float]) -> list[int]:
    """Those of the ticks whose labels do not touch; the last is always among them."""
    shown: list[int] = []
    right = math.inf
    for tick, place in sorted(zip(ticks, places, strict=True), reverse=True):
        half = (len(f"{tick:,}") + 0.8) * _TICK_POINTS * _CHARACTER_WIDTH / 2
        if place + half <= right:
            shown.insert(0, tick)
            right = place - half
    return shown


def legend_columns(labels: Sequence[str], width_mm: float) -> int:
    """The number of columns in which labels fit below a figure; a legend fills one after the other."""
    room = width_mm / MM_PER_INCH * 72 / (7 * _CHARACTER_WIDTH)
    for columns in range(len(labels), 1, -1):
        rows = math.ceil(len(labels) / columns)
        widest = (
            max(len(label) for label in labels[start : start + rows]) for start in range(0, len(labels), rows)
        )
        if sum(longest + _HANDLE_CHARACTERS for longest in widest) <= room:
            return columns
    return 1


def legend_below(
    figure: Figure,
    handles: Sequence[Handle],
    labels: Sequence[str],
    title: str | None = None,
    columns: int | None = None,
) -> None:
    """Put one legend under the figure, where it hides nothing, and make the figure as much higher.

    Args:
        figure: A figure that has its final width.
        handles: One for each label.
        labels: Names of the handles; without any there is no legend.
        title: Heading over the labels.
        columns: Number of columns; by default, the number that fits.
    """
    if not labels:
        return
    width, height = figure.get_size_inches()
    columns = columns or legend_columns(labels, width * MM_PER_INCH)
    rows = math.ceil(len(labels) / columns) + (title is not None)
    figure.set_size_inches(width, height + (rows + 0.6) * LEGEND_ROW_MM / MM_PER_INCH)
    # its types know nothing of tuples
    figure.legend(
        cast("Sequence[Artist]", handles), labels, loc="outside lower center", ncols=columns, title=title
    )


def message(text: str) -> Drawing:
    """A figure that says why there is none."""
    figure = Drawing(COLUMN_MM, PANEL_MM / 2, text)
    axes = figure.subplots()
    say(axes, text)
    axes.set_axis_off()
    return figure


def say(axes: Axes, text: str) -> None:
    """Write in the middle of a panel that has nothing to draw."""
    axes.text(
        0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY, fontsize=8, wrap=True
    )


def line_label(axes: Axes, height: float, text: str, *, right: bool = False) -> None:
    """Name a horizontal line at one of its ends."""
    axes.annotate(
        text, (float(right), height), xycoords=("axes fraction", "data"),
        xytext=(-3 if right else 3, 2),
        textcoords="offset points", ha="right" if right else "left", color=GREY, fontsize=7,
    )  # fmt: skip


MAX_PANELS = 12
"""Series with a panel of their own; the tables have all."""
PANELS_A_ROW = 4


@dataclass(frozen=True)
class Panels:
    """A figure of several quantities (rows), each for several series (columns).

    Args:
        axes: The panels of each series, from top to bottom.
        width_mm: Width of one panel.
    """

    figure: Drawing
    axes: list[list[Axes]]
    width_mm: float

    def row(self, quantity: int) -> list[Axes]:
        """The panels of one quantity, over all series."""
        return [column[quantity] for column in self.axes]


def grid(names: Sequence[str], heights_mm: Sequence[float], file: str, titles: bool = True) -> Panels:
    """Panels for the first ``MAX_PANELS`` series, at most ``PANELS_A_ROW`` beside each other.

    The panels of a quantity share both scales; only those at the left show the values.

    Args:
        names: Names of all series.
        heights_mm: Height of a panel, for each quantity.
        file: Table that has what is left out.
        titles: Name each series over its panels.
    """
    shown = len(names[:MAX_PANELS])
    columns = min(shown, PANELS_A_ROW)
    blocks = math.ceil(shown / columns)
    width = COLUMN_MM if shown == 1 else PAGE_MM
    panel_width = width / columns
    labels = [wrapped(name, panel_width) for name in shown_names(names)[:shown]]
    if len(names) > shown:
        labels[-1] += f"\n(and {len(names) - shown} more in {file})"
    title_mm = 4.0 * max(label.count("\n") + 1 for label in labels) if titles else 0.0
    figure = Drawing(width, blocks * (sum(heights_mm) + title_mm))
    cells = figure.subplots(
        blocks * len(heights_mm), columns, squeeze=False, height_ratios=list(heights_mm) * blocks
    )
    axes = []
    for index in range(blocks * columns):
        block, column = divmod(index, columns)
        mine = [cells[block * len(heights_mm) + quantity][column] for quantity in range(len(heights_mm))]
        if index < shown:
            axes.append(mine)
            if titles:
                mine[0].set_title(labels[index])
        else:
            for unused in mine:
                unused.set_visible(False)
    for quantity in range(len(heights_mm)):
        first = axes[0][quantity]
        for index, panels in enumerate(axes[1:], start=1):
            panels[quantity].sharey(first)
            panels[quantity].tick_params(labelleft=index % columns == 0)
    return Panels(figure, axes, panel_width)


def label_left(axes: Sequence[Axes], label: str) -> None:
    """Name the value axis of the panels at the left."""
    for index in range(0, len(axes), PANELS_A_ROW):
        axes[index].set_ylabel(label)


def plain_values(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis at 1, 2 and 5 of each decade, written as one reads them.

    A short axis has a tick at every digit.
    """
    low, high = axis.get_view_interval()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    shown = np.array([])
    for steps in ((1,), (1, 2, 5), range(1, 10)) if high / low >= 200 else ((1, 2, 5), range(1, 10)):
        ticks = np.array([step * 10.0**decade for decade in decades for step in steps])
        shown = ticks[(ticks >= low) & (ticks <= high)]
        if len(shown) > 1:
            break
    axis.set_ticks(shown, labels=[f"{tick:,.10g}" for tick in shown])
    axis.set_minor_locator(NullLocator())
