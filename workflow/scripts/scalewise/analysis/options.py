"""The gain of each value of a swept option over its first value, all else being equal: options.csv."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from scalewise.analysis.memory import MEMORY_GAINS, memory_gain
from scalewise.analysis.points import Place, Points
from scalewise.analysis.statistics import holm
from scalewise.plan.runs import Options

OPTION_COLUMNS = [
    "partition", "option", "value", "reference", "beside", "devices", "n",
    "throughput_ratio", "throughput_ratio_low", "throughput_ratio_high", "p", "p_adjusted", *MEMORY_GAINS,
]  # fmt: skip
"""Columns of options.csv; ``beside`` names the other options of the two."""


def option_table(
    points: Points, options: Mapping[str, Options], swept: Mapping[str, Sequence[Any]]
) -> pd.DataFrame:
    """Return a row for each value of a swept option, device count and combination of the other options.

    This is an option's gain in the rate of steps, never a speedup. ``p`` is that of no difference,
    two-sided; ``p_adjusted`` is it for all rows together, by Holm: of a study's sentences on options, one or
    more is false in at most 5 % of the studies.

    Args:
        points: All points.
        options: Options of each series, by its name.
        swept: The swept keys with their values, the reference first.
    """
    rows = list(_rows(points, options, swept))
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_adjusted"] = adjusted
    return pd.DataFrame(rows, columns=OPTION_COLUMNS)


def _rows(
    points: Points, options: Mapping[str, Options], swept: Mapping[str, Sequence[Any]]
) -> Iterator[dict[str, Any]]:
    for key, values in swept.items():
        for place in points.all:
            own = dict(options.get(place.series, ()))
            if key not in own or own[key] == values[0]:
                continue
            reference = _with_value(points, options, place, key, values[0])
            if reference is None or (ratio := points.faster(place, reference, "steps")) is None:
                continue
            above = ratio.p_above(1.0)
            yield {
                "partition": place.partition,
                "option": key,
                "value": own[key],
                "reference": values[0],
                "beside": ", ".join(
                    f"{name} {'default' if item is None else item}"
                    for name, item in own.items()
                    if name != key
                ),
                "devices": place.devices,
                "n": ratio.n,
                "p": math.nan if ratio.n < 2 else 2 * min(above, 1 - above),
                **ratio.interval().as_columns("throughput_ratio"),
                **memory_gain(points.all[place].runs, points.all[reference].runs),
            }


def _with_value(
    points: Points, options: Mapping[str, Options], place: Place, key: str, value: Any
) -> Place | None:
    """Return the point that has another value of an option, and all else equal."""
    wanted = tuple((name, value if name == key else item) for name, item in options[place.series])
    twin = next((name for name, each in options.items() if each == wanted), None)
    found = None if twin is None else place._replace(series=twin)
    return found if found in points.all else None
