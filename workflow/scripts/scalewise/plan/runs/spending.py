"""Count the device-hours that a study has spent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scalewise.records import RecordError, read_failure, read_run, seconds_between


def device_hours(seconds: float, devices: int, billed: Mapping[int, float]) -> float:
    """Return the device-hours, as billed, of a job.

    Args:
        seconds: Length of the job.
        devices: Devices that it uses.
        billed: Devices that are paid, by device count, if they are more than that.
    """
    return billed.get(devices, float(devices)) * seconds / 3600


def spent_device_hours(runs_folder: Path, billed: Mapping[int, float], partition: str) -> float:
    """Return the device-hours of all runs in a folder, failed ones included, by those records that are whole.

    Args:
        runs_folder: Holds a folder for each run.
        billed: Devices that are paid, by device count, if they are more than a run uses.
        partition: Counts the runs on this one only.
    """
    hours = 0.0
    for folder in sorted(runs_folder.glob("*")):
        with suppress(RecordError):
            seconds = 0.0
            if (failed := read_failure(folder)) is not None:
                definition, seconds = failed.definition, failed.seconds
            else:
                definition, origin = (found := read_run(folder)).definition, found.provenance
                if origin is not None:
                    seconds = origin.failed_seconds + seconds_between(origin.started_at, origin.ended_at)
            if definition.partition == partition:
                hours += device_hours(seconds, definition.shape.world_size, billed)
    return hours
