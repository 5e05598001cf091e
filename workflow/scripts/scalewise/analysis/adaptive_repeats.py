"""Adaptive repeats: points that leave the decision open get more, or those whose interval is too wide.

Without ``until_interval`` the decision is made after each round. Where it is not clear between two device
counts, those two get as many more repeats as would tell them apart if they are as different as they look, at
most twice as many at a time; the others get none. A baseline that shares no session with a count that was
added later is measured again beside it. It ends when the decision is clear, or when no number of
repeats would make it so. What looking again and again costs is simulated by ``python benchmarks/run.py
truth`` (docs/statistics.md).

With ``until_interval`` a point gets more until half the width of its throughput's interval is at most the
share of the throughput that is asked for, or it has its most repeats. An interval falls with the root of the
repeats, so n of them that are w wide are expected to need ``n (w / target)^2``; at most twice as many are
asked for at a time, because w itself is uncertain.

An interval that is looked at until it is narrow comes out narrow too often, and so covers the true value
less often than it states (optional stopping). Of 2,000 simulated points with lognormal noise of 1, 2, 3, 4 or
6 %, at most 10 repeats and 3 % asked for:

===  =================  ===============  ==================================================
min  states on average  covers           covers, where it ended narrow although noise is 6 %
===  =================  ===============  ==================================================
3    75 to 90 %         75 to 83 %       51 % (states 79 %)
5    94 to 95 %         93 to 94 %       74 % (states 95 %)
6    95 %               94 to 96 %       72 % (states 95 %)
8    95 %               94 to 95 %       78 % (states 95 %)
===  =================  ===============  ==================================================

So ``min: 6`` loses 1 to 2 points over all, ``min: 3`` up to 8. No ``min`` helps the few points (14 % of those
with 6) that end early where the noise is far above what was asked for: those were lucky.
tests/unit/analysis/test_repeat_rounds.py repeats the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.comparison.confounding import baselines_of_other_sessions
from scalewise.analysis.conclusion import conclude
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.formatting import percent_in_digits
from scalewise.analysis.statistics.intervals import Interval, median_interval
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.runs.repeats import (
    JudgedPoint,
    Round,
    Verdict,
    known_rounds,
    requested_repeats,
    round_file,
)
from scalewise.plan.runs.runs import parse_run_name
from scalewise.records import RecordError, write_json

ASKS_FOR_MORE = {"too wide", "undecided", "other session"}
"""Verdicts after which more repeats follow."""

LEAST_COMPLETED = 2
"""Runs below which there is no interval."""

STOPPING = (
    "Repeats were added to points whose interval was still too wide. Intervals that are looked at like this "
    "cover the true value somewhat less often than they state: in a simulation, 95 % became 94 % where every "
    "point had 6 repeats from the start, and 86 % became 78 % where it had 3."
)
"""A report's sentence on the confidence, where repeats were added."""

STOPPING_AT_DECISION = (
    "Repeats were added where the decision was not clear. A decision that is looked at again and again is "
    "wrong somewhat more often than one that is looked at once; docs/statistics.md has the rates."
)
"""A report's sentence on the confidence, where repeats were added until the decision was clear."""


def judge_round(definition: str, number: int, folder: Path) -> Round:
    """Judge an experiment by the runs that earlier rounds asked for, and write the round into its folder.

    Args:
        definition: ``PlannedExperiment.repeats_definition``.
        number: Number of the round, from 1.
        folder: Results of the experiment.

    Raises:
        RecordError: A record is damaged.
    """
    experiment = AnalysisSpec.from_json(definition)
    name, spec = experiment.name, experiment.spec
    if not isinstance(spec.repeats, Repeats):
        raise RecordError(f"{name} has {spec.repeats} repeats of every point: there is nothing to judge.")
    asked = requested_repeats(spec.repeats, known_rounds(spec.repeats, folder)[: number - 1])
    tables = collect(name, spec, folder / "runs", asked=asked)
    by_decision = spec.repeats.until_interval is None
    decision = conclude(experiment, tables).decision if by_decision else None
    judged = judge(name, number, tables.runs, spec.repeats, decision)
    path = round_file(folder, number)
    path.parent.mkdir(exist_ok=True)
    write_json(path, judged)
    return judged


def judge(
    experiment: str, number: int, runs: pd.DataFrame, rule: Repeats, decision: Decision | None = None
) -> Round:
    """Judge every point of an experiment by the repeats that it has.

    Args:
        experiment: Name of the experiment.
        number: Number of the round, from 1.
        runs: Output of ``scalewise.analysis.tables.collect``, a row for each repeat asked for so far.
        rule: Fewest and most repeats, and the width to reach, if any.
        decision: The decision on these runs, which a rule without a width is judged by.
    """
    by_point = runs["run"].map(lambda name: parse_run_name(name)[0])
    again = baselines_of_other_sessions(runs)
    points = []
    for point, table in runs.groupby(by_point, sort=False):
        if (table["series"].iloc[0], int(table["devices"].iloc[0])) in again:
            # a count that was added later is held against runs that were made beside it
            points.append(judge_point(str(point), table, rule, ("other session", rule.min)))
            continue
        more = 0
        if decision is not None and table["series"].iloc[0] == decision.series:
            more = decision.undecided.get(int(table["devices"].iloc[0]), 0)
        points.append(judge_point(str(point), table, rule, ("undecided", more) if more else None))
    return Round(experiment=experiment, number=number, rule=rule, points=points)


