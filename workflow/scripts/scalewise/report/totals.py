"""The computing time to request: trainings x the cost of one, in the unit of the centre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.statistics import Interval

HOUR = 3600.0
GPU_HOURS: Mapping[str, Any] = {"name": "GPU-hours", "of": "device", "factor": 1}
"""The unit of a centre whose template sets no other."""


@dataclass(frozen=True)
class Totals:
    """The cost of a training and of all of them.

    Args:
        unit: Name of the unit.
        cost: Units of one training.
        total: Units of all trainings; None without a number of trainings.
    """

    unit: str
    cost: Interval
    total: Interval | None


def interval_of(row: Mapping[str, Any], column: str, n: float) -> Interval | None:
    """Return a value of a table with its bounds; None if it is unknown."""
    value, low, high = (row[f"{column}{end}"] for end in ("", "_low", "_high"))
    return None if pd.isna(value) else Interval(float(value), float(low), float(high), int(n))


def training_hours(point: Mapping[str, Any], clock: str, samples: int | None, no_wall: str) -> Interval | str:
    """Return the hours that a training takes on a point by a clock, or the reason why they are unknown.

    Total time of a training that is longer than a run grows with its samples, start-up and evaluation too.

    Args:
        point: A row of the points.
        clock: ``total time`` or ``throughput``.
        samples: Samples of a training; None if a run is a whole one.
        no_wall: Reason why no total time is known.
    """
    wall, rate = (
        interval_of(point, "wall_seconds", point["wall_n"]),
        interval_of(point, THROUGHPUT, point["n"]),
    )
    of_run = point["run_samples"]
    if clock == "total time":
        if wall is None:
            return no_wall
        if samples is not None and pd.isna(of_run):
            return (
                "the samples of a run are unknown. Measure whole trainings, without `samples_per_training`."
            )
        return wall.scaled((1 if samples is None else samples / of_run) / HOUR)
    if samples is None and wall is None:
        return (
            "the runs are no whole trainings. Add `samples_per_training: ...`, the samples of one training."
        )
    if rate is None or pd.isna(samples or of_run):
        return "the throughput of whole trainings is unknown. Add `samples_per_training: ...`."
    hours = float(samples or of_run) / HOUR
    return Interval(hours / rate.estimate, hours / rate.high, hours / rate.low, rate.n)


def totals(point: Mapping[str, Any], unit: Mapping[str, Any], requested: Mapping[str, Any]) -> Totals | str:
    """Return the totals of a point, or the reason why they are unknown.

    Args:
        point: A row of the points, with the ``hours`` of a training.
        unit: The centre's: ``name``, ``of`` a device or a node, and ``factor`` from its hours.
        requested: The experiment's ``trainings`` and ``unit_factor``.
    """
    paid = point["nodes"] if unit["of"] == "node" else point["billed_devices"]
    if isinstance(point["hours"], str):
        return point["hours"]
    if pd.isna(paid):
        return "the number of nodes is unknown."
    cost = point["hours"].scaled(float(paid) * float(requested["unit_factor"] or unit["factor"]))
    trainings = requested["trainings"]
    # a user's factor turns hours into a unit without a name
    name = "units" if unit == GPU_HOURS and requested["unit_factor"] else unit["name"]
    return Totals(name, cost, trainings and cost.scaled(trainings))
