"""The answer of an experiment: one dataclass, which the page, the terminal and answer.json show."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scalewise.analysis.candidates import (
    Terms,
    accuracy_difference,
    aim_of,
    by_efficiency,
    candidates,
    chooser_of,
    interval_of,
    taken,
)
from scalewise.analysis.cautions import Case, Caution, Certainty, cautions_of, certainty_of
from scalewise.analysis.choose import AIMS, Aim, Candidate, Check
from scalewise.analysis.memory import peaks
from scalewise.analysis.points import MILLION, Clock, Place, efficiency
from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval, Sample, mean_interval, ratio_of
from scalewise.analysis.words import (
    as_in_yaml,
    cost_text,
    count_devices,
    energy_text,
    format_exact,
    format_ratio,
    goal_text,
    interval_text,
    listed,
    optional,
    percent,
    points_text,
    seconds_text,
    time_text,
    two_places,
)
from scalewise.config.shape import plural_of

REQUIRED = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Efficiencies of the table "if you require ...: use N"."""

CLEAR = "The 95 % intervals leave no other answer open."

LEAST_MEMORY = 0.01
"""Share of memory from which on a difference is stated."""

CLOCKS: Mapping[Clock, str] = {
    "steps": "the rate of steps",
    "epochs": "the rate over whole epochs",
    "target": "the time to the target",
    "runs": "the time of whole runs, start-up included",
}


COST_SOURCES = {"price": "by the site's price", "billing": "by the site's billing"}
"""Source of a cost that is in a unit of the site file."""


@dataclass(frozen=True)
class Figure:
    """A labelled figure of the answer.

    Args:
        label: Name.
        text: Value with its unit, and its 95 % interval if it is known.
        note: The reference of a ratio, or the contents of a value.
        value: The same as a number; with its bounds None if unknown.
    """

    label: str
    text: str
    note: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class CandidateRow:
    """A row of the table of candidates, in words.

    Args:
        label: The candidate.
        verdict: Each aim that it is the best for, and the criteria that it misses.
    """

    label: str
    time: str
    cost: str
    energy: str
    wait: str
    verdict: str


