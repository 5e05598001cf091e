"""Lines on a study that chooses its device counts: what it has measured, what it measures next and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from scalewise.plan.checks.chosen_devices import counts_that_fill_nodes
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.config.shape import count_devices
from scalewise.plan.config.site import Site
from scalewise.plan.formatting import format_3sig, listed, percent_in_digits
from scalewise.plan.runs.rounds import (
    OTHER_ANSWER,
    JudgedPoint,
    Round,
    SeriesChoice,
    Verdict,
    is_settled,
    known_rounds,
    requested_repeats,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS, parse_point_name, parse_run_name
from scalewise.plan.runs.runs import Point, points_by_series, series_name
from scalewise.plan.runs.spending import Spending
from scalewise.plan.study import PlannedExperiment
from scalewise.plan.terminal.predictions import read_predictions

MAX_COUNTS = 12
"""Device counts that one line names; of more the first and the last."""
MAX_PREDICTED = 6
"""Predicted speedups that one line shows."""
MAX_SERIES = 8
"""Series with a line of their own in the plan."""
NEGLIGIBLE = 0.001
"""A chance below it is no more than the draws that it is counted in can tell."""

REASONS: dict[Verdict, str] = {
    "undecided": "the decision is open there",
    "too wide": "the interval is too wide",
    "other session": "a device count was added later",
    "disturbed": "in place of disturbed runs",
    "answer rests on it": "the answer rests on {them}",
    "baseline": "the baseline",
    "may be the answer": "may be the answer",
}
"""Reasons for the runs of a point, the one that asks for most of them first."""


def chance_text(chance: float) -> str:
    """``12 %``, ``3.1 %``, ``less than 0.1 %``."""
    if chance < NEGLIGIBLE:
        return "less than 0.1 %"
    return "more than 99 %" if chance > 0.99 else percent_in_digits(chance)


def counts_text(counts: Sequence[int]) -> str:
    """``1, 2, 4, 8``; of many the first and the last: ``1, 2, 4, 8, 12, 16, ..., 60, 64``."""
    shown = [str(count) for count in counts]
    if len(shown) > MAX_COUNTS:
        shown = [*shown[: MAX_COUNTS - 3], "...", *shown[-2:]]
    return ", ".join(shown)


def round_story(judged: Round) -> Iterator[str]:
    """The findings of a round, a line for each series: the answer so far, measured, what is next and why."""
    for choice in judged.choices:
        which = "" if choice.series == NO_OPTIONS else f" ({choice.series})"
        mine = _points_of(judged, choice)
        findings = [answer_text(judged, choice), _measured_text(mine), next_text(judged, choice)]
        sentences = " ".join(f"{each[0].upper()}{each[1:]}." for each in findings if each)
        yield f"{judged.experiment}{which}, round {judged.number}: {sentences}"


def _points_of(judged: Round, choice: SeriesChoice) -> dict[int, JudgedPoint]:
    """The judged points of a series by their devices, fewest first."""
    named = {parse_point_name(point.point): point for point in judged.points}
    return {devices: named[devices, series] for devices, series in sorted(named) if series == choice.series}


def _measured_text(mine: Mapping[int, JudgedPoint]) -> str:
    measured = {devices: point.completed for devices, point in mine.items() if point.completed}
    if not measured:
        return f"none of {len(mine)} counts measured"
    shown = (f"{devices} ({runs} runs)" if runs > 1 else f"{devices}" for devices, runs in measured.items())
    return f"{len(measured)} of {len(mine)} counts measured: {', '.join(shown)}"


def answer_text(judged: Round, choice: SeriesChoice) -> str:
    """The answer of a series so far, and the chance of another; empty where nothing is measured."""
    measured = sum(point.completed > 0 for point in _points_of(judged, choice).values())
    if measured == 0:
        return ""
    chance = chance_text(choice.other_answer)
    if choice.devices is not None:
        so_far = " so far" if judged.asks_for_more or choice.other_answer > OTHER_ANSWER else ""
        other = f", the chance of another is {chance}" if choice.unmeasured else ""
        return f"answer{so_far}: {count_devices(choice.devices)}{other}"
    if measured == 1:
        return f"no second count to compare with; the chance that another is the answer is {chance}"
    return f"no measured count is an answer; the chance that another is one is {chance}"


def next_text(judged: Round, choice: SeriesChoice) -> str:
    """The runs that are made next of a series, and why; or why none are."""
    mine = _points_of(judged, choice)
    wanted = {devices: point for devices, point in mine.items() if point.next_asked > point.asked}
    if wanted:
        return f"next: {'; '.join(_wanted_text(wanted, choice))}"
    if over := [devices for devices, point in mine.items() if point.verdict == "over the budget"]:
        return f"the budget ends the study, which needs more runs on {on_devices(over)}"
    if judged.budget_device_hours is not None and choice.unmeasured and choice.other_answer > OTHER_ANSWER:
        likely = max(choice.unmeasured, key=lambda each: each.chance)
        return (
            f"the budget ends the study; the likeliest other answer is {count_devices(likely.devices)} "
            f"({chance_text(likely.chance)})"
        )
    if not any(point.completed for point in mine.values()):
        return "no run of the baseline has completed, so nothing more is measured"
    return "nothing more is measured"


def _wanted_text(wanted: Mapping[int, JudgedPoint], choice: SeriesChoice) -> Iterator[str]:
    """``1 run on 1 device, 2 runs on 8 devices (the answer rests on them)``, for each reason."""
    for verdict in dict.fromkeys(point.verdict for point in wanted.values()):
        mine = {devices: point for devices, point in wanted.items() if point.verdict == verdict}
        by_runs: dict[int, list[int]] = {}
        for devices, point in mine.items():
            by_runs.setdefault(point.next_asked - point.asked, []).append(devices)
        runs = [
            f"{count_devices(more, 'run')}{' each' if len(counts) > 1 else ''} on {on_devices(counts)}"
            for more, counts in by_runs.items()
        ]
        why = REASONS[verdict].format(them="it" if len(mine) == 1 else "them")
        if verdict == "may be the answer":
            chance = sum(point.chance for point in choice.unmeasured if point.devices in mine)
            why += f", with a chance of {chance_text(chance)}"
        yield f"{listed(runs)} ({why})"


def on_devices(counts: Sequence[int]) -> str:
    """``1 device``, ``2, 4 and 8 devices``."""
    return f"{listed(list(map(str, counts)))} {'device' if list(counts) == [1] else 'devices'}"


@dataclass(frozen=True)
class PlannedPoint:
    """One device count of a series, as the plan counts its cost.

    Args:
        asked: Repeats that are asked for, or there.
        hours: Device-hours of one run, at most.
    """

    devices: int
    asked: int
    hours: float


def choice_lines(planned: PlannedExperiment, site: Site, results: Path) -> list[str]:
    """The plan of an experiment that chooses its device counts; none of another.

    Args:
        planned: The experiment.
        site: Facts of the machine or cluster.
        results: Folder of all experiments.
    """
    if not planned.spec.chooses_devices:
        return []
    folder = results / planned.name
    rounds = known_rounds(planned.spec, folder)
    settled = is_settled(planned.spec, rounds)
    billed = planned.terms.get("billed_devices", {})
    spending = Spending.of(folder / "runs", billed)
    series = _series(planned, site, rounds, spending)
    budget = planned.spec.budget
    left = math.inf if budget is None else max(budget.device_hours - spending.device_hours, 0.0)
    lines = []
    for name, mine in list(series.items())[:MAX_SERIES]:
        which = "" if name == NO_OPTIONS else f"{name}: "
        lines += [f"{which}{line}" for line in _so_far(rounds, name)]
        if not settled:
            lines.append(f"{which}{_further(planned, mine, left)}")
        if not rounds and planned.is_predicted:
            lines += [f"{which}{line}" for line in _predicted(name, mine, folder)]
    if len(series) > MAX_SERIES:
        lines.append(f"... and {len(series) - MAX_SERIES} more series")
    lines += _cost(planned, rounds, series, spending, billed)
    return [_candidates(planned, site), *(f"  {line}" for line in [*_left_out(planned, site), *lines])]


def _so_far(rounds: Sequence[Round], series: str) -> Iterator[str]:
    """The findings of the last round on a series, whose runs the table shows."""
    last = rounds[-1] if rounds else None
    for choice in last.choices if last else ():
        if last and choice.series == series:
            told = answer_text(last, choice)
            yield f"round {last.number}: {told or next_text(last, choice)}"
            if told:
                yield next_text(last, choice)


def _predicted(series: str, mine: Sequence[PlannedPoint], folder: Path) -> Iterator[str]:
    """The speedups that are predicted of counts which are not asked for; a round has better ones."""
    bands = {
        shape.world_size: point.band
        for (name, shape), point in read_predictions(folder).items()
        if name == series
    }
    told = [
        f"{bands[point.devices]} on {point.devices}"
        for point in mine
        if not point.asked and point.devices in bands
    ]
    if len(told) > MAX_PREDICTED:
        told = [*told[: MAX_PREDICTED - 1], "...", told[-1]]
    if told:
        yield f"predicted speedups: {', '.join(told)} devices"


def _candidates(planned: PlannedExperiment, site: Site) -> str:
    """The counts to choose among."""
    counts = sorted({run.shape.world_size for run in planned.runs})
    whole = planned.spec.devices.up_to is not None and counts[-1] > site.devices_per_node
    nodes = f" that fill nodes of {count_devices(site.devices_per_node)}" if whole else ""
    return f"{planned.name} chooses among {len(counts)} counts{nodes}: {counts_text(counts)}"


def _left_out(planned: PlannedExperiment, site: Site) -> Iterator[str]:
    """Counts of ``up_to`` that a batch leaves out."""
    most = planned.spec.devices.up_to
    if most is None:
        return
    left = [each for each in counts_that_fill_nodes(most, site) if each not in planned.spec.device_counts]
    if left:
        them = "it" if len(left) == 1 else "them"
        yield f"left out, as global_batch_size is not divisible by {them}: {counts_text(left)}"


def _series(
    planned: PlannedExperiment, site: Site, rounds: Sequence[Round], spending: Spending
) -> dict[str, list[PlannedPoint]]:
    """Every point by the name of its series, fewest devices first."""
    asked = requested_repeats(planned.spec, rounds)
    # runs of an earlier study of the same counts are judged too
    there = Counter(parse_run_name(run)[0] for run in spending.seconds)
    minutes = planned.spec.runtime_minutes

    def planned_point(point: Point) -> PlannedPoint:
        paid = site.billed_devices(planned.shapes[point.devices])
        repeats = max(asked[point.name], there[point.name])
        return PlannedPoint(point.world_size, repeats, paid * minutes / 60)

    return {
        series_name(options): sorted(map(planned_point, mine), key=lambda point: point.devices)
        for options, mine in points_by_series(planned.spec).items()
    }


def _further(planned: PlannedExperiment, mine: Sequence[PlannedPoint], left: float) -> str:
    """The counts that may follow, and the most that the next round takes of a series.

    Args:
        planned: The experiment.
        mine: Points of the series, fewest devices first.
        left: Device-hours that its budget has left.
    """
    untouched = [point.devices for point in mine if not point.asked]
    runs, hours = most_of_a_round(mine, planned.spec.repeats)
    most = format_3sig(min(hours, left))
    limit = f"a round takes at most {count_devices(runs, 'run')} and {most} device-hours"
    if not untouched:
        return f"more repeats follow where the answer needs them: {limit}"
    one = len(untouched) == 1
    span = count_devices(untouched[-1]) if one else f"{untouched[0]} to {count_devices(untouched[-1])}"
    which = f"1 further count ({span}) is" if one else f"{len(untouched)} further counts ({span}) are"
    return f"{which} measured where the answer needs {'it' if one else 'them'}: {limit}"


def most_of_a_round(mine: Sequence[PlannedPoint], rule: Repeats) -> tuple[int, float]:
    """The most runs that the next round asks for of a series, and the most device-hours.

    A round measures one further count once, or two on both sides of a measured one, and the baseline up to
    the fewest repeats of the configuration. Or it repeats those that are measured, up to these or at most as
    often again.

    Args:
        mine: Points of the series, fewest devices first.
        rule: Fewest and most repeats of a point.
    """
    further = [[point] for point in mine if not point.asked] + [
        [fewer, more]
        for (low, fewer), (high, more) in combinations(enumerate(mine), 2)
        if not (fewer.asked or more.asked) and any(point.asked for point in mine[low:high])
    ]
    again = [
        (max(min(point.asked, rule.max - point.asked), rule.min - point.asked), point.hours)
        for point in mine
        if 0 < point.asked < rule.max
    ]
    baseline = (max(rule.min - mine[0].asked, 0), mine[0].hours)
    found = [[(1, point.hours) for point in each] + [baseline] for each in further] + [again]
    runs = max(sum(runs for runs, _ in each) for each in found)
    return runs, max(sum(runs * hours for runs, hours in each) for each in found)


def _cost(
    planned: PlannedExperiment,
    rounds: Sequence[Round],
    series: Mapping[str, Sequence[PlannedPoint]],
    spending: Spending,
    billed: Mapping[int, float],
) -> Iterator[str]:
    """Device-hours spent, those of all counts, and the most that the study may cost."""
    spec, spent = planned.spec, spending.device_hours
    whole = spending.full_grid(spec, rounds[-1].choices, billed) if rounds else 0.0
    if whole and all(choice.unmeasured or not choice.other_answer for choice in rounds[-1].choices):
        runs = spec.min_repeats * sum(map(len, series.values()))
        yield (
            f"spent: {format_3sig(spent)} of the about {format_3sig(whole)} device-hours that all counts "
            f"take with {runs} runs ({percent_in_digits(spent / whole)})"
        )
    if spec.budget is not None:
        left = format_3sig(max(spec.budget.device_hours - spent, 0.0))
        yield f"limit: {spec.budget.device_hours:g} device-hours by its budget, of which {left} are left"
        return
    if is_settled(spec, rounds):
        return
    most = spec.max_repeats * sum(point.hours for mine in series.values() for point in mine)
    yield (
        f"limit: {format_3sig(most)} device-hours, if every count needed {spec.max_repeats} runs of "
        f"{spec.runtime_minutes} minutes; `budget: {{device_hours: ...}}` sets a lower one"
    )
