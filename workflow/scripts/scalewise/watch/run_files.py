"""The files of a run as somebody beside it reads them: late, half there or damaged, they are no error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from scalewise.analysis.bottlenecks.disturbances import disturbance
from scalewise.execution.messages import Progress
from scalewise.execution.rank_files import PROGRESS
from scalewise.records import HISTORY, SUMMARY, History, Start, epoch_seconds, read_regular
from scalewise.watch.jobs import Job
from scalewise.watch.points import RunKey, RunState
from scalewise.watch.slurm_queue import QueuedJob

SKEW_SECONDS = 5.0
"""Most by which the clocks of two hosts are taken to differ."""

Told = Literal["", "completed", "diverged", "out-of-memory", "failed", "timed-out", "interrupted", "killed"]


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
        reported_at: Time of that report, seconds since the epoch; no news by itself.
    """

    state: RunState
    outcome: Told = ""
    throughput: float | None = None
    disturbed: str = field(default="", kw_only=True)
    progress: Progress | None = None
    job_seconds: tuple[float, ...] = ()
    began: float | None = None
    first_seen: tuple[float, float] | None = None
    reported_at: float | None = field(default=None, compare=False)

    def elapsed(self, now: float) -> float:
        """Seconds for which its job has been at work; clocks of two hosts may differ a little."""
        return 0.0 if self.began is None else max(now - self.began, 0.0)


@dataclass(frozen=True)
class _Ended:
    """The end of a run: its outcome, its samples per second if it completed, and what disturbed it."""

    outcome: Told
    throughput: float | None = None
    disturbed: str = ""


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

    def last_start(self, run: RunKey) -> str:
        """Return when the last start of a run began, as its history has it; empty if there is none."""
        history = self._history(self.folder(run))
        return history.starts[-1].started_at if history is not None else ""

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
        history = self._history(folder)
        start = history.starts[-1] if history is not None else None
        progress = self._progress_of(folder, start)
        seconds = _job_seconds(history, progress)
        if job is None:
            if in_session:
                return RunFacts("waiting", job_seconds=seconds)
            ended = self._ended(folder)
            return RunFacts("later", job_seconds=seconds) if ended is None else _facts(ended, seconds)
        if start is not None and start.started_at == job.earlier_start:
            start = None  # of an earlier job
        if job.state == "finished" or (start is not None and start.has_result):
            return _facts(self._ended(folder) or _Ended(""), seconds)
        failure = start.outcome if start is not None and start.has_failed else None
        if job.state == "failed":
            return _facts(_Ended(failure or "failed"), seconds, failed=True)
        if start is None:
            queued: RunState = "queued" if self._on_cluster and not _is(slurm, "RUNNING") else "starting"
            return RunFacts(queued, job_seconds=seconds)
        if _is_put_back(slurm, start, progress):
            return RunFacts("queued", job_seconds=seconds)
        if failure is not None:
            return _facts(_Ended(failure), seconds, failed=True)
        reported_at = progress.reported_at if progress is not None else None
        first = self._first_progress(run, start, progress)
        state: RunState = "running" if progress else "starting"
        began = epoch_seconds(start.started_at)
        return RunFacts(state, "", None, progress, seconds[:-1], began, first, reported_at)

    def _first_progress(
        self, run: RunKey, start: Start, progress: Progress | None
    ) -> tuple[float, float] | None:
        """Fraction and time of the first progress that was seen of a start."""
        if progress is None or progress.fraction is None:
            return None
        first = progress.fraction, progress.reported_at
        return self._first_seen.setdefault((run, start.started_at), first)

    def _history(self, folder: Path) -> History | None:
        found: History | None = self._cached(folder / HISTORY, History.model_validate_json)
        return found if found is not None and found.starts else None

    def _progress_of(self, folder: Path, start: Start | None) -> Progress | None:
        """Return what the ranks of a start have reported; None if they have not, or have ended."""
        if start is None or start.outcome is not None:
            return None
        progress: Progress | None = self._cached(folder / "attempt" / PROGRESS, Progress.model_validate_json)
        is_of_start = progress is not None and progress.reported_at >= epoch_seconds(start.started_at)
        return progress if is_of_start else None

    def _ended(self, folder: Path) -> _Ended | None:
        found: _Ended | None = self._cached(folder / SUMMARY, _summary)
        return found

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


def _job_seconds(history: History | None, progress: Progress | None) -> tuple[float, ...]:
    """Return the length of each start of a run; of one without an end, until its last report."""
    if history is None:
        return ()
    *seconds, last = history.seconds
    if history.starts[-1].outcome is None:
        began = epoch_seconds(history.starts[-1].started_at)
        last = min(last, progress.reported_at - began) if progress is not None else 0.0
    return (*seconds, last)


def _is(slurm: QueuedJob | None, state: str) -> bool:
    return slurm is not None and slurm.state == state


def _is_put_back(slurm: QueuedJob | None, start: Start, progress: Progress | None) -> bool:
    """Whether Slurm reports, after the start's last sign of life, that the job waits."""
    if slurm is None or slurm.state != "PENDING":
        return False
    seen = [epoch_seconds(start.ended_at or start.started_at)]
    seen += [progress.reported_at] if progress is not None else []
    return slurm.asked_at > max(seen) + SKEW_SECONDS


def _facts(ended: _Ended, seconds: tuple[float, ...], failed: bool = False) -> RunFacts:
    state: RunState = "failed" if failed or ended.outcome not in {"", "completed"} else "done"
    return RunFacts(state, ended.outcome, ended.throughput, job_seconds=seconds, disturbed=ended.disturbed)


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
