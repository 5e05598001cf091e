"""Choose among candidates: the cheapest one that no other is shown to beat by the gain worth having.

Device counts, options, CPUs per device, partitions, splits, the table of other criteria and the next runs of
a study that chooses its device counts all call ``Chooser.choose``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from scalewise.analysis.points import Place
from scalewise.analysis.statistics import (
    ENOUGH_REPEATS,
    ROUNDING,
    Ratio,
    Sample,
    Scatter,
    holm,
    ratio_of,
    runs_to_tell,
)

Aim = Literal["time", "cost", "energy", "soonest"]
"""Amount that is to be small; ``soonest`` is the wait in the queue and the time together."""

AIMS: tuple[Aim, ...] = ("time", "cost", "energy", "soonest")

State = Literal["met", "missed", "open"]

SIGNIFICANCE = 0.025
"""Largest one-sided p value at which something is shown: a 95 % interval leaves as much on each side."""


@dataclass(frozen=True)
class Check:
    """A criterion held against the interval of a candidate.

    Args:
        criterion: Key of the rule, or ``reliable``.
        state: ``met`` or ``missed`` if the whole interval is on one side of the limit.
        by_mean: Whether the mean meets it; this decides while it is open.
        text: The criterion that is missed, a clause; empty if it is met.
        repeats: Runs of the candidate that would tell; None if unknown or too many.
        may_be_met: Whether it is missed only because its runs are too few for their scatter to be known.
    """

    criterion: str
    state: State
    by_mean: bool
    text: str = ""
    repeats: int | None = None
    may_be_met: bool = False


@dataclass(frozen=True, eq=False)
class Candidate:
    """A possible answer: devices and options, on a partition, for some trainings at a time.

    Args:
        key: Identifies it: partition, series and devices.
        order: Sorts candidates, the cheapest first; equal ones in the order of the configuration.
        amounts: Amount of each run for the same work.
        checks: The criteria of the user.
        facts: Further values for words, figures and cautions.
    """

    key: Place
    order: tuple[float, ...]
    amounts: Mapping[Aim, Sample]
    checks: Sequence[Check] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_met(self) -> bool:
        """Whether it meets every criterion, by its means."""
        return all(check.by_mean for check in self.checks)

    @property
    def may_be_met(self) -> bool:
        """Whether more runs of it may show that it meets every criterion."""
        return all(check.by_mean or check.may_be_met for check in self.checks)

    @property
    def open_checks(self) -> list[Check]:
        """The criteria that could turn out otherwise; none if another criterion is missed for certain."""
        if any(check.state == "missed" for check in self.checks):
            return []
        return [check for check in self.checks if check.state == "open"]

    def mean(self, aim: Aim) -> float:
        """Return the geometric mean of an amount."""
        return self.amounts[aim].mean


@dataclass(frozen=True)
class Doubt:
    """A question that is open, and whose answer changes the choice.

    Args:
        candidate: The candidate that the question is about.
        check: Criterion that may turn out otherwise; None if the speeds are in question.
        ratio: Amount of the chosen candidate over that of this one; None for a criterion.
        repeats: Runs of each side that would tell, with a power of 80 %; None if too many.
    """

    candidate: Candidate
    check: Check | None
    ratio: Ratio | None
    repeats: int | None


@dataclass(frozen=True)
class Choice:
    """The best candidate, and what the runs leave open about it.

    Args:
        best: None if no candidate meets the criteria.
        doubts: Open questions, those first that are about the best candidate itself.
        equal: Candidates that are shown to be as good, within the gain worth having.
    """

    best: Candidate | None
    doubts: Sequence[Doubt] = ()
    equal: Sequence[Candidate] = ()


class Chooser:
    """Compares candidates by one amount; a ratio is computed once.

    Args:
        candidates: All candidates of one training, with the known ones among those that miss a criterion.
        aim: Amount that is to be small.
        gain: Least difference that is worth having, a fraction.
        scatter: Scatter of the runs of the whole experiment.
        by_mean: Prefer the least mean, and of those shown to be equal the cheapest, as between partitions;
            otherwise the cheapest one, unless another is shown to beat it, as between device counts.
        first_that_meets: The cheapest one that meets the criteria, as with a deadline.
    """

    def __init__(
        self,
        candidates: Iterable[Candidate],
        aim: Aim,
        gain: float,
        *,
        scatter: Scatter | None = None,
        by_mean: bool = False,
        first_that_meets: bool = False,
        compare: Callable[[Aim, Candidate, Candidate], Ratio | None] | None = None,
    ) -> None:
        self.candidates = sorted(
            (each for each in candidates if aim in each.amounts), key=lambda each: each.order
        )
        self.aim, self.gain, self.scatter = aim, gain, scatter
        self.by_mean, self.first_that_meets = by_mean, first_that_meets
        self.compare = compare
        self._ratios: dict[tuple[Place, Place], Ratio | None] = {}

    def over(self, one: Candidate, other: Candidate) -> Ratio | None:
        """Return how many times the amount of another candidate one has; above 1 the other is better."""
        if one is other:
            return None
        key = one.key, other.key
        if key not in self._ratios:
            if self.compare is not None:
                self._ratios[key] = self.compare(self.aim, one, other)
            else:
                self._ratios[key] = ratio_of(one.amounts[self.aim], other.amounts[self.aim], self.scatter)
        return self._ratios[key]

    def verdict(self, one: Candidate, other: Candidate) -> Literal["beaten", "equal", "open"]:
        """Return whether the whole 95 % interval shows one candidate beaten by another."""
        ratio = self.over(one, other)
        if ratio is None:
            return "open"
        worth = 1 + self.gain
        if ratio.at_least > worth * (1 + ROUNDING):
            return "beaten"
        return "equal" if ratio.at_most < worth * (1 - ROUNDING) else "open"

    def choose(self) -> Choice:
        """Return the best candidate with the doubts about it."""
        met = [each for each in self.candidates if each.is_met]
        best = self._best(met)
        doubts = list(self._open_criteria(met, best))
        if best is None:
            return Choice(None, doubts)
        doubts += self._open_comparisons(met, best)
        doubts.sort(key=lambda doubt: doubt.candidate is not best)
        return Choice(best, doubts, [each for each in met if each is not best and self._is_equal(best, each)])

    def _best(self, met: Sequence[Candidate]) -> Candidate | None:
        """Return the best of some candidates, the cheapest first."""
        if not met:
            return None
        if self.first_that_meets:
            cheapest = [each for each in met if each.order[0] == met[0].order[0]]
            return self._unbeaten(cheapest)
        if not self.by_mean:
            return self._unbeaten(met)
        least = min(met, key=lambda each: each.mean(self.aim))
        others = [each for each in met if each is not least]
        ratios = [self.over(each, least) for each in others]
        p_values = holm([1.0 if ratio is None else 1 - ratio.p_above(1 + self.gain) for ratio in ratios])
        equal = [each for each, p in zip(others, p_values, strict=True) if p <= SIGNIFICANCE]
        return min([least, *equal], key=lambda each: each.order)

    def _unbeaten(self, met: Sequence[Candidate]) -> Candidate:
        """Return the cheapest candidate that no other one is shown to beat."""
        for each in met:
            if not any(self.verdict(each, other) == "beaten" for other in met if other is not each):
                return each
        # a cycle of lucky pairs: the one that is fastest by its mean
        return min(met, key=lambda each: each.mean(self.aim))

    def _open_criteria(self, met: Sequence[Candidate], best: Candidate | None) -> Iterable[Doubt]:
        """Yield the open criteria that would change the choice if they turned out otherwise."""
        for each in self.candidates:
            checks = each.open_checks
            if not checks:
                continue
            otherwise = [other for other in self.candidates if (other in met) != (other is each)]
            if each is best or self._may_win(each, otherwise):
                yield Doubt(each, checks[0], None, checks[0].repeats)

    def _may_win(self, candidate: Candidate, met: Sequence[Candidate]) -> bool:
        """Return whether a candidate that may meet the criteria could be chosen among others."""
        if candidate not in met:
            return False
        if self.first_that_meets:
            return candidate.order[0] <= met[0].order[0]
        best = self._best(met)
        if best is candidate:
            return True
        assert best is not None, "the candidate itself is among them"
        return self._may_be_better(best, candidate)

    def _open_comparisons(self, met: Sequence[Candidate], best: Candidate) -> Iterable[Doubt]:
        """Yield the candidates that may be better than the best one."""
        rivals = [each for each in met if each is not best]
        if self.first_that_meets:
            rivals = [each for each in rivals if each.order[0] == best.order[0]]
        for each in rivals:
            if self._may_be_better(best, each):
                ratio = self.over(best, each)
                threshold = self._threshold(best, each)
                yield Doubt(each, None, ratio, None if ratio is None else repeats_to_tell(ratio, threshold))

    def _threshold(self, best: Candidate, other: Candidate) -> float:
        """Return the ratio of the best one's amount over another's from which on the other one is better."""
        worth = 1 + self.gain
        if self.by_mean or other.order > best.order:
            return worth
        return 1 / worth  # a cheaper one is as good unless the best one is shown to beat it

    def _may_be_better(self, best: Candidate, other: Candidate) -> bool:
        """Return whether the runs leave open that another candidate is the better one."""
        if self.by_mean or other.order > best.order:
            # of a cheaper one it is also asked whether it is as good
            cheaper = other.order < best.order and self.verdict(other, best) == "open"
            return self.verdict(best, other) != "equal" or cheaper
        return self.verdict(other, best) != "beaten"

    def _is_equal(self, best: Candidate, other: Candidate) -> bool:
        return self.verdict(best, other) == self.verdict(other, best) == "equal"


def repeats_to_tell(ratio: Ratio, threshold: float) -> int | None:
    """Return the runs of each side that show on which side of a threshold a ratio lies; None if too many.

    One or two runs do not show how close a ratio is: they get ``ENOUGH_REPEATS`` before it is too close.
    """
    enough = ENOUGH_REPEATS if ratio.n < ENOUGH_REPEATS else None
    return runs_to_tell(ratio, threshold) or enough
