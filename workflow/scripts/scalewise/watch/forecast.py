"""Predict the cost and the end of a running study from the times of its runs."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from scalewise.watch.status import PointStatus, RunState, RunStatus, StudyStatus
from scalewise.watch.study import RunKey, WatchedPoint

ENOUGH_DONE = 0.1
"""Least share of a run from which its pace predicts its time: before, the start-up weighs too much."""

_TO_GO: tuple[RunState, ...] = ("waiting", "queued", "blocked", "starting", "running")


@dataclass(frozen=True)
class Forecast:
    """Cost of a study so far and to go.

    Args:
        spent: Device-hours of all jobs, as billed, with those of runs that failed.
        to_go: Device-hours of the runs that are to come; None if unknown.
        ends: The end of the last run, seconds since the epoch; None if unknown.
        waits: Whether the end depends on jobs in the queue whose start is unknown.
        may_grow: Whether a later round may request more runs.
    """

    spent: float
    to_go: float | None
    ends: float | None
    waits: bool
    may_grow: bool = False


def forecast(study: StudyStatus) -> Forecast:
    """Return the cost so far and to come, and the end."""
    spent = sum(
        (sum(run.job_seconds) + run.elapsed(study.now)) * point.point.billed_devices
        for point in study.points
        for run in point.runs.values()
    )
    # no process makes the rest of a study that was interrupted
    left = None if study.over else seconds_left(study)
    if left is None:
        return Forecast(spent / 3600, None, None, False)
    to_go = sum(
        left[run] * point.point.billed_devices for point in study.points for run in point.in_state(*_TO_GO)
    )
    ends, waits = _end(study, left)
    return Forecast(spent / 3600, to_go / 3600, ends, waits, study.rounds.may_grow)


def seconds_left(study: StudyStatus) -> dict[RunKey, float] | None:
    """Return the time that each run still takes, without its wait; None if unknown."""
    point_seconds = {point.point: _point_seconds(point, study.now) for point in study.points}
    left = {}
    for point in study.points:
        seconds = point_seconds[point.point]
        if seconds is None:
            seconds = _like_another(point.point, point_seconds)
        for run in point.in_state(*_TO_GO):
            status = point.runs[run]
            if (pace := _pace(status, study.now)) is not None:
                left[run] = pace.seconds * (1 - _fraction(status))
            elif seconds is None:
                return None
            else:
                left[run] = max(seconds - status.elapsed(study.now), 0.0)
    return left


def _point_seconds(point: PointStatus, now: float) -> float | None:
    """Return the seconds of a job of a point: of those that have completed, else of those at work."""
    done = [run.job_seconds for run in point.runs.values() if run.state == "done" and run.job_seconds]
    # the last of several jobs may have trained only the end of its run
    whole = [jobs for jobs in done if len(jobs) == 1]
    seconds = [sum(jobs) for jobs in whole or done]
    paces = [_pace(run, now) for run in point.runs.values()]
    seconds = seconds or [pace.startup_seconds + pace.seconds for pace in paces if pace is not None]
    return median(seconds) if seconds else None


@dataclass(frozen=True)
class _Pace:
    """The pace of a run at work.

    Args:
        seconds: Time that a whole training takes at it.
        startup_seconds: Time of its job before.
    """

    seconds: float
    startup_seconds: float


def _pace(run: RunStatus, now: float) -> _Pace | None:
    """Return the pace of a run at work; None if too little is done.

    It is counted from the first report of the job: its start-up is excluded, and what earlier jobs have done.
    """
    progress = run.progress
    if progress is None or not progress.total_steps or run.began is None:
        return None
    first, since = progress.first_step / progress.total_steps, progress.first_reported_at
    gained = _fraction(run) - first
    if gained <= 0 or gained < ENOUGH_DONE * (1 - first):
        return None
    return _Pace(max(now - since, 0.0) / gained, max(since - run.began, 0.0))


def _fraction(run: RunStatus) -> float:
    """Return the share of a run that is done, whichever job has done it."""
    fraction = run.progress.fraction if run.progress is not None else None
    return min(fraction or 0.0, 1.0)


def _like_another(point: WatchedPoint, point_seconds: Mapping[WatchedPoint, float | None]) -> float | None:
    """Return the most that a point should take by the nearest known one, in its experiment if possible.

    More devices are assumed to be no faster, fewer to be slower in proportion.
    """
    known = {other: seconds for other, seconds in point_seconds.items() if seconds is not None}
    near = {other: each for other, each in known.items() if other.experiment == point.experiment} or known
    if not near:
        return None
    closest = min(near, key=lambda other: (abs(other.devices - point.devices), other.series != point.series))
    return near[closest] * max(closest.devices / point.devices, 1.0)


def _end(study: StudyStatus, left: Mapping[RunKey, float]) -> tuple[float, bool]:
    """Return the end of the last run, and whether it depends on an unknown start."""
    budget = study.study.device_budget
    if budget is None:
        return study.now + sum(left.values()), False
    used, waits = 0.0, False
    ends: list[tuple[float, float]] = []
    for point in study.points:
        for run in point.in_state("queued", "starting", "running"):
            status, start = point.runs[run], study.now
            if status.state == "queued":
                estimate = status.expected_start(study.now)
                waits = waits or estimate is None
                start = estimate or study.now
            heapq.heappush(ends, (start + left[run], point.point.billed_devices))
            used += point.point.billed_devices
    last = max((end for end, _ in ends), default=study.now)
    clock = study.now
    for point in study.points:
        for run in point.in_state("waiting"):
            while ends and used + point.point.billed_devices > budget:
                clock, freed = heapq.heappop(ends)
                used -= freed
            heapq.heappush(ends, (clock + left[run], point.point.billed_devices))
            used, last = used + point.point.billed_devices, max(last, clock + left[run])
            waits = True
    return last, waits
