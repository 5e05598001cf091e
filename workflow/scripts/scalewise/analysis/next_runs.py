"""The runs that a study needs next: a search for the answer, then repeats of what the answer rests on.

The search makes one run of a device count at a time. It doubles the device count until two in a row miss: two
nodes are often slower than three, so one miss says little. A count misses if it does not meet the criteria,
or if it is not faster by ``min_gain`` than the best smaller one. It halves the gaps in which a better count
may lie: between the best count and the first larger one that missed, before it doubles again, then between
the two that missed, and below the best count if fewer devices could be as fast. With a deadline it doubles
until a count keeps the deadline, and halves the gap below that; counts that are too few to keep it even if
they scaled ideally get no run.

``python benchmarks/run.py design`` compares such studies with full grids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scalewise.analysis.statistics import ENOUGH_REPEATS
from scalewise.config.experiment import DecisionRule, Repeats
from scalewise.plan.rounds import FIRST_OF_BASELINE

WIDE_GAP = 1.5
"""Ratio of two device counts that miss, above which the middle between them is measured too."""
MISSES_IN_A_ROW = 2
"""Counts that miss one after the other, at each doubling, after which the search goes no further."""
FAR = 0.6
"""Share of the required efficiency below which one miss is enough: no training in ``benchmarks/published``
becomes more than 1.57 times as efficient again on more devices."""


@dataclass(frozen=True)
class Findings:
    """The results of one series so far.

    Args:
        best: The answer; None if no measured count meets the criteria.
        speeds: Mean speed by device count, in any unit; only of counts with a result.
        misses: Measured counts that do not meet the criteria; one of few runs only if its mean does not.
        wanted: Repeats that would settle what is in doubt, by device count.
        fewest: Device counts below this cannot meet the criteria.
    """

    best: int | None
    speeds: Mapping[int, float]
    misses: frozenset[int] = frozenset()
    wanted: Mapping[int, int] = field(default_factory=dict)
    fewest: float = 0.0


def next_runs(
    counts: Sequence[int],
    runs: Mapping[int, int],
    found: Findings,
    rule: DecisionRule,
    repeats: Repeats,
    affordable: Callable[[int], bool] = lambda _devices: True,
) -> dict[int, int]:
    """Return the repeats that there should be, by device count; only of counts that need more.

    Args:
        counts: Device counts that can be trained, fewest first.
        runs: Runs that were requested or made, by device count.
        found: The results of these runs.
        rule: The criteria.
        repeats: Fewest repeats of what the answer rests on, and the most of any count.
        affordable: Whether one more run on so many devices fits into the budget.
    """
    if not counts:
        return {}
    base = counts[0]
    if base not in found.speeds:
        # nothing can be compared without the baseline
        return {base: FIRST_OF_BASELINE} if runs.get(base, 0) < FIRST_OF_BASELINE else {}
    tried = {devices for devices in counts if runs.get(devices)}
    possible = [
        devices for devices in counts if devices in tried or (devices >= found.fewest and affordable(devices))
    ]
    devices = _next_count(possible, tried, found, rule)
    if devices is not None:
        return {devices: 1}
    # a speed needs an interval, an efficiency that is required as many runs of both sides
    of_base = repeats.min if rule.min_efficiency is not None else min(ENOUGH_REPEATS, repeats.min)
    lead = _lead(found, rule)
    for answer in (found.best if lead is None else lead, found.best):
        # in one round, so that the answer and its baseline share the hour and the nodes
        wanted = {base: of_base} if answer is None else {base: of_base, answer: repeats.min}
        missing = {each: n for each, n in sorted(wanted.items()) if runs.get(each, 0) < n}
        if missing:
            return missing
    return doubts(runs, found, repeats)


def doubts(runs: Mapping[int, int], found: Findings, repeats: Repeats) -> dict[int, int]:
    """Return the repeats that settle what is in doubt, at most twice as many at a time.

    The number that would tell is uncertain as long as the scatter is.
    """
    enough = min(ENOUGH_REPEATS, repeats.min)
    wanted = {
        devices: min(n, max(2 * runs.get(devices, 0), enough), repeats.max)
        for devices, n in sorted(found.wanted.items())
    }
    return {devices: n for devices, n in wanted.items() if n > runs.get(devices, 0)}


def _next_count(counts: Sequence[int], tried: set[int], found: Findings, rule: DecisionRule) -> int | None:
    """Return the device count that the search measures next; None at its end.

    Args:
        counts: Possible device counts, fewest first.
        tried: Those that have runs; one without a result counts as a miss.
        found: The results.
        rule: The criteria.
    """
    lead, measured = _lead(found, rule), sorted(tried)
    larger = _doubled(counts, lead or measured[-1], measured[-1])
    if rule.deadline_minutes is not None:
        if lead is None:
            faster = _worth_having(found, rule)
            behind = [devices for devices in measured if devices > max(faster)]
            return larger if len(behind) < MISSES_IN_A_ROW else None
        below = max((devices for devices in measured if devices < lead), default=lead)
        return _middle(counts, below, lead)
    above = [devices for devices in measured if lead is None or devices > lead]
    if lead is not None and above and (middle := _middle(counts, lead, above[0])) is not None:
        return middle
    may_follow = len(above) < MISSES_IN_A_ROW and not any(_misses_by_far(n, found, rule) for n in above)
    if larger is not None and may_follow:
        return larger
    if lead is None:
        return None
    if len(above) >= MISSES_IN_A_ROW and above[1] > WIDE_GAP * above[0]:
        middle = _middle(counts, above[0], above[1])
        if middle is not None:
            return middle
    # the fewest devices that would be as fast if they scaled ideally from the next smaller measured count
    slower = max((devices for devices in found.speeds if devices < lead), default=lead)
    as_fast = found.speeds[lead] / (1 + rule.min_gain) / found.speeds[slower] * slower
    return _middle([devices for devices in counts if devices > as_fast], slower, lead)


def _misses_by_far(devices: int, found: Findings, rule: DecisionRule) -> bool:
    base = min(found.speeds)
    if rule.min_efficiency is None or devices not in found.speeds:
        return False
    efficiency = found.speeds[devices] / found.speeds[base] * base / devices
    return efficiency < FAR * rule.min_efficiency


def _worth_having(found: Findings, rule: DecisionRule) -> list[int]:
    """Return the counts that are faster by ``min_gain`` than the last one of these, fewest devices first.

    Without a deadline only those that meet the criteria.
    """
    taken: list[int] = []
    for devices, speed in sorted(found.speeds.items()):
        meets = rule.deadline_minutes is not None or devices not in found.misses
        if meets and (not taken or speed > (1 + rule.min_gain) * found.speeds[taken[-1]]):
            taken.append(devices)
    return taken


def _lead(found: Findings, rule: DecisionRule) -> int | None:
    """Return the count that the means prefer; None if no measured count meets the criteria."""
    if rule.deadline_minutes is not None:
        return min((devices for devices in found.speeds if devices not in found.misses), default=None)
    return max(_worth_having(found, rule), default=None)


def _doubled(counts: Sequence[int], lead: int, largest: int) -> int | None:
    """Return the count above the largest measured one that doubles the lead, or else the largest."""
    larger = [devices for devices in counts if devices > largest]
    for base in (lead, largest):
        if within := [devices for devices in larger if devices <= 2 * base]:
            return within[-1]
    return min(larger, default=None)


def _middle(counts: Sequence[int], low: int, high: int) -> int | None:
    """Return the middle of the counts between two others; None if there is none."""
    between = [devices for devices in counts if low < devices < high]
    return between[len(between) // 2] if between else None
