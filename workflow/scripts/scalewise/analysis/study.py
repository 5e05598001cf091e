"""The analysis of a study: records become runs, runs points, points candidates, and candidates an answer.

``analyze`` is the whole way; every step is a module of this folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from scalewise.analysis.accounting import read_accounting
from scalewise.analysis.analysis_spec import MEASURED_WAITS, AnalysisSpec
from scalewise.analysis.answer import Answer, answer_of
from scalewise.analysis.blocks import with_blocks
from scalewise.analysis.candidates import Group, Terms, best_baseline, choose_for, groups
from scalewise.analysis.causes import Cause, cause_of_answer, find_causes
from scalewise.analysis.cautions import Case
from scalewise.analysis.laws import LAW_NAMES, serial_fraction
from scalewise.analysis.options import option_table
from scalewise.analysis.origins import origins_of
from scalewise.analysis.points import (
    Place,
    Point,
    Points,
    choose_clock,
    known_columns,
    scaling_table,
    work_of,
)
from scalewise.analysis.queue_waits import jobs_of_runs, median_waits
from scalewise.analysis.round_texts import round_sentences
from scalewise.analysis.runs import NOT_RUN, Tables, collect
from scalewise.analysis.words import interval_text
from scalewise.config.experiment import LIMITS, AnyExperiment
from scalewise.plan.plan_file import Plan, runs_in_slurm
from scalewise.plan.rounds import is_settled, known_rounds, requested_repeats
from scalewise.plan.runs import Options, points_by_series, series_name
from scalewise.records import RECORD, write_text

ANSWER, PROVENANCE = "answer.json", "provenance.json"


@dataclass(frozen=True)
class Part:
    """An experiment on one partition, or on the only one.

    Args:
        partition: Name of the partition; empty if the experiment compares none.
        experiment: The experiment as the plan defined it for this partition.
        runs_folder: Holds a folder for each run.
        price: Price of a device for an hour, or its billing weight; None if unknown.
        in_slurm: Whether the runs are jobs of Slurm, which has recorded their waits.
        unit: Unit of costs: ``device-hours``, ``price`` or ``billing``.
        left_out: Sentences on device counts that a partition cannot have.
    """

    partition: str
    experiment: AnalysisSpec
    runs_folder: Path = Path()
    price: float | None = 1.0
    in_slurm: bool = False
    unit: str = "device-hours"
    left_out: Sequence[str] = ()


@dataclass(frozen=True)
class Analysis:
    """The tables and the answer of an experiment.

    Args:
        runs: One row for each planned run: runs.csv.
        epochs: One row for each epoch of a run, or each recorded loss: epochs.csv.
        scaling: One row for each point: scaling.csv.
        options: One row for each value of a swept option: options.csv.
        answer: The answer.
        law: A line on the serial fraction; empty if it cannot be fitted.
        origins: Values of each part of the runs' provenance, by its name.
        case: The configured training, with all that its answer rests on.
    """

    runs: pd.DataFrame
    epochs: pd.DataFrame
    scaling: pd.DataFrame
    options: pd.DataFrame
    answer: Answer
    law: str
    case: Case
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)


def parts_of(plan: Plan, name: str, results: Path) -> list[Part]:
    """Return an experiment on each of its partitions.

    Args:
        plan: The study.
        name: Name of the experiment.
        results: Folder of all experiments.
    """
    parts = []
    for partition, definition in plan["experiments"][name]["definitions"].items():
        facts = json.loads(definition)
        parts.append(
            Part(
                partition=partition,
                experiment=AnalysisSpec.from_json(definition),
                runs_folder=results / name / "runs",
                price=facts["price"] if partition else 1.0,
                in_slurm=runs_in_slurm(plan),
                unit="price" if partition else "device-hours",
                left_out=facts.get("left_out", ()),
            )
        )
    return parts


def analyze(question: str, parts: Sequence[Part], folder: Path, *, total_times: bool = False) -> Analysis:
    """Analyze an experiment, and write its tables and its answer.

    Args:
        question: Name of the experiment.
        parts: The experiment on each of its partitions; one without partitions.
        folder: Receives the files.
        total_times: A computing centre demands the times of whole runs.
    """
    found = read_and_conclude(question, parts, total_times=total_times)
    write(found, folder)
    return found


def read_and_conclude(question: str, parts: Sequence[Part], *, total_times: bool = False) -> Analysis:
    """Answer an experiment from the records of its runs; see ``analyze``."""
    tables = [collect(part.experiment.name, part.experiment.spec, part.runs_folder) for part in parts]
    waited = [with_waits(part, table) for part, table in zip(parts, tables, strict=True)]
    found = conclude(question, waited, tables, total_times=total_times)
    spent, settled = [], True
    for part in parts:
        spec = part.experiment.spec
        rounds = known_rounds(spec, part.runs_folder.parent)
        spent += round_sentences(rounds, requested_repeats(spec, []))
        settled = settled and is_settled(spec, rounds)
    has_ended = settled and all((parts[0].runs_folder / run / RECORD).exists() for run in found.runs["run"])
    answer = replace(found.answer, spent=" ".join(dict.fromkeys(spent)), has_ended=has_ended)
    if not settled or NOT_RUN in set(found.runs["outcome"]):
        to_do = "The study has not ended. If snakemake no longer runs, give the same command again."
        answer = replace(answer, to_do=to_do, command="")
    return replace(found, answer=answer)


def with_waits(part: Part, table: Tables) -> Part:
    """Return a part with the usual waits of its jobs in the queue."""
    if not part.in_slurm:
        return part
    jobs = jobs_of_runs(table.runs)
    accounting = read_accounting(job for of_run in jobs.values() for job in of_run)
    minutes = median_waits(table.runs, jobs, accounting)
    source = (
        MEASURED_WAITS if minutes else accounting.reason or "Slurm's accounting has no record of the jobs"
    )
    return replace(part, experiment=replace(part.experiment, queue_minutes=minutes, queue_source=source))


def conclude(
    name: str,
    parts: Sequence[Part],
    tables: Sequence[Tables],
    *,
    total_times: bool = False,
    options: Mapping[str, Options] | None = None,
) -> Analysis:
    """Answer an experiment from the tables of its runs.

    Args:
        name: Name of the experiment.
        parts: The experiment on each of its partitions.
        tables: The measurements of each of them.
        total_times: A computing centre demands the times of whole runs.
        options: Options of each series; by default those that the experiment sweeps.
    """
    spec, first = parts[0].experiment.spec, parts[0].experiment
    runs = pd.concat(
        [
            with_blocks(known_columns(table.runs)).assign(partition=part.partition)
            for part, table in zip(parts, tables, strict=True)
        ],
        ignore_index=True,
    )
    done = runs[runs["outcome"] == "completed"]
    clock = choose_clock(spec, done, total_times=total_times)
    points = Points(points_of(runs, parts), clock, work_of(spec, done), parts[0].unit)
    terms, not_judged = terms_of(spec, clock, options)
    programs = [sentence for table in tables for sentence in table.cautions]
    sources = [part.experiment.queue_source for part in parts if part.in_slurm]
    waits = next(filter(None, sources), "")
    left_out = [sentence for part in parts for sentence in part.left_out]
    cases = []
    for group in groups(points, terms):
        choice, found = choose_for(points, group, terms)
        cases.append(
            Case(
                experiment=replace(first, name=name),
                points=points,
                group=group,
                terms=terms,
                choice=choice,
                candidates=found,
                programs=[*dict.fromkeys([*programs, *left_out])],
                not_judged=not_judged,
                waits=waits,
                runs=runs,
            )
        )
    case = cases[0]
    best_baselines = baselines(points, [each.group for each in cases])
    amounts = {candidate.key: candidate.amounts for each in cases for candidate in each.candidates}
    scaling = scaling_table(points, best_baselines, case.best, amounts)
    cause = why_it_stops(case, done, scaling)
    limit = "" if cause is None else f"{cause.sentence} Optional: {cause.advice}"
    epochs = [
        table.epochs.assign(partition=part.partition) for part, table in zip(parts, tables, strict=True)
    ]
    return Analysis(
        runs=runs,
        epochs=pd.concat(epochs, ignore_index=True),
        scaling=scaling,
        options=option_table(points, terms.options, spec.swept),
        answer=answer_of(case, cases[1:], limit),
        law=law_of(case),
        case=case,
        origins=origins_of(tables, spec),
    )


def law_of(case: Case) -> str:
    """Return a line on the serial fraction of the answer's series; empty if it cannot be fitted."""
    place, mode = case.best or case.group[0], case.experiment.spec.scaling
    rates = {
        each.devices: [1 / seconds for seconds in case.points.time(each).values]
        for each in case.group
        if each[:2] == place[:2]
    }
    fraction = serial_fraction(rates, mode)
    if fraction is None:
        return ""
    text = interval_text(fraction, "{:.3f}".format)
    return f"{LAW_NAMES[mode]}'s law: serial fraction {text}. It decides nothing."


