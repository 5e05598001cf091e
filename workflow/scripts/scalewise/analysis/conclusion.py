"""The decision of an experiment and what it rests on, from the tables of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from scalewise.analysis.analysis_spec import STATED_WAITS, UNREADABLE, AnalysisSpec
from scalewise.analysis.comparison.confounding import confounding_sentences, trend_sentences
from scalewise.analysis.comparison.gains import Gains, gains
from scalewise.analysis.comparison.own_intervals import own_interval_notes
from scalewise.analysis.conditions import origin_cautions
from scalewise.analysis.decision.card import CPUS_OPEN, SEE_CAUTIONS
from scalewise.analysis.decision.cpus import KEY, answer_cpus
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.decision.selection import candidates, with_best_baseline
from scalewise.analysis.disturbed import resumption_notes
from scalewise.analysis.origins import program_cautions
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.analysis.tables import Tables
from scalewise.plan.config.experiment import AnyExperiment, DecisionRule
from scalewise.plan.formatting import Goal
from scalewise.plan.runs.runs import Options, points_by_series, series_name


@dataclass(frozen=True)
class Terms:
    """All that a decision follows from beside the tables.

    Args:
        rule: The criteria of the configuration, also those that could not be judged.
        options: Options of each series, by its name.
        target: The goal that counts as trained; None where there is none.
        queue_minutes: Usual wait in the queue by device count; empty if it is unknown.
        queue_source: Source of that wait, a clause.
        whole_runs: Runs went to their end; where steps end them nobody knows how long a whole one takes.
        chooses_devices: The study measured those device counts that its own criteria needed.
        confounded: Sentences on what changed together with the devices.
    """

    rule: DecisionRule
    options: Mapping[str, Options] = field(default_factory=dict)
    target: Goal | None = None
    queue_minutes: Mapping[int, float] = field(default_factory=dict)
    queue_source: str = STATED_WAITS
    whole_runs: bool = True
    chooses_devices: bool = False
    confounded: Sequence[str] = ()


@dataclass(frozen=True)
class Conclusion:
    """The decision, and every table that it was made from.

    Args:
        runs: One row for each planned run, those under other conditions left out.
        compared: The ratios of all pairs of points.
        scaling: One row for each series and device count, with what is billed.
        options: One row for each value of a swept option and device count.
        decision: The answer.
        terms: All that it follows from beside the tables.
    """

    runs: pd.DataFrame
    compared: Gains
    scaling: pd.DataFrame
    options: pd.DataFrame
    decision: Decision
    terms: Terms


def conclude(experiment: AnalysisSpec, tables: Tables) -> Conclusion:
    """Decide on an experiment.

    Args:
        experiment: The experiment, the way the plan defined it.
        tables: The measurements so far.
    """
    spec = experiment.spec
    runs = known_columns(tables.runs, tables.conditions)
    compared = gains(runs)
    scaling = as_billed(
        scaling_table(runs, spec.scaling, tables.conditions, compared), experiment.billed_devices
    )
    options = option_table(runs, spec.swept)
    rule, not_judged = judgeable(spec)
    options_of = {series_name(each): each for each in points_by_series(spec)}
    groups = candidates(
        scaling,
        rule,
        compared,
        options=options_of,
        target=experiment.target,
        queue_minutes=experiment.queue_minutes,
    )
    scaling = with_best_baseline(scaling, groups)
    confounded = confounding_sentences(runs)
    decision = decide(
        experiment.name,
        scaling,
        options,
        rule,
        compared=compared,
        target=experiment.target,
        confounded=confounded,
        differences=[
            *(f"A run is left out: {why}" for why in runs.loc[runs["outcome"] == UNREADABLE, "reason"]),
            *origin_cautions(tables.origins),
            *trend_sentences(runs),
            *resumption_notes(runs),
            *own_interval_notes(runs),
        ],
        of_programs=program_cautions(tables.programs),
        queue_minutes=experiment.queue_minutes,
        queue_source=experiment.queue_source,
        options_of=options_of,
        single_runs_suffice=spec.chooses_devices,
        whole_runs=spec.steps is None,
        noun=experiment.noun,
    )
    if KEY in spec.swept:
        place = (decision.series, decision.devices)
        cpus = answer_cpus(
            scaling,
            compared,
            options_of,
            rule.min_gain,
            answer=None if place[0] is None or place[1] is None else (place[0], place[1]),
        )
        card = decision.card
        if cpus.per_device is None and card.certainty == "Clear":
            card = replace(card, certainty="Likely", reason=CPUS_OPEN)  # the device count stays clear
        decision = replace(decision, cpus=cpus, card=card)
    if not_judged:
        decision = replace(
            decision,
            cautions=[not_judged, *decision.cautions],
            card=decision.card.in_doubt(f"A criterion cannot be judged: {SEE_CAUTIONS}"),
            clear=False,
        )
    terms = Terms(
        rule=spec.decision,
        options=options_of,
        target=experiment.target,
        queue_minutes=experiment.queue_minutes,
        queue_source=experiment.queue_source,
        whole_runs=spec.steps is None,
        chooses_devices=spec.chooses_devices,
        confounded=confounded,
    )
    return Conclusion(runs, compared, scaling, options, decision, terms)


def decide_on_series(experiment: AnalysisSpec, found: Conclusion, series: str) -> Decision:
    """The decision on the points of one series alone.

    Args:
        experiment: The experiment, the way the plan defined it.
        found: The conclusion on all of its series.
        series: Name of the series.
    """
    rule, _ = judgeable(experiment.spec)
    table = found.scaling[found.scaling["series"] == series]
    return decide(
        experiment.name,
        table,
        found.options.iloc[:0],
        relative_to_own(rule, table),
        compared=found.compared,
        target=experiment.target,
        queue_minutes=experiment.queue_minutes,
        queue_source=experiment.queue_source,
        whole_runs=experiment.spec.steps is None,
        noun=experiment.noun,
    )


def relative_to_own(rule: DecisionRule, table: pd.DataFrame) -> DecisionRule:
    """Return the rule with the efficiency relative to a series' own baseline, for deciding on it alone.

    Args:
        rule: The criteria, whose efficiency is relative to the best baseline.
        table: Rows of one series in the scaling table.
    """
    base = table.loc[table["devices"] == table["baseline_devices"], "efficiency_to_best"].dropna()
    if rule.min_efficiency is None or base.empty:
        return rule
    return rule.model_copy(update={"min_efficiency": rule.min_efficiency / float(base.iloc[0])})


def judgeable(spec: AnyExperiment) -> tuple[DecisionRule, str]:
    """The rule without the criteria that steps make impossible to judge, and a sentence on these.

    A run that steps end is no whole one: how long that takes, and what it costs, nobody knows.
    """
    rule = spec.decision
    given = [name for name in ("deadline_minutes", "max_device_hours") if getattr(rule, name) is not None]
    if spec.steps is None or not given:
        return rule, ""
    rest = rule.model_copy(update=dict.fromkeys(given))
    instead = "the knee decides" if rest.without_criterion else "min_efficiency alone decides"
    return rest, (
        f"{' and '.join(given)} cannot be judged: steps ({spec.steps}) ends every run, and how long a whole "
        f"one takes is not known. {instead[0].upper()}{instead[1:]} instead; without steps, whole runs are "
        "made."
    )
