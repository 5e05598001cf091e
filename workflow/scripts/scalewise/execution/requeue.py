"""Put a job back into Slurm's queue when its time is over and its run is not."""

from __future__ import annotations

import os
import time
from enum import Enum
from pathlib import Path

from scalewise.execution.run import RunFailedError
from scalewise.execution.run_log import append_log, say
from scalewise.execution.slurm import requeue
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
    """Decide whether the job goes back into the queue: only if the end of its time ended the ranks.

    That is so if only the ranks received Slurm's signal, or if this process ended them before the job's end.
    A signal to this process means that a user wants the run to end. Snakemake retries a run that failed.
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
        log: The run's log, which also gets the reason if Slurm refuses.
        label: Names the run in messages.
        saved: Whether the next start comes further by what this one has saved.
    """
    # a job that is cancelled gets its signals one after the other, and must not be requeued
    time.sleep(SIGNAL_SPREAD_SECONDS)
    then = "to resume" if saved else "to start again"
    text = f"Slurm job {os.environ['SLURM_JOB_ID']} goes back into the queue, {then}"
    append_log(log, text)
    say(f"{label}: {text}")
    if refusal := requeue(os.environ):
        then = "resumes" if saved else "starts again"
        text = f"it does not go back: {refusal}. The next start of the run {then}"
        append_log(log, text)
        say(f"{label}: {text}")
        return
    time.sleep(REQUEUE_SECONDS)