def why_it_stops(case: Case, done: pd.DataFrame, scaling: pd.DataFrame) -> Cause | None:
    """Return what slows the chosen point, or the next larger one of its series; None if nothing is shown."""
    place = case.best or case.group[0]
    runs, rows = (
        table[(table["partition"] == place.partition) & (table["series"] == place.series)]
        for table in (done, scaling)
    )
    found = find_causes(runs, rows, case.experiment.spec.scaling, case.noun)
    return cause_of_answer(found, None if case.best is None else case.best.devices)


def points_of(runs: pd.DataFrame, parts: Sequence[Part]) -> dict[Place, Point]:
    """Return the points of an experiment: by partition, series and devices, as configured."""
    found = {}
    for part in parts:
        own = runs[runs["partition"] == part.partition]
        for series, of_series in own.groupby("series", sort=False):
            for _, planned in of_series.groupby("devices"):
                devices = int(planned["devices"].iloc[0])
                place = Place(part.partition, str(series), devices)
                found[place] = Point(
                    place=place,
                    planned=planned,
                    runs=planned[planned["outcome"] == "completed"],
                    billed=part.experiment.billed_devices.get(devices, float(devices)),
                    price=part.price,
                    queue_minutes=part.experiment.queue_minutes.get(devices),
                )
    return found


