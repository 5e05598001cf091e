"""Grids of panels, one or more for each series of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import NullLocator

from scalewise.analysis.report.marks import Drawing
from scalewise.analysis.report.style import COLUMN_MM, PAGE_MM, wrapped

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
    labels = [wrapped(name, panel_width) for name in names[:shown]]
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
