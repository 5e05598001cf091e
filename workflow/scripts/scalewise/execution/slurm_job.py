"""Questions to Slurm about the job that a run is part of."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping

from scalewise.plan.config.slurm import duration_seconds

ENDED = frozenset(
    {
        *("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"),
        *("BOOT_FAIL", "PREEMPTED"),
    }
)
"""States of a job that has ended; the empty one is of a job that the controller has forgotten.

NODE_FAIL is not among them: a node does not answer, and its processes may live.
"""


def restart_count(environ: Mapping[str, str]) -> str:
    """The number of times that Slurm has started this job anew; the executor hides it from a job step."""
    job = environ.get("SLURM_JOB_ID")
    told = environ.get("SLURM_RESTART_COUNT")
    if job is None or told is not None:
        return told or "0"
    return (squeue(f"--jobs={job}", "--Format=RestartCnt") or "0").strip()


def seconds_left(environ: Mapping[str, str]) -> float | None:
    """Time until Slurm ends this job, endless where it has no limit; None where Slurm does not say."""
    job = environ.get("SLURM_JOB_ID")
    told = squeue(f"--jobs={job}", "--format=%L") if job is not None else None
    if told == "UNLIMITED":
        return math.inf
    return duration_seconds(told or "")


def other_jobs(environ: Mapping[str, str]) -> int | None:
    """Jobs of anybody on the nodes of this one, which spoil figures; None where Slurm does not say."""
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    nodes = squeue(f"--jobs={job}", "--format=%N")
    if not nodes:
        return None
    running = squeue("--states=running", f"--nodelist={nodes}", "--format=%A")
    return None if running is None else len(set(running.split()) - {job})


def is_active(job: str) -> bool | None:
    """Whether a job still runs or waits; None if Slurm does not answer, or a node of the job does not."""
    command = ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        # the controller has forgotten the job, or does not answer for a moment
        return False if "Invalid job id" in answer.stderr else None
    state = answer.stdout.strip()
    return None if state == "NODE_FAIL" else state not in ENDED


def squeue(*options: str) -> str | None:
    """The answer of squeue without its heading; None where it does not answer."""
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", *options], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
