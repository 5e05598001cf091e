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
from scalewise.execution.messages import Progress, Waiting
from scalewise.execution.rank_files import ATTEMPT, PROGRESS, WAITING
from scalewise.records import HISTORY, SUMMARY, History, epoch_seconds, read_regular
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
        history = self._history(folder)
        seconds = _job_seconds(history, None)
        if refused and history is not None and history.failure is not None:
            status = RunStatus("failed", history.failure.outcome or "failed", job_seconds=seconds)
        elif in_session:
            status = RunStatus("waiting", job_seconds=seconds)
        else:
            status = self._ended(folder, seconds) or RunStatus("later", job_seconds=seconds)
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
        history = self._history(folder)
        progress = None
        if history is not None and history.starts[-1].outcome is None:
            progress = self._parsed(folder / ATTEMPT / PROGRESS, Progress.model_validate_json)
        seconds = _job_seconds(history, progress)
        start = history.starts[-1] if history is not None and job.has_made(history.starts[-1]) else None
        if job.state == "finished" or (start is not None and start.has_result):
            return self._ended(folder, seconds) or RunStatus("done", job_seconds=seconds)
        if job.state == "failed":
            reason = start.outcome if start is not None and start.has_failed else None
            return RunStatus("failed", reason or "failed", job_seconds=seconds)
        if start is not None and slurm is not None and slurm.restarts > start.restart_count:
            start = None  # Slurm has put the job back into its queue since
        if start is None:
            if on_cluster:
                runs = slurm is not None and slurm.state == "RUNNING"
                return RunStatus("starting" if runs else "queued", job_seconds=seconds, slurm=slurm)
            waiting = self._parsed(folder / ATTEMPT / WAITING, Waiting.model_validate_json)
            if waiting is not None and waiting.since >= job.handed_over:
                return RunStatus("blocked", job_seconds=seconds, waits_for=waiting.reason)
            return RunStatus("starting", job_seconds=seconds)
        if start.has_failed:
            return RunStatus("failed", start.outcome or "failed", job_seconds=seconds)
        began = epoch_seconds(start.started_at)
        state: RunState = "starting" if progress is None else "running"
        return RunStatus(state, progress=progress, job_seconds=seconds[:-1], began=began)

    def _folder(self, run: RunKey) -> Path:
        return self._results / run[0] / "runs" / run[1]

    def _history(self, folder: Path) -> History | None:
        history = self._parsed(folder / HISTORY, History.model_validate_json)
        return history if history is not None and history.starts else None

    def _ended(self, folder: Path, seconds: tuple[float, ...]) -> RunStatus | None:
        status = self._parsed(folder / SUMMARY, _result)
        return None if status is None else replace(status, job_seconds=seconds)

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


def _job_seconds(history: History | None, progress: Progress | None) -> tuple[float, ...]:
    """Return the length of each start of a run; of one without an end, until its last report."""
    if history is None:
        return ()
    *seconds, last = history.seconds
    if history.starts[-1].outcome is None:
        began = epoch_seconds(history.starts[-1].started_at)
        last = min(last, progress.reported_at - began) if progress is not None else 0.0
    return (*seconds, last)


def _result(text: bytes) -> RunStatus:
    """Return the values of a summary that are shown; to validate the whole record takes ten times as long."""
    record: Mapping[str, Any] = json.loads(text)
    if record["outcome"] != "completed":
        return RunStatus("failed", record["outcome"])
    measured = record["measurements"] or {}
    rate = measured.get("throughput_samples_per_second")
    disturbed = disturbance({**(record.get("provenance") or {}), **measured})
    return RunStatus("done", "completed", float(rate) if rate else None, disturbed)