def judge_point(
    point: str, runs: pd.DataFrame, rule: Repeats, wanted: tuple[Verdict, int] | None = None
) -> JudgedPoint:
    """Judge one point by its completed runs.

    Args:
        point: Name of the point.
        runs: A row for each repeat asked for so far.
        rule: Fewest and most repeats, and the width to reach, if any.
        wanted: Verdict that asks for more, whatever the interval, and the number of repeats.
    """
    completed = runs[runs["outcome"] == "completed"]
    rates = [float(rate) for rate in completed[THROUGHPUT].dropna()]
    asked = next_asked = len(runs)
    half_width, confidence = None, 0.0
    verdict: Verdict = "too few completed"
    if len(rates) >= LEAST_COMPLETED:
        interval = median_interval(rates)
        half_width, confidence = interval.half_width_fraction, interval.confidence
        verdict, more = wanted or _verdict(interval, rule)
        # what is expected of them is uncertain: no more than twice as many at a time
        more = min(more, len(rates))
        if more and asked >= rule.max:
            verdict = "most repeats"
        elif more:
            next_asked = min(asked + more, rule.max)
    return JudgedPoint(
        point=point,
        asked=asked,
        completed=len(rates),
        half_width_fraction=half_width,
        confidence=confidence,
        verdict=verdict,
        next_asked=next_asked,
    )


def _verdict(interval: Interval, rule: Repeats) -> tuple[Verdict, int]:
    """The verdict on a point by itself, and the repeats to add."""
    if rule.until_interval is None:
        return "decided", 0
    if interval.half_width_fraction <= rule.until_interval:
        return "narrow enough", 0
    return "too wide", further(interval.n, interval.half_width_fraction / rule.until_interval)


def further(completed: int, excess: float) -> int:
    """The number of repeats to add: at least one, at most as many again.

    Args:
        completed: Repeats that the interval rests on.
        excess: The interval's half-width over the one asked for, more than 1.
    """
    expected = math.ceil(completed * min(excess, 2.0) ** 2)
    return min(max(expected - completed, 1), completed)


def round_lines(judged: Round) -> list[str]:
    """The findings of a round for the terminal, a line for each point."""
    return [
        f"{judged.experiment}: {point.point}: {_finding(point, judged.rule)}: {_consequence(point)}"
        for point in judged.points
    ]


def repeat_sentences(rounds: Sequence[Round]) -> list[str]:
    """A report's sentences on the points that got more repeats, why, and those that are still too wide.

    Args:
        rounds: Output of ``scalewise.plan.runs.repeats.known_rounds``; no round gives no sentence.
    """
    if not rounds:
        return []
    asked_at: dict[str, JudgedPoint] = {}
    for judged in rounds:
        for point in judged.points:
            if point.verdict in ASKS_FOR_MORE:
                asked_at.setdefault(point.point, point)
    last, rule = rounds[-1], rounds[-1].rule
    sentences = list(_sentences(last, asked_at))
    if rule.until_interval is None:
        return [*sentences, STOPPING_AT_DECISION] if asked_at else sentences
    narrow = sum(point.verdict == "narrow enough" and point.point not in asked_at for point in last.points)
    if narrow:
        points = "1 point is" if narrow == 1 else f"{narrow} points are"
        sentences.append(
            f"{points} within {percent_in_digits(rule.until_interval)} of the throughput after the first "
            f"{rule.min} repeats."
        )
    return [*sentences, STOPPING] if asked_at else sentences


def _sentences(last: Round, asked_at: Mapping[str, JudgedPoint]) -> Iterator[str]:
    for point in last.points:
        if point.verdict == "too few completed":
            yield f"{point.point}: {_finding(point, last.rule)}, so no more were asked for."
        elif point.point in asked_at:
            first = asked_at[point.point]
            more = point.next_asked - first.asked
            its = "of its " if first.verdict == "too wide" else ""
            yield (
                f"{point.point}: {more} more {'repeat' if more == 1 else 'repeats'} because {its}"
                f"{_finding(first, last.rule)}; {_now(point, last.rule)}."
            )
        elif point.verdict == "most repeats":
            yield f"{point.point}: {_finding(point, last.rule)}; {_consequence(point)}."


def _now(point: JudgedPoint, rule: Repeats) -> str:
    if point.verdict in ASKS_FOR_MORE or point.half_width_fraction is None:
        return "they have not all finished"
    if point.verdict == "decided":
        return "now the decision is clear"
    if rule.until_interval is None:
        return "the decision is still open with the most repeats"
    width = percent_in_digits(point.half_width_fraction)
    end = "narrow enough" if point.verdict == "narrow enough" else "still too wide with the most repeats"
    return f"now {width} (n = {point.completed}, {percent_in_digits(point.confidence)} confidence), {end}"


def _finding(point: JudgedPoint, rule: Repeats) -> str:
    if point.half_width_fraction is None:
        return f"{point.completed} of {point.asked} repeats completed, which is too few for an interval"
    if point.verdict == "other session":
        return f"its {point.completed} repeats share no session with a count that was added later"
    width, target = point.half_width_fraction, rule.until_interval
    if target is None:
        if point.verdict == "decided":
            return f"{point.completed} repeats, and the decision needs no more of them"
        return f"{point.completed} repeats leave the decision open"
    for digits in range(2, 7):
        shown, limit = percent_in_digits(width, digits), percent_in_digits(target, digits)
        if shown != limit or width == target:
            break
    return (
        f"half-width {shown} of the throughput (n = {point.completed}, "
        f"{percent_in_digits(point.confidence)} confidence), {'more than' if width > target else 'at most'} "
        f"{limit}"
    )


def _consequence(point: JudgedPoint) -> str:
    if point.verdict in ASKS_FOR_MORE:
        first, last = point.asked + 1, point.next_asked
        return f"repeat {first} asked for" if first == last else f"repeats {first} to {last} asked for"
    return {
        "narrow enough": "enough",
        "decided": "enough",
        "most repeats": f"{point.asked} are the most, no more asked for",
        "too few completed": "no more asked for",
    }[point.verdict]
