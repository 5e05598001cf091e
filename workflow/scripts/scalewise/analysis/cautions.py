"""Cautions: what could be wrong with an answer in a system, and not only by noise.

Each function asks one question of a case. It yields cautions with a sentence, the action that removes the
doubt, and the most certain that an answer with it may be. ``CAUTIONS`` has them, the most harmful first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from scalewise.analysis.accounting import NOT_STATED
from scalewise.analysis.analysis_spec import (
    MEASURED_WAITS,
    THROUGHPUT,
    UNREADABLE,
    WITH_NO_GRAD,
    AnalysisSpec,
)
from scalewise.analysis.blocks import SESSION_GAP_HOURS, Separation, separable, siblings
from scalewise.analysis.candidates import Group, Terms, accuracy_difference, aim_of, best_baseline
from scalewise.analysis.choose import Candidate, Choice, Doubt
from scalewise.analysis.conditions import DEVICE_MODEL, OTHER_CONDITIONS
from scalewise.analysis.disturbed import DISTURBED, disturbed_of, named_runs
from scalewise.analysis.points import Place, Points
from scalewise.analysis.statistics import ENOUGH_REPEATS, Interval
from scalewise.analysis.words import (
    cost_text,
    count_devices,
    counts_text,
    format_3sig,
    format_distinct,
    format_exact,
    format_ratio,
    goal_text,
    listed,
    percent,
    place_text,
    points_text,
    two_places,
)
from scalewise.config.experiment import SHOWN_LOSS
from scalewise.plan.formatting import pluralize

Certainty = Literal["clear", "likely", "doubtful", "open"]
CERTAINTIES: Sequence[Certainty] = ("clear", "likely", "doubtful", "open")
"""The words of certainty, the most certain first."""

IDEAL = 1.02
"""Largest efficiency that is taken for ideal: repeats on a quiet machine scatter by 1 to 2 %."""

SHORT_OF_MEMORY = 0.9
"""Share of a GPU's memory from which its allocator slows a run."""

COLLAPSE = 0.05
"""Loss of accuracy from which on more devices do not train the same, whatever their speed."""

MANY_APART = 0.5
"""Share of disturbed runs from which on the rest may be of a busy machine, too."""

OTHER_SPEEDUP = 0.03
"""Share by which a speedup with the time of passes without gradients differs enough to be another answer."""

MOST_ADVISED = 20
"""More repeats of a point are not advised: the two points are too close to tell apart."""

REDO = "python workflow/scripts/cli.py redo --disturbed"


@dataclass(frozen=True)
class Caution:
    """A weakness of an answer.

    Args:
        sentence: The possible fault, with the numbers.
        action: The user's next step; empty if nothing can be done.
        certainty: The most certain that an answer with it may be.
        command: Command or lines of YAML of the action, to be copied; may be empty.
    """

    sentence: str
    action: str = ""
    certainty: Certainty = "clear"
    command: str = ""


@dataclass(frozen=True, eq=False)
class Case:
    """An answer with all that it rests on.

    Args:
        experiment: The experiment as the plan defined it.
        points: All points.
        group: Points that compete.
        terms: The criteria.
        choice: The best candidate, and the doubts about it.
        candidates: All candidates of the group.
        programs: Findings on the runs of a program: its cautions, a sentence each.
        not_judged: A sentence on criteria that could not be judged; empty without any.
        waits: Source of measured waits in the queue, or why there is none, a clause; empty if the site
            states them.
    """

    experiment: AnalysisSpec
    points: Points
    group: Group
    terms: Terms
    choice: Choice
    candidates: Sequence[Candidate]
    programs: Sequence[str] = ()
    not_judged: str = ""
    waits: str = ""
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def noun(self) -> str:
        """Name of a device."""
        return self.experiment.noun

    @property
    def best(self) -> Place | None:
        """The chosen point."""
        return self.choice.best.key if self.choice.best is not None else None

    @property
    def base(self) -> Place | None:
        """The baseline of the chosen point."""
        return None if self.best is None else best_baseline(self.points, self.group, self.best.partition)

    @property
    def decisive(self) -> list[Place]:
        """The points that the answer rests on: the chosen one and its baseline."""
        return [each for each in dict.fromkeys((self.best, self.base)) if each is not None]

    def named(self, place: Place) -> str:
        """Name a point."""
        only = len({each.series for each in self.points.all}) == 1
        return place_text(place.devices, place.series, place.partition, self.noun, only=only)

    def runs_of(self, places: Iterable[Place]) -> pd.DataFrame:
        """Return the compared runs of some points."""
        found = [self.points.all[place].runs for place in places]
        return pd.concat(found) if found else self.runs.iloc[:0]


