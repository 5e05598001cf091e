"""The files of a run as somebody beside it reads them: late, half there or damaged, they are no error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from scalewise.analysis.bottlenecks.disturbances import disturbance
from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import PROGRESS
from scalewise.records import FAILURE, JOB_TIMES, SUMMARY, JobTimes, read_regular
from scalewise.watch.jobs import Before, Job
from scalewise.watch.points import RunKey, RunState
from scalewise.watch.slurm_queue import QueuedJob

NANO = 1e9
SKEW_SECONDS = 5.0
"""Most by which the clocks of two hosts are taken to differ."""

Told = Literal["", "completed", "diverged", "out-of-memory", "failed", "timed-out", "interrupted"]


@dataclass(frozen=True)
class RunFacts:
    """Status of a run.

    Args:
        outcome: Outcome of a run that has ended; empty before, and where no file says.
        throughput: Samples per second of a run that has completed.
        disturbed: Reason that disturbed a run that has completed; empty if there is none.
        progress: Last report of the ranks; None before their first steps.
        job_seconds: Length of each job that has ended.
        began: Start of the job that is at work, seconds since the epoch.
        first_seen: Fraction of the training that was done when this job was first seen at work, and the time
            of that; None before it has told.
        told_at: Time at which the job at work told its progress, seconds since the epoch; no news by itself.
    """

    state: RunState
    outcome: Told = ""
    throughput: float | None = None
    disturbed: str = field(default="", kw_only=True)
    progress: Progress | None = None
    job_seconds: tuple[float, ...] = ()
    began: float | None = None
    first_seen: tuple[float, float] | None = None
    told_at: float | None = field(default=None, compare=False)

    def elapsed(self, now: float) -> float:
        """Seconds for which its job has been at work; clocks of two hosts may differ a little."""
        return 0.0 if self.began is None else max(now - self.began, 0.0)


@dataclass(frozen=True)
class _Ended:
    """The end of a run: its outcome, its samples per second if it completed, and what disturbed it."""

    outcome: Told
    throughput: float | None = None
    disturbed: str = ""


@dataclass(frozen=True)
class _Latest:
    """The last job that ``job_times.json`` tells of.

    Args:
        seconds: Length of a job that has ended in order, else the most that it may take.
        began: Seconds since the epoch, by the clock of its node; None where that cannot be read.
        written: Time of the file, nanoseconds by the clock of its server.
        times: Identity of the file.
    """

    started_at: str
    seconds: float
    began: float | None
    written: int
    times: tuple[int, ...]

    @classmethod
    def of(cls, times: JobTimes | None, file: tuple[int, ...]) -> _Latest | None:
        """The last job of a file; None where there is none."""
        if times is None or not times.jobs or not file:
            return None
        job = times.jobs[-1]
        return cls(job.started_at, job.seconds, _epoch_seconds(job.started_at), file[-1], file)

    def is_before(self, before: Before) -> bool:
        """Whether it was there when the run was handed over."""
        return self.started_at == before.began or self.times == before.times

    @property
    def has_ended(self) -> bool:
        """Whether it has written its own length, as it does at its end.

        The file is written at its start and at its end. Which of the two its time is nearer to tells which
        it was: a limit is minutes at least, two clocks differ by seconds.
        """
        return self.began is not None and self.written / NANO - self.began > self.seconds / 2

    @property
    def began_on_server(self) -> int:
        """Start of the session in nanoseconds, by the clock of the file server, and a little before."""
        return self.written - (round((self.seconds + 1) * NANO) if self.has_ended else 0)

    def seconds_until(self, file: tuple[int, ...]) -> float:
        """Seconds from its start to the time of a file that it wrote; 0 of one that is older."""
        return max(file[-1] - self.written, 0) / NANO if file else 0.0


class RunFiles:
    """The folders of all runs; each file is read again only when it is another one.

    Args:
        results: Folder of all experiments.
        on_cluster: Whether a job waits in a queue before it starts.
    """

    def __init__(self, results: Path, on_cluster: bool = False) -> None:
        self._results, self._on_cluster = results, on_cluster
        self._read: dict[Path, tuple[tuple[int, ...], Any]] = {}
        self._first_seen: dict[tuple[RunKey, str], tuple[float, float]] = {}

    def folder(self, run: RunKey) -> Path:
        """The folder of a run."""
        return self._results / run[0] / "runs" / run[1]

    def before(self, run: RunKey) -> Before:
        """The state of a run's folder before its job."""
        folder = self.folder(run)
        times = self._cached(folder / JOB_TIMES, _job_times)
        return Before(
            began=times.jobs[-1].started_at if times and times.jobs else "",
            times=identity(folder / JOB_TIMES),
            summary=identity(folder / SUMMARY),
            failure=identity(folder / FAILURE),
        )

    def look(
        self, run: RunKey, job: Job | None, in_session: bool, slurm: QueuedJob | None = None
    ) -> RunFacts:
        """Status of a run.

        Args:
            run: The run.
            job: Last job of the run in this session, if it has had one.
            in_session: Whether the session makes it, whatever an earlier one has left.
            slurm: State that Slurm reports of its job; None where that is not known.
        """
        folder = self.folder(run)
        times = self._cached(folder / JOB_TIMES, _job_times)
        latest = _Latest.of(times, identity(folder / JOB_TIMES))
        told = identity(folder / "attempt" / PROGRESS)
        summary, failure = identity(folder / SUMMARY), identity(folder / FAILURE)
        seconds = _job_seconds(times, latest, told, summary, failure)
        if job is None:
            if in_session:
                return RunFacts("waiting", job_seconds=seconds)
            ended = self._ended(folder)
            return RunFacts("later", job_seconds=seconds) if ended is None else _facts(ended, seconds)
        if job.state == "finished" or (summary and summary != job.before.summary):
            return _facts(self._ended(folder) or _Ended(""), seconds)
        if job.state == "failed":
            return _facts(self._failed(folder, job.before), seconds, failed=True)
        if latest is None or latest.is_before(job.before):
            queued: RunState = "queued" if self._on_cluster and not _is(slurm, "RUNNING") else "starting"
            return RunFacts(queued, job_seconds=seconds)
        if _is_put_back(slurm, latest, told):
            return RunFacts("queued", job_seconds=seconds)
        # Snakemake hears of it later; a job that has not ended may try again by itself
        if latest.has_ended and failure and failure != job.before.failure:
            return _facts(self._failed(folder, job.before), seconds, failed=True)
        progress = told_at = None
        # both times are the file server's; what an earlier job left is older
        if told and told[-1] >= latest.began_on_server:
            progress = self._cached(folder / "attempt" / PROGRESS, _progress)
            told_at = told[-1] / NANO
        state: RunState = "running" if progress else "starting"
        if latest.has_ended:
            return RunFacts(state, "", None, progress, seconds)
        first = self._first_progress(run, latest, progress, told_at)
        return RunFacts(state, "", None, progress, seconds[:-1], latest.began, first, told_at)

    def _first_progress(
        self, run: RunKey, latest: _Latest, progress: Progress | None, told_at: float | None
    ) -> tuple[float, float] | None:
        """Fraction and time of the first progress that was seen of a job."""
        if progress is None or progress.fraction is None or told_at is None:
            return None
        return self._first_seen.setdefault((run, latest.started_at), (progress.fraction, told_at))

    def _ended(self, folder: Path) -> _Ended | None:
        found: _Ended | None = self._cached(folder / SUMMARY, _summary)
        return found

    def _failed(self, folder: Path, before: Before) -> _Ended:
        if identity(folder / FAILURE) == before.failure:
            return _Ended("failed")  # what is there is of an earlier job
        found: _Ended | None = self._cached(folder / FAILURE, _failure)
        return found or _Ended("failed")

    def _cached(self, path: Path, parse: Any) -> Any:
        """Content of a file; the earlier content if it cannot be read just now, None where it is gone."""
        now = identity(path)
        if not now:
            self._read.pop(path, None)
            return None
        before = self._read.get(path)
        if before is not None and before[0] == now:
            return before[1]
        try:
            said = parse(read_regular(path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError):
            return before[1] if before is not None else None
        self._read[path] = (now, said)
        return said


def identity(path: Path) -> tuple[int, ...]:
    """Identity of a file, unlike that of one that replaces it, its time last; empty where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _job_seconds(
    times: JobTimes | None, latest: _Latest | None, *signs: tuple[int, ...]
) -> tuple[float, ...]:
    """The length of each job of a run.

    Of a job that was killed the file tells the most that it may have taken. It has ended before the next one
    began; the last one took as long as its signs of life tell.

    Args:
        times: The file's content.
        latest: The last job in it.
        signs: Identities of the files that a job writes while it goes on or at its end.
    """
    if times is None or latest is None:
        return ()
    starts = [_epoch_seconds(job.started_at) for job in times.jobs]
    seconds = [
        job.seconds if begun is None or later is None else min(job.seconds, max(later - begun, 0.0))
        for job, begun, later in zip(times.jobs, starts, [*starts[1:], None], strict=True)
    ]
    if not latest.has_ended:
        seconds[-1] = min(latest.seconds, max(latest.seconds_until(sign) for sign in signs))
    return tuple(seconds)


def _is(slurm: QueuedJob | None, state: str) -> bool:
    return slurm is not None and slurm.state == state


def _is_put_back(slurm: QueuedJob | None, latest: _Latest, told: tuple[int, ...]) -> bool:
    """Whether Slurm has said, after the job's last sign of life, that it waits: before, it had not begun."""
    if slurm is None or slurm.state != "PENDING":
        return False
    seen = max([latest.written, *told[-1:]]) / NANO
    return slurm.asked_at > seen + SKEW_SECONDS


def _facts(ended: _Ended, seconds: tuple[float, ...], failed: bool = False) -> RunFacts:
    state: RunState = "failed" if failed or ended.outcome not in {"", "completed"} else "done"
    return RunFacts(state, ended.outcome, ended.throughput, job_seconds=seconds, disturbed=ended.disturbed)


def _job_times(text: bytes) -> JobTimes:
    return JobTimes.model_validate_json(text)


def _progress(text: bytes) -> Progress:
    return Progress.model_validate_json(text)


def _summary(text: bytes) -> _Ended:
    """The facts of a summary that are shown; the whole record would be checked ten times as long."""
    found: Mapping[str, Any] = json.loads(text)
    measured = found["measurements"] or {}
    rate = measured.get("throughput_samples_per_second")
    completed = found["outcome"] == "completed"
    if not completed:
        return _Ended(found["outcome"])
    other_jobs = (found.get("provenance") or {}).get("other_jobs")
    disturbed = disturbance({**measured, "other_jobs": other_jobs})
    return _Ended(found["outcome"], float(rate) if rate else None, disturbed)


def _failure(text: bytes) -> _Ended:
    return _Ended(json.loads(text)["outcome"])


def _epoch_seconds(started_at: str) -> float | None:
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except ValueError:
        return None
