"""The answer as a card: a verdict, how sure it is, four figures, and one line each on what follows.

The terminal, ``status``, the page and decision.json show the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from scalewise.analysis.comparison.gains import Gains
from scalewise.analysis.decision import cautions
from scalewise.analysis.decision.card_figures import (
    Chosen,
    Figure,
    card_figures,
    known_bounds,
    queue_text,
    range_text,
)
from scalewise.analysis.decision.cpus import KEY as CPUS
from scalewise.analysis.decision.criteria import may_be_in_time, may_exceed
from scalewise.analysis.decision.selection import SAME_TRAINING
from scalewise.analysis.decision.sentences import SENTENCES, sentence
from scalewise.analysis.decision.wording import open_text
from scalewise.analysis.memory import peaks
from scalewise.analysis.statistics import CONFIDENCE, ENOUGH_REPEATS, Ratio, Sample, ratio_of
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.formatting import (
    Goal,
    as_in_yaml,
    counts_listed,
    format_exact,
    format_ratio,
    goal_text,
    percent,
    pluralize,
)
from scalewise.plan.runs.runs import Options

Certainty = Literal["Clear", "Likely", "Doubtful", "Open"]
"""``Clear``: the runs show it. ``Likely``: the runs agree with it and do not show it. ``Doubtful``: its runs
were disturbed, something else changed during the study, or another answer may be better.
``Open``: there is no answer."""

DOUBTS = cautions.UNCLEAR - {cautions.UNDECIDED}
"""Harms with which an answer may be wrong, whatever its own intervals."""

LEAST_MEMORY = 0.02
"""Least change of the peak memory that an option's line states."""

NONE_LARGER = SENTENCES["none larger"]

SINGLE_RUN, FEW_RUNS = SENTENCES["single"], SENTENCES["few"]
CPUS_OPEN = "How many CPUs per device is open: see CPUs."
SEE_CAUTIONS = "see the cautions."
APART = SENTENCES["apart"].removeprefix("{where} ")

REASONS = {
    cautions.DISTURBED: "It rests on disturbed runs.",
    cautions.ABOVE_IDEAL: "An efficiency is above 1: noise, or a slow baseline.",
    cautions.OTHER_RATE: "It is unknown whether forward passes without gradients belong to the training.",
    cautions.COLLAPSED: "It loses accuracy.",
    cautions.NOT_COMPARED: "The configured training did not reach the target.",
    cautions.SURVIVORS: "Some of its runs have no result.",
    cautions.CONFOUNDED: "Something else changed during the study.",
    cautions.RIVAL: "Another option may be better.",
    cautions.EXCLUDED: "A device count that was left out may meet your criteria.",
}


@dataclass(frozen=True)
class Card:
    """The answer of an experiment, in fields.

    Args:
        verdict: Answer in ten words or fewer.
        certainty: Certainty of the answer.
        reason: Sentence on the doubt; empty for a clear answer.
        figures: Figures of the chosen point, four or fewer; none without such a point.
        basis: Number of runs, and what the intervals are.
        rule: Sentence on the device count that is chosen.
        next: Sentence on the next larger device count; with a deadline, on the next smaller one.
        limit: Sentence on what limits the training; empty if unknown.
        options: The value of each swept option with the reason why it was chosen, a line each.
        action: Next step of the user, in a sentence.
        paste: Lines of configuration for ``action``; empty if it needs none.
    """

    verdict: str
    certainty: Certainty = "Open"
    reason: str = ""
    figures: list[Figure] = field(default_factory=list)
    basis: str = ""
    rule: str = ""
    next: str = ""
    limit: str = ""
    options: list[str] = field(default_factory=list)
    action: str = ""
    paste: str = ""

    def in_doubt(self, reason: str) -> Card:
        """Return the card of an answer that is not clear for a further reason."""
        if self.certainty != "Clear":
            return self
        verdict = self.verdict.replace("do not pay", "are not shown to pay")
        return replace(self, verdict=verdict, certainty="Likely", reason=reason)


