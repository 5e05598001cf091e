"""The figure of the ways to split devices between several trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from scalewise.analysis.report.marks import Drawing, tell
from scalewise.analysis.report.partition_figures import time_unit_of
from scalewise.analysis.report.series_lines import points_figure


def splits(answer: Mapping[str, Any], series: str) -> Drawing:
    """Draw the time until all trainings are done against the devices of each.

    Args:
        answer: ``SplitAnswer`` as plain values.
        series: Series of the answer.
    """
    ends = ("", "_low", "_high")
    known = pd.DataFrame(answer["rows"]).dropna(subset=["seconds"])
    factor, unit = time_unit_of(known["seconds"])
    column = f"time|{unit}"
    drawn = known.assign(
        series=series, **{f"{column}{end}": known[f"seconds{end}"].astype(float) / factor for end in ends}
    )
    label = f"time of {answer['trainings']} trainings ({unit})\non {answer['devices']} devices"
    figure, axes = points_figure(drawn, column, label, "{x:,.10g}")
    axes.set_xlabel("devices of each training")
    for _, row in drawn.iterrows():
        # below the interval, which a single run has not
        foot = row[column] if pd.isna(row[f"{column}_low"]) else row[f"{column}_low"]
        text = axes.annotate(
            f"{row['at_a_time']:.0f} at once",
            (row["devices"], foot),
            xytext=(0, -5),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=6.5,
        )
        tell(text, moves=True)
    return figure
