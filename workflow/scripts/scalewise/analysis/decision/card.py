"""The answer as a card: a verdict, how sure it is, four figures, and one line each on what follows.

The terminal, ``status``, the page and decision.json show the same fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.comparability import accuracy_lost
from scalewise.analysis.comparison.gains import Gains, Measure
from scalewise.analysis.decision import cautions
from scalewise.analysis.decision.choice import MOST_ADVISED, Choice
from scalewise.analysis.decision.cpus import KEY as CPUS
from scalewise.analysis.decision.criteria import may_be_in_time, may_exceed
from scalewise.analysis.decision.selection import SAME_TRAINING
from scalewise.analysis.decision.sentences import SENTENCES, sentence
from scalewise.analysis.decision.wording import open_text
from scalewise.analysis.memory import peaks
from scalewise.analysis.statistics.intervals import CONFIDENCE, ENOUGH_REPEATS
from scalewise.analysis.statistics.ratios import Ratio, ratio_of
from scalewise.plan.config.experiment import DecisionRule, Repeats
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import (
    Goal,
    as_in_yaml,
    counts_listed,
    duration_text,
    format_3sig,
    format_exact,
    format_ratio,
    goal_text,
    percent,
    pluralize,
    points_text,
)
from scalewise.plan.runs.runs import Options

Certainty = Literal["Clear", "Likely", "Doubtful", "Open"]
"""``Clear``: the runs show it. ``Likely``: the runs agree with it and do not show it. ``Doubtful``: its runs
were disturbed, or something else changed during the study. ``Open``: there is no answer."""

DOUBTS = frozenset({cautions.DISTURBED, cautions.ABOVE_IDEAL, cautions.OTHER_RATE, cautions.CONFOUNDED})
"""Harms with which the figures of an answer may be wrong, whatever their intervals."""

LEAST_MEMORY = 0.02
"""Least change of the peak memory that an option's line states."""

NONE_LARGER = SENTENCES["none larger"]

SINGLE_RUN = SENTENCES["single"]
CPUS_OPEN = "How many CPUs per device is open: see CPUs."
SEE_CAUTIONS = "see the cautions."
APART = SENTENCES["apart"].removeprefix("{where} ")

_REASONS = {
    cautions.DISTURBED: "It rests on disturbed runs.",
    cautions.ABOVE_IDEAL: "An efficiency is above 1: noise, or a slow baseline.",
    cautions.OTHER_RATE: "It is unknown whether forward passes without gradients belong to the training.",
    cautions.CONFOUNDED: "Something else changed during the study.",
}


_ACTIONS = {
    _REASONS[cautions.DISTURBED]: (
        "Delete the folders of the disturbed runs and run the same command on a quiet machine."
    ),
    APART: "Run all {noun} counts under the same conditions: see the cautions.",
    CPUS_OPEN: "Use the fewest CPUs per {noun} that are not shown to be slower, or add repeats.",
    "No run reached": "Train for longer, or lower the target.",
    "A run may take": "Accept that, raise max_device_hours, or use fewer devices.",
}
"""Next actions, by a part of the reason."""


@dataclass(frozen=True)
class Figure:
    """A labelled figure.

    Args:
        label: Name: ``Speed`` or ``Speed to target``, ``Efficiency`` or ``Efficiency to target``, ``Cost of a
            run`` or ``Cost of training``, ``Time of a run``, ``Time to target``, ``Final accuracy``,
            ``Throughput``.
        text: Value with its unit.
        interval: 95 % interval in the unit of ``text``, such as ``1.03 to 2.16``; empty if unknown.
        value: The same as a number; None if unknown.
        low: Lower end of the interval.
        high: Upper end of the interval.
        note: The point that a ratio is relative to, or what the value contains; may be empty.
    """

    label: str
    text: str
    interval: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


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


