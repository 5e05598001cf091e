"""Query Slurm about jobs, and put jobs back into its queue."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.config.errors import UserError
from scalewise.plan.plan_file import Plan, runs_in_slurm
from scalewise.site.commands import ask

POLL_SECONDS = 20.0
REQUEUE_ATTEMPTS = 4
NODES_SECONDS = 60.0
"""The longest that the request to requeue a job may take, which Slurm passes to its nodes."""


@dataclass(frozen=True)
class QueuedJob:
    """A job in Slurm's queue.

    Args:
        started: Time of the start as squeue writes it; for a pending job the expected one.
        reason: Slurm's, for a job that waits.
        comment: The executor plugin's: rule and wildcards.
        folder: The folder in which it runs.
    """

    number: str
    state: str
    started: str
    reason: str
    comment: str
    folder: str

    @property
    def wildcards(self) -> str:
        """The wildcards of its rule, ``digits_d2.r1`` of a run; empty for a job of another program."""
        return self.comment.partition("_wildcards_")[2]


def queued_jobs(*options: str) -> list[QueuedJob] | None:
    """Return this user's jobs in the queue, or those that options of squeue choose; None if it fails."""
    # a folder may hold any character, so it is last
    answer = ask("squeue", "--noheader", "--me", *options, "--format=%A|%T|%S|%r|%k|%Z", tries=3)
    if not answer.ok:
        return None
    return [QueuedJob(*line.split("|", 5)) for line in answer.text.splitlines() if line.count("|") >= 5]


def queued_runs(plan: Plan) -> dict[tuple[str, str], QueuedJob]:
    """Return the jobs in the queue that make runs of the study in this folder, by experiment and run.

    Raises:
        UserError: Slurm does not answer.
    """
    jobs = queued_jobs() if runs_in_slurm(plan) else []
    if jobs is None:
        raise UserError("squeue does not answer: which runs wait or are being made is unknown.")
    known = {
        f"{experiment}_{run}": (experiment, run) for experiment, runs in plan["runs"].items() for run in runs
    }
    # of two jobs of a run, the one that runs is last
    jobs.sort(key=lambda job: job.state != "PENDING")
    here = str(Path.cwd())
    return {known[job.wildcards]: job for job in jobs if job.wildcards in known and job.folder == here}


def earlier_job(environ: Mapping[str, str]) -> str:
    """Return the job that trains the run of this job since an earlier time; empty if none is known."""
    jobs = {job.number: job for job in queued_jobs() or ()}
    this = jobs.get(environ.get("SLURM_JOB_ID", ""))
    if this is None or not this.wildcards:
        return ""
    twins = [job for job in jobs.values() if (job.comment, job.folder) == (this.comment, this.folder)]
    began = [this, *(job for job in twins if job.state != "PENDING")]
    # two that began in the same second: the lower number is first
    first = min(began, key=lambda job: (job.started, int(job.number)))
    return "" if first == this else first.number


def _of_job(job: str, field: str) -> str | None:
    """Return a field of a job as squeue writes it; None if it does not answer."""
    answer = ask("squeue", "--noheader", f"--jobs={job}", field)
    return answer.text if answer.ok else None


def this_job() -> dict[str, Any]:
    """Return what Slurm reports of this job, as fields of ``Origin``: restarts, and other jobs on its nodes.

    Other jobs of the study are of the same user in the same folder. The executor hides the number of restarts
    from a job step; the ranks inherit it.
    """
    job = os.environ["SLURM_JOB_ID"]
    restarts = os.environ["SLURM_RESTART_COUNT"] = _of_job(job, "--Format=RestartCnt") or "0"
    facts: dict[str, Any] = {"slurm_job_id": job, "restart_count": int(restarts)}
    nodes, _, owner = (_of_job(job, "--format=%N|%U|%Z") or "").partition("|")
    answer = ask("squeue", "--noheader", "--states=running", f"--nodelist={nodes}", "--format=%A|%U|%Z")
    if nodes and answer.ok:
        owners = dict(line.split("|", 1) for line in answer.text.splitlines() if "|" in line)
        owners.pop(job, None)
        facts |= {"other_jobs": len(owners), "study_jobs": [*owners.values()].count(owner)}
    return facts


def requeue(job: str) -> str:
    """Put this job back into the queue, which ends it here; returns why not, or nothing.

    A job that is being cancelled is not put back: a user wants it to end.
    """
    state = _of_job(job, "--format=%T")
    if state not in (None, "RUNNING"):
        return f"Slurm job {job} is {state or 'unknown to squeue'}"
    answer = ask("scontrol", "requeue", job, seconds=NODES_SECONDS)
    return "" if answer.ok else answer.failure


def requeue_preempted(folder: Path) -> None:
    """Put preempted jobs of the studies in a folder back into the queue, from a thread of snakemake.

    If a partition preempts by requeueing, Slurm does so. If it preempts by cancelling, the job stays
    PREEMPTED. The executor plugin treats such a job as running, and would wait for ever.
    """

    def watch() -> None:
        looks: dict[str, int] = {}
        while True:
            time.sleep(POLL_SECONDS)
            looks = look_for_preempted(folder, looks, lambda text: print(text, file=sys.stderr, flush=True))

    threading.Thread(target=watch, name="preemption", daemon=True).start()


def look_for_preempted(folder: Path, looks: Mapping[str, int], say: Callable[[str], None]) -> dict[str, int]:
    """Requeue the jobs that were preempted at the last look too; before that, Slurm may be about to do so.

    Args:
        folder: The folder in which snakemake runs; jobs of other programs are ignored.
        looks: Number of looks at which each preempted job was there.
        say: Shows the user a message.

    Returns:
        The looks with this one.
    """
    counted = {}
    for job in queued_jobs("--states=PREEMPTED,NODE_FAIL") or ():
        if job.folder != str(folder) or not job.comment.startswith("rule_"):
            continue
        count = counted[job.number] = looks.get(job.number, 0) + 1
        answer = ask("scontrol", "requeue", job.number, seconds=NODES_SECONDS) if count > 1 else None
        lost = f"Slurm job {job.number} was preempted or lost its node"
        if answer is not None and answer.ok:
            say(f"{lost} and had ended; it is back in the queue.")
            del counted[job.number]
        elif answer is not None and count == REQUEUE_ATTEMPTS + 1:
            say(
                f"{lost}, and Slurm does not take it back ({answer.error}). The other runs continue, but "
                "Snakemake waits for this one. When they have ended, press Ctrl-C and give the same command: "
                "it makes what is missing."
            )
    return counted
