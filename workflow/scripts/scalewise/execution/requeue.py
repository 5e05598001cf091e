"""Whether a job goes back into Slurm's queue when its time is over, and the way there."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from scalewise.execution.run import RunFailedError
from scalewise.execution.run_log import append_log, say
from scalewise.execution.slurm_job import squeue
from scalewise.execution.watchdog import JOB_END

REQUEUE_SECONDS = 120.0
"""Time for Slurm to end a job that it has put back into the queue."""
SIGNAL_SPREAD_SECONDS = 2.0
"""Time for a signal to a whole job to reach all of it."""


class Requeue(Enum):
    """Whether a job whose run has no result goes back into Slurm's queue, and where its next start begins."""

    NO = "no"
    FROM_CHECKPOINT = "from the checkpoint"
    FROM_START = "from the start"


def requeue_after(error: RunFailedError, in_slurm_job: bool) -> Requeue:
    """Decide whether the job goes back into the queue: only if the end of its time alone ended the ranks.

    That is so where Slurm's signal has told the ranks alone, or where this process saw the end come. What a
    signal to this process has ended, somebody wants to end. What has failed is for snakemake's retries.
    """
    stopped = error.ended.stopped if error.ended is not None else None
    if not in_slurm_job or error.given_up or error.ended is None or stopped is None:
        return Requeue.NO
    if stopped.stop_source != JOB_END and (
        error.ended.stop_requested or not stopped.stop_source.startswith("SIG")
    ):
        return Requeue.NO
    return Requeue.FROM_CHECKPOINT if stopped.saved else Requeue.FROM_START


def requeue_job(log: Path, label: str, saved: bool) -> None:
    """Put a job whose time is nearly over back into the queue, and wait for Slurm to end it here.

    Args:
        log: The run's log, which also tells why Slurm refuses.
        label: Names the run in messages.
        saved: Whether what was trained is saved.
    """
    # a job that is cancelled gets its signals one after the other, and must not come back
    time.sleep(SIGNAL_SPREAD_SECONDS)
    then = "to resume" if saved else "to start again from the beginning"
    text = f"Slurm job {os.environ['SLURM_JOB_ID']} goes back into the queue, {then}"
    append_log(log, text)
    say(f"{label}: {text}")
    if refusal := requeue(os.environ):
        then = "resumes" if saved else "starts again from the beginning"
        text = f"it does not: {refusal}. Another try {then}"
        append_log(log, text)
        say(f"{label}: {text}")
        return
    time.sleep(REQUEUE_SECONDS)


def requeue(environ: Mapping[str, str]) -> str:
    """Put this job back into the queue, which ends it here; why not, or nothing.

    A job that is being cancelled is not put back: somebody wants it to end.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return "this is no Slurm job"
    state = squeue(f"--jobs={job}", "--format=%T")
    if state not in (None, "RUNNING"):
        return f"Slurm job {job} is {state or 'unknown to squeue'}"
    try:
        answer = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (
        "" if answer.returncode == 0 else answer.stderr.strip() or f"scontrol ended with {answer.returncode}"
    )