@dataclass(frozen=True)
class Chosen:
    """A chosen point, and all that its card tells of it.

    Args:
        choice: The point, with the questions that are open.
        points: The judged points of its series, ascending.
        rule: The criteria.
        compared: The ratios of all pairs of points.
        target: The goal that counts as trained, if there is one.
        measure: Quantity that decided.
        whole_runs: Runs went to their end, so that their time and cost are those of a training.
        noun: ``GPU`` or ``CPU process``.
        left_out: Completed runs of the series that are not comparable with the others.
        apart: Sentence on larger device counts of which no run is comparable; empty if there is none.
    """

    choice: Choice
    points: pd.DataFrame
    rule: DecisionRule
    compared: Gains
    target: Goal | None
    measure: Measure
    whole_runs: bool
    noun: str
    left_out: int = 0
    apart: str = ""

    @property
    def best(self) -> pd.Series:
        """The chosen point."""
        return self.choice.point

    def of(self, devices: float) -> str:
        """``1 GPU``, ``4 GPUs``."""
        return count_devices(int(devices), self.noun)


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
        figures=list(_figures(chosen)),
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
        return f"No criterion is given: the largest speedup x efficiency. {gain}"
    if rule.deadline_minutes is not None:
        return f"The fewest devices with {' and '.join(criteria)}."
    return f"The most devices with {' and '.join(criteria)}. {gain}"


def next_action(
    experiment: AnalysisSpec,
    card: Card,
    scaling: pd.DataFrame,
    undecided: Mapping[int, int],
    every_series: pd.DataFrame,
) -> tuple[str, str]:
    """Return what to do next, and the lines of configuration for it.

    Args:
        experiment: The experiment, the way the plan defined it.
        card: Card of the answer.
        scaling: Rows of the answer's series in the scaling table, or all without an answer.
        undecided: Further repeats that would settle what is open, by device count.
        every_series: The scaling table of all series.
    """
    spec, noun = experiment.spec, experiment.noun
    scaling = scaling[scaling["conditions"].astype(object).fillna("") == ""]
    if scaling["n"].sum() == 0:
        fixed = " once the reasons of the failures are fixed" if scaling["n_unsuccessful"].sum() else ""
        return f"Run the same command again{fixed}.", ""
    for reason, action in _ACTIONS.items():
        if reason in card.reason:
            return action.format(noun=noun), ""
    if card.certainty == "Open":
        if scaling["devices"].nunique() == 1:
            more = 2 * int(scaling["devices"].max())
            return f"Measure a second {noun} count.", f"devices: [{int(scaling['devices'].max())}, {more}]"
        if (scaling["n"] > 0).sum() < 2:
            return "Run the same command again.", ""
        return f"Change the criteria, or measure other {noun} counts.", ""
    is_far = bool(undecided) and max(undecided.values()) > MOST_ADVISED
    if undecided and not is_far and not spec.chooses_devices:
        runs = scaling.set_index("devices")["n"]
        most = max(int(runs.get(devices, 0)) + more for devices, more in undecided.items())
        adaptive = isinstance(spec.repeats, Repeats)
        now = spec.max_repeats
        return (
            f"Set the repeats to {most} (now {now}) and run the same command again: "
            f"{'up to ' if adaptive else ''}{_further_runs(every_series, most)}.",
            f"repeats: {{max: {most}}}" if adaptive else f"repeats: {most}",
        )
    if card.certainty == "Doubtful" or card.reason.endswith(SEE_CAUTIONS):
        return "Follow the first caution.", ""
    if card.reason == SINGLE_RUN and not spec.chooses_devices:
        return (
            f"Set the repeats to {ENOUGH_REPEATS} and run the same command again: "
            f"{_further_runs(every_series, ENOUGH_REPEATS)}.",
            f"repeats: {ENOUGH_REPEATS}",
        )
    if card.certainty == "Likely" and not spec.chooses_devices:
        return f"Choose by cost: the runs cannot tell these {noun} counts apart.", ""
    largest = int(scaling["devices"].max())
    has_more = 2 * largest <= experiment.most_devices
    if has_more and card.next == NONE_LARGER and isinstance(spec.devices, list):
        devices = [*spec.devices, 2 * largest]
        counts = ", ".join(str(each) if isinstance(each, int) else f'"{each}"' for each in devices)
        beyond = f"To look beyond {count_devices(largest, noun)}, measure {2 * largest}, too."
        return beyond, f"devices: [{counts}]"
    return "Nothing more to measure.", ""


