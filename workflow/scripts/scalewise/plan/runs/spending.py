"""Count the device-hours that a study has spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scalewise.records import RECORD, RecordError, read_failure, read_run, seconds_between


def device_hours(seconds: float, devices: int, billed: Mapping[int, float]) -> float:
    """Return the device-hours, as billed, of a job.

    Args:
        seconds: Length of the job.
        devices: Devices that it uses.
        billed: Devices that are paid, by device count, if they are more than that.
    """
    return billed.get(devices, float(devices)) * seconds / 3600


@dataclass(frozen=True)
class Spending:
    """Cost of the runs in a folder, failed ones included.

    Args:
        seconds: Length of all jobs of each run together, by the run's name.
        device_hours: Cost of all runs, as billed.
    """

    seconds: Mapping[str, float]
    device_hours: float

    @classmethod
    def of(cls, runs_folder: Path, billed: Mapping[int, float]) -> Spending:
        """Read the cost of the runs in a folder.

        Args:
            runs_folder: Holds a folder for each run.
            billed: Devices that are paid, by device count, where they are more than a run uses.
        """
        seconds, hours = {}, 0.0
        for folder in sorted(runs_folder.iterdir()) if runs_folder.exists() else ():
            cost = _seconds_and_devices(folder)
            if cost is None:
                continue
            seconds[folder.name], devices = cost
            hours += device_hours(seconds[folder.name], devices, billed)
        return cls(seconds, hours)


def _seconds_and_devices(folder: Path) -> tuple[float, int] | None:
    """Return the seconds of a run, or of its failed tries, and its devices; None if no record has them."""
    try:
        if (failure := read_failure(folder)) is not None:
            return failure.seconds, failure.definition.shape.world_size
        if not (folder / RECORD).exists():
            return None
        summary = read_run(folder)
    except RecordError:
        return None
    if summary.provenance is None:
        return None
    origin = summary.provenance
    seconds = origin.failed_seconds + seconds_between(origin.started_at, origin.ended_at)
    return seconds, summary.definition.shape.world_size
