"""Learning curves: loss and accuracy against epochs, a line for each device count, a panel a series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from scalewise.analysis.formatting import percent
from scalewise.analysis.report.marks import EPOCHS, tell, trace
from scalewise.analysis.report.panels import grid, label_left
from scalewise.analysis.report.style import (
    GREY,
    PAGE_MM,
    PANEL_MM,
    dash,
    inches,
    legend_below,
    line_label,
    marker,
)

SPLITS = ("training", "test")
MARKS, MARKS_OF_MANY = 12, 5
"""Approximate number of marks on a curve; fewer where there are more curves than one can follow."""
MANY_CURVES = 24
FADED = 0.4
"""Opacity of a curve where some of its repeats have stopped."""

Panel = tuple[str, pd.DataFrame]
"""Title and epochs."""


def loss(epochs: pd.DataFrame) -> Figure:
    """Training and test loss against epochs by device count, a panel of each for each series.

    Args:
        epochs: Output of ``collect``; a program's losses are drawn against its steps.
    """
    if "epoch" not in epochs:
        return _loss_by_step(epochs)
    series = _panels(epochs)
    if len(series) == 1:
        figure = Figure(figsize=inches(PAGE_MM, PANEL_MM))
        pairs = [list(figure.subplots(1, 2, sharey=True))]
        for axes, split in zip(pairs[0], SPLITS, strict=True):
            axes.set_title(split)
        pairs[0][0].set_ylabel("cross entropy per sample")
    else:
        panels = grid([name for name, _ in series], (42.0, 42.0), "epochs.csv")
        figure, pairs = panels.figure, panels.axes
        for quantity, split in enumerate(SPLITS):
            label_left(panels.row(quantity), f"{split} loss\n(cross entropy)")
    for pair, (_, table) in zip(pairs, series, strict=False):
        for axes, split in zip(pair, SPLITS, strict=True):
            _draw(axes, table, f"{split.replace('training', 'train')}_loss", _counts(epochs))
        for axes in pair[-1:] if len(series) > 1 else pair:
            axes.set_xlabel("epoch")
    everywhere = [axes for pair in pairs for axes in pair]
    highest = max(axes.dataLim.ymax for axes in everywhere)
    for axes in everywhere:
        axes.set_ylim(0, highest * 1.06 if highest > 0 else 1)
    _legend(figure, everywhere[0])
    return figure


def _loss_by_step(losses: pd.DataFrame) -> Figure:
    series = _panels(losses)
    named = len(series) > 1
    panels = grid([name for name, _ in series], (PANEL_MM if not named else 42.0,), "epochs.csv", named)
    for axes, (_, table) in zip(panels.row(0), series, strict=False):
        _draw(axes, table, "loss", _counts(losses), against="step")
        axes.set_xlabel("step")
    label_left(panels.row(0), "loss as backward gets it")
    _legend(panels.figure, panels.row(0)[0])
    return panels.figure


def accuracy(epochs: pd.DataFrame, target: float | None) -> Figure:
    """Test accuracy against epochs by device count, with the target; a panel for each series.

    Args:
        epochs: Output of ``collect``.
        target: A fraction.
    """
    series = _panels(epochs)
    named = len(series) > 1
    panels = grid([name for name, _ in series], (PANEL_MM if not named else 42.0,), "epochs.csv", named)
    for axes, (_, table) in zip(panels.row(0), series, strict=False):
        if target is not None:
            axes.axhline(target, color=GREY, linestyle="--", linewidth=0.9)
            line_label(axes, target, f"target: {percent(target)}", below=True)
        _draw(axes, table, "test_accuracy", _counts(epochs))
        axes.set_xlabel("epoch")
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    label_left(panels.row(0), "test accuracy")
    _legend(panels.figure, panels.row(0)[0])
    return panels.figure


def _panels(epochs: pd.DataFrame) -> list[Panel]:
    """A panel for each series, named by its CPUs per device where that is all that varies."""
    groups = list(epochs.groupby("series", sort=False))
    cpus = [sorted(set(table["cpus_per_device"])) for _, table in groups]
    if len(groups) > 1 and len({tuple(counts) for counts in cpus}) == len(groups):
        names = [_cpus(counts) for counts in cpus]
    else:
        names = [str(name) if len(groups) > 1 else "" for name, _ in groups]
    return list(zip(names, (table for _, table in groups), strict=True))


def _cpus(counts: Sequence[float]) -> str:
    unit = "CPU" if counts == [1] else "CPUs"
    return f"{', '.join(f'{count:g}' for count in counts)} {unit} per device"


def _counts(epochs: pd.DataFrame) -> list[int]:
    return sorted(set(epochs["devices"]))


def _draw(
    axes: Axes, epochs: pd.DataFrame, column: str, counts: Sequence[int], against: str = "epoch"
) -> None:
    """Medians over the repeats that have an epoch or step, with their range as a band; a line a device count.

    Repeats that stop early leave the others: from there on the line is faded.
    """
    colours = sns.color_palette("colorblind", len(counts))
    finite = epochs.replace([np.inf, -np.inf], np.nan)
    curves = len(counts) * len(axes.figure.axes)
    marks = MARKS if curves <= MANY_CURVES else MARKS_OF_MANY
    several = max(1, round(epochs[against].nunique() / marks))
    for index, count in enumerate(counts):
        mine = finite[finite["devices"] == count].groupby(against)
        spread, repeats = mine[column].agg(["median", "min", "max"]), mine.size()
        look = {
            "color": colours[index],
            "linestyle": dash(index),
            "marker": marker(index),
            # equal curves lie on each other: the marks of the first are larger than those of the last
            "markersize": max(5.0 - 0.7 * index, 3.2),
            "markeredgecolor": "white",
            "markeredgewidth": 0.4,
            "linewidth": 1.0,
            "markevery": several,
        }
        of_all = spread[repeats == repeats.max()]
        of_some = spread[spread.index >= of_all.index.max()]
        band = axes.fill_between(
            spread.index, spread["min"], spread["max"], color=colours[index], alpha=0.18, linewidth=0
        )
        series = str(epochs["series"].iloc[0])
        tell(band, series=series)
        for points, manner in ((of_some, {"alpha": FADED}), (of_all, {"label": f"{count}"})):
            if points is of_some and len(points) == 1:
                continue  # every repeat has all epochs
            (line,) = axes.plot(points.index, points["median"], **look, **manner)
            values = {"value": points["median"], "low": points["min"], "high": points["max"]}
            values["n"] = repeats.loc[points.index]
            several_of = {"devices": count, "every": several, "against": against}
            facts = trace(EPOCHS, series, column, points.index, values, **several_of)
            tell(line, series=series, trace=facts)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    # half an epoch of room on either side, and an axis where there is but one
    room = 0.5 if against == "epoch" else max(0.5, 0.02 * (epochs[against].max() - epochs[against].min()))
    axes.set_xlim(epochs[against].min() - room, epochs[against].max() + room)


def _legend(figure: Figure, axes: Axes) -> None:
    """Name the lines once for all panels; each has the same ones."""
    handles, labels = axes.get_legend_handles_labels()
    legend_below(figure, handles, labels, title="devices")
