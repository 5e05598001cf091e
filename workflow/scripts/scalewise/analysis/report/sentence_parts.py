"""The words of the sentences beside figures: values with their intervals and n, and where a step went."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from scalewise.analysis.comparison.comparability import accuracy_lost
from scalewise.analysis.formatting import format_3sig, percent_in_digits, point_text
from scalewise.plan.terminal.words import format_ratio, listed

SOONER = "time_to_accuracy_speedup"
LEAST_SHARE = 0.01
"""Share of a step from which on a part of it is named."""
NEARLY_ALL = 0.9
"""Share of a step that computing must take to be nearly all of it."""
_WENT_TO = {
    "communication_seconds": "communication",
    "loader_seconds": "waiting for data",
    "straggler_seconds": "waiting for a slow rank",
    "jitter_seconds": "jitter",
}


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
    return f", a {noun} that is not shown" if named else ", no difference is shown"


def accuracy_lost_text(point: pd.Series, base: pd.Series) -> str:
    """A clause on the accuracy that is lost beyond doubt against the baseline."""
    columns = ["n", "final_accuracy", "final_accuracy_low", "final_accuracy_high"]
    here, there = (each.reindex(columns).astype(float) for each in (point, base))
    lost = accuracy_lost(here, there)
    return f", {lost:.1f} points of accuracy lost" if lost >= 0.05 else ""


def known(point: pd.Series, column: str) -> float:
    """The value of a column; NaN where it is missing."""
    value = point.get(column)
    return math.nan if pd.isna(value) else float(value)


def parts_of_step(point: pd.Series) -> str:
    """Clauses on where a step went, as far as that is known."""
    shares = [
        f"{percent_in_digits(share)} {'went ' if not index else ''}to {noun}"
        for index, (share, noun) in enumerate(_losses(point))
    ]
    said = f", of which {listed(shares)}" if shares else ""
    if math.isnan(known(point, "communication_seconds")):
        return f"{said}; how much of it is communication is not known"
    computing = known(point, "compute_seconds") / known(point, "step_seconds")
    return said or (", nearly all of it compute" if computing >= NEARLY_ALL else "")


def _losses(point: pd.Series) -> list[tuple[float, str]]:
    """Shares of a step that were no computing, with what they went to, the largest first."""
    step_seconds = known(point, "step_seconds")
    shares = [(known(point, column) / step_seconds, noun) for column, noun in _WENT_TO.items()]
    return sorted((share for share in shares if share[0] >= LEAST_SHARE), reverse=True)


def largest_loss(point: pd.Series, *, several: bool) -> str:
    """A clause on what took most of a step beside computing; empty where that is not known."""
    losses = _losses(point)
    # what was not counted may be larger
    if not losses or math.isnan(known(point, "communication_seconds")):
        return ""
    share, noun = losses[0]
    where = f"on {point['devices']}, " if several else ""
    return f"; {where}{percent_in_digits(share)} of the step went to {noun}"


def medians_of(point: pd.Series) -> str:
    """A remark on how many runs a value is the median of."""
    runs = int(point["n"])
    return "" if runs < 2 else f" (medians of {runs} runs)"


def milliseconds(seconds: float) -> str:
    """A time of the length of a step."""
    return f"{format_3sig(seconds * 1e3)} ms"


def rate_text(value: float) -> str:
    """A rate, in whole numbers from 100 on."""
    return format_3sig(value) if value < 100 else f"{value:,.0f}"
