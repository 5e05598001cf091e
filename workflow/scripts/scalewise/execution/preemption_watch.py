"""Preempted jobs go back into the queue also where Slurm has ended them; watched beside Snakemake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 20.0
ATTEMPTS = 4


class PreemptionWatch:
    """Puts preempted jobs back into the queue where Slurm has ended them.

    Where a partition preempts by requeueing, Slurm does that by itself. Where it preempts by cancelling,
    the job stays PREEMPTED, which the executor plugin takes for a job that will go on: it would wait for
    ever.

    Args:
        folder: The jobs' working folder; those of other folders are left alone.
        say: Tells the user.
        give_up: Called when Slurm does not take a job back; by default, ends snakemake as Ctrl-C does.
        poll_seconds: Pause between two looks.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None] | None = None,
        give_up: Callable[[], None] | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._folder = folder
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self._give_up = give_up or (lambda: os.kill(os.getpid(), signal.SIGINT))
        self._poll_seconds = poll_seconds
        self._earlier = self._preempted()
        self._seen: Counter[str] = Counter()
        self._done = threading.Event()

    def start(self) -> None:
        """Watch until this process ends."""
        threading.Thread(target=self._watch, name="preemption", daemon=True).start()

    def stop(self) -> None:
        """End the watch."""
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(self._poll_seconds):
            self.look()

    def look(self) -> None:
        """Look once."""
        preempted = self._preempted() - self._earlier
        for job in list(self._seen):
            if job not in preempted:
                del self._seen[job]
        for job in sorted(preempted):
            self._seen[job] += 1
            # one that Slurm requeues by itself may be seen here for a moment
            if self._seen[job] > 1:
                self._requeue(job)

    def _requeue(self, job: str) -> None:
        answer = _slurm("scontrol", "requeue", job)
        if answer.returncode == 0:
            self._say(
                f"Slurm job {job} was preempted or lost its node and had ended; it is back in the queue."
            )
            del self._seen[job]
        elif self._seen[job] > ATTEMPTS:
            self._say(
                f"Slurm job {job} was preempted or lost its node, and Slurm does not take it back "
                f"({answer.stderr.strip()}). Ending. The same command makes what is missing."
            )
            self._done.set()
            self._give_up()

    def _preempted(self) -> set[str]:
        user = f"--user={os.getuid()}"
        answer = _slurm("squeue", user, "--noheader", "--states=PREEMPTED,NODE_FAIL", "--format=%A|%Z")
        jobs = (line.split("|", 1) for line in answer.stdout.splitlines() if "|" in line)
        return {job for job, folder in jobs if Path(folder) == self._folder}


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """A command of Slurm's; one that hangs or is missing has failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
