"""Questions to Slurm about the job that a run is part of, and the request to requeue it."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping

from scalewise.plan.config.slurm import duration_seconds


def restart_count(environ: Mapping[str, str]) -> str:
    """The number of times that Slurm has started this job anew; the executor unsets the variable for it."""
    job = environ.get("SLURM_JOB_ID")
    told = environ.get("SLURM_RESTART_COUNT")
    if job is None or told is not None:
        return told or "0"
    return (_squeue(f"--jobs={job}", "--Format=RestartCnt") or "0").strip()


def seconds_left(environ: Mapping[str, str]) -> float | None:
    """Time until Slurm ends this job, endless where it has no limit; None where Slurm does not say."""
    job = environ.get("SLURM_JOB_ID")
    told = _squeue(f"--jobs={job}", "--format=%L") if job is not None else None
    if told == "UNLIMITED":
        return math.inf
    return duration_seconds(told or "")


def other_jobs(environ: Mapping[str, str]) -> int | None:
    """Jobs of anybody on the nodes of this one, which spoil figures; None where Slurm does not say."""
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    nodes = _squeue(f"--jobs={job}", "--format=%N")
    if not nodes:
        return None
    running = _squeue("--states=running", f"--nodelist={nodes}", "--format=%A")
    return None if running is None else len(set(running.split()) - {job})


def requeue(environ: Mapping[str, str]) -> str:
    """Put this job back into the queue, which ends it here; why not, or nothing.

    A job that is being cancelled is not put back: somebody wants it to end.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return "this is no Slurm job"
    state = _squeue(f"--jobs={job}", "--format=%T")
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


def _squeue(*options: str) -> str | None:
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", *options], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
