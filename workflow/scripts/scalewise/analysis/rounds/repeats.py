"""Adaptive repeats: points that leave the decision open get more, or those whose interval is too wide.

Without ``until_interval`` the decision is made after each round. Where it is not clear between two device
counts, those two get as many more repeats as would tell them apart if they are as different as they look, at
most twice as many at a time; the others get none. A baseline that shares no session with a count that was
added later is measured again beside it. It ends when the decision is clear, or when no number of
repeats would make it so. What looking again and again costs is simulated by ``python -m tests.truth``
(docs/statistics.md).

A point with fewer than ``min`` undisturbed runs gets others in place of the disturbed ones, at most ``min``
in all: a machine that is never quiet is not waited for.

With ``until_interval`` a point gets more until half the width of its throughput's interval is at most the
share of the throughput that is asked for, or it has its most repeats. An interval falls with the root of the
repeats, so n of them that are w wide are expected to need ``n (w / target)^2``; at most twice as many are
asked for at a time, because w itself is uncertain.

An interval that is looked at until it is narrow comes out narrow too often, and so covers the true value
less often than it states (optional stopping). Of 2,000 simulated points with lognormal noise of 1, 2, 3, 4 or
6 %, at most 10 repeats and 3 % asked for:

===  ===============  ==================================================
min  covers           covers, where it ended narrow although noise is 6 %
===  ===============  ==================================================
3    90 to 96 %       71 %
5    94 to 95 %       77 %
6    94 to 95 %       76 %
8    94 to 95 %       81 %
===  ===============  ==================================================

So ``min: 6`` loses about 1 of 95 points, ``min: 3`` up to 5. No ``min`` helps the few points (15 % of those
with 6) that end early where the noise is far above what was asked for: those were lucky.
``python -m tests.truth`` repeats the simulation (docs/statistics.md).
"""

from __future__ import annotations

import math

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT
from scalewise.analysis.comparison.confounding import baselines_of_other_sessions
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval, geometric_interval
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.runs.rounds import JudgedPoint, Round, Verdict
from scalewise.plan.runs.run_definition import parse_run_name

LEAST_COMPLETED = 2
"""Runs below which nothing is known of their scatter."""


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
        if disturbed := in_place_of_disturbed(table, rule):
            points.append(judge_point(str(point), table, rule, ("disturbed", disturbed)))
            continue
        more = 0
        if decision is not None and table["series"].iloc[0] == decision.series:
            more = decision.undecided.get(int(table["devices"].iloc[0]), 0)
        points.append(judge_point(str(point), table, rule, ("undecided", more) if more else None))
    return Round(experiment=experiment, number=number, rule=rule, points=points)


def in_place_of_disturbed(runs: pd.DataFrame, rule: Repeats) -> int:
    """Return the runs to add to a point because too few of its runs were undisturbed.

    Args:
        runs: A row for each repeat asked for so far.
        rule: Fewest and most repeats.
    """
    if "disturbance" not in runs:
        return 0
    disturbed = runs["disturbance"].astype(object).fillna("") != ""
    quiet = int(((runs["outcome"] == "completed") & ~disturbed).sum())
    room = min(2 * rule.min, rule.max) - len(runs)
    return max(min(rule.min - quiet, int(disturbed.sum()), room), 0)


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
    half_width, more = None, 0
    verdict: Verdict = "too few completed"
    if len(rates) >= LEAST_COMPLETED:
        interval = geometric_interval(rates)
        half_width = interval.half_width_fraction if interval.n >= ENOUGH_REPEATS else None
        verdict, more = _verdict(interval, rule)
    if wanted is not None and (len(rates) >= LEAST_COMPLETED or wanted[0] == "disturbed"):
        verdict, more = wanted
    if verdict == "disturbed":
        next_asked = asked + more
    elif verdict != "too few completed":
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
