"""The tables and the decision of an experiment, from the records of its runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.causes import cause_of_answer, find_causes, startup_sentences
from scalewise.analysis.conclusion import conclude
from scalewise.analysis.decision.next_action import next_action
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.jobstats import jobstats_table
from scalewise.analysis.laws import study_laws
from scalewise.analysis.origins import distinct_origins
from scalewise.analysis.queue_waits import queue_waits_table, recorded_jobs, with_measured_waits
from scalewise.analysis.report import what_if
from scalewise.analysis.rounds.choice_summary import ChoiceSummary, with_choice
from scalewise.analysis.rounds.sentences import repeat_sentences
from scalewise.analysis.splits import answer_splits, splits_table
from scalewise.analysis.tables import collect
from scalewise.plan.runs.rounds import known_rounds, requested_repeats
from scalewise.plan.runs.spending import Spending
from scalewise.plan.terminal.predictions import PREDICTION, REMARKS, latest_prediction
from scalewise.records import write_text


def compute(experiment: AnalysisSpec, runs_folder: Path, folder: Path, *, in_slurm: bool = False) -> None:
    """Write the tables and the decision of an experiment.

    Args:
        experiment: The experiment, the way the plan defined it.
        runs_folder: Holds a folder for each run.
        folder: Receives the files.
        in_slurm: Whether the runs are jobs of Slurm, which has recorded their waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec, home = experiment.spec, runs_folder.parent
    rounds = known_rounds(spec, home)
    asked = requested_repeats(spec, rounds)
    tables = collect(experiment.name, spec, runs_folder, asked=asked)
    jobs, accounting = recorded_jobs(tables.runs, runs_folder) if in_slurm else ({}, None)
    experiment = with_measured_waits(experiment, queue_waits_table(tables.runs, jobs, accounting))
    found = conclude(experiment, tables)
    decided = found.scaling
    if found.decision.series is not None:
        decided = decided[decided["series"] == found.decision.series]
    choice = None
    if spec.chooses_devices:
        spending = Spending.of(runs_folder, experiment.held_devices)
        choice = ChoiceSummary.of(experiment, rounds, found.runs, found.decision.series, spending)
    decision = found.decision if choice is None else with_choice(found.decision, choice)
    action, paste = next_action(experiment, decision.card, decided, decision.undecided, found.scaling)
    if choice is not None and choice.action():
        action, paste = choice.action(), ""
    causes = find_causes(found.runs, decided, spec.scaling, experiment.noun)
    slowdown = cause_of_answer(causes, decision.devices)
    limit = "" if slowdown is None else slowdown.sentence
    decision = replace(
        decision,
        card=replace(decision.card, limit=limit, action=action, paste=paste),
        slowdown=slowdown,
        limits=[cause.sentence for cause in causes if cause is not slowdown],
        startup=startup_sentences(decided, experiment.noun),
    )
    splits = answer_splits(experiment, found)
    named = decision.named(experiment.noun)
    answer = (found.scaling["series"] == decision.series) & (found.scaling["devices"] == decision.devices)
    scaling = found.scaling.copy()
    scaling.insert(2, "recommended", answer)
    results = ExperimentResults(
        name=experiment.name,
        folder=folder,
        decision=named.as_dict()
        | {
            "repeats": repeat_sentences(rounds),
            "choice": None if choice is None else choice.as_dict(),
            "splits": None if splits is None else asdict(splits.named(experiment.noun)),
        },
        scaling=scaling,
        runs=found.runs,
        epochs=tables.epochs,
        options=found.options,
        jobstats=jobstats_table(found.runs, accounting),
        queue_waits=queue_waits_table(found.runs, jobs, accounting),
        laws=[law.as_dict() for law in study_laws(found.runs, spec.scaling)],
        origins=distinct_origins(tables, spec),
        what_if=what_if.facts(found.scaling, found.compared, named, found.terms, choice),
        choice=choice,
    )
    results.write()
    write_text(folder / "gains.csv", found.compared.table().to_csv(index=False, lineterminator="\n"))
    write_text(folder / "splits.csv", splits_table(splits).to_csv(index=False, lineterminator="\n"))
    fingerprints = json.dumps(dict(sorted(tables.conditions.items())), indent=2) + "\n"
    write_text(folder / "fingerprints.json", fingerprints)
    if folder != home:
        # a report on what has finished stands in a folder of its own; what was predicted goes with it
        for name, latest in zip((PREDICTION, REMARKS), latest_prediction(home), strict=True):
            if latest.exists():
                write_text(folder / name, latest.read_text(encoding="utf-8"))
