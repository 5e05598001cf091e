"""Learning curves: loss and accuracy against epochs, a line for each device count, a panel a series."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from scalewise.analysis.style import DASHES, MARKERS

MAX_PANELS = 12
PANELS_A_ROW = 4
FADED = 0.4
"""Opacity of a curve where some of its repeats have stopped."""

Panel = tuple[str, pd.DataFrame]
"""Title and epochs."""


def loss(epochs: pd.DataFrame) -> Figure:
    """Training and test loss against epochs by device count, a panel of each for each series.

    Args:
        epochs: as ``collect`` makes it.
    """
    panels = _panels(epochs)
    beside = len(panels) <= PANELS_A_ROW
    shape = (2, len(panels)) if len(panels) > 1 and beside else (len(panels), 2)
    figure = Figure(figsize=(max(4.0 * shape[1], 8.0), 0.6 + 3.2 * shape[0]))
    grid = figure.subplots(*shape, sharex=True, sharey=True if len(panels) == 1 else "row", squeeze=False)
    # a row holds one panel's two splits, or one split of all panels: then pairs stand above each other
    pairs = grid.T if len(panels) > 1 and beside else grid
    for pair, (name, table) in zip(pairs, panels, strict=True):
        for axes, split in zip(pair, ("training", "test"), strict=True):
            _draw(axes, table, f"{split.replace('training', 'train')}_loss", _counts(epochs))
            axes.set_title(", ".join(filter(None, (split, name))))
            axes.set_ylim(bottom=0)
    _finish(grid, "cross entropy per sample", "upper right")
    return figure


def accuracy(epochs: pd.DataFrame, target: float | None) -> Figure:
    """Test accuracy against epochs by device count, with the target; a panel for each series.

    Args:
        epochs: as ``collect`` makes it.
        target: a fraction.
    """
    panels = _panels(epochs)
    columns = min(len(panels), PANELS_A_ROW)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(6.0 if len(panels) == 1 else 4.0 * columns, 4.0 * rows))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for unused in grid.flat[len(panels) :]:
        unused.set_visible(False)
    for axes, (name, table) in zip(grid.flat[: len(panels)], panels, strict=True):
        if target is not None:
            _draw_target(axes, target)
        _draw(axes, table, "test_accuracy", _counts(epochs))
        axes.set_title(name)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    _finish(grid, "test accuracy", "lower right")
    return figure


def _panels(epochs: pd.DataFrame) -> list[Panel]:
    """A panel for each series, named by its CPUs per device where that is all that varies."""
    groups = list(epochs.groupby("series", sort=False))
    cpus = [sorted(set(table["cpus_per_device"])) for _, table in groups]
    if len(groups) > 1 and len({tuple(counts) for counts in cpus}) == len(groups):
        names = [_cpus(counts) for counts in cpus]
    else:
        names = [str(name) if len(groups) > 1 else "" for name, _ in groups]
    panels = list(zip(names, (table for _, table in groups), strict=True))
    if len(panels) > MAX_PANELS:
        name, table = panels[MAX_PANELS - 1]
        panels[MAX_PANELS - 1] = (f"{name} (and {len(panels) - MAX_PANELS} more in epochs.csv)", table)
    return panels[:MAX_PANELS]


def _cpus(counts: Sequence[float]) -> str:
    unit = "CPU" if counts == [1] else "CPUs"
    return f"{', '.join(f'{count:g}' for count in counts)} {unit} per device"


def _counts(epochs: pd.DataFrame) -> list[int]:
    return sorted(set(epochs["devices"]))


def _draw(axes: Axes, epochs: pd.DataFrame, column: str, counts: Sequence[int]) -> None:
    """Medians over the repeats that have an epoch, with their range as a band; a line for each device count.

    Repeats that stop early leave the others: from there on the line is faded.
    """
    colours = sns.color_palette("colorblind", len(counts))
    finite = epochs.replace([np.inf, -np.inf], np.nan)
    for index, count in enumerate(counts):
        mine = finite[finite["devices"] == count].groupby("epoch")
        spread, repeats = mine[column].agg(["median", "min", "max"]), mine.size()
        dash = DASHES[(index + index // len(MARKERS)) % len(DASHES)]
        look = {
            "color": colours[index],
            "linestyle": (0, dash) if dash else "-",
            "marker": MARKERS[index % len(MARKERS)],
            # equal curves lie on each other: the marks of the first are larger than those of the last
            "markersize": max(7.5 - index, 5.0),
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
            "linewidth": 1.6,
        }
        of_all = spread[repeats == repeats.max()]
        of_some = spread[spread.index >= of_all.index.max()]
        axes.fill_between(
            spread.index, spread["min"], spread["max"], color=colours[index], alpha=0.18, linewidth=0
        )
        axes.plot(of_some.index, of_some["median"], **look, alpha=FADED)
        axes.plot(of_all.index, of_all["median"], **look, label=f"{count}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    # half an epoch of room on either side, and an axis where there is but one
    axes.set_xlim(epochs["epoch"].min() - 0.5, epochs["epoch"].max() + 0.5)


def _draw_target(axes: Axes, target: float) -> None:
    axes.axhline(target, color="0.35", linestyle="--", linewidth=1.2)
    axes.annotate(
        f"target: {target:.1%}", (0, target), xycoords=("axes fraction", "data"), xytext=(4, -11),
        textcoords="offset points", color="0.35", fontsize=9,
    )  # fmt: skip


def _finish(grid: np.ndarray, label: str, corner: str) -> None:
    """Name the axes at the edges alone, and the lines once."""
    for axes in grid[:, 0]:
        axes.set_ylabel(label)
    for column in grid.T:
        # not always of the last row, which may be shorter
        lowest = [axes for axes in column if axes.get_visible()][-1]
        lowest.set_xlabel("epoch")
        lowest.tick_params(labelbottom=True)
    last = [axes for axes in grid[0] if axes.get_visible()][-1]
    last.legend(title="devices", loc=corner)
