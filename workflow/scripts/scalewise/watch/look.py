"""One look at a study: from its files, its jobs and Slurm's word to how it stands."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from scalewise.watch.jobs import Job
from scalewise.watch.points import Rounds, RunKey, WatchedStudy
from scalewise.watch.run_files import RunFacts, RunFiles
from scalewise.watch.slurm_queue import QueuedJob
from scalewise.watch.standing import PointStanding, Standing


class Looker:
    """Looks at the same study again and again; what cannot have changed is not read again.

    Args:
        results: Folder of all experiments.
        session: Runs that the session makes, as far as was known when it began.
        first_asked: Repeats that were asked for when it began, by experiment and point.
    """

    def __init__(
        self,
        study: WatchedStudy,
        results: Path,
        session: Set[RunKey],
        first_asked: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.files = RunFiles(results, on_cluster=study.device_budget is not None)
        self._study, self._session = study, session
        self._first_asked = first_asked
        self._settled: dict[RunKey, tuple[Job | None, RunFacts]] = {}

    def look(
        self,
        jobs: Mapping[RunKey, Job],
        queue: Mapping[str, QueuedJob],
        rounds: Rounds,
        now: float,
        over: bool = False,
    ) -> Standing:
        """Status of the study.

        Args:
            jobs: The last job of each run in the session.
            queue: States that Slurm reports, by the ids of its jobs.
            rounds: Runs that the rounds ask for.
            now: Seconds since the epoch.
            over: Whether the session has ended.
        """
        standings, not_asked = [], 0
        for point in self._study.points:
            asked = rounds.asked_of(point)
            first = self._first_asked.get(point.experiment, {}).get(point.name, asked)
            runs, queued = {}, {}
            for repeat in range(1, asked + 1):
                run = point.run(repeat)
                job = jobs.get(run)
                told = queue.get(job.slurm_id) if job is not None else None
                facts = self._facts(run, job, told)
                if facts.state == "later" and repeat > first:
                    # what a round has asked for since the session began, it makes, if it is not there
                    facts = replace(facts, state="waiting")
                if facts.state != "later":
                    runs[run] = facts
                if told is not None and facts.state == "queued":
                    queued[run] = told
            if runs:
                standings.append(PointStanding(point, runs, queued))
            not_asked += not asked
        return Standing(self._study, standings, not_asked, rounds, now, over)

    def _facts(self, run: RunKey, job: Job | None, slurm: QueuedJob | None) -> RunFacts:
        """Status of a run; its files are let alone once they are final, or while it only waits."""
        known = self._settled.get(run)
        if known is not None and known[0] == job:
            return known[1]
        facts = self.files.look(run, job, run in self._session, slurm)
        # of a file that comes late the outcome is still missing
        ended = job is None or job.state != "handed over"
        if ended and (facts.outcome or facts.state == "waiting"):
            self._settled[run] = job, facts
        return facts