def card_of_choice(
    chosen: Chosen, harms: Sequence[cautions.Caution], options_of: Mapping[str, Options] | None = None
) -> Card:
    """Return the card of a chosen point.

    Args:
        chosen: The point.
        harms: The answer's cautions.
        options_of: Options of each series, by its name, in the order of the configuration.
    """
    best, points = chosen.best, chosen.points
    certainty, reason = _certainty(chosen, harms)
    more = points[points["devices"] > best["devices"]]
    options = options_text(best["series"], options_of or {})
    verdict = sentence("use", chosen.noun, devices=best["devices"], options=options)
    if len(more) and best["devices"] == points["devices"].min() and chosen.rule.deadline_minutes is None:
        pays = "more do not pay" if certainty == "Clear" else "more are not shown to pay"
        verdict = sentence(pays, use=verdict)
    return Card(
        verdict=verdict,
        certainty=certainty,
        reason=reason,
        figures=list(card_figures(chosen)),
        basis=_basis(chosen),
        rule=rule_text(chosen.rule, chosen.target if chosen.measure == "time to target" else None),
        next=_next(chosen),
        options=list(_options(chosen, options_of or {})),
    )


def options_text(series: str, options_of: Mapping[str, Options]) -> str:
    """Return `` with`` and the options of a series; empty for the first one.

    They are ``8 CPUs each`` if it differs from the first in these only.
    """
    if series == next(iter(options_of), series):
        return ""
    values = dict(options_of.get(series, ()))
    others = [key for key, value in next(iter(options_of.values())) if values.get(key) != value]
    if others == [CPUS]:
        return f" with {pluralize(str(values[CPUS]), 'CPU')} each"
    return f" with {series}"


def card_without_point(verdict: str, reason: str = "") -> Card:
    """Return the card of an experiment without an answer.

    Args:
        verdict: Answer in ten words or fewer.
        reason: Sentence on why there is none.
    """
    return Card(verdict=verdict, reason=reason)


NO_CRITERION = "The decision has no criterion: "
"""Beginning of a rule without criteria."""


def rule_text(rule: DecisionRule, target: Goal | None) -> str:
    """Return which device count is chosen, in a sentence.

    Args:
        rule: The criteria.
        target: The goal by which speed is compared; None for throughput.
    """
    criteria = []
    if rule.min_efficiency is not None:
        of = f" to {goal_text(target)}" if target is not None else ""
        criteria.append(f"an efficiency{of} of at least {format_exact(rule.min_efficiency)}")
    if rule.deadline_minutes is not None:
        criteria.append(f"a run within {pluralize(format_exact(rule.deadline_minutes), 'minute')}")
    if rule.max_device_hours is not None:
        criteria.append(f"a run of at most {pluralize(format_exact(rule.max_device_hours), 'device-hour')}")
    least = format_exact(100 * rule.min_gain)
    gain = f"Each larger count must be at least {least} % faster than the one before."
    if not criteria:
        return f"{NO_CRITERION}the largest speedup x efficiency. {gain}"
    if rule.deadline_minutes is not None:
        return f"The fewest devices with {' and '.join(criteria)}."
    return f"The most devices with {' and '.join(criteria)}. {gain}"


def _certainty(chosen: Chosen, harms: Sequence[cautions.Caution]) -> tuple[Certainty, str]:
    found = sorted(harm for harm, _ in harms if harm in cautions.UNCLEAR)
    if not found and chosen.apart and chosen.best["devices"] == chosen.points["devices"].max():
        return "Likely", chosen.apart
    if not found:
        return "Clear", ""
    if found[0] in DOUBTS:
        return "Doubtful", REASONS[found[0]]
    questions = chosen.choice.open_questions
    if questions:
        return "Likely", open_text(questions[0], chosen.measure, chosen.noun)
    fewer = chosen.points[chosen.points["devices"] < chosen.best["devices"]]
    for _, point in fewer.iterrows():
        if may_be_in_time(point, chosen.rule):
            return "Likely", sentence("in time", chosen.noun, devices=point["devices"])
    if chosen.target is not None and chosen.measure == "throughput":
        return "Likely", f"No run reached {goal_text(chosen.target)}: throughput decides."
    if (hours := may_exceed(chosen.best, chosen.rule)) is not None:
        return "Likely", sentence("hours", hours=hours)
    return "Likely", SINGLE_RUN if chosen.fewest < 2 else FEW_RUNS


