"""A round of a study: read what was measured, and request the runs that are needed next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.candidates import choose_for
from scalewise.analysis.conditions import NEVER_MORE, made_with
from scalewise.analysis.next_runs import Findings, doubts, next_runs
from scalewise.analysis.runs import collect
from scalewise.analysis.study import Analysis, Part, conclude, with_waits
from scalewise.config.experiment import Repeats
from scalewise.plan.rounds import (
    Round,
    device_hours,
    known_rounds,
    part_prefix,
    requested_repeats,
    round_file,
    spent_device_hours,
)
from scalewise.plan.run_definition import parse_run_name
from scalewise.plan.runs import partition_of, points, points_by_series, series_name, settings_of
from scalewise.records import RECORD, RecordError, read_run, write_json


def judge_round(definition: str, number: int, folder: Path, *, in_slurm: bool = False) -> Round:
    """Decide which runs an experiment needs next, and write the round into its folder.

    Args:
        definition: ``Part.definition``.
        number: Number of the round, from 1.
        folder: Results of the experiment.
        in_slurm: Whether the runs are jobs of Slurm, which has recorded their waits.

    Raises:
        RecordError: A record is damaged.
    """
    experiment = AnalysisSpec.from_json(definition)
    name, spec, runs_folder = experiment.name, experiment.spec, folder / "runs"
    if not spec.has_rounds:
        raise RecordError(f"{name} has {spec.repeats.max} repeats of every point: there is nothing to judge.")
    repeats = requested_repeats(spec, known_rounds(spec, folder)[: number - 1])
    limits = Limits()
    if spec.chooses_devices:
        choice, budget = json.loads(definition)["choice"], spec.budget.device_hours if spec.budget else None
        repeats = _with_earlier_runs(experiment, choice, repeats, runs_folder)
        spent = spent_device_hours(runs_folder, experiment.held_devices, partition_of(spec))
        limits = Limits(budget, spent, choice["run_minutes"], experiment.held_devices)
    tables = collect(name, spec, runs_folder, asked=repeats)
    part = with_waits(Part("", experiment, runs_folder, in_slurm=in_slurm), tables)
    judged = request_runs(experiment, number, repeats, conclude(name, [part], [tables]), limits)
    path = round_file(folder, number, part_prefix(spec))
    path.parent.mkdir(exist_ok=True)
    write_json(path, judged)
    return judged


@dataclass
class Limits:
    """A budget, and what is spent of it.

    A run that has not been made counts with all the time that its limit allows, on all devices that its
    allocation holds: what it may cost, whatever happens. No measured run bounds the next one.

    Args:
        budget: The most that the experiment may spend, in device-hours; None for no limit.
        spent: Device-hours of the runs so far, and the most that the runs of this round may take.
        run_minutes: Time limit of a run; None without a budget.
        held_devices: Devices that an allocation holds, by device count, if they are more than a run uses.
    """

    budget: float | None = None
    spent: float = 0.0
    run_minutes: int | None = None
    held_devices: Mapping[int, float] = field(default_factory=dict)

    def allow(self, devices: int, runs: int = 1) -> bool:
        """Return whether further runs cannot exceed the budget."""
        return self.budget is None or self.spent + self._most(devices, runs) <= self.budget

    def pay(self, devices: int, runs: int) -> int:
        """Reserve as many of some runs as cannot exceed the budget, and return their number."""
        while runs and not self.allow(devices, runs):
            runs -= 1
        self.spent += self._most(devices, runs)
        return runs

    def _most(self, devices: int, runs: int) -> float:
        return runs * device_hours(60 * (self.run_minutes or 0), devices, self.held_devices)


def request_runs(
    experiment: AnalysisSpec, number: int, repeats: Mapping[str, int], found: Analysis, limits: Limits
) -> Round:
    """Return the round that follows from the results so far.

    Args:
        experiment: The experiment, the way the plan defined it.
        number: Number of the round, from 1.
        repeats: Repeats that there are or that were requested, by the name of each point.
        found: The analysis of these runs.
        limits: The budget.
    """
    spec, spent = experiment.spec, limits.spent
    requested, over_budget, answers = dict(repeats), [], {}
    of_point = found.runs["run"].map(lambda run: parse_run_name(run)[0])
    for options, series in points_by_series(spec).items():
        names = {point.world_size: point.name for point in series}
        made = {devices: repeats[point] for devices, point in names.items()}
        findings = judge(found, series_name(options))
        answers[series_name(options)] = findings.best
        wanted = doubts(made, findings, spec.repeats)
        paid = wanted
        if spec.chooses_devices:
            counts = _possible_counts(found.runs, series_name(options), sorted(names))
            rule = found.case.terms.judged
            wanted = next_runs(counts, made, findings, rule, spec.repeats)
            paid = next_runs(counts, made, findings, rule, spec.repeats, limits.allow)
        for devices, point in names.items():
            more = in_place_of_disturbed(found.runs[of_point == point], spec.repeats)
            if more:
                wanted[devices] = paid[devices] = made[devices] + more
        for devices in sorted({*wanted, *paid}):
            runs = limits.pay(devices, paid.get(devices, made[devices]) - made[devices])
            requested[names[devices]] += runs
            if made[devices] + runs < wanted.get(devices, 0):
                over_budget.append(names[devices])
    return Round(
        experiment=experiment.name,
        number=number,
        rule=spec.repeats,
        chooses=spec.chooses_devices,
        repeats=dict(repeats),
        requested=requested,
        answers=answers,
        over_budget=over_budget,
        spent_device_hours=spent if spec.chooses_devices else None,
        budget_device_hours=limits.budget,
    )


def judge(found: Analysis, series: str) -> Findings:
    """Return what the next runs of a series depend on.

    In a study that chooses its device counts each series has its own answer; otherwise only the series of the
    answer gets more repeats.

    Args:
        found: The analysis of the runs so far.
        series: Name of the series.
    """
    case = found.case
    group = [place for place in case.points.all if place.series == series]
    if case.experiment.spec.chooses_devices:
        choice, candidates = choose_for(case.points, group, case.terms)
    elif found.answer.series in {series, None}:
        choice, candidates = case.choice, list(case.candidates)
    else:
        return Findings(None, {})
    places = {place.devices: place for place in group}
    best = None if choice.best is None or choice.best.key not in group else choice.best.key.devices
    seconds = {
        devices: case.points.time(place).mean
        for devices, place in places.items()
        if case.points.time(place).values
    }
    base = min(seconds, default=None)
    latest = case.terms.limit("deadline_minutes")
    wanted: dict[int, int] = {}
    for doubt in choice.doubts:
        # a ratio needs as many runs of both sides
        relative = doubt.check is not None and doubt.check.criterion == "min_efficiency"
        other = best if doubt.check is None else base if relative else None
        for devices in (doubt.candidate.key.devices, other):
            if devices is not None and doubt.repeats is not None and doubt.candidate.key in group:
                wanted[devices] = max(doubt.repeats, wanted.get(devices, 0))
    # a count that scales ideally takes as many device-seconds as the most efficient one
    least = min((devices * mean for devices, mean in seconds.items()), default=0.0)
    return Findings(
        best=best,
        speeds={devices: 1 / mean for devices, mean in seconds.items()},
        misses=frozenset(
            each.key.devices for each in candidates if each.key in group and not each.may_be_met
        ),
        fewest=0.0 if latest is None else least / (60 * latest) / (1 + case.terms.rule.min_gain),
        wanted=wanted,
    )


def in_place_of_disturbed(runs: pd.DataFrame, rule: Repeats) -> int:
    """Return the runs to add to a point because too few of its runs were undisturbed.

    At most ``min`` in all: a machine that is never quiet is not waited for.

    Args:
        runs: A row for each repeat requested so far.
        rule: Fewest and most repeats.
    """
    disturbed = runs["disturbance"] != ""
    quiet = int(((runs["outcome"] == "completed") & ~disturbed).sum())
    room = min(2 * rule.min, rule.max) - len(runs)
    return max(min(rule.min - quiet, int(disturbed.sum()), room), 0)


def _of_series(table: pd.DataFrame, series: str) -> pd.DataFrame:
    return table[table["series"] == series]


def _possible_counts(runs: pd.DataFrame, series: str, counts: list[int]) -> list[int]:
    """Return the device counts but those that cannot be trained: another try would fail, too."""
    outcomes = _of_series(runs, series).groupby("devices")["outcome"].agg(set)
    return [devices for devices in counts if not outcomes.get(devices, {""}) <= NEVER_MORE]


def _with_earlier_runs(
    experiment: AnalysisSpec, choice: Mapping[str, Any], repeats: Mapping[str, int], runs_folder: Path
) -> dict[str, int]:
    """Return the repeats of each point that were requested, or are there from an earlier study.

    Args:
        experiment: The experiment, the way the plan defined it.
        choice: Shape and launcher of each point, which show whether a run is the same.
        repeats: Repeats that were requested, by the name of each point.
        runs_folder: Holds a folder for each run.
    """
    spec, there = experiment.spec, dict(repeats)
    for point in points(spec):
        settings = settings_of(spec, point.options)
        place = choice["places"][point.name]
        for repeat in range(there[point.name] + 1, spec.repeats.max + 1):
            folder = runs_folder / point.run_name(repeat)
            if not (folder / RECORD).exists():
                break
            try:
                made = read_run(folder).definition
            except RecordError:
                break
            if [str(made.shape), made.launcher] != place or not made_with(made, settings):
                break
            there[point.name] = repeat
    return there
