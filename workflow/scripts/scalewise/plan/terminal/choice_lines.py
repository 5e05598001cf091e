"""A study that chooses its device counts, in words: the answer so far, the next runs, the cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from scalewise.plan.config.experiment import Repeats
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    chance_text,
    counts_listed,
    counts_text,
    format_3sig,
    listed,
    percent_in_digits,
)
from scalewise.plan.planned_study import PlannedExperiment
from scalewise.plan.runs.device_counts import counts_that_fill_nodes
from scalewise.plan.runs.rounds import (
    OTHER_ANSWER,
    JudgedPoint,
    Round,
    SeriesChoice,
    Verdict,
    is_settled,
    known_rounds,
)
from scalewise.plan.runs.run_definition import NO_OPTIONS, parse_point_name, parse_run_name
from scalewise.plan.runs.runs import points_by_series, series_name
from scalewise.plan.runs.spending import Spending
from scalewise.plan.terminal.planned_points import PlannedPoint

MAX_SERIES = 8
"""Most series with a line in the plan."""

REASONS: dict[Verdict, str] = {
    "undecided": "the decision is open there",
    "too wide": "the interval is too wide",
    "other session": "a device count was added later",
    "disturbed": "in place of disturbed runs",
    "answer rests on it": "the answer rests on {them}",
    "baseline": "the baseline",
    "may be the answer": "may be the answer",
}
"""Reasons for further runs of a point; if it has several, the first of these is shown."""


def round_story(judged: Round) -> Iterator[str]:
    """Yield the findings of a round, a line for each series: the answer, measured counts, next runs."""
    for choice in judged.choices:
        series = "" if choice.series == NO_OPTIONS else f" ({choice.series})"
        measured = _measured_text(_points_of(judged, choice))
        findings = filter(None, [answer_text(judged, choice), measured, next_text(judged, choice)])
        sentences = " ".join(f"{each[0].upper()}{each[1:]}." for each in findings)
        yield f"{judged.experiment}{series}, round {judged.number}: {sentences}"


def _points_of(judged: Round, choice: SeriesChoice) -> dict[int, JudgedPoint]:
    """Return the judged points of a series by their devices, fewest first."""
    named = {parse_point_name(point.point): point for point in judged.points}
    return {devices: named[devices, series] for devices, series in sorted(named) if series == choice.series}


def _measured_text(points: Mapping[int, JudgedPoint]) -> str:
    measured = {devices: point.completed for devices, point in points.items() if point.completed}
    if not measured:
        return f"none of {len(points)} counts measured"
    shown = (f"{devices} ({runs} runs)" if runs > 1 else f"{devices}" for devices, runs in measured.items())
    return f"{len(measured)} of {len(points)} counts measured: {', '.join(shown)}"


def answer_text(judged: Round, choice: SeriesChoice) -> str:
    """Return the answer of a series so far and the chance of another; empty if nothing is measured."""
    measured = sum(point.completed > 0 for point in _points_of(judged, choice).values())
    if measured == 0:
        return ""
    chance = chance_text(choice.other_answer)
    if choice.devices is not None:
        so_far = " so far" if judged.requests_more or choice.other_answer > OTHER_ANSWER else ""
        other = f", the chance of another is {chance}" if choice.unmeasured else ""
        return f"answer{so_far}: {count_devices(choice.devices)}{other}"
    if measured == 1:
        return f"no second count to compare with; the chance that another is the answer is {chance}"
    return f"no measured count is an answer; the chance that another is one is {chance}"


def next_text(judged: Round, choice: SeriesChoice) -> str:
    """Return the next runs of a series with their reason, or the reason why there are none."""
    points = _points_of(judged, choice)
    more = {devices: point for devices, point in points.items() if point.next_asked > point.asked}
    if more:
        return f"next: {'; '.join(_next_runs(more, choice))}"
    if judged.is_outdone and judged.wins is not None:
        return outdone_text(judged.wins)
    if over := [devices for devices, point in points.items() if point.verdict == "over the budget"]:
        return f"the budget ends the study, which needs more runs on {counts_listed(over, 'device')}"
    if judged.budget_device_hours is not None and choice.unmeasured and choice.other_answer > OTHER_ANSWER:
        likely = max(choice.unmeasured, key=lambda each: each.chance)
        return (
            f"the budget ends the study; the likeliest other answer is {count_devices(likely.devices)} "
            f"({chance_text(likely.chance)})"
        )
    if not any(point.completed for point in points.values()):
        return "no run of the baseline has completed, so nothing more is measured"
    return "nothing more is measured"


def outdone_text(wins: float) -> str:
    """Return why a partition is measured no further, a clause."""
    return (
        "nothing more is measured, for another partition is better: the chance that this one gives the "
        f"answer across partitions is {chance_text(wins)}"
    )


def _next_runs(points: Mapping[int, JudgedPoint], choice: SeriesChoice) -> Iterator[str]:
    """Yield ``1 run on 1 device, 2 runs on 8 devices (the answer rests on them)``, for each reason."""
    for verdict in dict.fromkeys(point.verdict for point in points.values()):
        alike = {devices: point for devices, point in points.items() if point.verdict == verdict}
        by_runs: dict[int, list[int]] = {}
        for devices, point in alike.items():
            by_runs.setdefault(point.next_asked - point.asked, []).append(devices)
        runs = [
            f"{count_devices(more, 'run')}{' each' if len(counts) > 1 else ''} on "
            f"{counts_listed(counts, 'device')}"
            for more, counts in by_runs.items()
        ]
        reason = REASONS[verdict].format(them="it" if len(alike) == 1 else "them")
        if verdict == "may be the answer":
            chance = sum(point.chance for point in choice.unmeasured if point.devices in alike)
            reason += f", with a chance of {chance_text(chance)}"
        yield f"{listed(runs)} ({reason})"


def choice_lines(
    planned: PlannedExperiment,
    points: Iterable[PlannedPoint],
    results: Path,
    sisters: Sequence[PlannedExperiment] = (),
) -> list[str]:
    """Return the plan of an experiment that chooses its device counts; nothing for another.

    Args:
        planned: The experiment.
        points: Those of the study.
        results: Folder of all experiments.
        sisters: The same experiment on other partitions, which share its budget.
    """
    if not planned.experiment.chooses_devices:
        return []
    folder = results / planned.name
    rounds = known_rounds(planned.experiment, folder)
    settled = is_settled(planned.experiment, rounds)
    spending = Spending.of(folder / "runs", planned.terms.get("held_devices", {}))
    candidates = sorted(
        (point for point in points if point.run.experiment == planned.name),
        key=lambda point: point.run.shape.world_size,
    )
    budget = planned.experiment.budget
    spent = spending.device_hours + sum(
        Spending.of(results / each.name / "runs", each.terms.get("held_devices", {})).device_hours
        for each in sisters
    )
    left = math.inf if budget is None else max(budget.device_hours - spent, 0.0)
    lines = []
    names = [series_name(options) for options in points_by_series(planned.experiment)]
    for name in names[:MAX_SERIES]:
        prefix = "" if name == NO_OPTIONS else f"{name}: "
        series = [point for point in candidates if point.run.series == name]
        texts = _findings(rounds[-1], name) if rounds else []
        if not settled:
            texts.append(_further(series, spending, planned.experiment.repeats, left))
        lines += [f"{prefix}{text}" for text in texts]
    if len(names) > MAX_SERIES:
        lines.append(f"... and {len(names) - MAX_SERIES} more series")
    lines += _cost(planned, rounds, candidates, spending, left)
    return [_candidates(planned), *(f"  {line}" for line in [*_excluded(planned), *lines])]


def _findings(judged: Round, series: str) -> list[str]:
    """Return the findings of a round on a series: the answer so far, and the next runs."""
    choice = next((each for each in judged.choices if each.series == series), None)
    if choice is None:
        return []
    first, *others = filter(None, [answer_text(judged, choice), next_text(judged, choice)])
    return [f"round {judged.number}: {first}", *others]


def _candidates(planned: PlannedExperiment) -> str:
    site = planned.site
    counts = sorted({run.shape.world_size for run in planned.runs})
    whole = planned.experiment.devices.up_to is not None and counts[-1] > site.devices_per_node
    nodes = f" that fill nodes of {count_devices(site.devices_per_node)}" if whole else ""
    return f"{planned.name} chooses among {len(counts)} counts{nodes}: {counts_text(counts)}"


def _excluded(planned: PlannedExperiment) -> Iterator[str]:
    """Yield the counts of ``up_to`` for which the batch size does not allow a run."""
    most = planned.experiment.devices.up_to
    if most is None:
        return
    left = [
        each
        for each in counts_that_fill_nodes(most, planned.site)
        if each not in planned.experiment.device_counts
    ]
    if left:
        them = "it" if len(left) == 1 else "them"
        yield f"left out, as global_batch_size is not divisible by {them}: {counts_text(left)}"


def _further(points: Sequence[PlannedPoint], spending: Spending, rule: Repeats, left: float) -> str:
    """Return the counts that may follow in a series, and the most that its next round takes.

    Args:
        points: Those of the series, fewest devices first.
        spending: Cost of the runs so far; those of an earlier study of the same counts are judged, too.
        rule: Fewest and most repeats of a point.
        left: Device-hours that are left of the budget.
    """
    there = Counter(parse_run_name(run)[0] for run in spending.seconds)
    repeats = [max(point.requested, there[point.run.point]) for point in points]
    runs, hours = most_of_a_round(repeats, [point.limit_hours for point in points], rule)
    cost = f"{count_devices(runs, 'run')} and {format_3sig(min(hours, left))} device-hours"
    most = f"a round takes at most {cost}"
    further = [point.run.shape.world_size for point, made in zip(points, repeats, strict=True) if not made]
    if not further:
        return f"more repeats follow if the answer needs them: {most}"
    if len(further) == 1:
        return f"1 further count ({count_devices(further[0])}) is measured if the answer needs it: {most}"
    span = f"{further[0]} to {count_devices(further[-1])}"
    return f"{len(further)} further counts ({span}) are measured if the answer needs them: {most}"


def most_of_a_round(repeats: Sequence[int], hours: Sequence[float], rule: Repeats) -> tuple[int, float]:
    """Return the most runs that the next round requests of a series, and the most device-hours.

    A round measures one further point once, or two on both sides of a measured one, and the baseline up to
    the fewest repeats of the configuration. Or it repeats the measured points, up to these or at most as
    often again.

    Args:
        repeats: Repeats of each point so far, fewest devices first.
        hours: Device-hours of one run of each point.
        rule: Fewest and most repeats of a point.
    """
    new = [place for place, made in enumerate(repeats) if not made]
    around = [(low, high) for low, high in combinations(new, 2) if any(repeats[low:high])]
    again = {
        place: max(min(made, rule.max - made), rule.min - made)
        for place, made in enumerate(repeats)
        if 0 < made < rule.max
    }
    first = max(rule.min - repeats[0], 0)
    options = [dict.fromkeys(places, 1) | {0: first} for places in [*((place,) for place in new), *around]]
    options.append(again)
    return (
        max(sum(option.values()) for option in options),
        max(sum(runs * hours[place] for place, runs in option.items()) for option in options),
    )


def _cost(
    planned: PlannedExperiment,
    rounds: Sequence[Round],
    points: Sequence[PlannedPoint],
    spending: Spending,
    left: float,
) -> Iterator[str]:
    """Yield the device-hours spent, those of all counts, and the most that the study may cost."""
    spec, spent = planned.experiment, spending.device_hours
    billed = planned.terms.get("held_devices", {})
    whole = spending.full_grid(spec, rounds[-1].choices, billed) if rounds else 0.0
    if whole and all(choice.unmeasured or not choice.other_answer for choice in rounds[-1].choices):
        yield (
            f"spent: {format_3sig(spent)} of the about {format_3sig(whole)} device-hours that all counts "
            f"take with {spec.min_repeats * len(points)} runs ({percent_in_digits(spent / whole)})"
        )
    if spec.budget is not None:
        all_partitions = " for all partitions" if planned.is_compared else ""
        yield (
            f"limit: {spec.budget.device_hours:g} device-hours by its budget{all_partitions}, of which "
            f"{format_3sig(left)} are left"
        )
    elif not is_settled(spec, rounds):
        most = spec.max_repeats * sum(point.limit_hours for point in points)
        yield (
            f"limit: {format_3sig(most)} device-hours, if every count needed {spec.max_repeats} runs of "
            f"{spec.runtime_minutes} minutes; `budget: {{device_hours: ...}}` sets a lower one"
        )
