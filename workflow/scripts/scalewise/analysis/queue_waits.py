"""The time that a study's jobs waited in Slurm's queue, by what its accounting recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import pandas as pd

from scalewise.analysis.accounting import Accounting
from scalewise.records import RecordError, read_history

Jobs = Mapping[str, int]
"""Jobs of a run, each with the number of times that Slurm had requeued it at its last start."""


def jobs_of_runs(runs: pd.DataFrame, runs_folder: Path) -> dict[str, Jobs]:
    """Return the jobs of the present training of each run, by the run's name.

    Args:
        runs: Rows of runs.csv.
        runs_folder: Holds a folder for each run.
    """
    found: dict[str, Jobs] = {}
    for run, last in zip(runs["run"], runs["slurm_job_id"], strict=True):
        jobs: dict[str, int] = {}
        try:
            history = read_history(runs_folder / str(run))
        except RecordError:
            history = None
        for start in history.starts[history.first :] if history is not None else []:
            if start.slurm_job_id is not None:
                jobs[start.slurm_job_id] = max(start.restart_count, jobs.get(start.slurm_job_id, 0))
        jobs.setdefault(str(last), 0)
        found[str(run)] = {job: restarts for job, restarts in jobs.items() if job.isdecimal()}
    return found


def median_waits(runs: pd.DataFrame, jobs: Mapping[str, Jobs], accounting: Accounting) -> dict[int, float]:
    """Return the median wait of the jobs by device count, in minutes; a requeued job has several waits.

    Args:
        runs: Rows of runs.csv.
        jobs: Jobs of each run.
        accounting: Slurm's records of them.
    """
    waits = defaultdict(list)
    for run, devices in zip(runs["run"], runs["devices"], strict=True):
        for job, restarts in jobs[str(run)].items():
            # an id that Slurm has used before has older records, of other jobs
            for record in accounting.of(job)[-1 - restarts :]:
                if record.wait_seconds is not None:
                    waits[int(devices)].append(record.wait_seconds)
    # Slurm's times are whole seconds
    return {devices: round(median(each) / 60, 1) for devices, each in sorted(waits.items())}
