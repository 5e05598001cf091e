"""Candidates of the chooser: points with their amounts for the same work, and the checks of the criteria."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from scalewise.analysis.choose import (
    AIMS,
    Aim,
    Candidate,
    Check,
    Choice,
    Chooser,
    State,
    repeats_to_tell,
)
from scalewise.analysis.points import JOULES_PER_KWH, Place, Point, Points, startup_seconds
from scalewise.analysis.statistics import (
    ENOUGH_REPEATS,
    ROUNDING,
    Interval,
    Ratio,
    Sample,
    difference_of,
    geometric_interval,
    mean_interval,
    next_value_bound,
    ratio_to,
)
from scalewise.analysis.words import format_3sig, format_distinct, format_exact, runs_text
from scalewise.config.experiment import LIMITS, DecisionRule
from scalewise.plan.runs import Options

SAME_TRAINING = {
    "gradient_as_bucket_view", "bucket_cap_mb", "launcher", "rendezvous", "loader",
    "cpus_per_device",
}  # fmt: skip
"""Options that change how fast a training runs, not what it trains."""

CPUS = "cpus_per_device"

SUCCESSFUL_FROM = 0.7
"""Share of a point's runs that have to end with a result for it to be recommended."""

FREE = 1e-12
"""Stands for a price of 0: costs are compared by their logarithms, so of free points the one of fewer devices
is the cheapest."""


@dataclass(frozen=True)
class Terms:
    """All that a choice follows from in addition to the points.

    Args:
        rule: The criteria of the configuration.
        options: Options of each series, by its name, in the order of the configuration.
        trainings: Trainings that share the devices; 1 if the answer is on one.
        judgeable: Criteria that the clock can judge.
    """

    rule: DecisionRule
    options: Mapping[str, Options]
    trainings: int = 1
    judgeable: frozenset[str] = frozenset({"min_efficiency", *LIMITS})

    @property
    def min_efficiency(self) -> float | None:
        """The least efficiency that is required, by default that of the rule; None if others decide."""
        if self.trainings > 1:
            # several trainings at a time use all devices, whatever the efficiency of each
            return self.rule.min_efficiency
        return self.rule.required_efficiency(self.judgeable)

    @property
    def judged(self) -> DecisionRule:
        """The rule with the criteria that decide, a default one included."""
        limits = {name: self.limit(name) for name in LIMITS}
        return self.rule.model_copy(update={"min_efficiency": self.min_efficiency, **limits})

    def limit(self, criterion: str) -> float | None:
        """Return the limit of a criterion that is given and can be judged."""
        value: float | None = getattr(self.rule, criterion)
        return value if criterion in self.judgeable else None


Group = list[Place]
"""Points of series that train the same, and so compete."""


def groups(points: Points, terms: Terms) -> list[Group]:
    """Return the points by groups of series that train the same; the configured training is the first.

    Points of options that ``accept`` names are in the first group too if their accuracy is shown to be kept.
    """
    names = [name for name in terms.options if any(place.series == name for place in points.all)]
    trained = {
        name: repr([each for each in terms.options[name] if each[0] not in SAME_TRAINING]) for name in names
    }
    found: list[Group] = []
    for training in dict.fromkeys(trained.values()):
        found.append([place for place in points.all if trained.get(place.series) == training])
    return found


def accuracy_difference(points: Points, place: Place, other: Place) -> Interval | None:
    """Return the final accuracy of a point less that of another with its 95 % interval; None if unknown."""
    if place not in points.all or other not in points.all:
        return None
    sides = [points.all[each].column("final_accuracy").tolist() for each in (place, other)]
    if min(map(len, sides)) < ENOUGH_REPEATS:
        return None
    return difference_of(mean_interval(sides[0]), mean_interval(sides[1]))


def best_baseline(points: Points, group: Group, partition: str) -> Place | None:
    """Return the fastest configuration of the fewest devices of a group on a partition, by the means."""
    known = [each for each in group if each.partition == partition and points.time(each).values]
    fewest = min((place.devices for place in known), default=0)
    at_base = [place for place in known if place.devices == fewest]
    return min(at_base, key=lambda place: points.time(place).mean, default=None)