def terms_of(
    spec: AnyExperiment, clock: str, options: Mapping[str, Options] | None = None
) -> tuple[Terms, str]:
    """Return the terms of an experiment, and a sentence on criteria that its runs cannot judge."""
    options = options or {series_name(each): each for each in points_by_series(spec)}
    of_runs = frozenset(LIMITS)
    judgeable = frozenset({"min_efficiency"}) | (of_runs if clock == "runs" else frozenset())
    terms = Terms(spec.decision, options, spec.trainings or 1, judgeable)
    given = sorted(name for name in of_runs - judgeable if getattr(spec.decision, name) is not None)
    if not given:
        return terms, ""
    return (
        terms,
        f"{' and '.join(given)} cannot be judged: no run knows its whole time. min_efficiency decides.",
    )


def baselines(points: Points, all_groups: Sequence[Group]) -> dict[Place, Place]:
    """Return the baseline of each point's efficiency: the best of the fewest devices that trains the same."""
    return {
        place: base
        # an accepted point is in two groups, of which the first decides
        for group in reversed(all_groups)
        for place in group
        if (base := best_baseline(points, group, place.partition)) is not None
    }


def write(found: Analysis, folder: Path) -> None:
    """Write the tables and the answer of an experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"runs": found.runs, "epochs": found.epochs, "scaling": found.scaling, "options": found.options}
    for name, table in tables.items():
        write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    write_text(folder / ANSWER, found.answer.to_json())
    provenance = {"law": found.law, **found.origins}
    write_text(folder / PROVENANCE, json.dumps(provenance, indent=2) + "\n")
