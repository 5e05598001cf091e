"""The time that a study's jobs waited in Slurm's queue, by what its accounting recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from statistics import median

import pandas as pd

from scalewise.analysis.accounting import Accounting

Jobs = Mapping[str, int]
"""Jobs of a run, each with the number of times that Slurm had requeued it at its last start."""


def jobs_of_runs(runs: pd.DataFrame) -> dict[str, Jobs]:
    """Return the job of each run, by the run's name.

    Args:
        runs: Rows of runs.csv.
    """
    found: dict[str, Jobs] = {}
    for run, job, restarts in zip(runs["run"], runs["slurm_job_id"], runs["restart_count"], strict=True):
        found[str(run)] = {str(job): int(restarts)} if str(job).isdecimal() else {}
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
