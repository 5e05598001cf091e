"""A round of a study: read what was measured, and request the runs that are needed next."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.comparable_runs import NEVER_MORE
from scalewise.analysis.comparison.fingerprint import made_with
from scalewise.analysis.conclusion import Conclusion, conclude, decide_on_series, judgeable, relative_to_own
from scalewise.analysis.decision.criteria import may_meet
from scalewise.analysis.decision.selection import candidates
from scalewise.analysis.next_runs import Findings, doubts, next_runs
from scalewise.analysis.queue_waits import queue_waits_table, recorded_jobs, with_measured_waits
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.rounds import Round, known_rounds, requested_repeats, round_file
from scalewise.plan.runs.run_definition import parse_run_name
from scalewise.plan.runs.runs import points, points_by_series, series_name, settings_of
from scalewise.plan.runs.spending import Spending, device_hours
from scalewise.records import SUMMARY, RecordError, read_summary, write_json


def judge_round(definition: str, number: int, folder: Path, *, in_slurm: bool = False) -> Round:
    """Decide which runs an experiment needs next, and write the round into its folder.

    Args:
        definition: ``PlannedExperiment.rounds_definition``.
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
        choice = json.loads(definition)["choice"]
        repeats = _with_earlier_runs(experiment, choice, repeats, runs_folder)
        spending = Spending.of(runs_folder, experiment.held_devices)
        limits = Limits(
            choice["budget"], spending.device_hours, choice["run_minutes"], experiment.held_devices
        )
    tables = collect(name, spec, runs_folder, asked=repeats)
    if in_slurm and spec.decision.deadline_minutes is not None:
        waits = queue_waits_table(tables.runs, *recorded_jobs(tables.runs, runs_folder))
        experiment = with_measured_waits(experiment, waits, [each.world_size for each in points(spec)])
    judged = request_runs(experiment, number, repeats, conclude(experiment, tables), limits)
    path = round_file(folder, number)
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
    experiment: AnalysisSpec, number: int, repeats: Mapping[str, int], found: Conclusion, limits: Limits
) -> Round:
    """Return the round that follows from the results so far.

    Args:
        experiment: The experiment, the way the plan defined it.
        number: Number of the round, from 1.
        repeats: Repeats that there are or that were requested, by the name of each point.
        found: The conclusion from these runs.
        limits: The budget.
    """
    spec, spent = experiment.spec, limits.spent
    requested, over_budget, answers = dict(repeats), [], {}
    of_point = found.runs["run"].map(lambda run: parse_run_name(run)[0])
    for options, series in points_by_series(spec).items():
        names = {point.world_size: point.name for point in series}
        made = {devices: repeats[point] for devices, point in names.items()}
        findings = judge(experiment, found, series_name(options))
        answers[series_name(options)] = findings.best
        wanted = doubts(made, findings, spec.repeats)
        paid = wanted
        if spec.chooses_devices:
            counts = _possible_counts(found.runs, series_name(options), sorted(names))
            rule = relative_to_own(spec.decision, _of_series(found.scaling, series_name(options)))
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


def judge(experiment: AnalysisSpec, found: Conclusion, series: str) -> Findings:
    """Return what the next runs of a series depend on, by the decision on this series.

    Args:
        experiment: The experiment, the way the plan defined it.
        found: The conclusion on all of its series.
        series: Name of the series.
    """
    table, decision = _of_series(found.scaling, series), found.decision
    if experiment.spec.chooses_devices:
        decision = decide_on_series(experiment, found, series)
    elif decision.series != series:
        return Findings(None, {})
    rule = relative_to_own(judgeable(experiment.spec)[0], table)
    rated = candidates(
        table, rule, found.compared, target=experiment.target, queue_minutes=experiment.queue_minutes
    )[0].points
    if rated.empty:  # a single count, which cannot be rated: with a deadline, more devices may keep it
        only = {int(devices): 1.0 for devices in table.loc[table["n"] > 0, "devices"]}
        return Findings(None, only, frozenset(only if rule.deadline_minutes is not None else ()))
    runs = dict(zip(table["devices"].astype(int), table["n"].astype(int), strict=True))
    return Findings(
        best=decision.devices,
        speeds=dict(zip(rated["devices"].astype(int), rated["gain"].astype(float), strict=True)),
        misses=frozenset(
            int(point["devices"])
            for _, point in rated.iterrows()
            # the bound that a deadline is compared with needs repeats
            if point["misses"] and not (point["n"] < ENOUGH_REPEATS and may_meet(point, rule))
        ),
        wanted={devices: runs[devices] + more for devices, more in decision.undecided.items()},
    )


def in_place_of_disturbed(runs: pd.DataFrame, rule: Repeats) -> int:
    """Return the runs to add to a point because too few of its runs were undisturbed.

    At most ``min`` in all: a machine that is never quiet is not waited for.

    Args:
        runs: A row for each repeat requested so far.
        rule: Fewest and most repeats.
    """
    if "disturbance" not in runs:
        return 0
    disturbed = runs["disturbance"].astype(object).fillna("") != ""
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
        choice: Shapes and launchers, which show whether a run is the same.
        repeats: Repeats that were requested, by the name of each point.
        runs_folder: Holds a folder for each run.
    """
    spec, there = experiment.spec, dict(repeats)
    for point in points(spec):
        settings = settings_of(spec, point.options)
        place = (Shape.parse(choice["shapes"][str(point.devices)]), choice["launchers"][point.name])
        for repeat in range(there[point.name] + 1, spec.max_repeats + 1):
            folder = runs_folder / point.run_name(repeat)
            if not (folder / SUMMARY).exists():
                break
            try:
                made = read_summary(folder).definition
            except RecordError:
                break
            if (made.shape, made.launcher) != place or not made_with(made, settings):
                break
            there[point.name] = repeat
    return there