@dataclass(frozen=True)
class Answer:
    """The devices and options to use, how sure that is and why, their cost, and the next step.

    Args:
        experiment: Name of the experiment.
        device: Name of a device: ``GPU``, ``CPU process``.
        devices: Number of devices; None if no candidate meets the criteria.
        series: Name of the options in scaling.csv; None without an answer.
        partition: Name of the partition; empty without several.
        at_a_time: Trainings at a time.
        clock: Time that decides.
        verdict: The answer in a sentence.
        certainty: One word for intervals, criteria, conditions and time, and accuracy.
        reason: The worst caution, or why a clear answer is clear, a sentence; may be empty without an answer.
        figures: Up to four.
        basis: The clock and the runs of the figures, a sentence.
        rule: The rule in words.
        next_larger: A sentence on the next larger device count.
        limit: The part of a step that slows it, and the advice.
        options: Each swept option with the reason for its value.
        others: A sentence for each series that trains otherwise.
        required: Required efficiency, and the choice for it.
        cautions: Sentence and action, the worst first.
        to_do: Action of the worst caution.
        command: Command or lines of YAML of that action.
        sentence: The answer for a paper or a mail.
        candidates: Rows of the table of partitions, or of ways to split the devices; else empty.
        spent: The points that a study with rounds has measured, and their cost; empty for another one.
        has_ended: Whether every requested run has a result, and no round requests further runs.
        min_efficiency: Least efficiency that is required; None if other criteria decide.
        undecided: Partition, series, devices and the runs that would tell, of each open question.
    """

    experiment: str
    device: str
    devices: int | None
    series: str | None
    partition: str
    at_a_time: int
    clock: Clock
    verdict: str
    certainty: Certainty
    reason: str
    figures: Sequence[Figure]
    basis: str
    rule: str
    next_larger: str
    limit: str
    options: Sequence[str]
    others: Sequence[str]
    required: Sequence[tuple[str, str]]
    cautions: Sequence[tuple[str, str]]
    to_do: str
    command: str
    sentence: str
    candidates: Sequence[CandidateRow] = ()
    spent: str = ""
    has_ended: bool = True
    min_efficiency: float | None = None
    undecided: Sequence[tuple[str, str, int, int]] = field(default=())

    def to_json(self) -> str:
        """Return the contents of answer.json."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Answer:
        """Read answer.json."""
        values = json.loads(text)
        values["figures"] = [Figure(**each) for each in values["figures"]]
        values["candidates"] = [CandidateRow(**each) for each in values["candidates"]]
        for name in ("required", "cautions", "undecided"):
            values[name] = [tuple(each) for each in values[name]]
        return cls(**values)

    @property
    def is_clear(self) -> bool:
        """Whether the runs leave nothing open."""
        return self.certainty == "clear"


def answer_of(case: Case, others: Sequence[Case], limit: str) -> Answer:
    """Return the answer on a case.

    Args:
        case: The configured training.
        others: Series that train something else, a case for each.
        limit: The part of a step that slows the chosen point, a sentence.
    """
    found = cautions_of(case)
    certainty = certainty_of(case, found)
    best, place = case.choice.best, case.best
    worst = next((each for each in found if each.certainty != "clear"), None)
    to_do = _to_do(case, found)
    return Answer(
        experiment=case.experiment.name,
        device=case.noun,
        devices=None if place is None else place.devices,
        series=None if place is None else place.series,
        partition="" if place is None else place.partition,
        at_a_time=1 if best is None else int(best.facts["at_a_time"]),
        clock=case.points.clock,
        verdict=_verdict(case),
        certainty=certainty,
        reason=worst.sentence if worst else CLEAR if certainty == "clear" else "",
        figures=list(_figures(case))[:4],
        basis=_basis(case),
        rule=_rule(case),
        next_larger=_next_larger(case),
        limit=limit,
        options=list(_options(case)),
        others=[_other(case, each) for each in others],
        required=_required(case),
        cautions=[(each.sentence, each.action) for each in found],
        to_do=to_do.action,
        command=to_do.command,
        sentence=_sentence(case, certainty),
        candidates=_rows(case),
        min_efficiency=case.terms.min_efficiency,
        undecided=[
            (
                each.candidate.key.partition,
                each.candidate.key.series,
                each.candidate.key.devices,
                each.repeats,
            )
            for each in case.choice.doubts
            if each.repeats is not None
        ],
    )


def _to_do(case: Case, found: Sequence[Caution]) -> Caution:
    """Return the action of the worst caution; a doubt alone if nothing can be done."""
    for caution in found:
        if caution.action and caution.certainty != "clear":
            return caution
    if case.best is None:
        failed = any(case.points.all[place].unsuccessful for place in case.group)
        reasons = "Read the reasons of the failed runs in runs.csv, or relax" if failed else "Relax"
        return next((caution for caution in found if caution.action), Caution("", f"{reasons} the criteria."))
    return next((caution for caution in found if caution.command), Caution("", "Nothing more to measure."))


def _verdict(case: Case) -> str:
    place, best = case.best, case.choice.best
    if place is None or best is None:
        return _no_verdict(case)
    if case.terms.trainings > 1:
        at_a_time = int(best.facts["at_a_time"])
        how = "one after the other" if at_a_time == 1 else f"{at_a_time} at a time"
        return f"Run the {case.terms.trainings} trainings {how}, each on {case.named(place)}."
    return f"Use {case.named(place)}."


def _no_verdict(case: Case) -> str:
    if not case.candidates:
        return "No run has a result that can be compared."
    closest = min(case.candidates, key=lambda each: (len(each.checks), each.order))
    missed = [check.text for check in closest.checks if check.text]
    where = f"{case.named(closest.key)}: {', '.join(missed)}"
    return f"No {case.noun} count meets your criteria. Closest is {where}."


def _figures(case: Case) -> Iterator[Figure]:
    place, base = case.best, case.base
    if place is None or base is None or case.choice.best is None:
        return
    points, best = case.points, case.choice.best
    reference = case.named(base)
    if place != base and (ratio := points.faster(place, base)) is not None:
        yield _figure("Speed", ratio.interval(), format_ratio, "x", f"as fast as {reference}")
        relative = "1 is ideal"
        yield _figure("Efficiency", efficiency(points, place, base), two_places, "", relative)
    time, cost = interval_of(best.amounts["time"]), best.amounts.get("cost")
    values = best.amounts["time"].values
    yield Figure(_time_label(case), time_text(time, values), _work_text(case), *_numbers(time))
    if cost is not None:
        hours = interval_of(cost)
        ratio_text = f"{format_ratio(taken_ratio(case, place, base))}x that on {reference}"
        note = ", ".join(filter(None, ["" if place == base else ratio_text, COST_SOURCES.get(points.unit)]))
        yield Figure("Cost", cost_text(hours, points.unit, _noun_hours(case)), note, *_numbers(hours))
    accuracy = points.all[place].column("final_accuracy").tolist()
    if points.clock == "target" and case.experiment.target is not None:
        reached, n = int(points.all[place].has_reached.sum()), points.all[place].n
        yield Figure("Reached", f"{reached} of {n} runs", goal_text(case.experiment.target), reached / n)
    elif accuracy:
        mean = mean_interval([100 * each for each in accuracy])
        bounded = Interval(mean.estimate, max(mean.low, 0.0), min(mean.high, 100.0), mean.n)
        yield _figure("Final accuracy", bounded, "{:.1f}".format, " %", "")


def taken_ratio(case: Case, place: Place, base: Place) -> float:
    """Return the cost of a training on a point over that on its baseline."""
    ratio = case.points.faster(place, base)
    speedup = 1.0 if ratio is None else ratio.estimate
    return case.points.all[place].billed / case.points.all[base].billed / speedup


def _figure(label: str, value: Interval, form: Any, unit: str, note: str) -> Figure:
    return Figure(label, interval_text(value, form, unit), note, *_numbers(value))


def _numbers(value: Interval) -> tuple[float | None, float | None, float | None]:
    return optional(value.estimate), optional(value.low), optional(value.high)


def _time_label(case: Case) -> str:
    if case.terms.trainings > 1:
        return "Until all are done"
    return {"steps": "Time", "epochs": "Time", "target": "Time to target", "runs": "Time of a run"}[
        case.points.clock
    ]


def _noun_hours(case: Case) -> str:
    """Return the noun of device-hours: ``GPU`` or ``process``."""
    return case.noun.rpartition(" ")[2]


def _work_text(case: Case) -> str:
    points, trainings = case.points, case.terms.trainings
    if trainings > 1:
        return f"{trainings} trainings"
    if points.clock == "target":
        return "" if case.experiment.target is None else f"to {goal_text(case.experiment.target)}"
    if points.clock == "runs":
        return "start-up and evaluation included"
    samples = "a million samples" if points.work == MILLION else f"{points.work:,.0f} samples"
    return f"for {samples}, without start-up and evaluation"


def _basis(case: Case) -> str:
    return "" if case.best is None else f"Decided by {_by(case)}."


def _by(case: Case) -> str:
    """Return the clock, the runs and the intervals of the figures, for the end of a sentence."""
    intervals = "95 % intervals" if _smallest_n(case) >= ENOUGH_REPEATS else "too few for intervals"
    started = ", start-up included" if case.terms.trainings > 1 and case.points.clock != "runs" else ""
    return f"{CLOCKS[case.points.clock]}{started}; n = {_smallest_n(case)}, {intervals}"


def _smallest_n(case: Case) -> int:
    return min((len(case.points.time(place).values) for place in case.decisive), default=0)


def _rule(case: Case) -> str:
    terms, rule, noun = case.terms, case.terms.rule, case.noun
    gain = f"{100 * rule.min_gain:g} %"
    conditions = []
    if terms.min_efficiency is not None:
        default = " (the default)" if rule.min_efficiency is None else ""
        conditions.append(f"an efficiency of at least {format_exact(terms.min_efficiency)}{default}")
    if (hours := terms.limit("max_device_hours")) is not None:
        conditions.append(f"at most {format_exact(hours)} device-hours")
    if (minutes := terms.limit("deadline_minutes")) is not None:
        conditions.append(f"a run within {format_exact(minutes)} minutes, for 95 % of further runs")
    having = f" with {listed(conditions)}" if conditions else ""
    aim = aim_of(case.candidates, terms)
    if minutes is not None and aim == "time":
        return f"The fewest {plural_of(noun)}{having}."
    if chooser_is_by_mean(case):
        least = {"time": "fastest", "cost": "cheapest", "energy": "least energy", "soonest": "earliest end"}[
            aim
        ]
        return f"The {least}{having}; of those shown to be within {gain}, the one that costs least."
    return f"Of those{having}, the cheapest that none of them is shown to beat by {gain} in speed."


def chooser_is_by_mean(case: Case) -> bool:
    """Return whether partitions, splits or another aim than time are compared."""
    return chooser_of(case.points, [], case.terms).by_mean


def _next_larger(case: Case) -> str:
    place, base = case.best, case.base
    if place is None or base is None or case.terms.trainings > 1:
        return ""
    larger = [
        each
        for each in case.group
        if each[:2] == place[:2] and each.devices > place.devices and case.points.time(each).values
    ]
    if not larger:
        return f"No larger {case.noun} count was measured."
    following = min(larger, key=lambda each: each.devices)
    ratio = case.points.faster(following, place)
    if ratio is None:
        return ""
    candidate = next((each for each in case.candidates if each.key == following), None)
    checks = () if candidate is None else candidate.checks
    missed = ", ".join(_missed(check) for check in checks if not check.by_mean)
    gain = interval_text(ratio.interval(), format_ratio, "x")
    share = interval_text(efficiency(case.points, following, base), two_places)
    aim, best = aim_of(case.candidates, case.terms), case.choice.best
    why = missed or f"not shown to be {100 * case.terms.rule.min_gain:g} % faster"
    if not missed and aim != "time" and candidate is not None and best is not None:
        why = f"{format_ratio(candidate.mean(aim) / best.mean(aim))}x the {aim}"
    elif not missed and case.terms.limit("deadline_minutes") is not None:
        why = "fewer meet the deadline"
    return (
        f"{count_devices(following.devices, case.noun)} would be {gain} as fast as "
        f"{count_devices(place.devices, case.noun)}, at an efficiency of {share}: {why}."
    )


def _missed(check: Check) -> str:
    """Return a criterion that is missed, next to a stated efficiency."""
    if check.criterion != "min_efficiency":
        return check.text
    return "less than required" if check.state == "missed" else "not shown to be enough"


def _options(case: Case) -> Iterator[str]:
    """Yield each swept option of the answer with the reason for its value."""
    place = case.best
    if place is None or place.series not in case.terms.options:
        return
    values = dict(case.terms.options[place.series])
    for key, value in values.items():
        rest = {name: each for name, each in values.items() if name != key}
        twins = {
            place._replace(series=name): dict(theirs)[key]
            for name, theirs in case.terms.options.items()
            if name != place.series and {each: item for each, item in theirs if each != key} == rest
        }
        reasons = [_speed_reason(case, place, twins), _memory_reason(case, place, twins)]
        because = "; ".join(filter(None, reasons))
        yield f"{key}: {as_in_yaml(value)}{f' ({because})' if because else ''}"


def _speed_reason(case: Case, place: Place, twins: Mapping[Place, Any]) -> str:
    """Return how fast a value of an option is next to its other values on equal devices."""
    parts = []
    for twin, value in twins.items():
        ratio = case.points.faster(place, twin) if twin in case.points.all else None
        if ratio is None:
            continue
        competes = twin in case.group
        text = interval_text(ratio.interval(), format_ratio, "x")
        if ratio.at_least > 1:
            parts.append(f"{text} the speed of {as_in_yaml(value)}")
        elif ratio.at_most < 1 and not competes:
            parts.append(f"{as_in_yaml(value)} is faster, but trains something else")
        elif ratio.at_most < 1:
            gain = f"{100 * case.terms.rule.min_gain:g} %"
            parts.append(f"{text} the speed of {as_in_yaml(value)}, not shown to be {gain} slower")
        else:
            parts.append(f"no difference to {as_in_yaml(value)} is shown: {text}")
    return ", ".join(parts)


def _memory_reason(case: Case, place: Place, twins: Mapping[Place, Any]) -> str:
    """Return what another value of an option does to the memory, if that is shown."""
    chosen = case.points.all[place]
    for twin, value in twins.items():
        if twin not in case.points.all:
            continue
        sides = [Sample.of(peaks(each.runs)) for each in (case.points.all[twin], chosen)]
        if not all(side.values for side in sides) or (ratio := ratio_of(sides[0], sides[1])) is None:
            continue
        if ratio.n >= ENOUGH_REPEATS and (
            ratio.at_most <= 1 - LEAST_MEMORY or ratio.at_least >= 1 + LEAST_MEMORY
        ):
            more = "less" if ratio.estimate < 1 else "more"
            return f"{as_in_yaml(value)} needs {percent(abs(ratio.estimate - 1), 0)} {more} memory"
    return ""


def _other(case: Case, other: Case) -> str:
    """Return the line on series that train something else: their best, its gain and accuracy."""
    place = other.best
    first = other.group[0].series
    if place is None:
        return f"{first}: {_no_verdict(other)}"
    parts = []
    if case.best is not None and (ratio := case.points.faster(place, case.best)) is not None:
        parts.append(f"{interval_text(ratio.interval(), format_ratio, 'x')} the speed of the answer")
    if case.best is not None:
        difference = accuracy_difference(case.points, place, case.best)
        if difference is not None and difference.low <= 0 <= difference.high:
            parts.append("no difference in final accuracy is shown")
        elif difference is not None:
            side = "higher" if difference.estimate > 0 else "lower"
            parts.append(f"final accuracy {points_text(100 * abs(difference.estimate))} {side}")
    return f"{other.named(place)}: {'; '.join(parts) or 'cannot be compared with the answer'}."


def _required(case: Case) -> list[tuple[str, str]]:
    if not case.candidates or case.terms.trainings > 1:
        return []
    chosen = by_efficiency(case.points, case.group, case.terms, REQUIRED)
    return [
        (f"{least:g}", "none" if each is None else case.named(each.key))
        for least, each in zip(REQUIRED, chosen, strict=True)
    ]


def _sentence(case: Case, certainty: Certainty) -> str:
    """Return the answer for a paper or a mail, with its certainty unless that is clear."""
    place, base = case.best, case.base
    if place is None or base is None:
        return ""
    how = f"({'' if certainty == 'clear' else f'{certainty}; '}by {_by(case)})"
    if case.terms.trainings > 1:
        return f"{_verdict(case)[:-1]} {how}."
    if place == base:
        return f"We train on {case.named(place)}: more are not shown to be worth it by our criteria {how}."
    ratio = case.points.faster(place, base)
    if ratio is None:
        return ""
    speed = interval_text(ratio.interval(), format_ratio, "x")
    share = two_places(efficiency(case.points, place, base).estimate)
    return (
        f"We train on {case.named(place)}, {speed} as fast as {case.named(base)} at a parallel efficiency of "
        f"{share} {how}."
    )


def _rows(case: Case) -> list[CandidateRow]:
    """Return the table of candidates where partitions or splits are compared."""
    partitions = {place.partition for place in case.group}
    if len(partitions) < 2 and case.terms.trainings < 2:
        return []
    best_for = {aim: chooser_of(case.points, case.candidates, case.terms, aim).choose() for aim in AIMS}
    rows = []
    for each in case.candidates:
        wins = [aim for aim, choice in best_for.items() if _same(choice.best, each)]
        missed = [check.text for check in each.checks if check.text]
        verdict = ", ".join([f"best for {aim}{_sure(best_for[aim].doubts)}" for aim in wins] + missed)
        minutes = case.points.all[each.key].queue_minutes
        rows.append(
            CandidateRow(
                _label(case, each),
                _amount_text(each, "time", time_text),
                _amount_text(
                    each, "cost", lambda value: cost_text(value, case.points.unit, _noun_hours(case))
                ),
                _amount_text(each, "energy", energy_text),
                "" if minutes is None else seconds_text(60 * minutes),
                verdict,
            )
        )
    return rows


def _label(case: Case, candidate: Candidate) -> str:
    label = case.named(candidate.key)
    if case.terms.trainings < 2:
        return label
    return f"{candidate.facts['at_a_time']} at a time on {label}"


def _sure(doubts: Sequence[Any]) -> str:
    return " (not certain)" if doubts else ""


def _same(one: Candidate | None, other: Candidate) -> bool:
    return one is not None and one.key == other.key


def _amount_text(candidate: Candidate, aim: Aim, form: Any) -> str:
    sample = candidate.amounts.get(aim)
    return "" if sample is None or math.isnan(sample.mean) else str(form(interval_of(sample)))


__all__ = ["Answer", "CandidateRow", "Figure", "Terms", "answer_of", "candidates", "taken"]
