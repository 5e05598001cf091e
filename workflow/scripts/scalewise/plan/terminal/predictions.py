"""Predictions of each device count, as the plan's table shows them."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.plan.config.shape import Shape
from scalewise.plan.formatting import significant
from scalewise.records import read_regular

PREDICTION, REMARKS = "prediction.csv", "prediction.json"
PROJECTION, REMARKS_ON_PROJECTION = "projection.csv", "projection.json"
"""The same files once the study has run, from its steps on a few nodes."""


def latest_prediction(folder: Path) -> tuple[Path, Path]:
    """Return the files of the prediction and of its remarks: those of the projection, unless it is older.

    Args:
        folder: The experiment's results.
    """
    made, projected = folder / PREDICTION, folder / PROJECTION
    try:
        if projected.stat().st_mtime_ns >= made.stat().st_mtime_ns:
            return projected, folder / REMARKS_ON_PROJECTION
    except OSError:
        pass  # there is no projection; one without a prediction is an earlier configuration's
    return made, folder / REMARKS


@dataclass(frozen=True)
class PredictedPoint:
    """One device count of one series, as it was predicted.

    Args:
        series: The series' name.
        speedup: Over one device.
        speedup_low: Lower end of the speedup's band.
        speedup_high: Upper end of the speedup's band.
        efficiency: Speedup over devices.
        device_hours_per_epoch: Device-hours of training only; None if the samples of an epoch are unknown.
        interpolated: Whether computing was interpolated between batch sizes that were timed.
    """

    series: str
    shape: Shape
    speedup: float
    speedup_low: float
    speedup_high: float
    efficiency: float
    device_hours_per_epoch: float | None = None
    interpolated: bool = False

    @property
    def band(self) -> str:
        """``3.4 (3.1 to 3.6)``; plain 1 for one device."""
        if self.shape.world_size == 1:
            return "1"
        speedup, low, high = (
            significant(value, 2) for value in (self.speedup, self.speedup_low, self.speedup_high)
        )
        return f"{speedup} ({low} to {high})"


def read_predictions(folder: Path) -> dict[tuple[str, Shape], PredictedPoint]:
    """Read the predictions of an experiment's results folder; none if there is no complete table of them."""
    points = {}
    try:
        text = read_regular(latest_prediction(folder)[0]).decode()
        for row in csv.DictReader(io.StringIO(text, newline="")):
            point = _point(row)
            points[point.series, point.shape] = point
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return points


def read_remarks(folder: Path) -> list[str]:
    """Return why series have no prediction, and what limits those that have one.

    Args:
        folder: The experiment's results.
    """
    try:
        remarks = json.loads(read_regular(latest_prediction(folder)[1]))
        return [*map(str, remarks["refused"].values()), *map(str, remarks["notes"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _point(row: Mapping[str, str]) -> PredictedPoint:
    """Read a row of the table."""

    def finite(key: str) -> float:
        value = float(row[key])
        if not math.isfinite(value):
            raise ValueError(f"{key} is {value}")
        return value

    return PredictedPoint(
        series=row["series"],
        shape=Shape.parse(row["shape"]),
        speedup=finite("speedup"),
        speedup_low=finite("speedup_low"),
        speedup_high=finite("speedup_high"),
        efficiency=finite("parallel_efficiency"),
        device_hours_per_epoch=finite("device_hours_per_epoch") if row["device_hours_per_epoch"] else None,
        interpolated=row.get("interpolated") == str(True),
    )
