"""Find jobs that Slurm does not show to the executor plugin: Snakemake would wait for them for ever."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from scalewise.site.commands import ask

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
