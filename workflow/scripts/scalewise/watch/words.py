"""Texts of a point, a run and a forecast, in plain ASCII."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from scalewise.analysis.statistics.intervals import Interval
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import clock_text, duration_text, format_3sig, format_ratio
from scalewise.watch.forecast import Forecast
from scalewise.watch.points import Criterion, RunKey
from scalewise.watch.run_files import RunFacts
from scalewise.watch.speedups import Speedup
from scalewise.watch.standing import PointStanding, Standing

MOST_DISTURBED = 3
"""Most disturbed runs that are named."""


def interval_text(interval: Interval | None) -> str:
    """``1,234 (1,210 to 1,260)``: geometric mean and 95 % interval; a single run has none."""
    if interval is None:
        return ""
    if math.isnan(interval.low):
        return format_3sig(interval.estimate)
    return f"{format_3sig(interval.estimate)} ({format_3sig(interval.low)} to {format_3sig(interval.high)})"


def speedup_text(speedup: Speedup | None, bounds: bool = True) -> str:
    """``1.71x (1.60 to 1.80)``."""
    if speedup is None:
        return ""
    ratio = speedup.ratio
    if not bounds or math.isnan(ratio.low):
        return f"{format_ratio(ratio.estimate)}x"
    return f"{format_ratio(ratio.estimate)}x ({format_ratio(ratio.low)} to {format_ratio(ratio.high)})"


def runs_text(standing: PointStanding) -> str:
    """``2 of 3``, ``2 of 3, 1 failed``: runs that have completed."""
    done, failed = len(standing.in_state("done")), standing.failed
    return f"{done} of {len(standing.runs)}" + (f", {failed} failed" if failed else "")


def now_text(standing: PointStanding, now: float, over: bool = False) -> str:
    """States of the repeats of a point: at work first, then those in the queue.

    Args:
        standing: The point.
        now: Seconds since the epoch.
        over: Whether the session has ended.
    """
    if over:
        return _end_text(standing)
    return "; ".join(_now(standing, now))


def _end_text(standing: PointStanding) -> str:
    """Return how a point ended: ``done``, ``timed-out, 1 not made``."""
    outcomes = [str(standing.runs[run].outcome or "failed") for run in standing.in_state("failed")]
    if cut := len(standing.in_state("running", "starting")):
        outcomes.append(f"{cut} interrupted")
    if missing := len(standing.in_state("waiting", "queued")):
        outcomes.append(f"{missing} not made")
    return ", ".join(dict.fromkeys(outcomes)) or "done"


def _now(standing: PointStanding, now: float) -> Iterator[str]:
    working = standing.in_state("running")
    if len(working) == 1:
        yield f"{repeat_text(working[0])}: {progress_text(standing.runs[working[0]])}"
    elif working:
        paces = (str(standing.runs[run].progress) for run in working)
        yield f"{len(working)} runs: {', '.join(paces)}{_rates_text(standing, working)}"
    if starting := standing.in_state("starting"):
        yield f"{repeat_text(starting[0]) if len(starting) == 1 else f'{len(starting)} runs'} starting"
    if queued := standing.in_state("queued"):
        yield _queue_text(standing, queued, now)
    if not standing.in_state("running", "starting", "queued"):
        if standing.in_state("waiting"):
            yield "waiting"
        elif failed := standing.in_state("failed"):
            outcomes = Counter(standing.runs[run].outcome or "failed" for run in failed)
            yield ", ".join(outcomes)
        else:
            yield "done"


def _rates_text(standing: PointStanding, working: Sequence[RunKey]) -> str:
    """``, 5,000 to 5,100/s``: the samples per second of runs at work, the slowest and the fastest."""
    progress = (standing.runs[run].progress for run in working)
    rates = sorted(each.samples_per_second for each in progress if each and each.samples_per_second)
    if not rates:
        return ""
    texts = dict.fromkeys((format_3sig(rates[0]), format_3sig(rates[-1])))
    return f", {' to '.join(texts)}/s"


def repeat_text(run: RunKey) -> str:
    """``run 2``."""
    return f"run {run[1].rpartition('.r')[2]}"


def progress_text(facts: RunFacts) -> str:
    """``epoch 3/10, 1,234/s``: samples per second."""
    progress = facts.progress
    assert progress is not None, "a run at work has reported its progress"
    rate = progress.samples_per_second
    return str(progress) + (f", {format_3sig(rate)}/s" if rate else "")


def _queue_text(standing: PointStanding, queued: Sequence[RunKey], now: float) -> str:
    """``2 in the queue (Priority), the first to start about 14:32``."""
    jobs = [standing.queued[run] for run in queued if run in standing.queued]
    reasons = list(dict.fromkeys(job.reason for job in jobs if job.reason))
    why = f" ({', '.join(reasons)})" if reasons else ""
    starts = [job.starts for job in jobs if job.starts is not None]
    first = "" if len(queued) == 1 else ", the first"
    when = f"{first or ','} to start about {clock_text(min(starts), now)}" if starts else ""
    return f"{len(queued)} in the queue{why}{when}"


def forecast_text(standing: Standing, forecast: Forecast) -> str:
    """Device-hours spent and to go, and the expected end."""
    total = len(standing.runs)
    parts = [f"{standing.count('done')} of {total} runs done"]
    if failed := sum(point.failed for point in standing.points):
        parts.append(f"{failed} failed")
    parts.append(f"{format_3sig(forecast.spent)} device-hours spent")
    if standing.over or not standing.count("waiting", "queued", "starting", "running"):
        return ", ".join(parts)
    if forecast.to_go is None or forecast.ends is None:
        parts.append("time left: not known yet")
        return ", ".join(parts)
    parts.append(f"{'at least' if forecast.may_grow else 'about'} {format_3sig(forecast.to_go)} to go")
    last, wait = clock_text(forecast.ends, standing.now), duration_text(forecast.ends - standing.now)
    # what is known of the queue and of the rounds is in it; what is not can only add to it
    earliest = forecast.waits or forecast.may_grow
    parts.append(f"done {last} at the earliest (in {wait})" if earliest else f"done about {last} (in {wait})")
    return ", ".join(parts)


def answer_lines(standing: Standing, measured: Sequence[Speedup]) -> list[str]:
    """Findings of the runs so far, a line for each series with a speedup."""
    lines = [*standing.rounds.lines, *_disturbed_lines(standing)]
    experiments = dict.fromkeys((each.point.experiment, each.point.series) for each in measured)
    for experiment, series in experiments:
        speedups = [
            each for each in measured if (each.point.experiment, each.point.series) == (experiment, series)
        ]
        rule = standing.study.criteria.get(experiment, Criterion())
        which = f"{experiment} ({series})" if series else experiment
        shown = _telling(speedups, rule)
        over = "" if shown.baseline == 1 else f" over {shown.point.count(shown.baseline)}"
        required = "" if rule.min_efficiency is None else f" ({rule.min_efficiency:g} required)"
        # other criteria need times and costs of whole trainings, which the report has
        best = "fastest" if rule.min_efficiency is None else "best"
        lines.append(
            f"{which}, {best} so far: {shown.point.count(shown.point.devices)}, {speedup_text(shown)}{over}, "
            f"efficiency {shown.efficiency:.2f}{required}, {count_devices(shown.ratio.n, 'run')}"
        )
    return lines


def _disturbed_lines(standing: Standing) -> Iterator[str]:
    """``1 run was disturbed: study/d1.r2 (other processes took 90 % of the CPUs)``."""
    runs = [f"{'/'.join(run)} ({facts.disturbed})" for run, facts in standing.runs.items() if facts.disturbed]
    if runs:
        more = f" and {len(runs) - MOST_DISTURBED} more" if len(runs) > MOST_DISTURBED else ""
        subject = "1 run was" if len(runs) == 1 else f"{len(runs)} runs were"
        yield f"{subject} disturbed: {', '.join(runs[:MOST_DISTURBED])}{more}"


def _telling(speedups: Sequence[Speedup], rule: Criterion) -> Speedup:
    """Return the point to show: the most devices that are efficient enough, else the fastest."""
    enough = [each for each in speedups if rule.min_efficiency and each.efficiency >= rule.min_efficiency]
    if rule.min_efficiency:
        # if none is efficient enough, the one that comes closest
        return max(enough or speedups, key=lambda each: each.point.devices if enough else each.efficiency)
    return max(speedups, key=lambda each: each.ratio.estimate)
