"""Device counts that a study chose not to measure, as the measured ones make them expect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import DECISION, THROUGHPUT, read_json
from scalewise.analysis.rounds.choice_summary import ChoiceSummary, read_choice
from scalewise.plan.runs.rounds import UnmeasuredPoint

_COLUMNS = ["series", "devices", "chance", "device_hours", "speedup", "parallel_efficiency", THROUGHPUT]


def expected_points(choice: ChoiceSummary | None, scaling: pd.DataFrame) -> pd.DataFrame:
    """A row for each series and count that was not measured, with its expected values and their bands.

    Args:
        choice: Summary of a study that chose its device counts; None of one that measures all.
        scaling: Contents of scaling.csv, for the baselines; what it has measured is left out.

    Returns:
        Columns ``series``, ``devices``, ``chance``, ``device_hours``, and speedup, efficiency and throughput
        with their bounds under the names of scaling.csv.
    """
    rows = [] if choice is None else list(_rows(choice, scaling))
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=_COLUMNS)


def expected_throughput(folder: Path, scaling: pd.DataFrame) -> pd.DataFrame:
    """The same from the results of an experiment; none where the time to a target decided, which is no rate.

    Args:
        folder: Results of the experiment.
        scaling: Contents of its scaling.csv.
    """
    by_rate = read_json(folder / DECISION)["measure"] == "throughput"
    return expected_points(read_choice(folder) if by_rate else None, scaling)


def _rows(choice: ChoiceSummary, scaling: pd.DataFrame) -> Iterator[dict[str, Any]]:
    unmeasured = {choice.series: choice.unmeasured} | {each.series: each.unmeasured for each in choice.others}
    for series, points in unmeasured.items():
        table = scaling[(scaling["series"] == series) & (scaling["n"] > 0)]
        base = table[table["devices"] == table["baseline_devices"]]
        if len(base):
            measured, first = set(table["devices"]), base.iloc[0]
            yield from (_row(series, each, first) for each in points if each.devices not in measured)


def _row(series: str, point: UnmeasuredPoint, base: pd.Series) -> dict[str, Any]:
    sides = zip(
        ("", "_low", "_high"), (point.speedup, point.speedup_low, point.speedup_high), strict=True
    )  # fmt: skip
    values = {
        f"{name}{side}": speedup * factor
        for side, speedup in sides
        for name, factor in (
            ("speedup", 1.0),
            ("parallel_efficiency", base["devices"] / point.devices),
            (THROUGHPUT, base[THROUGHPUT]),
        )
    }
    told = {"devices": point.devices, "chance": point.chance, "device_hours": point.device_hours}
    return {"series": series, **told, **values}


def without_bounds_of_single_runs(scaling: pd.DataFrame) -> pd.DataFrame:
    """The table without the bounds of points that have one run.

    Those of a speedup take its scatter from the baseline's runs. A study that chooses its counts has many
    such points: bars beside them would look as if they had been repeated.

    Args:
        scaling: Contents of scaling.csv.
    """
    columns = [column for column in scaling if str(column).endswith(("_low", "_high"))]
    found = scaling.astype(dict.fromkeys(columns, float))
    found.loc[found["n"] == 1, columns] = float("nan")
    return found
