"""Slurm's own word on the jobs of a study: one question for all of them, seldom asked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from scalewise.execution.slurm_job import squeue

FIRST_SECONDS, MORE_SECONDS, MOST_SECONDS = 20.0, 10.0, 180.0
"""Time to the next question: it grows while nothing happens, as that of Snakemake's own does."""

_NO_REASON = {"None", "(null)"}


@dataclass(frozen=True)
class QueuedJob:
    """A job in Slurm's queue.

    Args:
        state: ``PENDING``, ``RUNNING``, ...
        starts: Slurm's estimate of the start, or the start, seconds since the epoch; None without one.
        reason: Slurm's reason that it waits, such as ``Priority``.
        asked_at: Time of the question to Slurm, seconds since the epoch; no news by itself.
    """

    state: str
    starts: float | None = None
    reason: str = ""
    asked_at: float = field(default=0.0, compare=False)


def parse_queue(answer: str) -> dict[str, QueuedJob]:
    """The jobs of an answer of squeue by their ids; lines that are something else are left out."""
    jobs = {}
    for line in answer.splitlines():
        parts = line.strip().split("|")
        if len(parts) == 4 and parts[0].isdecimal():
            jobs[parts[0]] = QueuedJob(parts[1], _start(parts[2]), "" if parts[3] in _NO_REASON else parts[3])
    return jobs


def ask_slurm() -> dict[str, QueuedJob] | None:
    """All jobs of this user; None where Slurm does not answer."""
    answer = squeue(f"--user={os.getuid()}", "--format=%A|%T|%S|%r")
    return None if answer is None else parse_queue(answer)


class SlurmQueue:
    """The latest answer of Slurm.

    Args:
        ask: The question.
        now: Gives monotonic seconds.
        clock: Gives seconds since the epoch.
    """

    def __init__(
        self,
        ask: Callable[[], dict[str, QueuedJob] | None] = ask_slurm,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ask, self._now, self._clock = ask, now, clock
        self._wait, self._due = FIRST_SECONDS, now() + FIRST_SECONDS
        self._jobs: dict[str, QueuedJob] = {}
        self._about: frozenset[str] = frozenset()

    def jobs(self, wanted: frozenset[str]) -> dict[str, QueuedJob]:
        """Known states of these jobs; none are worth no question, others than before an early one."""
        if wanted != self._about:
            self._about, self._wait = wanted, FIRST_SECONDS
            self._due = min(self._due, self._now() + FIRST_SECONDS)
        if wanted and self._now() >= self._due:
            asked_at = self._clock()
            answer = self._ask()
            self._due = self._now() + self._wait
            self._wait = min(self._wait + MORE_SECONDS, MOST_SECONDS)
            if answer is not None:
                self._jobs = {name: replace(job, asked_at=asked_at) for name, job in answer.items()}
        return {job: self._jobs[job] for job in wanted if job in self._jobs}


def _start(text: str) -> float | None:
    """The local time of Slurm's answers; ``N/A`` and the like are none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
