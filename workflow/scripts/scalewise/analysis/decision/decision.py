"""The decision of an experiment: devices and options to use, with the figures of the measured points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import STATED_WAITS
from scalewise.analysis.causes import Cause
from scalewise.analysis.comparison.gains import Gains, Measure, Point, accuracy_difference
from scalewise.analysis.decision import cautions, wording
from scalewise.analysis.decision.card import Card, card_of_choice, card_without_point, larger_apart
from scalewise.analysis.decision.card_figures import Chosen
from scalewise.analysis.decision.cpus import CpuAnswer
from scalewise.analysis.decision.criteria import closest
from scalewise.analysis.decision.selection import (
    Candidates,
    candidates,
    find_open_exclusions,
    find_rivals,
    further_repeats,
    place_of,
    select,
)
from scalewise.analysis.decision.sentences import sentence
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import count_devices
from scalewise.plan.formatting import Goal, name_devices
from scalewise.plan.runs.runs import Options

NUMBERS = (
    "baseline_devices", "speedup", "speedup_low", "speedup_high",
    "parallel_efficiency", "parallel_efficiency_low", "parallel_efficiency_high", "efficiency_to_best",
    "efficiency_to_best_low", "efficiency_to_best_high", "n", "speedup_n",
    "throughput_samples_per_second", "throughput_samples_per_second_low",
    "throughput_samples_per_second_high", "wall_seconds", "wall_seconds_low", "wall_seconds_high",
    "device_hours", "queue_minutes", "time_to_accuracy_seconds", "expected_seconds_to_accuracy",
    "time_to_accuracy_speedup", "time_to_accuracy_speedup_low", "time_to_accuracy_speedup_high",
)  # fmt: skip
"""Columns of scaling.csv that ``Decision.numbers`` holds of the chosen point."""


@dataclass(frozen=True)
class Decision:
    """The answer of an experiment.

    Args:
        devices: Number of devices to use; None where nothing can be said, or no point meets the criteria.
        series: Options to use: the name of a series in scaling.csv.
        card: The answer in fields.
        alternatives: Other points of the same series, a sentence each; the chosen one too if a criterion is
            on whole runs. Then time to accuracy.
        options: Gains of the options, a sentence each.
        cautions: Weaknesses of the answer, a sentence each, the most harmful first.
        other_trainings: The best of each group of series that train something else, a sentence each.
        slowdown: The cause at the answer, or at the next larger point that has one; None without any.
        limits: The same of the other points, a sentence each.
        startup: Points whose start takes long, a sentence each; no throughput or efficiency holds it.
        beyond: Predictions of points that were not measured, a sentence each.
        numbers: ``NUMBERS`` of the chosen point, None for what is not known; empty without such a point.
        measure: Quantity that decided: ``throughput`` or ``time to target``.
        cpus: The answer on CPUs per device; None if they are not swept.
        device: Name of a device: ``GPU``, ``CPU process``; ``device`` if unknown.
        clear: The runs leave no other device count open, and nothing else changed with the devices.
        undecided: Further repeats that would tell what is open, by device count of the series. Of two that
            no number of repeats would tell apart there is none.
    """

    experiment: str
    devices: int | None
    series: str | None
    card: Card
    alternatives: list[str]
    options: list[str]
    cautions: list[str]
    other_trainings: list[str] = field(default_factory=list)
    slowdown: Cause | None = None
    limits: list[str] = field(default_factory=list)
    startup: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    numbers: dict[str, float | int | None] = field(default_factory=dict)
    measure: Measure = "throughput"
    device: str = "device"
    cpus: CpuAnswer | None = None
    clear: bool = True
    undecided: dict[int, int] = field(default_factory=dict)

    def named(self, noun: str) -> Decision:
        """Return the decision with its devices by what they are.

        Args:
            noun: ``GPU``, ``CPU process`` or ``device``.
        """

        def named(sentences: Sequence[str]) -> list[str]:
            return [name_devices(sentence, noun) for sentence in sentences]

        card, cpus = self.card, self.cpus
        if cpus is not None:
            cpus = replace(cpus, sentences=named(cpus.sentences), learning=name_devices(cpus.learning, noun))
        texts = named([card.reason, card.rule, card.next, card.limit, card.action])
        reason, rule, following, limit, action = texts
        return replace(
            self,
            device=noun,
            card=replace(card, reason=reason, rule=rule, next=following, limit=limit, action=action),
            cpus=cpus,
            alternatives=named(self.alternatives),
            options=named(self.options),
            cautions=named(self.cautions),
            other_trainings=named(self.other_trainings),
            limits=named(self.limits),
            startup=named(self.startup),
            beyond=named(self.beyond),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON, whose keys are text."""
        return asdict(self) | {
            "slowdown": None if self.slowdown is None else self.slowdown.as_dict(),
            "undecided": {str(key): value for key, value in self.undecided.items()},
        }


