"""The point that a rule chooses among all series, without a word about it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scalewise.analysis.comparison.gains import Gains, Measure, Point, accuracy_difference, shown_faster
from scalewise.analysis.decision.choice import Choice, OpenQuestion, choose, verdict
from scalewise.analysis.decision.criteria import evaluate, may_be_in_time, may_meet, measure_of, rated
from scalewise.analysis.decision.walk import is_shown
from scalewise.analysis.statistics import ENOUGH_REPEATS
from scalewise.plan.config.experiment import ACCEPTED_LOSS, DecisionRule
from scalewise.plan.formatting import Goal
from scalewise.plan.runs.runs import Options

SAME_TRAINING = {
    "gradient_as_bucket_view", "static_graph", "bucket_cap_mb", "launcher", "rendezvous", "loader",
    "cpus_per_device",
}  # fmt: skip
"""Options that change how fast a training runs, not what it trains."""


@dataclass(frozen=True)
class Candidates:
    """The points that a rule may choose, of series that train the same.

    Args:
        points: Output of ``evaluate``; empty where no point has a speedup.
        first: Series of the configuration that has any, empty where none has.
        measure: Quantity that is compared.
        best: The best configuration of the fewest devices, which efficiencies are relative to.
        refused: Points of options that ``accept`` names, whose accuracy is not shown to be kept.
    """

    points: pd.DataFrame
    first: str
    measure: Measure
    best: Point = ("", 0)
    refused: Sequence[Point] = ()


def candidates(
    scaling: pd.DataFrame,
    rule: DecisionRule,
    compared: Gains,
    *,
    options: Mapping[str, Options] | None = None,
    target: Goal | None = None,
    queue_minutes: Mapping[int, float] | None = None,
) -> list[Candidates]:
    """Return the points with what the rule says of each, by groups of series that train the same.

    Only within a group any series may be chosen. The first of the configuration is in the first group, with
    the points of others that ``accept`` lets compete.

    Args:
        scaling: Output of ``scaling_table``.
        rule: The criteria; without any, the knee.
        compared: Output of ``gains``.
        options: Options of each series, by its name; one that is missing is a separate group.
        target: The goal that counts as trained, if there is one.
        queue_minutes: Devices -> usual wait in the queue, where the site gives it.

    Returns:
        The groups; a single one without points if none has a speedup.
    """
    measure = measure_of(scaling, target)
    points = rated(scaling, measure)
    if points.empty:
        return [Candidates(points, "", measure)]
    names = [name for name in dict.fromkeys(scaling["series"]) if (points["series"] == name).any()]
    all_options = {name: (options or {}).get(name, (("", name),)) for name in names}
    # values may be mappings, which cannot be hashed
    trained = {
        name: repr([each for each in mine if each[0] not in SAME_TRAINING])
        for name, mine in all_options.items()
    }
    groups: list[Candidates] = []
    for training in dict.fromkeys(trained.values()):
        first = next(name for name in names if trained[name] == training)
        mine = points["series"].map(trained) == training
        refused: list[Point] = []
        if not groups:
            twins = _twins(all_options, dict(all_options[first]), rule.accept)
            theirs = points[points["series"].isin(list(twins))]
            places = list(zip(theirs["series"].astype(str), theirs["devices"].astype(int), strict=True))
            kept = [_keeps_accuracy(compared, place, (twins[place[0]], place[1])) for place in places]
            mine |= points.index.isin(theirs.index[kept])
            refused = [place for place, is_kept in zip(places, kept, strict=True) if not is_kept]
        best = _best_baseline(points[mine], first, compared, measure)
        judged = evaluate(points[mine], rule, compared, best, queue_minutes, measure)
        judged["faster"] = _faster_than_first(judged, first, compared, measure)
        groups.append(Candidates(judged, first, measure, best, refused))
    return groups


BEST_COLUMNS = (
    "best_baseline", "best_baseline_devices", "efficiency_to_best", "efficiency_to_best_low",
    "efficiency_to_best_high",
)  # fmt: skip


def with_best_baseline(scaling: pd.DataFrame, groups: Sequence[Candidates]) -> pd.DataFrame:
    """Return the scaling table with ``BEST_COLUMNS``: the deciding efficiency, and what it is relative to."""
    judged = [found.points for found in groups if len(found.points)]
    columns = list(BEST_COLUMNS)
    if not judged:
        return scaling.assign(**dict.fromkeys(columns, math.nan))
    # a point of an accepted option is in its own group, too: the first one decides
    known = pd.concat(judged)[columns]
    return scaling.join(known[~known.index.duplicated()])


def _twins(
    options: Mapping[str, Options], values: Mapping[str, Any], accept: Collection[str]
) -> dict[str, str]:
    """The series that ``accept`` may let compete, each with its equal that has the first series' values."""
    found = {}
    for name, mine in options.items():
        equal = tuple((key, values[key] if key in accept and key in values else value) for key, value in mine)
        twin = next((other for other, theirs in options.items() if theirs == equal), None)
        if equal != mine and twin is not None:
            found[name] = twin
    return found


