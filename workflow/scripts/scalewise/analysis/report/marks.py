"""The meaning of a figure's marks, told to the drawing, so that the page can say it again.

An artist carries its facts as its group id; ``svg_file`` reads them from the file that matplotlib writes.
A trace is one estimate over device counts or epochs: the points that one artist draws.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.report.style import DEVICE_AXIS

MEASURED, EXPECTED, RUN, PART, EPOCHS, LAW, PREDICTED = (
    "measured",
    "expected",
    "run",
    "part",
    "epochs",
    "law",
    "predicted",
)
"""Kinds of traces."""
QUANTITIES = {
    "speedup": ("speedup", "x"),
    "parallel_efficiency": ("parallel efficiency", "%"),
    "statistical_efficiency": ("statistical efficiency", "%"),
    "accuracy_efficiency": ("efficiency to the target", "%"),
    THROUGHPUT: ("throughput", "samples/s"),
    "step_seconds": ("step", "ms"),
    "peak_memory_bytes": ("peak memory per device", "MB"),
    "train_loss": ("training loss", ""),
    "test_loss": ("test loss", ""),
    "loss": ("loss", ""),
    "test_accuracy": ("test accuracy", "%"),
}
"""Column -> what it holds, unit in which it is drawn. Values in % are kept as fractions."""
_SIGNIFICANT, _OF_CURVES = 6, 4
"""Digits of values; curves have many of them, each less telling."""
X_AXIS, Y_AXIS = "axis x", "axis y"
"""Group ids of the axes of a panel."""


def tell(artist: Artist, **facts: Any) -> None:
    """Let an artist carry what it stands for.

    Args:
        artist: Drawn by itself, as one group of the file.
        facts: ``series`` hides with that series; ``trace`` are the points that the artist draws, ``index``
            the one of them where it draws one; ``hatch`` is the pattern of a bar; ``moves`` says that a text
            stands at a value, ``shift`` how many points the marks stand beside theirs.
    """
    artist.set_gid(json.dumps(facts, sort_keys=True))


def trace(
    kind: str,
    series: str,
    quantity: str,
    x: Iterable[float],
    values: Mapping[str, Iterable[float]],
    **more: Any,
) -> dict[str, Any]:
    """The points that an artist draws, for a reader.

    Args:
        kind: Tells what the values are: measured, expected, of a law.
        series: Name of the series.
        quantity: Column, or the name of a bar's part with its unit after a bar.
        x: Device counts, epochs or steps.
        values: ``value``, and ``low``, ``high``, ``n`` where they are known; unknown ones are NaN.
        more: Further facts of the trace, for instance ``devices`` of a curve over epochs.
    """
    label, unit = QUANTITIES.get(quantity) or quantity.split("|")
    digits = _OF_CURVES if kind == EPOCHS else _SIGNIFICANT
    known = {name: _numbers(column, digits) for name, column in values.items()}
    known = {name: column for name, column in known.items() if any(each is not None for each in column)}
    facts = {"kind": kind, "series": series, "label": label, "unit": unit, "x": _numbers(x)}
    return facts | known | more


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


def tell_legend(figure: Figure, names: Collection[str]) -> None:
    """Let the entries of the legends carry the series that they name.

    Args:
        figure: A figure with its legend.
        names: Names of series; other labels are of no series.
    """
    for legend in figure.legends:
        # the legend's own artists: those it was made from are not drawn
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if handle is not None and text.get_text() in names:
                tell(handle, series=text.get_text())
                tell(text, series=text.get_text())


def tell_panels(figure: Figure, *, stacked: bool) -> None:
    """Let every panel carry its axes: limits, scale, and which of them may be logarithmic.

    Args:
        figure: A figure with its final limits.
        stacked: The panels hold bars of parts, whose heights mean nothing on a logarithmic axis.
    """
    for axes in figure.axes:
        if not axes.axison or not axes.get_visible():
            continue
        by_value = not stacked and not isinstance(axes.yaxis.get_major_formatter(), PercentFormatter)
        by_devices = axes.xaxis.get_gid() == DEVICE_AXIS
        axes.xaxis.set_gid(X_AXIS)
        axes.yaxis.set_gid(Y_AXIS)
        tell(
            axes,
            panel={
                "x": [*_numbers(axes.get_xlim()), axes.get_xscale()],
                "y": [*_numbers(axes.get_ylim()), axes.get_yscale()],
                "switch": "x" * by_devices + "y" * by_value,
                "of": [axes.get_xlabel(), axes.get_ylabel()],
                "title": axes.get_title().replace("\n", " "),
            },
        )


def _numbers(values: Iterable[float], digits: int = _SIGNIFICANT) -> list[float | None]:
    """Values with as many digits as a reader can use; whole ones as such, unknown ones as None."""
    return [_number(float(value), digits) for value in values]


def _number(value: float, digits: int) -> float | None:
    if not np.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() else short