def _basis(chosen: Chosen) -> str:
    n = int(chosen.best["speedup_n"])
    ranges = f"Ranges are {percent(CONFIDENCE, 0)} intervals."
    if n < ENOUGH_REPEATS:
        ranges = "One run has no interval." if n == 1 else "Two runs have no interval."
    left_out = ""
    if chosen.left_out:
        verb = "is" if chosen.left_out == 1 else "are"
        left_out = f" {pluralize(str(chosen.left_out), 'run')} {verb} not comparable: see the cautions."
    each = chosen.points["n_reached" if chosen.measure == "time to target" else "n"]
    fewest, most = each.min(), each.max()
    runs = pluralize(str(n), "run") if fewest == most else f"{fewest:.0f} to {most:.0f} runs"
    return f"{runs} of each {chosen.noun} count. {ranges}{left_out}"


def _next(chosen: Chosen) -> str:
    """Return what the next device count would bring."""
    best, points, rule, noun = chosen.best, chosen.points, chosen.rule, chosen.noun
    if rule.deadline_minutes is not None:
        fewer = points[points["devices"] < best["devices"]]
        if fewer.empty:
            return SENTENCES["none smaller"]
        point = fewer.iloc[-1]
        late = may_be_in_time(point, rule)
        return sentence(
            "next smaller late" if late else "next smaller",
            noun,
            devices=point["devices"],
            minutes=point["done_minutes"] if late else point["wall_seconds"] / 60 + point["queue_minutes"],
            queue=queue_text(point),
        )
    more = points[points["devices"] > best["devices"]]
    if more.empty:
        return chosen.apart or NONE_LARGER
    point = more.iloc[0]
    low, high = known_bounds(point["gain_low"], point["gain_high"], point["speedup_n"])
    reasons = reasons_against(point, best, rule, noun)
    named = any(reason.startswith("efficiency") for reason in reasons)
    return sentence(
        "next",
        noun,
        devices=point["devices"],
        gain=point["gain"],
        to=SENTENCES["to the target"] if chosen.measure == "time to target" else "",
        base=point["gain_base"],
        interval="" if low is None else sentence("interval", low=low, high=high),
        efficiency="" if named else sentence("at efficiency", efficiency=point["efficiency_to_best"]),
        reasons=", and ".join(reasons),
    )


def larger_apart(planned: pd.DataFrame, points: pd.DataFrame, noun: str) -> str:
    """Return a sentence on larger device counts of which no run is comparable; empty if there is none.

    Args:
        planned: All points of a series in the scaling table.
        points: Those that can be chosen.
        noun: Name of a device.
    """
    unknown = planned.reindex(columns=["n_not_comparable"]).fillna(0)["n_not_comparable"] > 0
    apart = planned[unknown & (planned["devices"] > points["devices"].max())]
    if apart.empty:
        return ""
    return sentence("apart", noun, where=counts_listed(map(int, apart["devices"]), noun))


def reasons_against(point: pd.Series, best: pd.Series, rule: DecisionRule, noun: str) -> list[str]:
    """Return why more devices than the chosen ones were not taken, a clause each.

    Args:
        point: The point of more devices.
        best: The chosen point.
        rule: The criteria.
        noun: Name of a device.
    """
    if point["misses"]:
        return list(point["misses"])
    if point["gain"] <= best["gain"]:
        return [sentence("no gain", noun, devices=best["devices"])]
    if rule.without_criterion and point["power"] <= best["power"]:
        return [SENTENCES["worse balance"]]
    return [sentence("not faster", noun, gain=100 * rule.min_gain, devices=best["devices"])]


