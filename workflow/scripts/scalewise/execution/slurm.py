"""Query Slurm about jobs, and put preempted jobs back into its queue."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ENDED = frozenset(
    {
        *("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"),
        *("BOOT_FAIL", "PREEMPTED"),
    }
)
"""States of a job that has ended; the empty one is of a job that the controller has forgotten.

NODE_FAIL is missing: a node does not answer, and its processes may still run.
"""

COMMAND_SECONDS, REQUEUE_SECONDS = 30.0, 60.0
"""The longest that a query, or the request to requeue a job, may take."""
POLL_SECONDS = 20.0
REQUEUE_ATTEMPTS = 4


def run_slurm(*command: str, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm; one that hangs or is missing counts as failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def squeue(*options: str) -> str | None:
    """Return the output of squeue without its heading; None if it fails."""
    answer = run_slurm("squeue", "--noheader", *options)
    return answer.stdout.strip() if answer.returncode == 0 else None


def restart_count(environ: Mapping[str, str]) -> str:
    """Return how often Slurm has requeued this job; the executor hides the variable from a job step."""
    job, count = environ.get("SLURM_JOB_ID"), environ.get("SLURM_RESTART_COUNT")
    if job is None or count is not None:
        return count or "0"
    return squeue(f"--jobs={job}", "--Format=RestartCnt") or "0"


@dataclass(frozen=True)
class OtherJobs:
    """Other jobs on the nodes of a job, which disturb its figures.

    Args:
        all: Those of all users; None if unknown.
        of_study: Those of the same user in the same folder, which belong to the same study; None if unknown.
    """

    all: int | None = None
    of_study: int | None = None


def other_jobs(environ: Mapping[str, str]) -> OtherJobs:
    """Count the other jobs on the nodes of this one."""
    job = environ.get("SLURM_JOB_ID")
    # a folder may contain any character, so it is last
    if job is None:
        return OtherJobs()
    nodes, _, owner = (squeue(f"--jobs={job}", "--format=%N|%U|%Z") or "").partition("|")
    if not nodes:
        return OtherJobs()
    running = squeue("--states=running", f"--nodelist={nodes}", "--format=%A|%U|%Z")
    if running is None:
        return OtherJobs()
    owners = dict(line.split("|", 1) for line in running.splitlines() if "|" in line)
    owners.pop(job, None)
    return OtherJobs(len(owners), sum(other == owner for other in owners.values()))


def is_active(job: str) -> bool | None:
    """Whether a job still runs or waits; None if Slurm does not answer, or a node of the job does not."""
    answer = run_slurm("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
    if answer.returncode != 0:
        # the controller has forgotten the job, or does not answer for a moment
        return False if "Invalid job id" in answer.stderr else None
    state = answer.stdout.strip()
    return None if state == "NODE_FAIL" else state not in ENDED


def requeue(environ: Mapping[str, str]) -> str:
    """Put this job back into the queue, which ends it here; returns why not, or nothing.

    A job that is being cancelled is not put back: a user wants it to end.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return "this is no Slurm job"
    state = squeue(f"--jobs={job}", "--format=%T")
    if state not in (None, "RUNNING"):
        return f"Slurm job {job} is {state or 'unknown to squeue'}"
    answer = run_slurm("scontrol", "requeue", job, seconds=REQUEUE_SECONDS)
    if answer.returncode == 0:
        return ""
    return answer.stderr.strip() or f"scontrol ended with {answer.returncode}"


class PreemptionWatch:
    """Puts preempted jobs of the studies in a folder back into the queue, from a thread of snakemake.

    If a partition preempts by requeueing, Slurm does so. If it preempts by cancelling, the job stays
    PREEMPTED. The executor plugin treats such a job as running, and would wait for ever.

    Args:
        folder: The folder in which snakemake runs; jobs of others, and those of other programs, are ignored.
        say: Shows the user a message.
        poll_seconds: Time between two looks.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None] | None = None, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._folder = folder
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._poll_seconds = poll_seconds
        self._looks: Counter[str] = Counter()

    def start(self) -> None:
        """Watch until this process ends."""
        threading.Thread(target=self._watch, name="preemption", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(self._poll_seconds)
            self.look()

    def look(self) -> None:
        """Query the preempted jobs once, and requeue those that were preempted in the last query too."""
        preempted = self._preempted()
        self._looks = Counter({job: self._looks[job] + 1 for job in preempted})
        for job in sorted(preempted):
            # Slurm may be about to requeue it
            if self._looks[job] > 1:
                self._requeue(job)

    def _requeue(self, job: str) -> None:
        answer = run_slurm("scontrol", "requeue", job, seconds=REQUEUE_SECONDS)
        if answer.returncode == 0:
            self._say(
                f"Slurm job {job} was preempted or lost its node and had ended; it is back in the queue."
            )
            del self._looks[job]
        elif self._looks[job] == REQUEUE_ATTEMPTS + 1:
            self._say(
                f"Slurm job {job} was preempted or lost its node, and Slurm does not take it back "
                f"({answer.stderr.strip()}). The other runs continue, but Snakemake waits for this one. "
                "When they have ended, press Ctrl-C and give the same command: it makes what is missing."
            )

    def _preempted(self) -> set[str]:
        states = "--states=PREEMPTED,NODE_FAIL"
        # the executor plugin writes the rule into the comment; a folder may hold any character
        jobs = squeue(f"--user={os.getuid()}", states, "--format=%A|%k|%Z") or ""
        found = (line.split("|", 2) for line in jobs.splitlines() if line.count("|") > 1)
        return {job for job, rule, folder in found if rule[:5] == "rule_" and folder == str(self._folder)}