# ---- what the answer rests on ---------------------------------------------------------------------------


def accuracy_collapsed(case: Case) -> Iterator[Caution]:
    """Ask whether the chosen devices train worse than others of the same series and partition."""
    if case.best is None or case.points.clock == "target":
        return
    alike = [each for each in case.group if each[:2] == case.best[:2]]
    means = {each: case.points.all[each].column("final_accuracy").mean() for each in alike}
    known = {place: mean for place, mean in means.items() if not math.isnan(mean)}
    if case.best not in known:
        return
    top = max(known, key=known.__getitem__)
    lost, difference = known[top] - known[case.best], accuracy_difference(case.points, case.best, top)
    shown = difference is not None and difference.high < -SHOWN_LOSS
    if not shown and (difference is not None or lost < COLLAPSE):
        return
    places = 1 if lost >= 0.01 else 2
    yield Caution(
        f"Accuracy is {points_text(100 * lost)} lower on {case.named(case.best)}: "
        f"{percent(known[case.best], places)} instead of {percent(known[top], places)} on "
        f"{count_devices(top.devices, case.noun)}.",
        "Check the learning rate, train for longer, or give a `target`.",
        "doubtful" if lost >= COLLAPSE else "likely",
    )


def rests_on_disturbed_runs(case: Case) -> Iterator[Caution]:
    """Ask whether the runs that decide had their machine to themselves."""
    used = case.runs_of(case.decisive)
    disturbed = used[used["disturbance"] != ""]
    if len(disturbed):
        yield Caution(
            f"The answer rests on disturbed runs, {len(disturbed)} of {len(used)}: {named_runs(disturbed)}.",
            "Make them again on quiet nodes.",
            "doubtful",
            REDO,
        )


def disturbed_runs_are_set_apart(case: Case) -> Iterator[Caution]:
    """Ask how many runs were disturbed, and which of them are not compared."""
    planned = pd.concat([case.points.all[place].planned for place in case.group])
    ended = planned[planned["outcome"].isin(["completed", DISTURBED])]
    disturbed, apart = ended[ended["disturbance"] != ""], ended[ended["outcome"] == DISTURBED]
    if len(apart):
        count = disturbed_of(len(disturbed), len(ended))
        yield Caution(
            f"{count}; not compared: {named_runs(apart)}.",
            f"{count}: make them again.",
            "likely" if len(apart) >= MANY_APART * len(ended) else "clear",
            REDO,
        )


def _separations(case: Case) -> Iterator[tuple[Place, Separation]]:
    """Yield how far time, nodes and device count are separable, for the decisive series of each partition."""
    for partition in dict.fromkeys(place.partition for place in case.group):
        base = best_baseline(case.points, case.group, partition)
        series = {base.series if base else "", case.best.series if case.best else ""}
        for name in sorted(series):
            places = [each for each in case.group if (each.partition, each.series) == (partition, name)]
            if base is not None and len(places) > 1:
                yield base, separable(case.runs_of(places), min(place.devices for place in places))


def time_and_devices_are_mixed(case: Case) -> Iterator[Caution]:
    """Ask whether time and device count are separable: counts that ran one after the other are not."""
    for _, found in _separations(case):
        if found.in_time or found.other_days:
            continue
        order = "small counts first" if found.order > 0 else "large counts first"
        what = (
            f"The device counts ran in the order of their size, {order}"
            if found.ordered
            else f"All runs on {counts_text(found.apart, case.noun)} were before or after those of others"
        )
        yield Caution(
            f"{what}: what changed on the machine in that time looks like the effect of the devices.",
            "Add repeats while the queue is short: runs of all counts then take turns.",
            "doubtful",
        )
        return


