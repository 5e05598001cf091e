"""Cost and end of a study that runs, from what its own runs have taken."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from scalewise.watch.points import RunKey, WatchedPoint
from scalewise.watch.run_files import RunFacts
from scalewise.watch.standing import PointStanding, Standing

ENOUGH_DONE = 0.1
"""Share of a run from which on its own pace tells how long it takes: before, its start weighs too much."""


@dataclass(frozen=True)
class Forecast:
    """Cost of a study so far and to go.

    Args:
        spent: Device-hours of all jobs, as billed, those of runs that failed among them.
        to_go: Device-hours of the runs that are to come; None before anything tells.
        ends: The end of the last run, seconds since the epoch; None before anything tells.
        waits: Whether the end rests on jobs in the queue whose start nobody has estimated.
        may_grow: Whether a round that is still to be judged may ask for more runs.
    """

    spent: float
    to_go: float | None
    ends: float | None
    waits: bool
    may_grow: bool = False


def forecast(standing: Standing) -> Forecast:
    """The cost so far and to come, and the end."""
    spent = sum(
        (sum(facts.job_seconds) + facts.elapsed(standing.now)) * point.point.billed_devices
        for point in standing.points
        for facts in point.runs.values()
    )
    # nobody makes the rest of a study that was cut off
    left = None if standing.over else seconds_left(standing)
    if left is None:
        return Forecast(spent / 3600, None, None, False)
    of_run = {run: point.point for point in standing.points for run in point.runs}
    to_go = sum(seconds * of_run[run].billed_devices for run, seconds in left.items())
    ends, waits = _end(standing, left, of_run)
    return Forecast(spent / 3600, to_go / 3600, ends, waits, standing.rounds.may_ask_for_more)


def seconds_left(standing: Standing) -> dict[RunKey, float] | None:
    """The time that each run still takes, without its wait; None where nothing tells."""
    takes = {point.point: _takes(point, standing.now) for point in standing.points}
    left = {}
    for point in standing.points:
        seconds = takes[point.point]
        if seconds is None:
            seconds = _like_another(point.point, takes)
        for run in point.in_state("waiting", "queued", "starting", "running"):
            facts = point.runs[run]
            if facts.state == "running" and (own := _own_pace(facts, standing.now)) is not None:
                left[run] = own.seconds * (1 - _fraction(facts))
            elif seconds is None:
                return None
            else:
                left[run] = max(seconds - facts.elapsed(standing.now), 0.0)
    return left


def _takes(standing: PointStanding, now: float) -> float | None:
    """Seconds of a job of a point: of those that have completed, else of those at work by their pace."""
    taken = [
        facts.job_seconds for facts in standing.runs.values() if facts.state == "done" and facts.job_seconds
    ]
    # the last job of a run that had several may have made the end of it alone
    whole = [jobs for jobs in taken if len(jobs) == 1]
    done = [sum(jobs) for jobs in whole or taken]
    paces = [_own_pace(standing.runs[run], now) for run in standing.in_state("running")]
    known = done or [pace.startup_seconds + pace.seconds for pace in paces if pace is not None]
    return median(known) if known else None


@dataclass(frozen=True)
class _Pace:
    """The pace of a run at work.

    Args:
        seconds: Time that a whole training takes at it.
        startup_seconds: Time of its job before.
    """

    seconds: float
    startup_seconds: float


def _own_pace(facts: RunFacts, now: float) -> _Pace | None:
    """The pace of a run at work; None before that tells.

    It is counted from where the job was first seen at work: its start-up is left out, and what earlier jobs
    have done. Whoever looks later counts a first job from its start.
    """
    if facts.progress is None or facts.progress.fraction is None or facts.began is None:
        return None
    from_start = (0.0, facts.began)
    for first, since in (facts.first_seen or from_start, *([] if facts.job_seconds else [from_start])):
        gained = _fraction(facts) - first
        if gained > 0 and gained >= ENOUGH_DONE * (1 - first):
            return _Pace(max(now - since, 0.0) / gained, max(since - facts.began, 0.0))
    return None


def _fraction(facts: RunFacts) -> float:
    """Share of a run that is done, whichever job has done it."""
    told = facts.progress.fraction if facts.progress is not None else None
    return min(told or 0.0, 1.0)


def _like_another(point: WatchedPoint, takes: Mapping[WatchedPoint, float | None]) -> float | None:
    """The most that a point should take by the nearest one that is known, in its experiment if possible.

    More devices are taken to be no faster, fewer to be slower by as much as they are fewer.
    """
    known = {other: seconds for other, seconds in takes.items() if seconds is not None}
    same = {other: seconds for other, seconds in known.items() if other.experiment == point.experiment}
    near = same or known
    if not near:
        return None
    closest = min(near, key=lambda other: (abs(other.devices - point.devices), other.series != point.series))
    return near[closest] * max(closest.devices / point.devices, 1.0)


def _end(
    standing: Standing, left: Mapping[RunKey, float], of_run: Mapping[RunKey, WatchedPoint]
) -> tuple[float, bool]:
    """The end of the last run, and whether it rests on a start that nobody has estimated."""
    if standing.study.device_budget is None:
        return standing.now + sum(left.values()), False
    budget, used, waits = standing.study.device_budget, 0, False
    ends: list[tuple[float, int]] = []
    for run, start in _handed_over(standing):
        # nobody can say when this one starts
        waits = waits or start is None
        heapq.heappush(ends, (max(start or 0.0, standing.now) + left[run], of_run[run].devices))
        used += of_run[run].devices
    last = max((end for end, _ in ends), default=standing.now)
    clock = standing.now
    for point in standing.points:
        for run in point.in_state("waiting"):
            while ends and used + point.point.devices > budget:
                clock, freed = heapq.heappop(ends)
                used -= freed
            heapq.heappush(ends, (clock + left[run], point.point.devices))
            used, last = used + point.point.devices, max(last, clock + left[run])
            waits = True
    return last, waits


def _handed_over(standing: Standing) -> Iterator[tuple[RunKey, float | None]]:
    """The runs that Slurm has, with their start as far as it is known."""
    for point in standing.points:
        for run in point.in_state("starting", "running"):
            yield run, standing.now
        for run in point.in_state("queued"):
            queued = point.queued.get(run)
            yield run, queued.starts if queued is not None else None
