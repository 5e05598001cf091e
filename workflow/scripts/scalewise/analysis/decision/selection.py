"""The point that a rule chooses among all series, without a word about it.

The report repeats these rules in the reader's browser (``report/what_if.js``); a table of cases holds both
to the same answers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from scalewise.analysis.comparison.gains import Gains, Measure
from scalewise.analysis.decision.choice import SIGNIFICANCE, Choice, OpenQuestion, choose
from scalewise.analysis.decision.criteria import evaluate, may_be_in_time, measure_of
from scalewise.analysis.formatting import Goal
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.analysis.statistics.ratios import Ratio, holm
from scalewise.plan.config.experiment import DecisionRule

SAME_TRAINING = {
    "gradient_as_bucket_view", "static_graph", "bucket_cap_mb", "launcher", "rendezvous", "loader",
    "cpus_per_device",
}  # fmt: skip
"""Options that change how fast a training runs, not what it trains."""


def series_compete(swept: Collection[str]) -> bool:
    """Whether series that differ in these options train the same, so that the faster one may be chosen."""
    return set(swept) <= SAME_TRAINING


@dataclass(frozen=True)
class Candidates:
    """The points that a rule may choose, of the series that compete.

    Args:
        points: Output of ``evaluate``; empty where no point has a speedup.
        first: Series of the configuration that has any, empty where none has.
        measure: Quantity that is compared.
    """

    points: pd.DataFrame
    first: str
    measure: Measure


def candidates(
    scaling: pd.DataFrame,
    rule: DecisionRule,
    *,
    compete: bool,
    target: Goal | None = None,
    queue_minutes: Mapping[int, float] | None = None,
) -> Candidates:
    """The points with what the rule says of each.

    Args:
        scaling: Output of ``scaling_table``.
        rule: The criteria; without any, the knee.
        compete: Any series may be chosen; else the first of the configuration alone.
        target: The goal that counts as trained, if there is one.
        queue_minutes: Devices -> usual wait in the queue, where the site gives it.
    """
    measure = measure_of(scaling, target)
    points = evaluate(scaling, rule, queue_minutes, measure)
    if points.empty:
        return Candidates(points, "", measure)
    first = str(scaling.loc[scaling["series"].isin(points["series"]), "series"].iloc[0])
    if not compete:
        points = points[points["series"] == first]
    return Candidates(points, first, measure)


def select(found: Candidates, rule: DecisionRule, compared: Gains) -> Choice | None:
    """The point that meets the rule best, and is shown to be faster than fewer devices.

    Args:
        found: The points, judged by the same rule.
        rule: The criteria.
        compared: Output of ``gains``.

    Returns:
        The choice; None where no point meets the rule.
    """
    choices = [
        choice
        for _, series in found.points.groupby("series", sort=False)
        if (choice := choose(series, rule, compared, found.measure)) is not None
    ]
    return _choose_series(choices, found.first, rule, compared, found.measure) if choices else None


def _choose_series(
    choices: Sequence[Choice], first: str, rule: DecisionRule, compared: Gains, measure: Measure
) -> Choice:
    """The first series of the configuration, unless another is shown to be faster at equal devices.

    Of many that are all alike the fastest looks faster than it is, so the p values are adjusted for their
    number (Holm).

    Args:
        choices: One for each series that has a point.
        first: Series of the configuration that has any.
        rule: The criteria; with a deadline, series that need no more devices than another are left.
        compared: The ratios of all pairs of points.
        measure: Quantity that is compared.
    """
    if rule.deadline_minutes is not None:
        fewest = min(int(choice.point["devices"]) for choice in choices)
        choices = [choice for choice in choices if choice.point["devices"] == fewest]
    own = [choice for choice in choices if choice.point["series"] == first]
    rivals = [choice for choice in choices if choice.point["series"] != first]
    if not own:
        return max(choices, key=lambda choice: speed(choice.point, measure))
    ratios = [_beside_first(choice.point, first, compared, measure) for choice in rivals]
    adjusted = holm([math.nan if ratio is None else ratio.p_above() for ratio in ratios])
    faster = [choice for choice, p in zip(rivals, adjusted, strict=True) if p <= SIGNIFICANCE]
    return max(faster, key=lambda choice: speed(choice.point, measure), default=own[0])


def speed(point: pd.Series, measure: Measure) -> float:
    """A number that is larger for faster points, to order those of several series by."""
    if measure == "time to target":
        return -float(point["expected_seconds_to_accuracy"])
    rate, wall = (point[name] for name in ("throughput_samples_per_second", "wall_seconds"))
    # walls stand in where no throughput is known, and any rate is above them
    return float(rate) if pd.notna(rate) else -float(wall) if pd.notna(wall) else -math.inf


def _beside_first(point: pd.Series, first: str, compared: Gains, measure: Measure) -> Ratio | None:
    """Speed over the first series' on equal devices; None where too few runs are there."""
    devices = int(point["devices"])
    ratio = compared.of(measure, (str(point["series"]), devices), (first, devices))
    return None if ratio is None or ratio.n < ENOUGH_REPEATS else ratio


def further_repeats(
    questions: Sequence[OpenQuestion], passed_over: pd.DataFrame, rule: DecisionRule
) -> dict[int, int]:
    """Repeats to add, by device count.

    Args:
        questions: Device counts between which the runs cannot tell.
        passed_over: Points of fewer devices than the chosen one.
        rule: The criteria.
    """
    found: dict[int, int] = {}
    for question in questions:
        needed = question.runs_needed
        for devices in (question.devices, question.than):
            if needed is not None:
                found[devices] = max(found.get(devices, 0), needed - question.ratio.n)
    for _, point in passed_over.iterrows():
        if may_be_in_time(point, rule):
            # the bound comes down with what is known of the scatter: twice the runs are a fair step
            devices = int(point["devices"])
            found[devices] = max(found.get(devices, 0), int(point["n"]))
    return dict(sorted(found.items()))