def days_or_nodes_differ(case: Case) -> Iterator[Caution]:
    """Ask whether the device counts share days and nodes with their baseline."""
    for base, found in _separations(case):
        if found.other_days:
            yield Caution(
                f"The runs on {counts_text(found.other_days, case.noun)} are of other days than those on "
                f"{count_devices(base.devices, case.noun)} (more than {SESSION_GAP_HOURS:g} hours apart): "
                "what changed in between looks like the effect of the devices.",
                "Add repeats: the new runs of all counts are made together.",
                "doubtful",
            )
            return
        if found.other_nodes:
            yield Caution(
                f"The runs on {counts_text(found.other_nodes, case.noun)} used other nodes than those on "
                f"{count_devices(base.devices, case.noun)}: the difference may be the nodes'.",
                "Let all runs draw from the same few nodes, or add repeats when other nodes are free.",
                "doubtful",
            )
            return


def partitions_differ_in_time(case: Case) -> Iterator[Caution]:
    """Ask whether the partitions were measured in the same days, and by the same software."""
    partitions = list(dict.fromkeys(place.partition for place in case.group))
    if len(partitions) < 2 or case.best is None:
        return
    runs = case.runs_of(case.group)
    started = pd.to_datetime(runs["started_at"], utc=True, errors="coerce", format="ISO8601")
    spans = started.groupby(runs["partition"]).agg(["min", "max"]).dropna()
    if len(spans) > 1:
        apart = (spans["min"].max() - spans["max"].min()).total_seconds() / 86400
        if apart > 1:
            yield Caution(
                f"The partitions were measured {format_3sig(apart)} days apart: what changed in between "
                "looks like a difference of the partitions.",
                "Measure them in the same days.",
                "doubtful",
            )


_KINDS = " `partitions` in the site file compare kinds of GPU."


def other_conditions_are_left_out(case: Case) -> Iterator[Caution]:
    """Ask whether runs were left out because they are not comparable."""
    planned = pd.concat([case.points.all[place].planned for place in case.group])
    out = planned[planned["outcome"] == OTHER_CONDITIONS]
    gone = [
        place
        for place in case.group
        if not case.points.all[place].n
        and (case.points.all[place].planned["outcome"] == OTHER_CONDITIONS).any()
    ]
    for reason in list(dict.fromkeys(out["reason"]))[:2]:
        runs = out[out["reason"] == reason]
        where = listed([case.named(place) for place in gone]) if gone else ""
        lost = f" No run of {where} is compared." if where else ""
        yield Caution(
            f"{pluralize(str(len(runs)), 'run')} left out, which ran under other conditions: {reason} "
            f"({_names(runs)}).{lost}",
            f"Make them again under the conditions of the others.{_KINDS if DEVICE_MODEL in reason else ''}",
            "likely" if gone else "clear",
        )


def configured_training_has_no_result(case: Case) -> Iterator[Caution]:
    """Ask whether the configured training itself is among the compared ones."""
    if case.points.clock != "target" or case.best is None:
        return
    first = next(iter(case.terms.options))
    places = [place for place in case.points.all if place.series == first]
    runs = sum(case.points.all[place].n for place in places)
    if runs and not any(case.points.all[place].has_reached.any() for place in places):
        assert case.experiment.target is not None
        yield Caution(
            f"None of the {pluralize(str(runs), 'run')} of {first} reached "
            f"{goal_text(case.experiment.target)}: the answer is of another series.",
            "Train for longer, or lower the target.",
            "likely",
        )


def survivors_decide(case: Case) -> Iterator[Caution]:
    """Ask whether slow runs may be missing because they ended without a result."""
    for place in case.decisive:
        point = case.points.all[place]
        if ended := sum(point.unsuccessful.values()):
            outcomes = listed([f"{number} {outcome}" for outcome, number in point.unsuccessful.items()])
            yield Caution(
                f"On {case.named(place)} {ended} of {point.n + ended} runs have no result ({outcomes}): "
                "the slow ones may be missing.",
                "Read in runs.csv why runs failed, fix it, and run the same command.",
                "likely",
            )
    for place in case.group:
        failed = case.points.all[place].unsuccessful
        if case.best is None or case.points.all[place].n or not failed:
            continue
        could_win = place.devices < case.best.devices and set(failed) != {"out-of-memory"}
        outcomes = listed([f"{number} {outcome}" for outcome, number in failed.items()])
        yield Caution(
            f"No run on {case.named(place)} has a result ({outcomes}), so it is not among the candidates.",
            "Read in runs.csv why runs failed, fix it, and run the same command." if could_win else "",
            "likely" if could_win else "clear",
        )


