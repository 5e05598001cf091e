"""Query Slurm about jobs, and put jobs back into its queue."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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


def queued_jobs(*options: str, tries: int = 3) -> list[QueuedJob]:
    """Return this user's jobs in the queue, or those that options of squeue choose; none if it fails."""
    # a folder may hold any character, so it is last
    answer = ask("squeue", "--noheader", "--me", *options, "--format=%A|%T|%S|%r|%k|%Z", tries=tries)
    lines = answer.text.splitlines() if answer.ok else []
    return [QueuedJob(*line.split("|", 5)) for line in lines if line.count("|") >= 5]


def earlier_job(environ: Mapping[str, str]) -> str:
    """Return the job that trains the run of this job since an earlier time; empty if none is known."""
    jobs = {job.number: job for job in queued_jobs()}
    this = jobs.get(environ.get("SLURM_JOB_ID", ""))
    if this is None or not this.comment.startswith("rule_"):
        return ""

    def began(job: QueuedJob) -> tuple[str, int]:
        return job.started, int(job.number)

    twins = [
        job
        for job in jobs.values()
        if (job.comment, job.folder) == (this.comment, this.folder)
        and job.state != "PENDING"
        and began(job) < began(this)
    ]
    return min(twins, key=began).number if twins else ""


def _of_job(job: str, field: str) -> str | None:
    """Return a field of a job as squeue writes it; None if it does not answer."""
    answer = ask("squeue", "--noheader", f"--jobs={job}", field)
    return answer.text if answer.ok else None


def restart_count(environ: Mapping[str, str]) -> str:
    """Return how often Slurm has requeued this job; the executor hides the variable from a job step."""
    job, count = environ.get("SLURM_JOB_ID"), environ.get("SLURM_RESTART_COUNT")
    return count or (job and _of_job(job, "--Format=RestartCnt")) or "0"


def other_jobs(environ: Mapping[str, str]) -> tuple[int, int] | tuple[None, None]:
    """Return the number of other jobs on the nodes of this one, and how many of them are of this study.

    Those of the study are of the same user in the same folder. None if unknown.
    """
    job = environ.get("SLURM_JOB_ID", "")
    nodes, _, owner = (_of_job(job, "--format=%N|%U|%Z") or "").partition("|")
    answer = ask("squeue", "--noheader", "--states=running", f"--nodelist={nodes}", "--format=%A|%U|%Z")
    if not nodes or not answer.ok:
        return None, None
    owners = dict(line.split("|", 1) for line in answer.text.splitlines() if "|" in line)
    owners.pop(job, None)
    return len(owners), sum(other == owner for other in owners.values())


def requeue(job: str) -> str:
    """Put this job back into the queue, which ends it here; returns why not, or nothing.

    A job that is being cancelled is not put back: a user wants it to end.
    """
    state = _of_job(job, "--format=%T")
    if state not in (None, "RUNNING"):
        return f"Slurm job {job} is {state or 'unknown to squeue'}"
    answer = ask("scontrol", "requeue", job, seconds=NODES_SECONDS)
    return "" if answer.ok else answer.failure


class PreemptionWatch:
    """Puts preempted jobs of the studies in a folder back into the queue, from a thread of snakemake.

    If a partition preempts by requeueing, Slurm does so. If it preempts by cancelling, the job stays
    PREEMPTED. The executor plugin treats such a job as running, and would wait for ever.

    Args:
        folder: The folder in which snakemake runs; jobs of other programs are ignored.
        say: Shows the user a message.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] | None = None) -> None:
        self._folder = str(folder)
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._looks: Counter[str] = Counter()

    def start(self) -> None:
        """Watch until this process ends."""
        threading.Thread(target=self._watch, name="preemption", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_SECONDS)
            self.look()

    def look(self) -> None:
        """Query the preempted jobs once, and requeue those that were preempted in the last query too."""
        found = queued_jobs("--states=PREEMPTED,NODE_FAIL")
        preempted = [
            job.number for job in found if job.folder == self._folder and job.comment.startswith("rule_")
        ]
        self._looks = Counter({job: self._looks[job] + 1 for job in preempted})
        for job in preempted:
            if self._looks[job] > 1:  # Slurm may be about to requeue it
                self._requeue(job)

    def _requeue(self, job: str) -> None:
        answer = ask("scontrol", "requeue", job, seconds=NODES_SECONDS)
        if answer.ok:
            self._say(
                f"Slurm job {job} was preempted or lost its node and had ended; it is back in the queue."
            )
            del self._looks[job]
        elif self._looks[job] == REQUEUE_ATTEMPTS + 1:
            self._say(
                f"Slurm job {job} was preempted or lost its node, and Slurm does not take it back "
                f"({answer.error}). The other runs continue, but Snakemake waits for this one. "
                "When they have ended, press Ctrl-C and give the same command: it makes what is missing."
            )