def _further_runs(scaling: pd.DataFrame, repeats: int) -> str:
    """Return how many runs are left to that number of repeats, and their cost if it is known.

    Args:
        scaling: The scaling table of all series.
        repeats: Planned repeats of each point.
    """
    planned = scaling[scaling["conditions"].astype(object).fillna("") == ""]
    done = planned["n"] + planned.reindex(columns=["n_not_comparable"]).fillna(0)["n_not_comparable"]
    more = (repeats - done).clip(lower=0)
    runs = pluralize(f"{more.sum():.0f}", "more run")
    hours = float((more * planned["device_hours"]).sum(skipna=False))
    return runs if math.isnan(hours) else f"{runs}, about {format_3sig(hours)} device-hours"


def _certainty(chosen: Chosen, harms: Sequence[cautions.Caution]) -> tuple[Certainty, str]:
    found = sorted(harm for harm, _ in harms if harm in cautions.UNCLEAR)
    if not found and chosen.apart and chosen.best["devices"] == chosen.points["devices"].max():
        return "Likely", chosen.apart
    if not found:
        return "Clear", ""
    if found[0] in DOUBTS:
        return "Doubtful", _REASONS[found[0]]
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
    return "Likely", SINGLE_RUN


def _figures(chosen: Chosen) -> Iterator[Figure]:
    """Yield the figures that are known."""
    yield from (figure for figure in _all_figures(chosen) if figure.value is not None)


def _all_figures(chosen: Chosen) -> Iterator[Figure]:
    best, target = chosen.best, chosen.target
    to_target = chosen.measure == "time to target" and target is not None
    base = chosen.of(best["gain_base"])
    own = best["devices"] == best["gain_base"]
    timed = chosen.rule.deadline_minutes is not None or chosen.rule.max_device_hours is not None
    of = " to target" if to_target else ""
    if timed:
        known = not math.isnan(best["done_minutes"])
        longest = f"up to {format_3sig(best['done_minutes'])} min{_queue(best)}" if known else ""
        n = best["n"] if math.isnan(best["wall_n"]) else best["wall_n"]
        yield _of_column(best, "wall_seconds", "Time of a run", " min", 1 / 60, n, longest)
    elif not own:
        bounds = _known(best["gain_low"], best["gain_high"], best["speedup_n"])
        note = f"as fast as {base}"
        if chosen.whole_runs and not math.isnan(whole := _whole_run_gain(chosen)):
            note += f"; a whole run: {format_ratio(whole)}x"
        yield _figure(f"Speed{of}", best["gain"], bounds, format_ratio, "x", note=note)
    else:
        yield _of_column(best, "throughput_samples_per_second", "Throughput", " samples/s", 1, best["n"])
    bounds = _known(best["efficiency_to_best_low"], best["efficiency_to_best_high"], best["speedup_n"])
    relative = "1 is ideal"
    if (best["best_baseline"], best["best_baseline_devices"]) != (best["series"], best["gain_base"]):
        relative = f"relative to {best['best_baseline']}, the best baseline"
    if not own or relative != "1 is ideal":
        yield _figure(f"Efficiency{of}", best["efficiency_to_best"], bounds, _two_places, note=relative)
    yield _cost(chosen, base)
    if to_target:
        assert target is not None
        note = goal_text(target)
        if best["n_reached"] < best["n"]:
            note += f", reached by {best['n_reached']:.0f} of {best['n']:.0f} runs"
        seconds = best["expected_seconds_to_accuracy"]
        yield _figure("Time to target", seconds, (None, None), format_3sig, " s", note=note)
    elif not math.isnan(best["final_accuracy"]):
        accuracy, low, high = (100 * float(best[f"final_accuracy{end}"]) for end in ("", "_low", "_high"))
        first = chosen.points[chosen.points["devices"] == best["baseline_devices"]]
        lost = accuracy_lost(best, first.iloc[0]) if len(first) else 0.0
        note = f"{points_text(lost)} lower than on {chosen.of(best['baseline_devices'])}" if lost else ""
        bounds = _known(low, high, best["n"])
        yield _figure("Final accuracy", accuracy, bounds, "{:.1f}".format, " %", note=note)
    elif not own or timed:
        yield _of_column(best, "throughput_samples_per_second", "Throughput", " samples/s", 1, best["n"])