def decide(
    experiment: str,
    scaling: pd.DataFrame,
    options: pd.DataFrame,
    rule: DecisionRule,
    *,
    compared: Gains,
    target: Goal | None = None,
    confounded: Sequence[str] = (),
    differences: Sequence[str] = (),
    of_programs: Sequence[str] = (),
    queue_minutes: Mapping[int, float] | None = None,
    queue_source: str = STATED_WAITS,
    options_of: Mapping[str, Options] | None = None,
    single_runs_suffice: bool = False,
    whole_runs: bool = True,
    noun: str = "device",
) -> Decision:
    """The devices that meet the rule best, and are shown to be faster than fewer.

    Series compete only if their options leave the training itself alone: the answer is the best of the first
    group of the configuration, and a sentence tells the best of every other group.

    Args:
        experiment: Name of the experiment.
        scaling: Output of ``scaling_table``.
        options: Output of ``option_table``.
        rule: The criteria; without any, the knee.
        compared: Output of ``gains``.
        target: The goal that counts as trained, if there is one.
        confounded: Sentences on what changed together with the devices.
        differences: Further cautions on the runs, a sentence each.
        of_programs: Sentences of the runs' programs that belong next to the answer.
        queue_minutes: Devices -> usual wait in the queue; None or empty if it is unknown.
        queue_source: Source of that wait, a clause.
        options_of: Options of each series, by its name; one that is missing competes with no other.
        single_runs_suffice: Points that the answer does not rest on were meant to have one run.
        whole_runs: Runs went to their end, so that their time and cost are those of a training.
        noun: Name of a device: ``GPU``, ``CPU process``.
    """
    found, *others = candidates(
        scaling, rule, compared, options=options_of, target=target, queue_minutes=queue_minutes
    )
    points, measure = found.points, found.measure
    harms = [
        *((cautions.OF_PROGRAM, sentence) for sentence in of_programs),
        *((cautions.CONFOUNDED, sentence) for sentence in confounded),
        *((cautions.MEASUREMENT, sentence) for sentence in differences),
    ]
    if points.empty:
        return _without_speedup(experiment, scaling, options, harms, compared, noun)
    chosen = select(found, rule, compared)
    best = None if chosen is None else chosen.point
    open_questions = [] if chosen is None else chosen.open_questions
    shown = closest(points, rule) if best is None else best
    series = points[points["series"] == shown["series"]]
    planned = scaling[scaling["series"] == shown["series"]].sort_values("devices")
    numbers = {} if best is None else {name: _plain(best[name]) for name in NUMBERS}
    if best is not None and not queue_minutes:
        numbers["queue_minutes"] = None
    times_only = rule.deadline_minutes is not None or rule.max_device_hours is not None
    described = series
    if best is not None and not times_only:
        described = series[series["devices"] != best["devices"]]
    fewer = series if best is None else series[series["devices"] < best["devices"]]
    about_choice = list(
        cautions.of_deadline(fewer, rule)
        if best is None
        else cautions.of_choice(best, series, rule, open_questions, measure)
    )
    rests_on = series
    if single_runs_suffice and best is not None:
        rests_on = series[series["devices"] == best["devices"]]
    fewest = int(rests_on["speedup_n"].min())
    excluded = find_open_exclusions(found, best, rule, compared)
    if best is not None:
        rivals = find_rivals(found, best, rule, compared)
        ratio = compared.of(measure, place_of(rivals[0]), place_of(best)) if rivals else None
        about_choice += cautions.of_rivals(rivals, math.nan if ratio is None else ratio.estimate, measure)
    harms = [
        *about_choice,
        *cautions.of_exclusions(excluded),
        *cautions.of_configured(scaling, points, target),
        *cautions.of_waits(rule, queue_minutes or {}, queue_source),
        *cautions.of_disturbed(points, on_slurm=compared.on_slurm),
        *cautions.of_runs(planned),
        *cautions.of_points(series, planned, target, measure, fewest, best),
        *harms,
    ]
    if chosen is None:
        card = card_without_point(sentence("none meets", noun), wording.no_answer(shown, points, rule))
    else:
        left_out = int(planned.get("n_not_comparable", pd.Series(dtype=int)).sum())
        apart = larger_apart(planned, series, noun)
        described_choice = Chosen(
            chosen, series, rule, compared, target, measure, whole_runs, noun, left_out, apart, fewest
        )
        card = card_of_choice(described_choice, harms, options_of)
    return Decision(
        experiment=experiment,
        devices=None if best is None else int(best["devices"]),
        series=str(shown["series"]),
        card=card,
        alternatives=[
            *(
                wording.alternative(point, series, rule, target, measure, queue_source)
                for _, point in described.iterrows()
            ),
            *wording.to_target(series, target),
        ],
        other_trainings=[
            _other_training(other, rule, compared, best, found.refused)
            for other in others
            # a group whose points were all accepted is one with the first
            if not other.points.index.isin(points.index).all()
        ],
        options=wording.option_sentences(options),
        cautions=_sentences(harms),
        numbers=numbers,
        measure=measure,
        clear=best is not None
        and card.certainty != "Likely"
        and not any(harm in cautions.UNCLEAR for harm, _ in harms),
        undecided=further_repeats(
            open_questions, fewer, rule, [each for each in excluded if each["series"] == shown["series"]]
        ),
    )


