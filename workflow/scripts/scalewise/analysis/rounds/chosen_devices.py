"""The device counts that a study measures next if it chooses them: those that may be the answer.

The baseline is measured first. From then on a round computes the probability that a device count without a
run is the answer (``overhead_model``, ``likely_answers``). As long as that is more than ``OTHER_ANSWER`` in
all, the device count whose speed shows most of the answer for its price is measured, once, and then both
neighbours of the answer. Measured counts between which single runs leave the answer open are measured again;
then the answer gets the repeats of the configuration, and after that what the decision still leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import mutual_info_score

from scalewise.analysis.decision.walk import NONE, Answers, Array, Indices
from scalewise.analysis.rounds.likely_answers import answers
from scalewise.analysis.rounds.possible_speeds import DRAWS, SEED, PossibleSpeeds, SeriesSoFar
from scalewise.analysis.rounds.repeats import further
from scalewise.analysis.statistics import ENOUGH_REPEATS, geometric_interval
from scalewise.plan.config.experiment import DecisionRule, Repeats
from scalewise.plan.runs.rounds import (
    FIRST_OF_BASELINE,
    OTHER_ANSWER,
    SeriesChoice,
    UnmeasuredPoint,
    Verdict,
)

SURPRISE = 0.05
"""Probability of so slow a run by what the other counts show, below which it is made once more."""

SLICES = 8
"""Equally probable speeds of a count that are told apart when it is asked what they tell of the answer."""
BAND = (0.025, 0.975)
"""Quantiles of the possibilities that are shown of a count that was not measured."""


Wanted = dict[int, tuple[Verdict, int]]
"""Devices -> the reason for more runs, and the repeats that there should be."""


@dataclass(frozen=True)
class NextRuns:
    """Runs to make of a series next, most important first, and the answers that are open until then."""

    wanted: Wanted
    choice: SeriesChoice


def next_runs(
    series: SeriesSoFar,
    rule: DecisionRule,
    scaling: str,
    repeats: Repeats,
    affordable: Callable[[int], bool] = lambda _devices: True,
) -> NextRuns:
    """The runs that the answer of a series needs next; none where it cannot change any more.

    Args:
        series: The measurements so far.
        rule: The criteria.
        scaling: ``strong`` or ``weak``.
        repeats: Fewest repeats of what the answer rests on, and the most of any point.
        affordable: Whether one more run on so many devices fits into what may be spent.
    """
    base, speeds = series.base, PossibleSpeeds.of(series, scaling, repeats)
    if speeds is None or base is None:
        wanted: Wanted = {}
        if base is not None and series.asked.get(base, 0) < FIRST_OF_BASELINE:
            wanted = {base: ("baseline", FIRST_OF_BASELINE)}
        # else none of them completed: nothing can be held against it
        return NextRuns(wanted, SeriesChoice(series=series.series, devices=None, other_answer=1.0))
    possible = _Possibilities.of(series, speeds, rule, repeats)
    other = float(possible.chances.sum())
    choice = SeriesChoice(
        series=series.series,
        devices=series.decision.devices,
        other_answer=other,
        unmeasured=possible.unmeasured(),
    )
    again = [each for each in possible.surprising if series.asked.get(each, 0) < 2 and affordable(each)]
    if again:
        return NextRuns(dict.fromkeys(again, ("undecided", 2)), choice)
    devices = possible.best_to_measure(affordable) if other > OTHER_ANSWER else None
    new = [each for each in possible.unmeasured_neighbours(rule) if affordable(each)]
    if devices is not None:
        new = [devices]
    if new:
        wanted = dict.fromkeys(new, ("may be the answer", 1))
        # the baseline's are needed in any case, and show how much runs scatter
        if series.asked.get(base, 0) < repeats.min:
            wanted[base] = ("answer rests on it", repeats.min)
        return NextRuns(wanted, choice)
    return NextRuns(_repeats(series, possible, repeats, base), choice)


def _repeats(series: SeriesSoFar, possible: _Possibilities, repeats: Repeats, base: int) -> Wanted:
    """Repeats of the answer and its baseline, then those that tell what the decision leaves open.

    Args:
        series: The measurements so far.
        possible: Possible answers of the counts that were measured.
        repeats: Fewest repeats of what the answer rests on, and the most of any point.
        base: The baseline.
    """
    said, likeliest = series.decision.devices, possible.likeliest
    rivals = possible.rivals(OTHER_ANSWER)

    def below(n: int, counts: Sequence[int | None], why: Verdict) -> Wanted:
        return {
            each: (why, n)
            for each in counts
            if each is not None and _n(series, each) and series.asked.get(each, 0) < n
        }

    enough = min(ENOUGH_REPEATS, repeats.min)
    # a second look at what single runs tell, before the answer gets its repeats
    wanted = below(enough, [likeliest, *rivals], "undecided") if rivals else {}
    wanted = wanted or below(repeats.min, [likeliest], "answer rests on it")
    wanted = wanted or below(repeats.min, rivals, "undecided")
    wanted |= below(repeats.min, [base], "answer rests on it")
    if wanted:
        return wanted
    if repeats.until_interval is not None:
        for each in sorted({base} if said is None else {base, said}):
            interval = geometric_interval(series.speeds[each])
            excess = interval.half_width_fraction / repeats.until_interval
            if excess > 1 and series.asked.get(each, 0) < repeats.max:
                wanted[each] = ("too wide", series.asked.get(each, 0) + further(interval.n, excess))
    for devices, more in series.decision.undecided.items():
        n, asked = _n(series, devices), series.asked.get(devices, 0)
        if n and more > 0 and asked < repeats.max:
            wanted[devices] = ("undecided", max(asked + min(more, n), enough))
    return wanted or below(repeats.min, [said], "answer rests on it")


def _n(series: SeriesSoFar, devices: int) -> int:
    return len(series.speeds.get(devices, ()))


@dataclass(frozen=True)
class _Possibilities:
    """Possible speeds of all candidates, and the answers that these would give.

    Args:
        counts: Candidates; shape (counts,).
        measured: Indices of those that were.
        log_speeds: Shape (draws, counts).
        given: Index of the answer of all counts, or ``NONE``; shape (draws,).
        chances: Probability that a count not measured is, or makes, another answer; shape (counts,).
        tally: Probability that a count is the answer of those measured; shape (counts,).
        hours: Median device-hours of one run; shape (counts,).
        likeliest: Count that is most probably the answer of those measured; None for none of them.
        surprising: Measured counts whose only run is slower than the others lead to expect, and which would
            perhaps be the answer were it not.
    """

    counts: Array
    measured: Sequence[int]
    log_speeds: Array
    given: Indices
    chances: Array
    tally: Array
    hours: Array
    likeliest: int | None
    surprising: Sequence[int]

    @classmethod
    def of(
        cls, series: SeriesSoFar, speeds: PossibleSpeeds, rule: DecisionRule, repeats: Repeats
    ) -> _Possibilities:
        model, measured, times, log_speeds = speeds.model, speeds.measured, speeds.times, speeds.log_speeds
        counts = [int(each) for each in model.devices]
        given = answers(log_speeds, model.devices, rule, times)
        only = np.isin(np.arange(len(counts)), list(measured))
        without = answers(log_speeds, model.devices, rule, times, only)
        tally = np.bincount(without.index + 1, minlength=len(counts) + 1) / DRAWS
        likeliest = int(tally.argmax()) - 1
        # few runs of an answer tell less than the model, many tell what will be said
        current, said = likeliest, series.decision.devices
        if likeliest == NONE or measured[likeliest].n >= repeats.min:
            current = NONE if said is None else counts.index(said)
        hours = np.median(times.device_hours(log_speeds), axis=0)
        return cls(
            counts=model.devices,
            measured=sorted(measured),
            log_speeds=log_speeds,
            given=given.index,
            chances=_chances(given, without.index, current, only, model.devices, rule.min_gain),
            tally=tally[1:],
            # of runs whose length is not known, the devices tell the price
            hours=np.where(hours > 0, hours, times.billed),
            likeliest=None if likeliest == NONE else counts[likeliest],
            surprising=[
                counts[index]
                for index, each in measured.items()
                if index > 0 and each.n == 1 and index != likeliest
                if _is_wild(index, speeds, rule)
            ],
        )

    def unmeasured_neighbours(self, rule: DecisionRule) -> list[int]:
        """Return the device counts next to the answer that were not measured.

        However improbable it is that one of them is better: two nodes are often slower than three, and a
        switch or a file system may be the limit from some device count on. With a deadline, which the fewest
        devices keep, only those with fewer.
        """
        if self.likeliest is None:
            return []
        apart = self.counts / self.likeliest
        worth = 1 + rule.min_gain
        fewer = self.counts[(apart < 1) & (apart <= 1 / worth)]
        more = self.counts[apart > worth] if rule.deadline_minutes is None else fewer[:0]
        near = [int(each) for each in (*fewer[-1:], *more[:1])]
        known = {int(self.counts[index]) for index in self.measured}
        return [each for each in near if each not in known]

    def best_to_measure(self, affordable: Callable[[int], bool]) -> int | None:
        """Return the device count that shows most of the answer for its price; None if none can be paid."""
        # each round has its wait as well: it is priced as the most expensive run
        scores = self._information() / (self.hours + self.hours.max())
        for index in np.lexsort((-self.chances, -scores)):
            worth = scores[index] > 0 or self.chances[index] > 0
            if worth and index not in self.measured and affordable(int(self.counts[index])):
                return int(self.counts[index])
        return None

    def _information(self) -> Array:
        """Nats that the speed of each device count would show of the answer; shape (counts,).

        The mutual information of the two (Lindley, Annals of Mathematical Statistics 27, 1956; MacKay,
        Neural Computation 4, 1992), over the draws, less its bias (Miller 1955).
        """
        draws = len(self.given)
        bias = (len(np.unique(self.given)) - 1) * (SLICES - 1) / (2 * draws)
        nats = np.zeros(len(self.counts))
        slices = np.empty(draws, dtype=np.int64)
        for index in range(len(self.counts)):
            if index not in self.measured:
                slices[np.argsort(self.log_speeds[:, index], kind="stable")] = (
                    np.arange(draws) * SLICES // draws
                )
                nats[index] = max(mutual_info_score(self.given, slices) - bias, 0.0)
        return nats

    def rivals(self, chance: float) -> list[int]:
        """Measured counts that are no answer as it looks, but are one with more than a chance."""
        return [
            int(self.counts[index])
            for index in self.measured
            if self.tally[index] > chance and self.counts[index] != self.likeliest
        ]

    def unmeasured(self) -> list[UnmeasuredPoint]:
        """Each count that was not measured, as the others make it expect."""
        found = []
        base = self.log_speeds[:, 0]
        for index, devices in enumerate(self.counts):
            if index in self.measured:
                continue
            speedups = np.exp(self.log_speeds[:, index] - base)
            low, high = np.quantile(speedups, BAND)
            found.append(
                UnmeasuredPoint(
                    devices=int(devices),
                    chance=float(self.chances[index]),
                    speedup=float(np.median(speedups)),
                    speedup_low=float(low),
                    speedup_high=float(high),
                    device_hours=float(self.hours[index]),
                )
            )
        return found


def _is_wild(index: int, speeds: PossibleSpeeds, rule: DecisionRule) -> bool:
    """Whether a count's only run is so slow that the others make it improbable, and decides by that.

    Args:
        index: Place of the count among the candidates.
        speeds: Those of all candidates.
        rule: The criteria.
    """
    places = sorted(speeds.measured)
    here, known = places.index(index), speeds.model.among(places)
    others = {places.index(place): each for place, each in speeds.measured.items() if place != index}
    expected = known.log_speeds(others, *speeds.scatter, np.random.default_rng(SEED), DRAWS)
    if float((expected[:, here] <= speeds.measured[index].log_speed).mean()) > SURPRISE:
        return False
    would_be = answers(expected, known.devices, rule, speeds.times.among(places)).index == here
    return float(would_be.mean()) > OTHER_ANSWER


def _chances(
    given: Answers, without: Indices, current: int, measured: np.ndarray, devices: Array, min_gain: float
) -> Array:
    """The probability that each unmeasured count is another answer, or makes a measured one that.

    Counts that differ by less than a gain worth having are one answer.

    Args:
        given: The answers of all candidates.
        without: Those of the measured ones alone; shape (draws,).
        current: Index of the present answer, or ``NONE``.
        measured: Shape (counts,).
        devices: Shape (counts,).
        min_gain: The least gain worth having.
    """
    draws = len(without)
    chances = np.zeros(len(devices))
    places = np.arange(len(devices))
    other = given.index != current
    if current != NONE:
        ratio = np.abs(np.log(devices[np.maximum(given.index, 0)] / devices[current]))
        other &= (given.index == NONE) | (ratio > math.log1p(min_gain))
    is_unmeasured = other & (given.index != NONE) & ~measured[np.maximum(given.index, 0)]
    np.add.at(chances, given.index[is_unmeasured], 1 / draws)
    # a measured count is the answer no more, because of one below it that was not measured
    in_the_way = other & ~is_unmeasured & (without == current)
    before = given.steps & ~measured & (places < max(current, 0))
    blamed = in_the_way & before.any(axis=1)
    last = len(devices) - 1 - before[:, ::-1].argmax(axis=1)
    np.add.at(chances, last[blamed], 1 / draws)
    return chances
