"""The files of a run as somebody beside it reads them: late, half there or damaged, they are no error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import PROGRESS
from scalewise.records import FAILURE, JOB_TIMES, SUMMARY, JobTimes, seconds_between
from scalewise.watch.jobs import Before, Job
from scalewise.watch.points import RunKey, RunState

Told = Literal["", "completed", "diverged", "out-of-memory", "failed", "timed-out", "interrupted"]


@dataclass(frozen=True)
class RunFacts:
    """How a run stands.

    Args:
        outcome: Of a run that has ended; empty before, and where no file says.
        throughput: Samples per second of a run that has completed.
        progress: What the ranks told last; None before their first steps.
        job_seconds: Length of each job that has ended.
        began: Start of the job that is at work, seconds since the epoch.
    """

    state: RunState
    outcome: Told = ""
    throughput: float | None = None
    progress: Progress | None = None
    job_seconds: tuple[float, ...] = ()
    began: float | None = None

    def elapsed(self, now: float) -> float:
        """Seconds for which its job has been at work; clocks of two hosts may differ a little."""
        return 0.0 if self.began is None else max(now - self.began, 0.0)


@dataclass(frozen=True)
class _Ended:
    """The end of a run: its outcome, its samples per second if it completed, and how long it took."""

    outcome: Told
    throughput: float | None = None
    seconds: float | None = None


class RunFiles:
    """The folders of all runs; each file is read again only when it is another one.

    Args:
        results: Folder of all experiments.
        on_cluster: Whether a job waits in a queue before it starts.
    """

    def __init__(self, results: Path, on_cluster: bool = False) -> None:
        self._results, self._on_cluster = results, on_cluster
        self._read: dict[Path, tuple[tuple[int, ...], Any]] = {}

    def folder(self, run: RunKey) -> Path:
        """The folder of a run."""
        return self._results / run[0] / "runs" / run[1]

    def before(self, run: RunKey) -> Before:
        """The state of a run's folder before its job."""
        folder = self.folder(run)
        times = self._cached(folder / JOB_TIMES, _job_times)
        return Before(jobs=len(times.jobs) if times else 0, summary=identity(folder / SUMMARY))

    def look(self, run: RunKey, job: Job | None, in_session: bool, slurm: str = "") -> RunFacts:
        """How a run stands.

        Args:
            run: The run.
            job: Its last job in this session, if it has had one.
            in_session: Whether the session makes it, whatever an earlier one has left.
            slurm: The state that Slurm tells of its job, such as ``PENDING``; empty where that is not known.
        """
        folder = self.folder(run)
        times = self._cached(folder / JOB_TIMES, _job_times)
        seconds = tuple(each.seconds for each in times.jobs) if times else ()
        if job is None:
            if in_session:
                return RunFacts("waiting", job_seconds=seconds)
            ended = self._ended(folder)
            return RunFacts("later", job_seconds=seconds) if ended is None else _facts(ended, seconds)
        summary = identity(folder / SUMMARY)
        if job.state == "finished" or (summary and summary != job.before.summary):
            ended = self._ended(folder) or _Ended("")
            if seconds and ended.seconds is not None and summary[-1] > identity(folder / JOB_TIMES)[-1]:
                # until its job has ended, the file tells the most that it may take
                seconds = (*seconds[:-1], ended.seconds)
            return _facts(ended, seconds)
        if job.state == "failed":
            return _facts(self._failed(folder), seconds, failed=True)
        if times is None or len(times.jobs) <= job.before.jobs or slurm == "PENDING":
            queued: RunState = "queued" if self._on_cluster and slurm != "RUNNING" else "starting"
            return RunFacts(queued, job_seconds=seconds)
        # the last one's time is the most that it may take
        began = _epoch_seconds(times.jobs[-1].started_at)
        progress = self._progress(folder)
        return RunFacts("running" if progress else "starting", "", None, progress, seconds[:-1], began)

    def _ended(self, folder: Path) -> _Ended | None:
        found: _Ended | None = self._cached(folder / SUMMARY, _summary)
        return found

    def _failed(self, folder: Path) -> _Ended:
        found: _Ended | None = self._cached(folder / FAILURE, _failure)
        return found or _Ended("failed")

    def _progress(self, folder: Path) -> Progress | None:
        path, since = folder / "attempt" / PROGRESS, identity(folder / JOB_TIMES)
        now = identity(path)
        # both times are the file server's; what an earlier job left is older
        if not now or not since or now[-1] < since[-1]:
            return None
        found: Progress | None = self._cached(path, _progress)
        return found

    def _cached(self, path: Path, parse: Any) -> Any:
        """What a file says; what it said before where it cannot be read just now, None where it is gone."""
        now = identity(path)
        if not now:
            self._read.pop(path, None)
            return None
        before = self._read.get(path)
        if before is not None and before[0] == now:
            return before[1]
        try:
            said = parse(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
            return before[1] if before is not None else None
        self._read[path] = (now, said)
        return said


def identity(path: Path) -> tuple[int, ...]:
    """What tells a file from the one that replaces it, its time last; empty where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _facts(ended: _Ended, seconds: tuple[float, ...], failed: bool = False) -> RunFacts:
    state: RunState = "failed" if failed or ended.outcome not in {"", "completed"} else "done"
    return RunFacts(state, ended.outcome, ended.throughput, job_seconds=seconds)


def _job_times(text: bytes) -> JobTimes:
    return JobTimes.model_validate_json(text)


def _progress(text: bytes) -> Progress:
    return Progress.model_validate_json(text)


def _summary(text: bytes) -> _Ended:
    """The two facts of a summary that are shown; the whole record would be checked ten times as long."""
    found: Mapping[str, Any] = json.loads(text)
    measured = found["measurements"] or {}
    rate = measured.get("throughput_samples_per_second")
    completed = found["outcome"] == "completed"
    provenance = found["provenance"]
    seconds = None
    if provenance is not None:
        seconds = seconds_between(provenance["started_at"], provenance["ended_at"])
    return _Ended(found["outcome"], float(rate) if completed and rate else None, seconds)


def _failure(text: bytes) -> _Ended:
    return _Ended(json.loads(text)["outcome"])


def _epoch_seconds(started_at: str) -> float | None:
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except ValueError:
        return None
