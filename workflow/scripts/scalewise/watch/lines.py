"""The table for a terminal, and the lines for a stream that is none: plain text from facts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from scalewise.plan.formatting import format_3sig
from scalewise.watch.forecast import forecast
from scalewise.watch.points import WatchedPoint
from scalewise.watch.speedups import Speedup, speedups
from scalewise.watch.standing import PointStanding, Standing
from scalewise.watch.words import (
    answer_lines,
    forecast_text,
    interval_text,
    now_text,
    runs_text,
    speedup_text,
)

GAP = 2
LEAST_LAST = 27
NARROW_LAST = 18
"""Characters that the last column keeps in a wide and in a narrow terminal; what is longer is cut off."""
MOST_NAME = 28
"""Characters of an experiment's or a series' name in a narrow terminal."""

_HEADINGS = {
    "experiment": "experiment",
    "devices": "devices",
    "series": "series",
    "runs": "runs done",
    "rate": "samples/s",
    "speedup": "speedup",
    "now": "now",
}


def table(standing: Standing, width: int, height: int) -> list[str]:
    """All points, the answer so far and the forecast, in a box of so many characters and lines.

    Points at work come before those that are done where not all have room, and keep the order of the
    configuration.

    Args:
        standing: The study.
        width: Characters of a line.
        height: Most lines.
    """
    measured = list(speedups(standing.points))
    foot = [*answer_lines(standing, measured), forecast_text(standing, forecast(standing))]
    if standing.not_asked:
        foot.insert(0, _not_asked(standing.not_asked))
    *others, last = (textwrap.wrap(line, width, subsequent_indent="  ") for line in foot)
    # at least the heading and two points; the forecast is the last to go
    room = max(height - 3, 1)
    last = last[:room]
    # for many series the table is clearer than a sentence for each
    answers = [line for lines in others for line in lines][: min(room - len(last), max(height // 4, 2))]
    rows = max(height - 1 - len(answers) - len(last), 1)
    shown = _shown(standing.points, rows)
    lines = _columns(shown, standing, measured, width)
    if len(shown) < len(standing.points):
        lines.append(_left_out([each for each in standing.points if each not in shown]))
    return [*(_cut(line, width) for line in lines), *answers, *last]


def _not_asked(points: int) -> str:
    return f"{points} more device counts are measured only if the answer needs them"


def _shown(points: Sequence[PointStanding], rows: int) -> list[PointStanding]:
    """The points that have room; one line is kept to say how many have none."""
    if len(points) <= rows:
        return list(points)
    ranked = sorted(range(len(points)), key=lambda place: (_rank(points[place]), place))
    kept = set(ranked[: max(rows - 1, 0)])
    return [each for place, each in enumerate(points) if place in kept]


def _rank(standing: PointStanding) -> int:
    ranks = (("running", "starting"), ("queued",), ("failed",), ("waiting",))
    return next((place for place, states in enumerate(ranks) if standing.in_state(*states)), len(ranks))


def _left_out(points: Sequence[PointStanding]) -> str:
    states = {"at work": 0, "in the queue": 0, "with failed runs": 0, "waiting": 0, "done": 0}
    for each in points:
        states[list(states)[_rank(each)]] += 1
    return f"... and {len(points)} more: " + ", ".join(f"{n} {state}" for state, n in states.items() if n)


def _columns(
    shown: Sequence[PointStanding], standing: Standing, measured: Sequence[Speedup], width: int
) -> list[str]:
    """Heading and rows, shortened until they fit the width; nothing if no point is shown."""
    if not shown:
        return []
    by_point = {each.point: each for each in measured}
    columns = {
        "experiment": [each.point.experiment for each in shown],
        "devices": [str(each.point.devices) for each in shown],
        "series": [each.point.series for each in shown],
        "runs": [runs_text(each) for each in shown],
        "rate": [interval_text(each.throughput) for each in shown],
        "speedup": [speedup_text(by_point.get(each.point)) for each in shown],
        "now": [now_text(each, standing.now, standing.over) for each in shown],
    }
    if len(standing.study.criteria) == 1:
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
    rows = [{name: _HEADINGS[name] for name in columns}]
    rows += [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [
        (" " * GAP)
        .join(
            cell.rjust(widths[name]) if name == "devices" else cell.ljust(widths[name])
            for name, cell in row.items()
        )
        .rstrip()
        for row in rows
    ]


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 3, 0)]}..."[:width]


def change_lines(standing: Standing, reported: dict[WatchedPoint, tuple[object, ...]]) -> list[str]:
    """A line for each point that there is news of.

    Args:
        standing: The study.
        reported: State that was last reported of each point; updated here.
    """
    lines = []
    for each in standing.points:
        before = reported.get(each.point)
        if each.key == before:
            continue
        reported[each.point] = each.key
        if before is None and not each.in_state("done", "failed", "queued", "starting", "running"):
            continue  # nothing has happened yet
        lines.append(_change(each, standing))
    return lines


def study_lines(standing: Standing) -> list[str]:
    """The answer so far and the forecast, for the study as a whole."""
    answers = answer_lines(standing, list(speedups(standing.points)))
    return [*answers, forecast_text(standing, forecast(standing))]


def _change(point: PointStanding, standing: Standing) -> str:
    """``digits-strong, 2 devices: 1 of 3 runs done, 1,234 samples/s; run 2 starting``."""
    done, _, failed = runs_text(point).partition(", ")
    count = ", ".join(filter(None, (f"{done} runs done", failed)))
    rate = interval_text(point.throughput)
    parts = [f"{count}, {rate} samples/s" if rate else count]
    what = now_text(point, standing.now, standing.over)
    return f"{point.point.label}: " + "; ".join(parts + ([what] if what != "done" else []))
