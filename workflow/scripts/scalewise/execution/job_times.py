"""The time that each job of a run takes, for what a study may spend."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from scalewise.records import (
    JOB_TIMES,
    JobTime,
    JobTimes,
    RecordError,
    read_job_times,
    utc_now,
    write_json,
)


@contextmanager
def job_timed(folder: Path, shape: str, limit_seconds: float, attempt: int) -> Iterator[None]:
    """Count a job of a run, from here to the end of the block.

    A job that is killed, or that finds no room at its end, leaves the most that it may have taken.

    Args:
        folder: Holds the run's records.
        shape: Nodes x devices per node.
        limit_seconds: The job is ended after so long.
        attempt: Snakemake's count of its tries at this run, from 1.

    Raises:
        OSError: The file cannot be written.
    """
    earlier = _earlier(folder, shape)
    job, began = JobTime(started_at=utc_now(), seconds=limit_seconds, attempt=attempt), time.monotonic()
    try:
        _write(folder, shape, [*earlier, job])
        yield
    finally:
        seconds = round(time.monotonic() - began, 3)
        # where the disk is full, that is for the run to say: the most that it may have taken stays
        with suppress(OSError):
            _write(folder, shape, [*earlier, job.model_copy(update={"seconds": seconds})])


def seconds_of_earlier_tries(folder: Path, attempt: int) -> float:
    """Seconds of the tries at a run before this one, in the same snakemake.

    Args:
        folder: Holds the run's records.
        attempt: Snakemake's count of its tries, from 1.
    """
    try:
        found = read_job_times(folder)
    except RecordError:
        return 0.0
    seconds, later = 0.0, attempt
    for job in reversed(found.jobs if found is not None else ()):
        if job.attempt > later or later == 1:
            break  # of an earlier snakemake
        if job.attempt < attempt:
            seconds += job.seconds
            later = job.attempt
    return seconds


def _earlier(folder: Path, shape: str) -> list[JobTime]:
    try:
        found = read_job_times(folder)
    except RecordError:
        return []
    # of another shape were the runs of an earlier site: their devices are not these
    return found.jobs if found is not None and found.shape == shape else []


def _write(folder: Path, shape: str, jobs: list[JobTime]) -> None:
    write_json(folder / JOB_TIMES, JobTimes(shape=shape, jobs=jobs))