def target_was_not_reached(case: Case) -> Iterator[Caution]:
    """Ask whether the time to a target can decide at all, and whether it rests on luck."""
    target = case.experiment.target
    if target is None or case.best is None:
        return
    if case.points.clock != "target":
        if not any(point.has_reached.any() for point in case.points.all.values()):
            yield Caution(
                f"No run reached {goal_text(target)}, so speed decides: whether more devices train as well "
                "is unknown.",
                "Let the training run for longer, or lower the target.",
                "likely",
            )
        return
    for place in case.decisive:
        point = case.points.all[place]
        reached = int(point.has_reached.sum())
        if reached < point.n:
            yield Caution(
                f"On {case.named(place)} {reached} of {point.n} runs reached {goal_text(target)}.",
                "Train for longer, so that every run reaches it.",
                "likely",
            )


# ---- what the runs leave open ---------------------------------------------------------------------------


def doubts_are_open(case: Case) -> Iterator[Caution]:
    """Ask which candidates may be better, and which criteria may turn out otherwise."""
    doubts = sorted(
        case.choice.doubts, key=lambda each: (each.candidate is not case.choice.best, each.check is None)
    )
    # one number of repeats answers all that repeats can answer
    needed = max((each.repeats or 0 for each in doubts if _can_be_told(each)), default=0)
    for doubt in doubts:
        action, command = _advice(case, doubt, needed)
        yield Caution(_doubt_text(case, doubt), action, "likely", command)


def _can_be_told(doubt: Doubt) -> bool:
    return doubt.repeats is not None and doubt.repeats <= MOST_ADVISED


def _doubt_text(case: Case, doubt: Doubt) -> str:
    place, check, ratio = doubt.candidate.key, doubt.check, doubt.ratio
    where = case.named(place)
    if check is not None:
        if check.criterion == "min_efficiency":
            least = case.terms.min_efficiency
            assert least is not None
            limit = format_distinct(0.0, least)[1]
            side = "below" if check.by_mean else "above"
            return f"The efficiency of {where} may be {side} the {limit} that you require."
        if check.criterion == "reliable":
            return f"{_begin(where)} may be better, but too many of its runs have no result: {check.text}."
        if check.by_mean:
            return f"{_begin(where)} may miss `{check.criterion}`: the runs scatter too much to tell."
        return f"{_begin(where)} may meet `{check.criterion}`: so far {check.text}."
    if ratio is None:
        return f"{_begin(where)} cannot be compared with the answer."
    assert case.best is not None
    few = ratio.n < ENOUGH_REPEATS
    bounds = "" if few else f" ({format_ratio(ratio.at_least)} to {format_ratio(ratio.at_most)})"
    return f"{_begin(where)} may be better: {format_ratio(ratio.estimate)}x the answer{bounds}."


def _begin(text: str) -> str:
    return text[:1].upper() + text[1:]


def _advice(case: Case, doubt: Doubt, needed: int) -> tuple[str, str]:
    """Return the action on a doubt, and its line of configuration.

    Args:
        case: The answer.
        doubt: A doubt about it.
        needed: Repeats that answer each doubt that repeats can answer.
    """
    if doubt.check is not None and doubt.check.criterion == "reliable":
        return "Read the reasons of these runs in runs.csv, fix them, and run the same command.", ""
    if not _can_be_told(doubt):
        takes = "More" if doubt.repeats is None else f"Fewer than {doubt.repeats}"
        return f"{takes} repeats do not tell them apart: choose by another criterion.", ""
    spec, now = case.experiment.spec, case.points.all[doubt.candidate.key].n
    if not spec.has_rounds:
        repeats = max(needed, now + 1)
        action = f"Set the repeats to {repeats} and run the same command{_further(case, repeats)}."
        return action, f"repeats: {repeats}"
    if needed > spec.repeats.max:
        action = f"Set the most repeats to {needed} (now {spec.repeats.max}) and run the same command."
        return action, f"repeats: {{min: {spec.repeats.min}, max: {needed}}}"
    return "The study ended before it had the runs that tell: give it a larger `budget`.", ""