def candidates(points: Points, group: Group, terms: Terms) -> list[Candidate]:
    """Return the candidates of a group: each point with a known time, its amounts and its criteria."""
    total = max(
        (math.ceil(points.all[place].billed) for place in group if points.time(place).values), default=0
    )
    order = {name: rank for rank, name in enumerate(terms.options)}
    found = []
    for place in group:
        point = points.all[place]
        if not points.time(place).values:
            continue
        rounds = rounds_of(point, total, terms.trainings)
        amounts = amounts_of(points, point, rounds, terms.trainings)
        cpus = dict(terms.options[place.series]).get(CPUS) or 0
        found.append(
            Candidate(
                key=place,
                order=(point.billed, float(place.devices), float(cpus), float(order[place.series])),
                amounts=amounts,
                checks=list(checks_of(points, place, best_baseline(points, group, place.partition), terms)),
                facts={"rounds": rounds, "at_a_time": min(max(total // taken(point), 1), terms.trainings)},
            )
        )
    return found


def taken(point: Point) -> int:
    """Return the devices that a training keeps from others: those that it pays for."""
    return max(math.ceil(point.billed), 1)


def rounds_of(point: Point, total: int, trainings: int) -> int:
    """Return how many times as many trainings as fit at a time run one after the other."""
    at_a_time = min(max(total // taken(point), 1), trainings)
    return math.ceil(trainings / at_a_time)


def amounts_of(points: Points, point: Point, rounds: int = 1, trainings: int = 1) -> dict[Aim, Sample]:
    """Return the amounts of each run of a point for the same work; an unknown amount is left out.

    Args:
        points: All points, with the clock.
        point: The point.
        rounds: Trainings that run one after the other.
        trainings: Trainings in all.
    """
    seconds = points.time(point.place)
    if trainings > 1 and points.clock != "runs":
        # each of several trainings starts up
        parts = startup_seconds(point.runs)
        if points.clock == "target":
            parts -= point.runs["first_step_seconds"]  # it is a part of the time to the target
        start_up = 0.0 if parts.isna().all() else float(parts.median())
        seconds = replace(seconds, values=tuple(start_up + each for each in seconds.values))
    found: dict[Aim, Sample] = {"time": seconds.scaled(rounds)}
    if point.price is not None:
        hourly = point.billed * (point.price or FREE)
        found["cost"] = seconds.scaled(trainings * hourly / 3600)
    energy = _energy(points, point).dropna()
    if len(energy) and (energy > 0).all():
        found["energy"] = point.sample(energy).scaled(trainings)
    if point.queue_minutes is not None and points.clock in ("runs", "target"):
        wait = 60 * point.queue_minutes
        found["soonest"] = replace(seconds, values=tuple(wait + rounds * each for each in seconds.values))
    return found


def _energy(points: Points, point: Point) -> pd.Series:
    """Return the kWh of each run for the same work."""
    samples = points.work if points.clock in ("steps", "epochs") else point.column("samples")
    drawn = samples / point.column("samples_per_joule") / JOULES_PER_KWH
    if points.clock == "target":
        return drawn * point.seconds("target", points.work) / point.column("train_seconds")
    return drawn


# ---- criteria: an entry of CHECKS each ------------------------------------------------------------------


def _min_efficiency(points: Points, place: Place, base: Place, terms: Terms) -> Check | None:
    least = terms.min_efficiency
    if least is None or place == base:
        return None
    ratio = points.faster(place, base)
    if ratio is None:
        return Check("min_efficiency", "missed", False, "an unknown efficiency")
    share = base.devices / place.devices
    value, threshold = ratio.estimate * share, least / share
    shown, limit = format_distinct(value, least)
    text = f"efficiency {shown}, below the {limit} required"
    # a point that meets it to the digit is efficient enough
    by_mean = value >= least * (1 - 2 * ROUNDING)
    return _check(
        "min_efficiency",
        "met" if ratio.at_least >= threshold * (1 - 2 * ROUNDING)
        else "missed" if ratio.at_most < threshold * (1 - ROUNDING) else "open",
        by_mean, text, ratio, threshold,
    )  # fmt: skip


def _max_device_hours(points: Points, place: Place, _base: Place, terms: Terms) -> Check | None:
    most = terms.limit("max_device_hours")
    if most is None:
        return None
    point = points.all[place]
    hours = points.time(place).scaled(point.billed / 3600)
    ratio = ratio_to(hours, most, points.scatter)
    text = f"{format_3sig(hours.mean)} device-hours, more than the {format_exact(most)} allowed"
    state = "met" if ratio.at_most <= 1 + ROUNDING else "missed" if ratio.at_least > 1 + ROUNDING else "open"
    return _check("max_device_hours", state, hours.mean <= most * (1 + ROUNDING), text, ratio, 1.0)


def _deadline_minutes(points: Points, place: Place, _base: Place, terms: Terms) -> Check | None:
    latest = terms.limit("deadline_minutes")
    if latest is None:
        return None
    seconds, wait = points.time(place), points.all[place].queue_minutes or 0.0
    # an interval is of the mean run; a deadline is for the next one
    bound = next_value_bound(seconds.values) / 60 + wait
    low = ratio_to(seconds, 1.0, points.scatter).at_least / 60 + wait
    met = bound <= latest * (1 + ROUNDING)
    queue = " in the queue and running" if wait else ""
    text = f"up to {format_3sig(bound)} minutes{queue}, more than the {format_exact(latest)} allowed"
    state: State = "met" if met else "missed" if low > latest * (1 + ROUNDING) else "open"
    # the bound comes down with what is known of the scatter: twice the runs are a fair step
    n = len(seconds.values)
    repeats = 2 * n if state == "open" else None
    may_be_met = n < ENOUGH_REPEATS and seconds.mean / 60 + wait <= latest
    return Check("deadline_minutes", state, met, "" if met else text, repeats, may_be_met)


CHECKS: Sequence[Callable[[Points, Place, Place, Terms], Check | None]] = (
    _min_efficiency,
    _max_device_hours,
    _deadline_minutes,
)
"""The criteria: of a point, its baseline and the terms; None for one that is not given."""


def _check(criterion: str, state: str, by_mean: bool, text: str, ratio: Ratio, threshold: float) -> Check:
    repeats = repeats_to_tell(ratio, threshold) if state == "open" else None
    assert state in ("met", "missed", "open")
    return Check(criterion, state, by_mean, "" if by_mean else text, repeats)  # type: ignore[arg-type]


def checks_of(points: Points, place: Place, base: Place | None, terms: Terms) -> Iterator[Check]:
    """Yield the criteria of a point, and whether enough of its runs end with a result."""
    point = points.all[place]
    ended = sum(point.unsuccessful.values())
    if ended:
        fine = point.n / (point.n + ended) >= SUCCESSFUL_FROM
        text = f"{runs_text(point.unsuccessful)} of {point.n + ended} runs"
        # runs that fail may be fixed: whether the point would be the better one is open
        yield Check("reliable", "met" if fine else "open", fine, "" if fine else text)
    for check in CHECKS:
        if base is not None and (found := check(points, place, base, terms)) is not None:
            yield found


# ---- choices --------------------------------------------------------------------------------------------


def chooser_of(points: Points, found: Sequence[Candidate], terms: Terms, aim: Aim | None = None) -> Chooser:
    """Return the chooser among candidates.

    Between device counts more devices must be shown to be worth it; between partitions, and between ways to
    split devices, the least mean amount is the best, and of equal ones the cheapest.

    Args:
        points: All points, with the clock.
        found: The candidates.
        terms: The criteria.
        aim: Amount that is to be small; by default what the rule says, or time.
    """
    partitions = {place.partition for place in points.all}
    aim = aim or aim_of(found, terms)
    by_mean = len(partitions) > 1 or terms.trainings > 1 or aim != "time"
    second: Aim = "cost" if aim == "time" else "time"
    if by_mean and all(second in each.amounts for each in found):
        found = [replace(each, order=(each.mean(second), *each.order)) for each in found]
    return Chooser(
        found,
        aim,
        terms.rule.min_gain,
        scatter=points.scatter,
        by_mean=by_mean,
        first_that_meets=terms.limit("deadline_minutes") is not None and aim == "time",
        compare=_comparison(points),
    )


def aim_of(found: Sequence[Candidate], terms: Terms) -> Aim:
    """Return the amount that decides: what the rule says, or time if that is unknown of all candidates."""
    aim: Aim = terms.rule.by or "time"
    return aim if any(each.amounts.get(aim) for each in found) else "time"


def _comparison(points: Points) -> Callable[[Aim, Candidate, Candidate], Ratio | None] | None:
    """Return the comparison of times to a target, which counts the runs that never reach it."""
    if points.clock != "target":
        return None

    def compare(aim: Aim, one: Candidate, other: Candidate) -> Ratio | None:
        place, than = one.key, other.key
        ratio = points.faster(than, place)
        if ratio is None:
            return None
        # a start-up and a number of trainings are constants, so the ratio of the means has them
        factor = (one.mean(aim) / other.mean(aim)) / (points.time(place).mean / points.time(than).mean)
        return ratio.scaled(factor)

    return compare


def choose_for(points: Points, group: Group, terms: Terms) -> tuple[Choice, list[Candidate]]:
    """Return the choice among the points of a group, and its candidates."""
    found = candidates(points, group, terms)
    return chooser_of(points, found, terms).choose(), found


def by_efficiency(
    points: Points, group: Group, terms: Terms, least: Sequence[float]
) -> list[Candidate | None]:
    """Return the choice for each required efficiency, all else equal."""
    rules = [
        terms.rule.model_copy(
            update={"min_efficiency": each, "deadline_minutes": None, "max_device_hours": None}
        )
        for each in least
    ]
    return [choose_for(points, group, replace(terms, rule=rule, trainings=1))[0].best for rule in rules]


def interval_of(sample: Sample) -> Interval:
    """Return the geometric mean of a sample with its 95 % interval."""
    return geometric_interval(sample.values)


__all__ = ["AIMS", "Terms", "candidates", "choose_for", "chooser_of", "groups"]