def _keeps_accuracy(compared: Gains, point: Point, twin: Point) -> bool:
    """Whether a point is shown to lose no more than ``ACCEPTED_LOSS`` of its twin's final accuracy."""
    difference = accuracy_difference(compared, point, twin)
    return difference is not None and difference.low >= -ACCEPTED_LOSS


def _best_baseline(points: pd.DataFrame, first: str, compared: Gains, measure: Measure) -> Point:
    """Return the configuration of the fewest devices that is shown to be the fastest, else the first one."""
    base = points[points["devices"] == points["gain_base"]]
    fewest = int(base["devices"].min()) if len(base) else int(points["gain_base"].min())
    base = base[base["devices"] == fewest]
    names = [str(name) for name in base["series"]]
    if not names:
        return first, fewest
    usual = first if first in names else names[0]
    shown = shown_faster(compared, measure, names, usual, fewest)
    faster = [name for name in names if name in shown]
    rates = {str(point["series"]): speed(point, measure) for _, point in base.iterrows()}
    return max(faster, key=rates.__getitem__, default=usual), fewest


def _faster_than_first(points: pd.DataFrame, first: str, compared: Gains, measure: Measure) -> list[bool]:
    """Return of each point whether it is shown to be faster than the first series on as many devices."""
    shown = {
        devices: shown_faster(compared, measure, at["series"].astype(str).tolist(), first, devices)
        for devices, at in ((int(at["devices"].iloc[0]), at) for _, at in points.groupby("devices"))
    }
    places = zip(points["series"], points["devices"], strict=True)
    return [str(series) in shown[devices] for series, devices in places]


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
    return _choose_series(choices, found, rule, compared) if choices else None


def _choose_series(
    choices: Sequence[Choice], found: Candidates, rule: DecisionRule, compared: Gains
) -> Choice:
    """The first series of the configuration, unless another is shown to be better.

    Args:
        choices: One for each series that has a point.
        found: The points, judged by the rule.
        rule: The criteria; with a deadline, series that need no more devices than another are left.
        compared: Output of ``gains``.
    """
    first, measure = found.first, found.measure
    if rule.deadline_minutes is not None:
        fewest = min(int(choice.point["devices"]) for choice in choices)
        choices = [choice for choice in choices if choice.point["devices"] == fewest]
    own = [choice for choice in choices if choice.point["series"] == first]
    if not own:
        return max(choices, key=lambda choice: speed(choice.point, measure))
    better = [
        choice
        for choice in choices
        if choice is not own[0] and _is_better(choice.point, own[0].point, rule, compared, measure)
    ]
    return max(better, key=lambda choice: speed(choice.point, measure), default=own[0])


def _is_better(
    point: pd.Series, own: pd.Series, rule: DecisionRule, compared: Gains, measure: Measure
) -> bool:
    """Return whether the choice of a series is shown to be better than that of the first one.

    Args:
        point: The choice of the series.
        own: The choice of the first series.
        rule: The criteria.
        compared: Output of ``gains``.
        measure: Quantity that is compared.
    """
    if point["devices"] == own["devices"]:
        return bool(point["faster"])
    ratio = compared.of(measure, place_of(point), place_of(own))
    if ratio is None or ratio.n < ENOUGH_REPEATS:
        return False
    if rule.without_criterion:
        return bool(is_shown(ratio.at_least, math.sqrt(point["devices"] / own["devices"])))
    worth = 1 + rule.min_gain
    if point["devices"] > own["devices"]:
        return bool(is_shown(ratio.at_least, worth))
    # the first series' more devices must be worth having
    return bool(point["faster"]) and not is_shown(1 / ratio.at_most, worth)


