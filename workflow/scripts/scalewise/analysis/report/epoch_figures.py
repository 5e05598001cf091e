"""Learning curves: accuracy and loss against epochs and against time, a line for each device count.

Each series has a panel, or a column of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from scalewise.analysis.report.marks import EPOCHS, Drawing, tell, trace
from scalewise.analysis.report.style import (
    GREY,
    PAGE_MM,
    PANEL_MM,
    PANELS_A_ROW,
    dash,
    grid,
    label_left,
    legend_below,
    marker,
    plain_values,
)
from scalewise.plan.formatting import format_exact

EPOCH, STEP, SECONDS = "epoch", "step", "elapsed_train_seconds"
"""Columns that curves are drawn against."""
AGAINST = {EPOCH: "epoch", STEP: "step", SECONDS: "seconds of training"}
SPLITS = ("test", "training")
ROW_MM = 40.0
"""Height of a panel that has others above or below it."""
MARKS, MARKS_OF_MANY = 12, 5
"""Approximate number of marks on a curve; fewer where there are more curves than one can follow."""
MANY_CURVES = 24
FADED = 0.4
"""Opacity of a curve where some of its repeats have stopped."""
LOGARITHMIC_LOSS, LOGARITHMIC_TIME = 3.0, 4.0
"""Ratio of the highest loss to the lowest, and of the longest training to the shortest, from which an axis is
logarithmic."""


class Panel(NamedTuple):
    """A panel with what it shows.

    Args:
        epochs: Rows of one series.
        column: Value axis.
        against: A key of ``AGAINST``.
    """

    axes: Axes
    epochs: pd.DataFrame
    column: str
    against: str


class _Percent(PercentFormatter):
    """Shares in percent, with as many places after the point as the ticks need."""

    def __init__(self) -> None:
        super().__init__(1, symbol=" %")

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return a label for each tick, all with the same number of places."""
        shown = (f"{100 * value:.6g}" for value in values)
        places = max((len(text.partition(".")[2]) for text in shown), default=0)
        return [f"{100 * value:.{places}f} %" for value in values]


def loss(epochs: pd.DataFrame, device: str = "device") -> Drawing:
    """Draw test and training loss by device count.

    Args:
        epochs: Output of ``collect``; a program's losses are drawn against its steps.
        device: Name of a device, for instance GPU.
    """
    if EPOCH not in epochs:
        figure, panels = _layout(epochs, {"loss": "loss as backward gets it"}, device)
    else:
        columns = {f"{split.replace('training', 'train')}_loss": f"{split} loss" for split in SPLITS}
        figure, panels = _layout(epochs, columns, device)
    for column in dict.fromkeys(panel.column for panel in panels):
        _loss_axis([panel.axes for panel in panels if panel.column == column], epochs[column])
    _legend(figure, panels, device)
    return figure


def accuracy(epochs: pd.DataFrame, target: float | None, device: str = "device") -> Drawing:
    """Draw test accuracy by device count, with the target.

    Args:
        epochs: Output of ``collect``.
        target: A fraction.
        device: Name of a device, for instance GPU.
    """
    figure, panels = _layout(epochs, {"test_accuracy": "test accuracy"}, device)
    for panel in panels:
        panel.axes.yaxis.set_major_formatter(_Percent())
        if target is not None:
            panel.axes.axhline(target, color=GREY, linestyle="--", linewidth=0.9)
            if _right(panel) == max(map(_right, panels)):
                _name_target(panel.axes, target)
    _legend(figure, panels, device)
    return figure


def _layout(epochs: pd.DataFrame, columns: dict[str, str], device: str) -> tuple[Drawing, list[Panel]]:
    """Draw columns in panels: of one series beside each other, of several in a column for each.

    Args:
        epochs: Output of ``collect``.
        columns: Names of the value axes by column.
        device: Name of a device.
    """
    series = _series(epochs, device)
    against = [STEP] if EPOCH not in epochs else [EPOCH, SECONDS]
    if len(series) > PANELS_A_ROW:
        against = against[:1]  # the panels of one series would be pages apart
    rows = [(column, each) for column in columns for each in against]
    if len(series) == 1 and len(against) > 1:
        height = PANEL_MM if len(columns) == 1 else len(columns) * ROW_MM
        figure = Drawing(PAGE_MM, height)
        cells = figure.subplots(len(columns), len(against), sharey="row", squeeze=False)
        panels = [Panel(axes, series[0][1], *row) for axes, row in zip(cells.flat, rows, strict=True)]
        for axes, label in zip(cells[:, 0], columns.values(), strict=True):
            axes.set_ylabel(label)
    else:
        heights = [PANEL_MM if len(series) == len(rows) == 1 else ROW_MM] * len(rows)
        made = grid([name for name, _ in series], heights, "epochs.csv", titles=len(series) > 1)
        figure = made.figure
        panels = [
            Panel(axes, table, *row)
            for number, row in enumerate(rows)
            for axes, (_, table) in zip(made.row(number), series, strict=False)
        ]
        for number, (column, _) in enumerate(rows):
            label_left(made.row(number), columns[column])
    for panel in panels:
        _draw(panel, sorted(set(epochs["devices"])), len(panels))
    _time_axis([panel.axes for panel in panels if panel.against == SECONDS], epochs)
    return figure, panels


