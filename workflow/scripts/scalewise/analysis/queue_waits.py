"""The time that a study's jobs waited in Slurm's queue, by what its accounting recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from scalewise.analysis.accounting import NOT_STATED, Accounting, JobRecord, read_accounting
from scalewise.analysis.analysis_spec import MEASURED_WAITS, AnalysisSpec
from scalewise.plan.config.slurm import minutes_for
from scalewise.records import RecordError, read_history

QUEUE_WAIT_COLUMNS = [
    "run", "series", "devices", "slurm_job_id", "partition", "nodes", "submitted", "eligible", "started",
    "wait_seconds", "note",
]  # fmt: skip
"""Columns of queue_waits.csv: a row for each stay of a job in the queue. Times are UTC, ISO 8601."""

NO_RECORD = f"{NOT_STATED}Slurm's accounting has no record of the job"
NOT_STARTED = "the job had not started"
NEGATIVE = f"{NOT_STATED}Slurm recorded a start before the job could start"


class QueueWait(NamedTuple):
    """The waits of jobs with equally many devices, in seconds.

    Args:
        n: Number of waits.
    """

    n: int
    median: float
    lowest: float
    highest: float


class RunJob(NamedTuple):
    """A job of a run.

    Args:
        restarts: Number of times that Slurm had requeued it at its last start.
    """

    job: str
    restarts: int


def recorded_jobs(runs: pd.DataFrame, runs_folder: Path) -> tuple[dict[str, list[RunJob]], Accounting]:
    """Return the jobs of each run, and what Slurm recorded of all of them.

    Args:
        runs: Rows of runs.csv.
        runs_folder: Holds a folder for each run.
    """
    jobs = jobs_of_runs(runs, runs_folder)
    return jobs, read_accounting(each.job for of_run in jobs.values() for each in of_run)


def jobs_of_runs(runs: pd.DataFrame, runs_folder: Path) -> dict[str, list[RunJob]]:
    """Return the jobs of the present training of each run, by the run's name.

    Args:
        runs: Rows of runs.csv.
        runs_folder: Holds a folder for each run.
    """
    found = {}
    for run, last in zip(runs["run"], runs.reindex(columns=["slurm_job_id"])["slurm_job_id"], strict=True):
        jobs: dict[str, int] = {}
        try:
            history = read_history(runs_folder / str(run))
        except RecordError:
            history = None
        for start in history.starts[history.first :] if history is not None else []:
            if start.slurm_job_id is not None:
                jobs[start.slurm_job_id] = max(start.restart_count, jobs.get(start.slurm_job_id, 0))
        # read_csv makes numbers of ids if a run has none
        jobs.setdefault(str(last).removesuffix(".0"), 0)
        found[str(run)] = [RunJob(job, restarts) for job, restarts in jobs.items() if job.isdecimal()]
    return found


def queue_waits_table(
    runs: pd.DataFrame, jobs: Mapping[str, Sequence[RunJob]], accounting: Accounting | None
) -> pd.DataFrame:
    """Return a row for each time that a job of a run was in the queue.

    Args:
        runs: Rows of runs.csv.
        jobs: Jobs of each run.
        accounting: Slurm's records of them. A job without any has one row, with the reason. None on a
            site without Slurm: no row.
    """
    if accounting is None:
        return pd.DataFrame(columns=QUEUE_WAIT_COLUMNS)
    rows = [
        {"run": run["run"], "series": run["series"], "devices": run["devices"], "slurm_job_id": each.job}
        | row
        for _, run in runs.iterrows()
        for each in jobs.get(str(run["run"]), [])
        # an id that Slurm has used before has older records, of other jobs
        for row in _rows(accounting.of(each.job)[-1 - each.restarts :], accounting.reason or NO_RECORD)
    ]
    return pd.DataFrame(rows, columns=QUEUE_WAIT_COLUMNS)


def _rows(records: Sequence[JobRecord], reason: str) -> list[dict[str, Any]]:
    if not records:
        return [{"note": reason}]
    return [
        {
            "partition": record.partition,
            "nodes": record.nodes,
            "submitted": _date(record.submitted),
            "eligible": _date(record.eligible),
            "started": _date(record.started),
            "wait_seconds": record.wait_seconds,
            "note": _note(record),
        }
        for record in records
    ]


def _note(record: JobRecord) -> str:
    if record.wait_seconds is not None:
        return ""
    return NOT_STARTED if record.started is None else NEGATIVE


def _date(moment: int | None) -> str | None:
    return None if moment is None else datetime.fromtimestamp(moment, UTC).isoformat()


def waits_by_devices(waits: pd.DataFrame) -> dict[int, QueueWait]:
    """Return the known waits of queue_waits.csv by device count, in order; a requeued job has several."""
    known = waits[waits["wait_seconds"].notna()]
    return {int(each["devices"].iloc[0]): _summary(each) for _, each in known.groupby("devices")}


def waits_by_run(waits: pd.DataFrame) -> dict[str, float]:
    """Return the seconds that each run waited in all; runs with an unknown wait are missing."""
    return {
        str(run): float(each["wait_seconds"].sum())
        for run, each in waits.groupby("run")
        if each["wait_seconds"].notna().all()
    }


def with_measured_waits(
    experiment: AnalysisSpec, waits: pd.DataFrame, counts: Iterable[int] = ()
) -> AnalysisSpec:
    """Return an experiment with the median of its jobs' waits, unless the site file states waits.

    Args:
        experiment: The experiment, the way the plan defined it.
        waits: Contents of queue_waits.csv.
        counts: Device counts that get a wait although none of their jobs has one, the way stated waits do.
    """
    measured = waits_by_devices(waits)
    if experiment.queue_minutes or not measured:
        return experiment
    # Slurm's times are whole seconds
    minutes = {devices: round(wait.median / 60, 1) for devices, wait in measured.items()}
    others = {devices: minutes_for(devices, minutes) for devices in counts}
    return replace(experiment, queue_minutes=others | minutes, queue_source=MEASURED_WAITS)


def wait_rows(waits: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each device count and partition with a known wait: the waits, and their dates."""
    known = waits[waits["wait_seconds"].notna()]
    rows = []
    for (devices, partition), each in known.groupby(["devices", "partition"], dropna=False):
        days = sorted(str(started)[:10] for started in each["started"])
        place = {"series": "", "devices": devices, "partition": partition, "first": days[0], "last": days[-1]}
        rows.append(place | _summary(each)._asdict())
    return rows


def unknown_waits(waits: pd.DataFrame) -> list[str]:
    """Return the reasons for unknown waits, a sentence each."""
    reasons = waits.loc[waits["wait_seconds"].isna(), "note"].value_counts(sort=False)
    return [
        f"{n} {'wait is' if n == 1 else 'waits are'} unknown: {str(reason).removeprefix(NOT_STATED)}."
        for reason, n in reasons.items()
    ]


def _summary(waits: pd.DataFrame) -> QueueWait:
    seconds = [float(value) for value in waits["wait_seconds"]]
    return QueueWait(len(seconds), median(seconds), min(seconds), max(seconds))