def _further(case: Case, repeats: int) -> str:
    """Return the runs that so many repeats add to those that are there, and their cost, for a sentence."""
    runs, hours = 0, 0.0
    for point in case.points.all.values():
        more = max(repeats - len(point.planned), 0)
        runs += more
        hours += more * point.column("wall_seconds").mean() * point.billed / 3600
    noun = case.noun.rpartition(" ")[2]
    cost = (
        "" if math.isnan(hours) else f", about {cost_text(Interval(hours, math.nan, math.nan, 1), noun=noun)}"
    )
    return f": {pluralize(str(runs), 'more run')}{cost}"


def runs_are_few(case: Case) -> Iterator[Caution]:
    """Ask whether a point that decides has fewer runs than an interval takes."""
    numbers = {place: len(case.points.time(place).values) for place in case.decisive}
    fewest = min(numbers.values(), default=ENOUGH_REPEATS)
    if fewest < ENOUGH_REPEATS:
        place = min(numbers, key=numbers.__getitem__)
        runs = "1 run" if fewest == 1 else f"{fewest} runs"
        yield Caution(
            f"{runs} of {case.named(place)} can be compared: that does not show how much repeats scatter.",
            f"Use at least {ENOUGH_REPEATS} repeats, and run the same command.",
            "likely",
            f"repeats: {ENOUGH_REPEATS}",
        )


def runs_of_the_study_shared_nodes(case: Case) -> Iterator[Caution]:
    """Ask whether the study's own runs shared nodes, which slows small device counts most."""
    used = case.runs_of(case.decisive)
    if case.best is None or used["hosts"].isna().all():
        return
    every = case.runs_of(case.group)
    shared = siblings(every[every["hosts"].notna()])
    found = used[used["run"].isin(every.loc[shared[shared].index, "run"])]
    if len(found):
        yield Caution(
            f"{len(found)} of {len(used)} runs shared a node with other runs of this study, which slows "
            "small device counts most: the speedup may be too large.",
            "Request whole nodes (`slurm.exclusive: true` in the site file) and make the runs again.",
            "doubtful",
        )


def efficiency_is_above_one(case: Case) -> Iterator[Caution]:
    """Ask whether more devices gain more than their number, which is an error until it is explained."""
    if case.best is None or case.base is None or case.best == case.base:
        return
    ratio = case.points.faster(case.best, case.base)
    share = case.base.devices / case.best.devices
    if ratio is not None and ratio.at_least * share > IDEAL:
        yield Caution(
            f"The efficiency of {case.named(case.best)} is above 1 ({two_places(ratio.estimate * share)}): "
            f"an error until it is explained. {_why_above_one(case.points.all[case.base].runs)}",
            f"Look at the parts of a step on {count_devices(case.base.devices, case.noun)}.",
            "likely",
        )


def _why_above_one(baseline: pd.DataFrame) -> str:
    """Return what the records of the baseline's runs explain of it."""
    full = (baseline["peak_memory_bytes"] / baseline["device_memory_bytes"]).max()
    if full > SHORT_OF_MEMORY:
        return (
            f"The baseline fills {percent(full)} of its memory, which slows it: compare with more "
            "`accumulation_steps` there."
        )
    return "Smaller shares that fit a cache explain it, and so does a baseline that was slowed."


def passes_without_gradients_are_unclear(case: Case) -> Iterator[Caution]:
    """Ask whether forward passes without gradients belong to the training."""
    if case.best is None or case.base is None:
        return
    rates = {place: case.points.all[place].runs[[THROUGHPUT, WITH_NO_GRAD]].mean() for place in case.decisive}
    known = {place: each for place, each in rates.items() if each[WITH_NO_GRAD] == each[WITH_NO_GRAD]}
    if not known:
        return
    both = {
        place: each[WITH_NO_GRAD] if place in known else each[THROUGHPUT] for place, each in rates.items()
    }
    without = rates[case.best][THROUGHPUT] / rates[case.base][THROUGHPUT]
    with_them = both[case.best] / both[case.base]
    changes = abs(with_them / without - 1) > OTHER_SPEEDUP
    other = (
        f" With their time the speedup is {format_ratio(with_them)}x, not {format_ratio(without)}x."
        if changes
        else ""
    )
    yield Caution(
        f"It is unknown whether forward passes without gradients belong to the training.{other}",
        "Write `no_grad_passes: training` or `no_grad_passes: evaluation`.",
        "likely" if changes else "clear",
        "no_grad_passes: evaluation",
    )


