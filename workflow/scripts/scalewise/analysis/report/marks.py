"""Meaning of a figure's marks: the numbers that the page reads, noted while they are drawn.

A trace is one estimate over device counts or epochs: the points that one artist draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.plan.formatting import format_3sig
from scalewise.plan.runs.runs import shown_names

MEASURED, EXPECTED, RUN, PART, EPOCHS = (
    "measured",
    "expected",
    "run",
    "part",
    "epochs",
)
"""Kinds of traces."""
QUANTITIES = {
    "speedup": ("speedup", "x"),
    "parallel_efficiency": ("parallel efficiency", "%"),
    THROUGHPUT: ("throughput", "samples/s"),
    "step_seconds": ("step", "ms"),
    "peak_memory_bytes": ("peak memory per device", "MB"),
    "train_loss": ("training loss", ""),
    "test_loss": ("test loss", ""),
    "loss": ("loss", ""),
    "test_accuracy": ("test accuracy", "%"),
}
"""Column -> what it holds, unit in which it is drawn. Values in % are kept as fractions."""
TRACES = "traces.json"
"""File next to the figures with the numbers behind all marks: figure -> panels, traces and message."""
DEVICE_AXIS, OTHER_AXIS = "devices", "other"
"""Group ids of horizontal axes: of device counts, and of anything else."""
MM_PER_INCH = 25.4
_DIGITS, _DIGITS_OF_CURVES = 6, 4
"""Significant digits of the numbers that the page holds; curves have many of them."""


@dataclass(frozen=True)
class Mark:
    """Meaning of an artist.

    Args:
        series: Number of the series with which it is hidden; None for none.
        trace: Number of the trace whose points it draws.
        index: Number of the one point that it draws; None if it draws all.
        shift: Points that it stands to the right of its values.
        moves: True for a text that stands at a value.
    """

    series: int | None = None
    trace: int | None = None
    index: int | None = None
    shift: float = 0.0
    moves: bool = False


class Drawing(Figure):
    """A figure that notes what its marks stand for.

    Args:
        width_mm: Width in print.
        height_mm: Height in print.
        message: Reason for drawing nothing.
    """

    def __init__(self, width_mm: float, height_mm: float, message: str = "") -> None:
        super().__init__(figsize=(width_mm / MM_PER_INCH, height_mm / MM_PER_INCH))
        self.message = message
        self.series: list[str] = []
        self.traces: list[dict[str, Any]] = []
        self.marks: dict[str, Mark] = {}


def tell(
    artist: Artist,
    *,
    series: str = "",
    trace: dict[str, Any] | None = None,
    index: int | None = None,
    shift: float = 0.0,
    moves: bool = False,
) -> None:
    """Note what an artist of a ``Drawing`` stands for, under its group id.

    Args:
        artist: Drawn as one group of the file.
        series: Name of the series with which it is hidden.
        trace: The points that the artist draws; several artists may share one.
        index: See ``Mark``.
        shift: See ``Mark``.
        moves: See ``Mark``.
    """
    figure = artist.get_figure(root=True)
    assert isinstance(figure, Drawing)
    number = place = None
    if series:
        figure.series += [] if series in figure.series else [series]
        place = figure.series.index(series)
    if trace is not None:
        if not any(trace is known for known in figure.traces):
            figure.traces.append(trace)
        number = next(each for each, known in enumerate(figure.traces) if known is trace)
    gid = f"mark{len(figure.marks)}"
    figure.marks[gid] = Mark(place, number, index, shift, moves)
    artist.set_gid(gid)


def trace(
    kind: str,
    series: str,
    quantity: str,
    x: Iterable[float],
    values: Mapping[str, Iterable[float]],
    every: int = 1,
    **more: Any,
) -> dict[str, Any]:
    """The points that an artist draws, as numbers and as text.

    Args:
        kind: Says what the values are: measured, expected.
        series: Name of the series.
        quantity: Column, or the name of a bar's part with its unit after a bar.
        x: Device counts, epochs or steps.
        values: ``value``, and ``low``, ``high``, ``n`` if they are known; unknown ones are NaN.
        every: Step between the points that have a mark, which has a text; 0 for a line without marks.
        more: Further facts: ``devices`` of a curve and what it is drawn ``against``; of single runs the
            ``place`` among the runs of their point.
    """
    label, unit = QUANTITIES.get(quantity) or quantity.split("|")
    digits = _DIGITS_OF_CURVES if kind == EPOCHS else _DIGITS
    columns: dict[str, Any] = {name: _numbers(column, digits) for name, column in values.items()}
    columns = {name: column for name, column in columns.items() if any(each is not None for each in column)}
    points = _numbers(x)
    unknown: list[float | None] = [None] * len(points)
    value = columns.get("value", unknown)
    sides = (columns.get(name, unknown) for name in ("low", "high", "n"))
    marked = list(zip(value, *sides, strict=True))[::every] if every else []
    texts = {
        "text": ["" if each is None else _text(each, unit) for each, *_ in marked],
        "interval": [_interval(kind, low, high, n, unit) for _, low, high, n in marked],
    }
    if not any(texts["interval"]):
        del texts["interval"]
    if len(set(columns.get("n", []))) == 1:
        columns["n"] = columns["n"][0]
    named = {"kind": kind, "series": series, "label": label, "unit": unit, "every": every, "x": points}
    return named | {"value": value} | columns | texts | more


def _text(value: float, unit: str) -> str:
    """A value without its unit, which the page adds."""
    if unit == "x":
        return f"{value:.2f}"
    return f"{100 * value:.1f}" if unit == "%" else format_3sig(value)


def _interval(kind: str, low: float | None, high: float | None, n: float | None, unit: str) -> str:
    """The ends of an interval; a baseline, fewer than three runs and a single curve have none."""
    if low is None or high is None:
        few = "one run" if n == 1 else "two runs" if n == 2 else ""
        return few if kind == MEASURED else ""
    if kind == EPOCHS and n == 1:
        return ""
    is_baseline = kind == MEASURED and low == high == 1
    return "the baseline" if is_baseline else f"{_text(low, unit)} to {_text(high, unit)}"


def point_values(points: pd.DataFrame, column: str) -> dict[str, Iterable[float]]:
    """A column of a table of points with what is known about it, as ``trace`` takes it.

    Args:
        points: A row for each device count.
        column: Estimates; their bounds are in the columns of that name with ``_low`` and ``_high``.
    """
    # a ratio rests on the runs of two points
    of_two = "speedup" in column or "efficiency" in column
    own = next((name for name in (f"{column}_n", "speedup_n") if of_two and name in points), None)
    n = points.get("n") if own is None else points[own].fillna(points["n"])
    names = {
        "value": column,
        "low": f"{column}_low",
        "high": f"{column}_high",
    }
    values: dict[str, Any] = {name: points[source] for name, source in names.items() if source in points}
    if n is not None:
        values["n"] = n
    return values


def tell_legend(figure: Figure, names: Sequence[str]) -> None:
    """Let the entries of the legends hide with the series that they name.

    Args:
        figure: A figure with its legend.
        names: Names of series; other labels are of no series.
    """
    series = dict(zip(shown_names(names), names, strict=True))
    for legend in figure.legends:
        # the legend's own artists: those it was made from are not drawn
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            name = series.get(text.get_text())
            if handle is not None and name is not None:
                tell(handle, series=name)
                tell(text, series=name)


def name_panels(panels: Sequence[Axes]) -> None:
    """Give panels and their horizontal axes group ids."""
    for number, axes in enumerate(panels):
        axes.set_gid(f"panel{number}")
        axes.xaxis.set_gid(axes.xaxis.get_gid() or OTHER_AXIS)


def panel_facts(axes: Axes, box: Sequence[float], *, stacked: bool) -> dict[str, Any]:
    """A panel's place, axes and title, and which of its axes can be linear or logarithmic.

    Args:
        axes: A panel that was drawn.
        box: Left, top, right and bottom in points.
        stacked: True for bars of parts, whose heights mean nothing on a logarithmic axis.
    """
    by_value = not stacked and not isinstance(axes.yaxis.get_major_formatter(), PercentFormatter)
    by_devices = axes.xaxis.get_gid() == DEVICE_AXIS
    return {
        "box": list(box),
        "x": [*_numbers(axes.get_xlim()), axes.get_xscale()],
        "y": [*_numbers(axes.get_ylim()), axes.get_yscale()],
        "switch": "x" * by_devices + "y" * by_value,
        "title": axes.get_title().replace("\n", " "),
    }


def _numbers(values: Iterable[float], digits: int = _DIGITS) -> list[float | None]:
    """Values with as many digits as a reader can use; whole ones as such, unknown ones as None."""
    return [_number(float(value), digits) for value in values]


def _number(value: float, digits: int) -> float | None:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