def place_of(point: pd.Series) -> Point:
    """Return series and devices of a row."""
    return str(point["series"]), int(point["devices"])


def find_rivals(found: Candidates, best: pd.Series, rule: DecisionRule, compared: Gains) -> list[pd.Series]:
    """Return the points of other series that are better than the chosen one by the means, the best first.

    Each is faster by ``min_gain``, or about as fast with fewer devices. That the runs show it is not
    required: a chosen point with such a rival is not clear. With a deadline speeds are not compared.

    Args:
        found: The points, judged by the rule.
        best: The chosen point.
        rule: The criteria.
        compared: Output of ``gains``.
    """
    if rule.deadline_minutes is not None:
        return []
    rivals = []
    for _, point in found.points.iterrows():
        if point["series"] == best["series"] or point["misses"]:
            continue
        ratio = compared.of(found.measure, place_of(point), place_of(best))
        if ratio is not None and ratio.estimate > _least_of_a_rival(point, best, rule):
            rivals.append((ratio.estimate, point))
    return [point for _, point in sorted(rivals, key=lambda rival: -rival[0])]


def _least_of_a_rival(point: pd.Series, best: pd.Series, rule: DecisionRule) -> float:
    worth, devices = 1 + rule.min_gain, point["devices"] / best["devices"]
    if rule.without_criterion:
        return float(worth * math.sqrt(devices))
    return worth if devices >= 1 else 1 / worth


def find_open_exclusions(
    found: Candidates, best: pd.Series | None, rule: DecisionRule, compared: Gains
) -> list[pd.Series]:
    """Return the points that miss a criterion by their means, and that are not shown to miss it.

    Args:
        found: The points, judged by the rule.
        best: The chosen point: only points that would be chosen in its place count. None without one.
        rule: The criteria.
        compared: Output of ``gains``.
    """
    points = []
    for _, point in found.points.iterrows():
        if not may_meet(point, rule):
            continue
        is_asked = best is not None and point["series"] == best["series"]
        if is_asked and point["missed"] == ["min_efficiency"]:
            continue  # an open question of the choice
        if best is not None and rule.deadline_minutes is not None:
            if point["devices"] >= best["devices"] or may_be_in_time(point, rule):
                continue  # of_deadline has the second
        elif best is not None:
            ratio = compared.of(found.measure, place_of(point), place_of(best))
            if point["devices"] <= best["devices"] or ratio is None:
                continue
            if verdict(ratio, 1 + rule.min_gain) == "not worth it":
                continue
        points.append(point)
    return points


def speed(point: pd.Series, measure: Measure) -> float:
    """A number that is larger for faster points, to order those of several series by."""
    if measure == "time to target":
        return -float(point["expected_seconds_to_accuracy"])
    rate, wall = (point[name] for name in ("throughput_samples_per_second", "wall_seconds"))
    # walls stand in where no throughput is known, and any rate is above them
    return float(rate) if pd.notna(rate) else -float(wall) if pd.notna(wall) else -math.inf


def further_repeats(
    questions: Sequence[OpenQuestion],
    passed_over: pd.DataFrame,
    rule: DecisionRule,
    excluded: Sequence[pd.Series] = (),
) -> dict[int, int]:
    """Repeats to add, by device count.

    Args:
        questions: Device counts between which the runs cannot tell.
        passed_over: Points of fewer devices than the chosen one.
        rule: The criteria.
        excluded: Points of the series that are not shown to miss the criteria.
    """
    found: dict[int, int] = {}
    for question in questions:
        needed = question.runs_needed
        for devices in (question.devices, question.than):
            if needed is not None:
                found[devices] = max(found.get(devices, 0), needed - question.ratio.n)
    late = [point for _, point in passed_over.iterrows() if may_be_in_time(point, rule)]
    for point in [*late, *excluded]:
        # the bound comes down with what is known of the scatter: twice the runs are a fair step
        devices = int(point["devices"])
        found[devices] = max(found.get(devices, 0), int(point["n"]))
    return dict(sorted(found.items()))