def _other_training(
    other: Candidates, rule: DecisionRule, compared: Gains, best: pd.Series | None, refused: Sequence[Point]
) -> str:
    """Return the sentence on the best point of another group of series.

    Args:
        other: The group.
        rule: The criteria.
        compared: Output of ``gains``.
        best: The answer; None if there is none.
        refused: Points whose accuracy is not shown to be kept, though ``accept`` names their options.
    """
    choice = select(other, rule, compared)
    if choice is None:
        return wording.no_other_training(other.first)
    places = [
        (str(each["series"]), int(each["devices"])) for each in (choice.point, best) if each is not None
    ]
    ratio = accuracy = None
    if len(places) == 2:
        ratio = compared.of(other.measure, places[0], places[1])
        accuracy = accuracy_difference(compared, places[0], places[1])
    return wording.other_training(choice.point, ratio, accuracy, not_accepted=places[0] in refused)


def _without_speedup(
    experiment: str,
    scaling: pd.DataFrame,
    options: pd.DataFrame,
    harms: Sequence[cautions.Caution],
    compared: Gains,
    noun: str,
) -> Decision:
    """Return the rates of one device count as the answer, or the reason why there are none."""
    done = scaling[scaling["n"] > 0]
    if done.empty or scaling.groupby("series")["devices"].nunique().max() > 1:
        notes = "; ".join(dict.fromkeys(note for note in scaling["note"] if note))
        others: list[str] = []
        reason = f"{notes[:1].upper()}{notes[1:]}." if notes else "No run has completed."
        card = card_without_point("No answer yet.", reason)
    else:
        most = int(done["devices"].max())
        measured, *others = [wording.measured(point) for _, point in done.iterrows()]
        first = scaling[scaling["series"] == done["series"].iloc[0]]
        on_slurm = compared.on_slurm
        harms = [*cautions.of_disturbed(first, on_slurm=on_slurm), *cautions.of_runs(first), *harms]
        card = card_without_point(f"No answer yet: only {count_devices(most, noun)} measured.", measured)
    return Decision(
        experiment,
        devices=None,
        series=None,
        card=card,
        alternatives=others,
        options=wording.option_sentences(options),
        cautions=_sentences(harms),
        clear=False,
    )


def _sentences(harms: Sequence[cautions.Caution]) -> list[str]:
    return [sentence for _, sentence in sorted(harms, key=lambda caution: caution[0])]


def _plain(value: Any) -> float | int | None:
    """A number for JSON: None where it is not known, whole where it is."""
    if pd.isna(value):
        return None
    number = float(value)
    return int(number) if number.is_integer() else number
