"""Find jobs that Slurm does not show to the executor plugin: Snakemake would wait for them for ever."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from scalewise.site.commands import ask
from scalewise.site.preflight import bad
from scalewise.snakemake_adapter import job_event

LOOK_SECONDS, LOOKS = 20.0, 3
"""Time between two queries, and the number of answers without a job after which it counts as hidden."""


class PluginQueue:
    """The jobs in Slurm's latest answer to the query of the executor plugin.

    Args:
        command: Returns the plugin's command.
        now: Gives monotonic seconds.
    """

    def __init__(
        self, command: Callable[[], Sequence[str]], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._command, self._now = command, now
        self._next = 0.0
        self._misses: Counter[str] = Counter()
        self.shown: frozenset[str] = frozenset()
        self.cause = ""
        self.fix = ""

    def hidden(self, jobs: Iterable[str]) -> list[str]:
        """Return the jobs that have just been missing for a minute; each is returned once.

        Args:
            jobs: Slurm's ids of the jobs that must be shown.
        """
        self._misses = Counter({job: self._misses[job] for job in jobs})
        if not self._misses:
            self._next = self._now() + LOOK_SECONDS
        if self._now() < self._next:
            return []
        self._next = self._now() + LOOK_SECONDS
        command = self._command()
        answer = ask(*command)
        lines = answer.text.splitlines() if answer.ok else []
        self.shown = frozenset(line.partition("|")[0].strip() for line in lines)
        self.cause = f"`{answer.command}` prints no line of it" if answer.ok else answer.failure
        self.fix = (
            f"Snakemake would wait for it for ever. Put Slurm's own {command[0]} first in PATH, or "
            + (
                "set slurm-status-command to sacct in the profile."
                if command[0] == "squeue"
                else "ask the site why accounting does not show your jobs."
            )
        )
        self._misses = Counter(
            {job: 0 if job in self.shown else count + 1 for job, count in self._misses.items()}
        )
        return [job for job, count in self._misses.items() if count == LOOKS]


class PreflightCheck(logging.Handler):
    """Follows Snakemake's log, and ends a preflight whose job Slurm does not show to the executor plugin.

    Args:
        queue: The plugin's view of the queue.
        rule: Name of the rule of the job.
        say: Shows the user a message.
        give_up: Ends snakemake, by default as Ctrl-C does: the plugin then cancels the job.
    """

    def __init__(
        self,
        queue: PluginQueue,
        rule: str,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        give_up: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGINT),
    ) -> None:
        super().__init__(logging.INFO)
        self._queue, self._rule, self._say, self._give_up = queue, rule, say, give_up
        self._sent: set[int] = set()
        self._pending: set[str] = set()
        self._guard = threading.Lock()

    def start(self, logger: logging.Logger) -> None:
        """Begin, until this process ends.

        Args:
            logger: Snakemake's.
        """
        logger.addHandler(self)
        threading.Thread(target=self._watch, name="preflight", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Handle an event; one that cannot be read is ignored."""
        with suppress(Exception):
            event = job_event(record)
            if event is None:
                return
            with self._guard:
                if event.state == "handed over" and event.rule == self._rule:
                    self._sent.add(event.job)
                elif event.state == "submitted" and event.job in self._sent:
                    self._pending.add(event.slurm_id)

    def _watch(self) -> None:
        # a check that cannot be made must not end the preflight
        with suppress(Exception):
            while not self.look():
                time.sleep(1.0)
            self._give_up()

    def look(self) -> bool:
        """Query the plugin's view of jobs that it has not shown yet; returns whether one is hidden."""
        with self._guard:
            pending = frozenset(self._pending)
        hidden = self._queue.hidden(pending)
        with self._guard:
            self._pending -= self._queue.shown
        for job in hidden:
            self._say(
                str(
                    bad(
                        f"Slurm does not show job {job}, which was sent: {self._queue.cause}", self._queue.fix
                    )
                )
            )
        return bool(hidden)
