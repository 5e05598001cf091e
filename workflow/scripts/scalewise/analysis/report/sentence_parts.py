"""The words of the sentences beside figures: values with their intervals and n, and where a step went."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from scalewise.analysis.bottlenecks.time_parts import COLUMNS, COMMUNICATION, COMPUTE, STEP_PARTS
from scalewise.analysis.comparison.comparability import accuracy_lost
from scalewise.plan.formatting import format_ratio, listed, percent, point_text, points_text

SOONER = "time_to_accuracy_speedup"
LEAST_SHARE = 0.01
"""Share of a step from which on a part of it is named."""
NEARLY_ALL = 0.9
"""Share of a step that computing must take to be nearly all of it."""


def devices_text(point: Any) -> str:
    """A row of a table in words: ``8 devices of bucket-view-on``."""
    return point_text(int(point["devices"]), str(point["series"]))


def bounds(point: pd.Series, column: str, form: Callable[[float], str] = format_ratio) -> str:
    """``(1.60 to 1.80, n = 3)``; the interval is left out where there is none."""
    n = f"n = {_runs(point, column)}"
    if not _has_interval(point, column):
        return f"({n})"
    low, high = (form(known(point, f"{column}_{end}")) for end in ("low", "high"))
    return f"({low} to {high}, {n})"


def _runs(point: pd.Series, column: str) -> int:
    """Runs behind a value; of two device counts those of the smaller side."""
    columns = ["n"]
    if "speedup" in column or "efficiency" in column:
        columns.append("speedup_n")
    if column == SOONER:
        columns.append("n_reached")
    counts = [known(point, each) for each in columns]
    return int(min(runs for runs in counts if not math.isnan(runs)))


def _has_interval(point: pd.Series, column: str) -> bool:
    """Whether a value has an interval: single runs have none, and the baseline is exactly 1."""
    return known(point, f"{column}_low") < known(point, f"{column}_high")


def doubt(point: pd.Series, column: str, noun: str) -> str:
    """A clause where an interval holds 1: neither a gain nor a loss is shown.

    Args:
        point: A row of scaling.csv.
        column: Name of the value, without ``_low`` and ``_high``.
        noun: ``gain`` where more than 1 is one, ``loss`` where less is.
    """
    low, high, value = (known(point, f"{column}{end}") for end in ("_low", "_high", ""))
    if not _has_interval(point, column) or not low <= 1 <= high:
        return ""
    named = value > 1 if noun == "gain" else value < 1
    return f", no {noun} is shown" if named else ", no difference is shown"


def accuracy_lost_text(point: pd.Series, base: pd.Series) -> str:
    """A clause on the accuracy that is lost beyond doubt against the baseline."""
    columns = ["n", "final_accuracy", "final_accuracy_low", "final_accuracy_high"]
    here, there = (each.reindex(columns).astype(float) for each in (point, base))
    lost = accuracy_lost(here, there)
    return f", {points_text(lost)} of accuracy lost" if lost else ""


def known(point: pd.Series, column: str) -> float:
    """The value of a column; NaN where it is missing."""
    value = point.get(column)
    return math.nan if pd.isna(value) else float(value)


def parts_of_step(point: pd.Series) -> str:
    """Return a sentence on what took a step, the largest part first; empty if little of it is known."""
    step_seconds = known(point, "step_seconds")
    shares = [
        (known(point, part.column) / step_seconds, part.name) for part in STEP_PARTS if part.key != COMPUTE
    ]
    shares = sorted((share for share in shares if share[0] >= LEAST_SHARE), reverse=True)
    if math.isnan(known(point, COLUMNS[COMMUNICATION])):
        return " How much of it is communication is not known."
    if not shares:
        computing = known(point, COLUMNS[COMPUTE]) / step_seconds
        return " Nearly all of it is computing." if computing >= NEARLY_ALL else ""
    return f" Of it, {listed([f'{percent(share, 0)} is {name}' for share, name in shares])}."


def mean_of(point: pd.Series) -> str:
    """Return a remark on how many runs a value is the mean of."""
    runs = int(point["n"])
    return "" if runs < 2 else f" (mean of {runs} runs)"
