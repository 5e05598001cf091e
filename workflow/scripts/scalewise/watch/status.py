"""Read the status of a study, point by point, from the files of its runs; every display uses it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from scalewise.analysis.disturbed import disturbance
from scalewise.analysis.statistics import Interval, geometric_interval
from scalewise.execution.rank_files import ATTEMPT, PROGRESS, RANK_SETUP, Progress, RankSetup
from scalewise.records import FAILURE, RECORD, Failure, epoch_seconds, read_regular
from scalewise.watch.study import Job, QueuedJob, Rounds, RunKey, StudySession, WatchedPoint, WatchedStudy

Content = TypeVar("Content")

RunState = Literal["later", "waiting", "queued", "blocked", "starting", "running", "done", "failed"]
"""A run's state. Later: this session does not make it. Waiting: not handed to Slurm or to this machine.
Blocked: its job waits for another training on this machine."""

RunOutcome = Literal[
    "", "completed", "diverged", "out-of-memory", "failed", "timed-out", "interrupted", "killed"
]


@dataclass(frozen=True)
class RunStatus:
    """Status of a run.

    Args:
        outcome: Outcome of a run that has ended; empty before, and if no file states it.
        throughput: Samples per second of a run that has completed.
        disturbed: Reason that disturbed a run that has completed; empty if there is none.
        progress: Last report of the ranks; None before their first steps.
        job_seconds: Length of each job that has ended.
        began: Start of the job that is at work, seconds since the epoch.
        waits_for: Reason that it is blocked.
        slurm: Slurm's report on a run in its queue; None if unknown.
    """

    state: RunState
    outcome: RunOutcome = ""
    throughput: float | None = None
    disturbed: str = ""
    progress: Progress | None = None
    job_seconds: tuple[float, ...] = ()
    began: float | None = None
    waits_for: str = ""
    slurm: QueuedJob | None = None

    def expected_start(self, now: float) -> float | None:
        """Return the time at which Slurm expects to start its job; None if unknown, or if it has passed."""
        starts = None if self.slurm is None else self.slurm.starts
        return starts if starts is not None and starts > now else None

    def elapsed(self, now: float) -> float:
        """Seconds for which its job has been at work; clocks of two hosts may differ a little."""
        return 0.0 if self.began is None else max(now - self.began, 0.0)


@dataclass(frozen=True)
class PointStatus:
    """A point and its repeats.

    Args:
        runs: Repeats that are requested.
    """

    point: WatchedPoint
    runs: Mapping[RunKey, RunStatus]

    def in_state(self, *states: RunState) -> list[RunKey]:
        """Runs of the point in any of these states."""
        return [run for run, status in self.runs.items() if status.state in states]

    @property
    def rates(self) -> list[float]:
        """Samples per second of the runs that have completed, of the undisturbed ones if there are any."""
        rates = [(each.throughput, each.disturbed) for each in self.runs.values() if each.throughput]
        return [rate for rate, disturbed in rates if not disturbed] or [rate for rate, _ in rates]

    @property
    def throughput(self) -> Interval | None:
        """Geometric mean of the throughput with its 95 % interval; None before any run has completed."""
        return geometric_interval(self.rates) if self.rates else None

    @property
    def failed(self) -> int:
        """Runs that failed; the same command makes an interrupted one again."""
        return sum(self.runs[run].outcome != "interrupted" for run in self.in_state("failed"))

    @property
    def key(self) -> tuple[object, ...]:
        """A value that changes with the states of the runs, and not with every step."""
        counted: tuple[RunState, ...] = ("done", "failed", "queued", "blocked")
        counts = (len(self.in_state(state)) for state in counted)
        return (*counts, *self.in_state("starting", "running"))


@dataclass(frozen=True)
class StudyStatus:
    """Status of a study.

    Args:
        points: Those that have a run, in the order of the configuration.
        not_requested: Number of points without a requested run, in a study that chooses its device counts.
        now: Seconds since the epoch.
        over: Whether the session has ended, so that no more runs are made.
    """

    study: WatchedStudy
    points: Sequence[PointStatus]
    not_requested: int
    rounds: Rounds
    now: float
    over: bool = False

    @property
    def runs(self) -> dict[RunKey, RunStatus]:
        """All runs that are requested."""
        return {run: status for point in self.points for run, status in point.runs.items()}

    def count(self, *states: RunState) -> int:
        """Runs in any of these states."""
        return sum(len(point.in_state(*states)) for point in self.points)


class StatusReader:
    """Reads the status of one session again and again; a run that has ended is not read again.

    Args:
        results: Folder of all experiments.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self._readable: dict[Path, Any] = {}
        self._settled: dict[RunKey, tuple[Job | None, RunStatus]] = {}

    def read(self, session: StudySession, now: float, over: bool = False) -> StudyStatus:
        """Return the status of the study.

        Args:
            session: The session as it is now.
            now: Seconds since the epoch.
            over: Whether the session has ended.
        """
        jobs, in_session = dict(session.jobs), frozenset(session.runs)
        on_cluster = session.study.device_budget is not None
        points, not_requested = [], 0
        for point in session.study.points:
            requested = session.rounds.repeats(point)
            first = session.first_requested.get(point.experiment, {}).get(point.name, requested)
            runs = {}
            for repeat in range(1, requested + 1):
                run = point.run(repeat)
                job = jobs.get(run)
                if job is None:
                    status = self._without_job(run, run in in_session, run in session.refused)
                else:
                    status = self._with_job(run, job, session.queue.get(job.slurm_id), on_cluster)
                if status.state == "later" and repeat > first:
                    # a round has requested it since the session began, which therefore makes it
                    status = replace(status, state="waiting")
                if status.state != "later":
                    runs[run] = status
            if runs:
                points.append(PointStatus(point, runs))
            not_requested += not requested
        return StudyStatus(session.study, points, not_requested, session.rounds, now, over)

    def _without_job(self, run: RunKey, in_session: bool, refused: bool) -> RunStatus:
        """Return the status of a run that has had no job in the session, which may make it again."""
        if (settled := self._settled.get(run)) is not None and settled[0] is None:
            return settled[1]
        folder = self._folder(run)
        failure = self._failure(folder)
        if refused and failure is not None:
            status = RunStatus("failed", failure.outcome, job_seconds=(failure.seconds,))
        elif in_session:
            status = RunStatus("waiting")
        else:
            status = self._ended(folder) or RunStatus("later")
        if status.state != "later":
            self._settled[run] = None, status
        return status

    def _with_job(self, run: RunKey, job: Job, slurm: QueuedJob | None, on_cluster: bool) -> RunStatus:
        settled = self._settled.get(run)
        if settled is not None and settled[0] == job:
            return settled[1]
        status = self._of_job(self._folder(run), job, slurm, on_cluster)
        # the outcome is missing until the file system shows the file
        if job.state != "handed over" and status.outcome:
            self._settled[run] = job, status
        return status

    def _of_job(self, folder: Path, job: Job, slurm: QueuedJob | None, on_cluster: bool) -> RunStatus:
        """Return the status of a run by what its job and its ranks state."""
        failure = self._failure(folder)
        # an interrupted job may have gone back into the queue
        if failure is not None and (not job.has_made(failure) or failure.outcome == "interrupted"):
            failure = None
        # Snakemake has deleted an earlier record
        if job.state == "finished" or (job.state == "handed over" and (folder / RECORD).exists()):
            return self._ended(folder) or RunStatus("done")
        if job.state == "failed" or failure is not None:
            seconds = () if failure is None else (failure.seconds,)
            return RunStatus("failed", "failed" if failure is None else failure.outcome, job_seconds=seconds)
        if slurm is not None and slurm.state != "RUNNING":
            return RunStatus("queued", slurm=slurm)
        setup = self._parsed(folder / ATTEMPT / RANK_SETUP, RankSetup.model_validate_json)
        began = epoch_seconds(setup.training.started_at) if setup is not None and setup.training else 0.0
        if began < job.handed_over:  # the files are of an earlier job
            return RunStatus("queued" if on_cluster and slurm is None else "starting", slurm=slurm)
        progress = self._parsed(folder / ATTEMPT / PROGRESS, Progress.model_validate_json)
        state: RunState = "starting" if progress is None else "running"
        return RunStatus(state, progress=progress, began=began or None)

    def _folder(self, run: RunKey) -> Path:
        return self._results / run[0] / "runs" / run[1]

    def _failure(self, folder: Path) -> Failure | None:
        return self._parsed(folder / FAILURE, Failure.model_validate_json)

    def _ended(self, folder: Path) -> RunStatus | None:
        return self._parsed(folder / RECORD, _result)

    def _parsed(self, path: Path, parse: Callable[[bytes], Content]) -> Content | None:
        """Return what a file states; the last readable content if it cannot be read, None if it is gone."""
        try:
            self._readable[path] = parse(read_regular(path))
        except FileNotFoundError:
            self._readable.pop(path, None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError):
            pass
        content: Content | None = self._readable.get(path)
        return content


def _result(text: bytes) -> RunStatus:
    """Return the values of a summary that are shown; to validate the whole record takes ten times as long."""
    record: Mapping[str, Any] = json.loads(text)
    if record["outcome"] != "completed":
        return RunStatus("failed", record["outcome"])
    measured = record["measurements"] or {}
    rate = measured.get("throughput_samples_per_second")
    origin = record.get("provenance") or {}
    disturbed = disturbance({**origin, **measured})
    seconds = (epoch_seconds(origin["ended_at"]) - epoch_seconds(origin["started_at"]),) if origin else ()
    return RunStatus("done", "completed", float(rate) if rate else None, disturbed, job_seconds=seconds)
