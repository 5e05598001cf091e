"""What Slurm says of the job that a run is part of."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping


def restart_count(environ: Mapping[str, str]) -> str:
    """How often Slurm has started this job anew; the executor takes the variable from the environment."""
    job = environ.get("SLURM_JOB_ID")
    told = environ.get("SLURM_RESTART_COUNT")
    if job is None or told is not None:
        return told or "0"
    return (_squeue(f"--jobs={job}", "--Format=RestartCnt") or "0").strip()


def other_jobs(environ: Mapping[str, str]) -> int | None:
    """Jobs of anybody that run on the nodes of this one, which spoils figures; None where Slurm does not say.

    Args:
        environ: of the job.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    nodes = _squeue(f"--jobs={job}", "--format=%N")
    if not nodes:
        return None
    running = _squeue("--states=running", f"--nodelist={nodes}", "--format=%A")
    return None if running is None else len(set(running.split()) - {job})


def _squeue(*options: str) -> str | None:
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", *options], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