def _series(epochs: pd.DataFrame, device: str) -> list[tuple[str, pd.DataFrame]]:
    """Return the epochs of each series, named by its CPUs per device where that is all that varies."""
    groups = list(epochs.groupby("series", sort=False))
    cpus = [sorted(set(table["cpus_per_device"])) for _, table in groups]
    if len(groups) > 1 and len({tuple(counts) for counts in cpus}) == len(groups):
        names = [_cpus(counts, device) for counts in cpus]
    else:
        names = [str(name) if len(groups) > 1 else "" for name, _ in groups]
    return list(zip(names, (table for _, table in groups), strict=True))


def _cpus(counts: Sequence[float], device: str) -> str:
    unit = "CPU" if counts == [1] else "CPUs"
    return f"{', '.join(f'{count:g}' for count in counts)} {unit} per {device}"


def _right(panel: Panel) -> int:
    """Return the column of a panel, counted from 1."""
    place = panel.axes.get_subplotspec()
    assert place is not None
    return place.colspan.stop


def _name_target(axes: Axes, target: float) -> None:
    """Name the target's line to the right of the panel, where no curve is."""
    text = f"target\n{format_exact(round(100 * target, 6))} %"
    axes.annotate(
        text, (1.0, target), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
        va="center", color=GREY, fontsize=7, annotation_clip=False,
    )  # fmt: skip


def _draw(panel: Panel, counts: Sequence[int], panels: int) -> None:
    """Medians over the repeats that have an epoch or step, with their range as a band; a line a device count.

    Against time a mark is at the median of the seconds, with their range as a bar. Repeats that stop early
    leave the others: from there on the line is faded.
    """
    axes, epochs, column, against = panel
    by = STEP if against == STEP else EPOCH
    colours = sns.color_palette("colorblind", len(counts))
    finite = epochs.replace([np.inf, -np.inf], np.nan)
    marks = MARKS if len(counts) * panels <= MANY_CURVES else MARKS_OF_MANY
    several = max(1, round(epochs[by].nunique() / marks))
    series = str(epochs["series"].iloc[0])
    for index, count in enumerate(counts):
        mine = finite[finite["devices"] == count].groupby(by)
        spread, repeats = mine[column].agg(["median", "min", "max"]), mine.size()
        places = mine[against].agg(["median", "min", "max"]) if against != by else None
        x = pd.Series(spread.index, spread.index) if places is None else places["median"]
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
            x, spread["min"], spread["max"], color=colours[index], alpha=0.18, linewidth=0
        )
        tell(band, series=series)
        if places is not None and repeats.max() > 1:
            marked = places.loc[of_all.index[::several]]
            heights = spread.loc[marked.index, "median"]
            bars = axes.hlines(heights, marked["min"], marked["max"], color=colours[index], linewidth=0.7)
            tell(bars, series=series)
        for points, manner in ((of_some, {"alpha": FADED}), (of_all, {"label": f"{count}"})):
            if points is of_some and len(points) == 1:
                continue  # every repeat has all epochs
            (line,) = axes.plot(x[points.index], points["median"], **look, **manner)
            values = {"value": points["median"], "low": points["min"], "high": points["max"]}
            values["n"] = repeats.loc[points.index]
            of_curve = {"devices": count, "against": AGAINST[against]}
            facts = trace(EPOCHS, series, column, x[points.index], values, several, **of_curve)
            tell(line, series=series, trace=facts)
    axes.set_xlabel("training time (s)" if against == SECONDS else AGAINST[against])
    if against == SECONDS:
        return
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    # half an epoch of room on either side, and an axis where there is but one
    room = 0.5 if by == EPOCH else max(0.5, 0.02 * (epochs[by].max() - epochs[by].min()))
    axes.set_xlim(epochs[by].min() - room, epochs[by].max() + room)


def _time_axis(shown: Sequence[Axes], epochs: pd.DataFrame) -> None:
    """Give all panels one axis of time, so that a series that is faster looks so."""
    if not shown:
        return
    seconds = epochs[SECONDS]
    ends = epochs.groupby("run")[SECONDS].max()
    logarithmic = ends.max() / ends.min() >= LOGARITHMIC_TIME
    for axes in shown:
        if logarithmic:
            axes.set_xscale("log")
            axes.set_xlim(seconds.min() / 1.15, seconds.max() * 1.15)
            plain_values(axes.xaxis)
        else:
            axes.set_xlim(0, seconds.max() * 1.03)


def _loss_axis(shown: Sequence[Axes], losses: pd.Series) -> None:
    """Let the axis of a loss show its end as well as its beginning."""
    finite = losses[np.isfinite(losses)]
    low, high = finite.min(), finite.max()
    if not low > 0 or high / low < LOGARITHMIC_LOSS:
        return
    for axes in shown:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.1, high * 1.1)
        plain_values(axes.yaxis)


def _legend(figure: Drawing, panels: Sequence[Panel], device: str) -> None:
    """Name the lines once for all panels, and say of how many runs they are."""
    handles, labels = panels[0].axes.get_legend_handles_labels()
    points = pd.concat([panel.epochs for panel in panels]).groupby(["series", "devices"])["run"].nunique()
    least, most = points.min(), points.max()
    n = f"n = {most}" if least == most else f"n = {least} to {most}"
    said = f"median of {n} runs, band from lowest to highest" if most > 1 else "single runs, n = 1"
    devices = f"{device}{'es' if device.endswith('s') else 's'}"
    legend_below(figure, handles, labels, title=f"{devices} ({said})")