def criterion_is_not_judged(case: Case) -> Iterator[Caution]:
    """Ask whether a criterion was given that the runs cannot judge."""
    if case.not_judged:
        yield Caution(
            case.not_judged, "Require `min_efficiency` instead, or make runs that are not resumed.", "likely"
        )


def aim_is_unknown(case: Case) -> Iterator[Caution]:
    """Ask whether the amount that shall decide is known."""
    wanted = case.terms.rule.by
    if wanted is not None and aim_of(case.candidates, case.terms) != wanted:
        yield Caution(
            f"`by: {wanted}` cannot decide, because no run knows it: the time decides.",
            "Choose by time or by cost, or give the site file what is missing.",
            "likely",
        )


def program_reports(case: Case) -> Iterator[Caution]:
    """Ask what the measurement of a user's program found."""
    for sentence in case.programs:
        yield Caution(sentence)


def waits_were_measured(case: Case) -> Iterator[Caution]:
    """Ask whether a deadline counts a wait that later jobs may not have."""
    latest = case.terms.limit("deadline_minutes")
    if latest is None or not case.waits:
        return
    within = f"The deadline of {format_exact(latest)} minutes counts"
    if case.waits == MEASURED_WAITS:
        text = f"{within} a wait in the queue, {case.waits}. Later jobs may wait longer."
    else:
        text = f"{within} no wait in the queue: {case.waits.removeprefix(NOT_STATED)}."
    yield Caution(text)


def damaged_records(case: Case) -> Iterator[Caution]:
    """Ask whether the record of a run could not be read."""
    damaged = case.runs[case.runs["outcome"] == UNREADABLE] if len(case.runs) else case.runs
    for reason in damaged["reason"] if len(damaged) else ():
        yield Caution(f"A run is left out: {reason}")


def runs_were_resumed(case: Case) -> Iterator[Caution]:
    """Ask whether compared runs were resumed, so that their whole time is unknown."""
    used = case.runs_of(case.decisive)
    resumed = used[used["resumed"].fillna(0) > 0]
    if len(resumed):
        yield Caution(
            f"{pluralize(str(len(resumed)), 'run')} of {len(used)} resumed from a checkpoint: the time of a "
            "whole run is unknown of them."
        )


CAUTIONS: Sequence[Callable[[Case], Iterable[Caution]]] = (
    rests_on_disturbed_runs,
    accuracy_collapsed,
    time_and_devices_are_mixed,
    days_or_nodes_differ,
    runs_of_the_study_shared_nodes,
    partitions_differ_in_time,
    configured_training_has_no_result,
    criterion_is_not_judged,
    aim_is_unknown,
    disturbed_runs_are_set_apart,
    survivors_decide,
    doubts_are_open,
    runs_are_few,
    efficiency_is_above_one,
    passes_without_gradients_are_unclear,
    other_conditions_are_left_out,
    target_was_not_reached,
    damaged_records,
    program_reports,
    waits_were_measured,
    runs_were_resumed,
)


def cautions_of(case: Case) -> list[Caution]:
    """Return the cautions of a case, the worst first: by what they do to the certainty, then as listed."""
    found = [caution for ask in CAUTIONS for caution in ask(case)]
    return sorted(found, key=lambda caution: -CERTAINTIES.index(caution.certainty))


def certainty_of(case: Case, found: Sequence[Caution]) -> Certainty:
    """Return the one word that covers intervals, criteria, conditions, time and accuracy."""
    if case.best is None:
        return "open"
    return max((caution.certainty for caution in found), key=CERTAINTIES.index, default="clear")


def _names(runs: pd.DataFrame, most: int = 2) -> str:
    names = [str(name) for name in runs["run"]]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


__all__ = ["CAUTIONS", "Case", "Caution", "Certainty", "cautions_of", "certainty_of"]
