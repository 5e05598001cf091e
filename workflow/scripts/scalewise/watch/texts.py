"""Texts of a study: a table for a terminal, and lines for other streams. Plain ASCII."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from scalewise.analysis.statistics import Interval
from scalewise.config.shape import count_devices
from scalewise.plan.formatting import clock_text, duration_text, format_3sig, format_ratio
from scalewise.watch.forecast import Forecast, forecast
from scalewise.watch.speedups import Speedup, speedups
from scalewise.watch.status import PointStatus, RunState, StudyStatus
from scalewise.watch.study import RunKey, WatchedPoint

GAP = 2
LEAST_LAST = 27
NARROW_LAST = 18
"""Characters that the last column keeps in a wide and in a narrow terminal; what is longer is cut off."""
MOST_NAME = 28
"""Characters of an experiment's or a series' name in a narrow terminal."""
MOST_DISTURBED = 3
"""Most disturbed runs that are named."""

_HEADINGS = {
    "experiment": "experiment",
    "devices": "devices",
    "series": "series",
    "runs": "runs done",
    "rate": "samples/s",
    "speedup": "speedup",
    "now": "now",
}
_GROUPS: dict[str, tuple[RunState, ...]] = {
    "at work": ("running", "starting"),
    "in the queue": ("queued", "blocked"),
    "with failed runs": ("failed",),
    "waiting": ("waiting",),
    "done": (),
}
"""States of points, in the order in which points get room if not all fit."""


# ---- the table


def table(study: StudyStatus, width: int, height: int) -> list[str]:
    """Return all points, the answer so far and the forecast, in a box of so many characters and lines.

    Points at work come before those that are done if not all have room, and keep the order of the
    configuration.

    Args:
        study: Status of the study.
        width: Characters of a line.
        height: Most lines.
    """
    measured = list(speedups(study.points))
    foot = [*answer_lines(study, measured), forecast_text(study, forecast(study))]
    if study.not_requested:
        foot.insert(0, f"{study.not_requested} more device counts are measured only if the answer needs them")
    *others, last = (textwrap.wrap(line, width, subsequent_indent="  ") for line in foot)
    # at least the heading and two points; the forecast is the last to go
    room = max(height - 3, 1)
    last = last[:room]
    # for many series the table is clearer than a sentence for each
    answers = [line for lines in others for line in lines][: min(room - len(last), max(height // 4, 2))]
    shown = _with_room(study.points, max(height - 1 - len(answers) - len(last), 1))
    lines = _columns(shown, study, measured, width)
    if len(shown) < len(study.points):
        lines.append(_others(each for each in study.points if each not in shown))
    return [*(_cut(line, width) for line in lines), *answers, *last]


def _with_room(points: Sequence[PointStatus], rows: int) -> list[PointStatus]:
    """Return the points that have room; one line is kept for the number of the others."""
    if len(points) <= rows:
        return list(points)
    order = list(_GROUPS)
    ranked = sorted(range(len(points)), key=lambda place: (order.index(_group(points[place])), place))
    kept = set(ranked[: max(rows - 1, 0)])
    return [each for place, each in enumerate(points) if place in kept]


def _group(point: PointStatus) -> str:
    return next((name for name, states in _GROUPS.items() if point.in_state(*states)), "done")


def _others(points: Iterator[PointStatus]) -> str:
    """Return the line on points without room: ``... and 3 more: 1 at work, 2 done``."""
    counts = Counter(map(_group, points))
    groups = ", ".join(f"{counts[name]} {name}" for name in _GROUPS if counts[name])
    return f"... and {counts.total()} more: {groups}"


def _columns(
    shown: Sequence[PointStatus], study: StudyStatus, measured: Sequence[Speedup], width: int
) -> list[str]:
    """Return heading and rows, shortened until they fit the width; nothing if no point is shown."""
    if not shown:
        return []
    by_point = {each.point: each for each in measured}
    columns = {
        "experiment": [each.point.experiment for each in shown],
        "devices": [str(each.point.devices) for each in shown],
        "series": [each.point.series for each in shown],
        "runs": [runs_text(each) for each in shown],
        "rate": [interval_text(each.throughput, each.rates) for each in shown],
        "speedup": [speedup_text(by_point.get(each.point)) for each in shown],
        "now": [now_text(each, study.now, study.over) for each in shown],
    }
    if len(study.study.min_efficiency) == 1:
        del columns["experiment"]
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    shorter = {
        "rate": [format_3sig(each.throughput.estimate) if each.throughput else "" for each in shown],
        "speedup": [speedup_text(by_point.get(each.point), bounds=False) for each in shown],
    }
    for name in ("rate", "speedup"):
        if name in columns and not _fits(columns, width):
            columns[name] = shorter[name]
    if not _fits(columns, width):
        for name in {"experiment", "series"} & set(columns):
            columns[name] = [_cut(cell, MOST_NAME) for cell in columns[name]]
    # columns that distinguish two points go last
    for name, last in (("speedup", LEAST_LAST), ("rate", NARROW_LAST), ("series", 0)):
        if name in columns and not _fits(columns, width, last):
            del columns[name]
    return _aligned(columns)


def _widths(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {name: max(len(_HEADINGS[name]), *map(len, cells)) for name, cells in columns.items()}


def _fits(columns: Mapping[str, Sequence[str]], width: int, least_last: int = LEAST_LAST) -> bool:
    widths = _widths(columns)
    last = min(widths["now"], least_last)
    return sum(widths.values()) - widths["now"] + last + GAP * (len(columns) - 1) <= width


def _aligned(columns: Mapping[str, Sequence[str]]) -> list[str]:
    widths = _widths(columns)
    heading = [_HEADINGS[name] for name in columns]
    return [
        (" " * GAP)
        .join(
            cell.rjust(widths[name]) if name == "devices" else cell.ljust(widths[name])
            for name, cell in zip(columns, cells, strict=True)
        )
        .rstrip()
        for cells in (heading, *zip(*columns.values(), strict=True))
    ]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 3, 0)]}..."[:width]


# ---- lines


def change_lines(study: StudyStatus, reported: dict[WatchedPoint, tuple[object, ...]]) -> list[str]:
    """Return a line for each point that there is news of.

    ``digits-strong, 2 devices: 1 of 3 runs done, 1,234 samples/s; run 2 starting``.

    Args:
        study: Status of the study.
        reported: Key that was last reported of each point; updated here.
    """
    lines = []
    for each in study.points:
        before, reported[each.point] = reported.get(each.point), each.key
        has_begun = len(each.in_state("waiting")) < len(each.runs)
        if each.key != before and (before is not None or has_begun):
            done, _, failed = runs_text(each).partition(", ")
            rate, now = interval_text(each.throughput, each.rates), now_text(each, study.now, study.over)
            news = [f"{done} runs done", failed, f"{rate} samples/s" if rate else ""]
            text = "; ".join([", ".join(filter(None, news)), *([now] if now != "done" else [])])
            lines.append(f"{each.point.label}: {text}")
    return lines


def study_lines(study: StudyStatus) -> list[str]:
    """Return the answer so far and the forecast, for the study as a whole."""
    return [*answer_lines(study, list(speedups(study.points))), forecast_text(study, forecast(study))]


# ---- a point


def interval_text(interval: Interval | None, rates: Sequence[float]) -> str:
    """Return ``1,234 (1,210 to 1,260)``: geometric mean and 95 % interval; both values of two runs.

    Args:
        interval: Interval of the rates; None without any.
        rates: Rate of each run.
    """
    if interval is None:
        return ""
    if math.isnan(interval.low):
        return " and ".join(map(format_3sig, sorted(rates)))
    return f"{format_3sig(interval.estimate)} ({format_3sig(interval.low)} to {format_3sig(interval.high)})"


def speedup_text(speedup: Speedup | None, bounds: bool = True) -> str:
    """Return ``1.71x (1.60 to 1.80)``."""
    if speedup is None:
        return ""
    ratio = speedup.ratio
    if not bounds or math.isnan(ratio.low):
        return f"{format_ratio(ratio.estimate)}x"
    return f"{format_ratio(ratio.estimate)}x ({format_ratio(ratio.low)} to {format_ratio(ratio.high)})"


def runs_text(point: PointStatus) -> str:
    """Return ``2 of 3`` or ``2 of 3, 1 failed``: runs that have completed."""
    return f"{len(point.in_state('done'))} of {len(point.runs)}" + (
        f", {point.failed} failed" if point.failed else ""
    )


def now_text(point: PointStatus, now: float, over: bool = False) -> str:
    """Return the states of the repeats of a point: at work first, then those that wait.

    Args:
        point: Status of the point.
        now: Seconds since the epoch.
        over: Whether the session has ended.
    """
    if over:
        return _end_text(point)
    texts = [_running_text(point, runs)] if (runs := point.in_state("running")) else []
    if starting := point.in_state("starting"):
        texts.append(f"{_runs(starting)} starting")
    if blocked := point.in_state("blocked"):
        verb = "waits" if len(blocked) == 1 else "wait"
        texts.append(f"{_runs(blocked)} {verb} for {point.runs[blocked[0]].waits_for}")
    if queued := point.in_state("queued"):
        texts.append(_queue_text(point, queued, now))
    if texts:
        return "; ".join(texts)
    if point.in_state("waiting"):
        return "waiting"
    failed = Counter(point.runs[run].outcome or "failed" for run in point.in_state("failed"))
    return ", ".join(failed) or "done"


def _end_text(point: PointStatus) -> str:
    """Return how a point ended: ``done``, ``timed-out, 1 not made``."""
    outcomes = [str(point.runs[run].outcome or "failed") for run in point.in_state("failed")]
    if cut := len(point.in_state("running", "starting")):
        outcomes.append(f"{cut} interrupted")
    if missing := len(point.in_state("waiting", "queued", "blocked")):
        outcomes.append(f"{missing} not made")
    return ", ".join(dict.fromkeys(outcomes)) or "done"


def _runs(runs: Sequence[RunKey]) -> str:
    """Return ``run 2`` for one run, ``3 runs`` for several."""
    return f"run {runs[0][1].rpartition('.r')[2]}" if len(runs) == 1 else f"{len(runs)} runs"


def _running_text(point: PointStatus, runs: Sequence[RunKey]) -> str:
    """Return ``run 2: epoch 3/10, 1,234/s``, for several runs with the least and the most samples/s."""
    reports = [each for run in runs if (each := point.runs[run].progress) is not None]
    rates = sorted(each.samples_per_second for each in reports if each.samples_per_second)
    texts = dict.fromkeys(format_3sig(rate) for rate in (*rates[:1], *rates[-1:]))
    parts = [*map(str, reports), *([f"{' to '.join(texts)}/s"] if texts else [])]
    return f"{_runs(runs)}: {', '.join(parts)}"


def _queue_text(point: PointStatus, queued: Sequence[RunKey], now: float) -> str:
    """Return ``2 in the queue (Priority), the first to start about 14:32``."""
    jobs = [job for run in queued if (job := point.runs[run].slurm) is not None]
    reasons = list(dict.fromkeys(job.reason for job in jobs if job.reason))
    why = f" ({', '.join(reasons)})" if reasons else ""
    starts = [start for run in queued if (start := point.runs[run].expected_start(now)) is not None]
    first = "," if len(queued) == 1 else ", the first"
    when = f"{first} to start about {clock_text(min(starts), now)}" if starts else ""
    return f"{len(queued)} in the queue{why}{when}"


# ---- the study


def forecast_text(study: StudyStatus, forecast: Forecast) -> str:
    """Return device-hours spent and to go, and the expected end."""
    parts = [f"{study.count('done')} of {len(study.runs)} runs done"]
    if failed := sum(point.failed for point in study.points):
        parts.append(f"{failed} failed")
    parts.append(f"{format_3sig(forecast.spent)} device-hours spent")
    if study.over or study.count("done", "failed") == len(study.runs):
        return ", ".join(parts)
    if forecast.to_go is None or forecast.ends is None:
        return ", ".join([*parts, "time left: not known yet"])
    parts.append(f"{'at least' if forecast.may_grow else 'about'} {format_3sig(forecast.to_go)} to go")
    last, wait = clock_text(forecast.ends, study.now), duration_text(forecast.ends - study.now)
    # unknown starts in the queue and later rounds can only add to it
    earliest = forecast.waits or forecast.may_grow
    parts.append(f"done {last} at the earliest (in {wait})" if earliest else f"done about {last} (in {wait})")
    return ", ".join(parts)


def answer_lines(study: StudyStatus, measured: Sequence[Speedup]) -> list[str]:
    """Return the findings of the runs so far, a line for each series with a speedup."""
    lines = [*study.rounds.lines, *_disturbed_lines(study)]
    for experiment, series in dict.fromkeys((each.point.experiment, each.point.series) for each in measured):
        speedups = [
            each for each in measured if (each.point.experiment, each.point.series) == (experiment, series)
        ]
        least = study.study.min_efficiency.get(experiment)
        name = f"{experiment} ({series})" if series else experiment
        shown = _best(speedups, least)
        over = "" if shown.baseline == 1 else f" over {shown.point.count(shown.baseline)}"
        required = "" if least is None else f" ({least:g} required)"
        # other criteria need times and costs of whole trainings, which the report has
        best = "fastest" if least is None else "best"
        lines.append(
            f"{name}, {best} so far: {shown.point.count(shown.point.devices)}, {speedup_text(shown)}{over}, "
            f"efficiency {shown.efficiency:.2f}{required}, {count_devices(shown.ratio.n, 'run')}"
        )
    return lines


def _disturbed_lines(study: StudyStatus) -> Iterator[str]:
    """Yield ``1 run was disturbed: study/d1.r2 (other processes took 90 % of the CPUs)``."""
    runs = [f"{'/'.join(run)} ({each.disturbed})" for run, each in study.runs.items() if each.disturbed]
    if runs:
        more = f" and {len(runs) - MOST_DISTURBED} more" if len(runs) > MOST_DISTURBED else ""
        subject = "1 run was" if len(runs) == 1 else f"{len(runs)} runs were"
        yield f"{subject} disturbed: {', '.join(runs[:MOST_DISTURBED])}{more}"


def _best(speedups: Sequence[Speedup], min_efficiency: float | None) -> Speedup:
    """Return the most devices that are efficient enough, or the fastest if no efficiency is required."""
    if not min_efficiency:
        return max(speedups, key=lambda each: each.ratio.estimate)
    enough = [each for each in speedups if each.efficiency >= min_efficiency]
    if enough:
        return max(enough, key=lambda each: each.point.devices)
    return max(speedups, key=lambda each: each.efficiency)