def _cost(chosen: Chosen, base: str) -> Figure:
    """Return the cost of a whole run; relative to the baseline's if the runs were ended early."""
    best = chosen.best
    own = best["devices"] == best["gain_base"]
    if not chosen.whole_runs or math.isnan(best["device_hours"]):
        ratio = math.nan if own else best["cost_ratio"]
        return _figure("Cost of training", ratio, (None, None), format_ratio, "x", note=f"that on {base}")
    hours = float(best["device_hours"])
    per_second = hours / best["wall_seconds"] if best["wall_seconds"] else math.nan
    bounds = _known(best["wall_seconds_low"] * per_second, best["wall_seconds_high"] * per_second, best["n"])
    note = "start-up and evaluation included"
    if per_second > 0:
        note = f"{chosen.of(round(3600 * per_second))} for {duration_text(best['wall_seconds'])}, {note}"
    if not own and not math.isnan(best["run_cost_ratio"]):
        note += f"; {format_ratio(best['run_cost_ratio'])}x that on {base}"
    return _figure("Cost of a run", hours, bounds, format_3sig, " device-hours", note=note)


def _whole_run_gain(chosen: Chosen) -> float:
    """Return how many times faster a whole run is than on the baseline; NaN if unknown."""
    best = chosen.best
    base = chosen.points[chosen.points["devices"] == best["gain_base"]]
    return float(base["wall_seconds"].iloc[0] / best["wall_seconds"]) if len(base) else math.nan


def _basis(chosen: Chosen) -> str:
    n = int(chosen.best["speedup_n"])
    ranges = f"Ranges are {percent(CONFIDENCE, 0)} intervals." if n > 1 else "One run has no interval."
    left_out = ""
    if chosen.left_out:
        verb = "is" if chosen.left_out == 1 else "are"
        left_out = f" {pluralize(str(chosen.left_out), 'run')} {verb} not comparable: see the cautions."
    return f"{pluralize(str(n), 'run')} of each {chosen.noun} count. {ranges}{left_out}"


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
            queue=_queue(point),
        )
    more = points[points["devices"] > best["devices"]]
    if more.empty:
        return chosen.apart or NONE_LARGER
    point = more.iloc[0]
    low, high = _known(point["gain_low"], point["gain_high"], point["speedup_n"])
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


def _queue(point: pd.Series) -> str:
    wait = point["queue_minutes"]
    return sentence("waits", wait=wait) if wait else ""


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
        interval = "" if ratio.assumed else f", {_range(ratio.at_least, ratio.at_most, format_ratio)}"
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
    chosen = peaks(compared.points[series, devices])
    for name, value in twins.items():
        ratio = ratio_of(peaks(compared.points.get((name, devices), pd.DataFrame())), chosen)
        if ratio is not None and (change := _shown_change(ratio)):
            more = "less" if change < 0 else "more"
            return f"{as_in_yaml(value)} needs {percent(abs(change), 0)} {more} memory"
    return ""


def _shown_change(ratio: Ratio) -> float:
    """Return by how much a ratio differs from 1; 0 if not even ``LEAST_MEMORY`` is shown."""
    if ratio.at_most <= 1 - LEAST_MEMORY or ratio.at_least >= 1 + LEAST_MEMORY:
        return ratio.estimate - 1
    return 0.0


def _of_column(
    point: pd.Series, column: str, label: str, unit: str, factor: float, n: float, note: str = ""
) -> Figure:
    """Return a figure from a column of the scaling table with its bounds."""
    value, low, high = (
        float(point.get(f"{column}{end}", math.nan)) * factor for end in ("", "_low", "_high")
    )
    return _figure(label, value, _known(low, high, n), format_3sig, unit, note)


def _figure(
    label: str,
    value: float,
    bounds: tuple[float | None, float | None],
    form: Callable[[float], str],
    unit: str = "",
    note: str = "",
) -> Figure:
    known = None if math.isnan(value) else float(value)
    low, high = bounds
    same = low is not None and high is not None and form(low) == form(high)
    return Figure(
        label, f"{form(value)}{unit}", "" if same else _range(low, high, form), known, low, high, note
    )


def _known(low: float, high: float, n: float) -> tuple[float | None, float | None]:
    """Return the ends of an interval; None for those of a single run."""
    if n < 2 or math.isnan(low) or math.isnan(high):
        return None, None
    return float(low), float(high)


def _range(low: float | None, high: float | None, form: Callable[[float], str]) -> str:
    """Return ``1.03 to 2.16``; empty if the ends are unknown."""
    if low is None or high is None or math.isnan(low):
        return ""
    return f"{form(low)} to {form(high)}"


_two_places = "{:.2f}".format