def _options(chosen: Chosen, options_of: Mapping[str, Options]) -> Iterator[str]:
    """Yield each swept option of the answer with the reason for its value."""
    series, devices = str(chosen.best["series"]), int(chosen.best["devices"])
    if series not in options_of:
        return
    values, first = dict(options_of[series]), dict(next(iter(options_of.values())))
    for key, value in values.items():
        rest = {name: each for name, each in values.items() if name != key}
        twins = {
            name: dict(theirs)[key]
            for name, theirs in options_of.items()
            if name != series and {each: item for each, item in theirs if each != key} == rest
        }
        ratios = {
            name: ratio
            for name in twins
            if (ratio := chosen.compared.of(chosen.measure, (series, devices), (name, devices))) is not None
        }
        reasons = [
            _why(key, value, first.get(key), twins, ratios, chosen.rule),
            _memory(chosen.compared, series, devices, twins),
        ]
        because = "; ".join(filter(None, reasons))
        yield f"{key}: {as_in_yaml(value)}{f' ({because})' if because else ''}"


def _why(
    key: str,
    value: Any,
    first: Any,
    twins: Mapping[str, Any],
    ratios: Mapping[str, Ratio],
    rule: DecisionRule,
) -> str:
    """Return the reason for an option's value; empty if nothing was measured to compare it with.

    Args:
        key: Name of the option.
        value: The chosen one.
        first: Value in the first series of the configuration.
        twins: Values of the series that differ in this option only, by series.
        ratios: Speed of the chosen series over theirs, on the chosen devices.
        rule: The criteria.
    """
    if value != first:
        ratio = next((ratio for name, ratio in ratios.items() if twins[name] == first), None)
        if ratio is None:
            return ""
        few = ratio.n < ENOUGH_REPEATS
        interval = "" if few else f", {range_text(ratio.at_least, ratio.at_most, format_ratio)}"
        return f"{format_ratio(ratio.estimate)}x the speed of {as_in_yaml(first)}{interval}"
    faster = [as_in_yaml(twins[name]) for name, ratio in ratios.items() if ratio.at_most < 1]
    if faster:
        is_faster = f"{' and '.join(faster)} is faster here"
        if key in SAME_TRAINING:
            return f"{is_faster}, and was not chosen: see What options gain"
        if key in rule.accept:
            return f"{is_faster}, but is not shown to keep the accuracy"
        return f"{is_faster}, but changes the training: `decision: {{accept: [{key}]}}` lets it compete"
    if not ratios:
        return ""
    if all(ratio.at_least > 1 for ratio in ratios.values()):
        return "the fastest"
    return "kept: no difference in speed is shown"


def _memory(compared: Gains, series: str, devices: int, twins: Mapping[str, Any]) -> str:
    """Return what another value of an option does to the memory, if that is shown.

    Args:
        compared: Knows the runs of each point.
        series: The chosen one.
        devices: The chosen number.
        twins: Values of the series that differ in this option only, by series.
    """
    chosen = Sample.of(peaks(compared.points[series, devices]))
    for name, value in twins.items():
        other = Sample.of(peaks(compared.points.get((name, devices), pd.DataFrame())))
        ratio = ratio_of(other, chosen)
        if ratio is not None and (change := _shown_change(ratio)):
            more = "less" if change < 0 else "more"
            return f"{as_in_yaml(value)} needs {percent(abs(change), 0)} {more} memory"
    return ""


def _shown_change(ratio: Ratio) -> float:
    """Return by how much a ratio differs from 1; 0 if not even ``LEAST_MEMORY`` is shown."""
    if ratio.at_most <= 1 - LEAST_MEMORY or ratio.at_least >= 1 + LEAST_MEMORY:
        return ratio.estimate - 1
    return 0.0
