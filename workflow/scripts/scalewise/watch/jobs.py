"""Follow the jobs of the runs in Snakemake's log and in Slurm's queue."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from scalewise.execution.slurm import COMMAND_SECONDS
from scalewise.snakemake_adapter import job_event
from scalewise.watch.study import Job, QueuedJob, RunKey

FIRST_SECONDS, MORE_SECONDS, MOST_SECONDS = 20.0, 10.0, 180.0
"""Time to the next query to Slurm: it grows while nothing happens, as it does in Snakemake's plugin."""

MOST_BYTES = 4 << 20
"""Longest output of squeue that is read: 26,000 jobs of one user."""

_FIELDS = "JobID:20,State:20,RestartCnt:12,StartTime:24,Reason:80"
_NO_REASON = {"None", "(null)"}


class JobLog(logging.Handler):
    """Follows the trainings through Snakemake's log; safe to be read by another thread.

    Args:
        changed: Called after each event that may change what is shown.
        now: Gives seconds since the epoch.
        train: Name of the rule that trains.
    """

    def __init__(
        self,
        changed: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.time,
        train: str = "train",
    ) -> None:
        super().__init__(logging.INFO)
        self._changed, self._now, self._train = changed, now, train
        self._runs: dict[int, RunKey] = {}
        self._jobs: dict[RunKey, Job] = {}
        self._guard = threading.Lock()

    def jobs(self) -> dict[RunKey, Job]:
        """Return the last job of each run that has had one."""
        with self._guard:
            return dict(self._jobs)

    def emit(self, record: logging.LogRecord) -> None:
        """Handle an event; one that cannot be read is ignored, and never an error of the study."""
        with suppress(Exception):
            if self._take(record):
                self._changed()

    def _take(self, record: logging.LogRecord) -> bool:
        event = job_event(record)
        if event is None:
            return False
        with self._guard:
            if event.state == "handed over" and event.rule == self._train:
                run = event.wildcards["experiment"], event.wildcards["run"]
                self._runs[event.job] = run
                self._jobs[run] = Job(state="handed over", handed_over=self._now())
            elif event.job in self._runs:
                run = self._runs[event.job]
                news = {"slurm_id": event.slurm_id} if event.slurm_id else {"state": event.state}
                self._jobs[run] = self._jobs[run].model_copy(update=news)
            else:
                return False
        return True


def parse_queue(answer: str) -> dict[str, QueuedJob]:
    """Return the jobs in the output of squeue by their ids; other lines are ignored."""
    jobs = {}
    for line in answer.splitlines():
        with suppress(ValueError):
            job, state, restarts, start, reason = line.split(maxsplit=4)
            reason = reason.strip()
            jobs[str(int(job))] = QueuedJob(
                state=state,
                restarts=int(restarts),
                starts=_moment(start),
                reason="" if reason in _NO_REASON else reason,
            )
    return jobs


def query_slurm() -> dict[str, QueuedJob] | None:
    """Return the jobs of this user, with the start that Slurm expects of those that wait.

    One call has all of them; it is ended after ``COMMAND_SECONDS``, and after ``MOST_BYTES`` of output.

    Returns:
        The jobs by their ids; None if Slurm does not answer.
    """
    command = ["squeue", "--noheader", f"--user={os.getuid()}", f"--Format={_FIELDS}"]
    try:
        # the user may have set another format of times
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=os.environ | {"SLURM_TIME_FORMAT": "%s"},
        )
    except OSError:
        return None
    limit = threading.Timer(COMMAND_SECONDS, process.kill)
    limit.daemon = True
    limit.start()
    with process:
        assert process.stdout is not None
        answer = process.stdout.read(MOST_BYTES)
        is_cut = len(answer) == MOST_BYTES
        if is_cut:
            process.kill()
    limit.cancel()
    if is_cut:
        return parse_queue(answer.rpartition("\n")[0])
    return parse_queue(answer) if process.returncode == 0 else None


class SlurmQueue:
    """The jobs in Slurm's latest answer.

    Args:
        query: Returns the jobs; None if Slurm does not answer.
        now: Gives monotonic seconds.
    """

    def __init__(
        self,
        query: Callable[[], dict[str, QueuedJob] | None] = query_slurm,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query, self._now = query, now
        self._wait, self._due = FIRST_SECONDS, now() + FIRST_SECONDS
        self._jobs: dict[str, QueuedJob] = {}
        self._last_wanted: frozenset[str] = frozenset()

    def jobs(self, wanted: frozenset[str]) -> dict[str, QueuedJob]:
        """Return the known states of these jobs; the next query is earlier if they have changed."""
        if wanted != self._last_wanted:
            self._last_wanted, self._wait = wanted, FIRST_SECONDS
            self._due = min(self._due, self._now() + FIRST_SECONDS)
        if wanted and self._now() >= self._due:
            answer = self._query()
            self._due = self._now() + self._wait
            self._wait = min(self._wait + MORE_SECONDS, MOST_SECONDS)
            if answer is not None:
                self._jobs = answer
        return {job: self._jobs[job] for job in wanted if job in self._jobs}


def _moment(text: str) -> float | None:
    """Return the seconds since the epoch; None for ``N/A`` and the like."""
    return float(text) if text.isdecimal() and int(text) else None
