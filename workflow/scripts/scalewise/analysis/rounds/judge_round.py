"""The judgement of a round: what is known of an experiment, and what it measures next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.comparison.gains import Measure, speeds
from scalewise.analysis.conclusion import Conclusion, conclude, decide_on_series, relative_to_own
from scalewise.analysis.conditions import NEVER_MORE, made_with
from scalewise.analysis.queue_waits import queue_waits_table, recorded_jobs, with_measured_waits
from scalewise.analysis.rounds.chosen_devices import Wanted, next_runs
from scalewise.analysis.rounds.contenders import AIMS, Contender, chance_to_win
from scalewise.analysis.rounds.overhead_model import PredictedEfficiency
from scalewise.analysis.rounds.possible_speeds import SEED, Candidate, PossibleSpeeds, SeriesSoFar
from scalewise.analysis.rounds.repeats import in_place_of_disturbed, judge
from scalewise.analysis.statistics.intervals import ENOUGH_REPEATS, geometric_interval
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.rounds import (
    OTHER_ANSWER,
    JudgedPoint,
    Round,
    Verdict,
    known_rounds,
    requested_repeats,
    round_file,
)
from scalewise.plan.runs.run_definition import parse_run_name
from scalewise.plan.runs.runs import (
    Options,
    global_batch,
    points,
    points_by_series,
    series_name,
    settings_of,
)
from scalewise.plan.runs.spending import Spending, device_hours
from scalewise.plan.terminal.predictions import read_predictions
from scalewise.records import SUMMARY, AllReduceMeasurement, RecordError, read_summary, write_json


def judge_round(
    definition: str,
    number: int,
    folder: Path,
    all_reduces: Sequence[AllReduceMeasurement] = (),
    sisters: Mapping[str, str] = MappingProxyType({}),
    *,
    in_slurm: bool = False,
) -> Round:
    """Judge an experiment by the runs that are there, and write the round into its folder.

    Args:
        definition: ``PlannedExperiment.rounds_definition``.
        number: Number of the round, from 1.
        folder: Results of the experiment.
        all_reduces: Those whose cost a budget counts, of the sisters too.
        sisters: The definitions of the same experiment on other partitions, by their names.
        in_slurm: Whether the runs are jobs of Slurm, which has recorded their waits.

    Raises:
        RecordError: A record is damaged.
    """
    experiment = AnalysisSpec.from_json(definition)
    name, spec = experiment.name, experiment.spec
    if not spec.has_rounds:
        raise RecordError(f"{name} has {spec.repeats.max} repeats of every point: there is nothing to judge.")
    if spec.chooses_devices:
        # no other answer of a round depends on the wait in the queue
        by_waits = spec.decision.deadline_minutes is not None or (
            bool(sisters) and spec.decision.by in (None, "soonest")
        )
        in_slurm = in_slurm and by_waits
        others = [
            StudySoFar.before(number, text, folder.with_name(sister), in_slurm=in_slurm)
            for sister, text in sisters.items()
        ]
        study = StudySoFar.before(number, definition, folder, all_reduces, in_slurm=in_slurm)
        judged = choose(study, number, others)
    else:
        rule = spec.repeats
        asked = requested_repeats(spec, known_rounds(spec, folder)[: number - 1])
        tables = collect(name, spec, folder / "runs", asked=asked)
        by_decision = rule.until_interval is None
        decision = conclude(experiment, tables).decision if by_decision else None
        judged = judge(name, number, tables.runs, rule, decision)
    path = round_file(folder, number)
    path.parent.mkdir(exist_ok=True)
    write_json(path, judged)
    return judged


@dataclass(frozen=True)
class ChoiceTerms:
    """Facts of a choice of device counts that no other analysis needs.

    Args:
        shapes: The shape of each device count, the latter the way the configuration gives it.
        launchers: The program that starts the ranks of each point, by the point's name.
        run_minutes: Time limit of a run; None without a budget.
        budget: The most device-hours that the study may spend, as billed; None for no limit.
        price: Price of a billed device for one hour; 1 where none is known.
    """

    shapes: Mapping[str, Shape]
    launchers: Mapping[str, str]
    run_minutes: int | None = None
    budget: float | None = None
    price: float = 1.0

    @classmethod
    def from_json(cls, text: str) -> ChoiceTerms:
        """Read ``PlannedExperiment.rounds_definition``."""
        values = json.loads(text)
        choice, budget = values["choice"], values["spec"].get("budget", {})
        shapes = {devices: Shape.parse(shape) for devices, shape in choice["shapes"].items()}
        terms = (choice["run_minutes"], budget.get("device_hours"), choice.get("price", 1.0))
        return cls(shapes, choice["launchers"], *terms)


@dataclass(frozen=True)
class StudySoFar:
    """A study that chooses its device counts, with what is known of it.

    Args:
        experiment: The experiment, the way the plan defined it.
        terms: Shapes, launchers and the budget.
        asked: Repeats that are there or were requested, by the name of each point.
        found: The conclusion from the runs so far.
        spending: Cost of these runs.
        folder: Results of the experiment, which may hold a prediction.
    """

    experiment: AnalysisSpec
    terms: ChoiceTerms
    asked: Mapping[str, int]
    found: Conclusion
    spending: Spending
    folder: Path

    @classmethod
    def before(
        cls,
        number: int,
        definition: str,
        folder: Path,
        all_reduces: Sequence[AllReduceMeasurement] = (),
        *,
        in_slurm: bool,
    ) -> StudySoFar:
        """Read a study as the rounds before one have left it.

        Args:
            number: Number of that round, from 1.
            definition: ``PlannedExperiment.rounds_definition``.
            folder: Results of the experiment.
            all_reduces: Those whose cost a budget counts.
            in_slurm: Whether the waits of its jobs count that Slurm has recorded.

        Raises:
            RecordError: A record is damaged.
        """
        experiment, terms = AnalysisSpec.from_json(definition), ChoiceTerms.from_json(definition)
        spec, runs = experiment.spec, folder / "runs"
        asked = requested_repeats(spec, known_rounds(spec, folder)[: number - 1])
        asked = _with_those_found(experiment, terms, asked, runs)
        tables = collect(experiment.name, spec, runs, asked=asked)
        if in_slurm:
            waits = queue_waits_table(tables.runs, *recorded_jobs(tables.runs, runs))
            experiment = with_measured_waits(experiment, waits, [each.world_size for each in points(spec)])
        spending = Spending.of(runs, experiment.held_devices, all_reduces)
        return cls(experiment, terms, asked, conclude(experiment, tables), spending, folder)

    def series(self) -> Iterator[tuple[SeriesSoFar, dict[int, str]]]:
        """Yield the measurements of each series, and the names of its points by devices."""
        for options, mine in points_by_series(self.experiment.spec).items():
            names = {point.world_size: point.name for point in mine}
            yield series_so_far(self, options, names), names

    def rule_of(self, series: SeriesSoFar) -> DecisionRule:
        """Return the criteria, with the efficiency relative to the series' own baseline."""
        own = self.found.scaling[self.found.scaling["series"] == series.series]
        return relative_to_own(self.experiment.spec.decision, own)

    def possible_speeds(self, seed: int) -> list[tuple[PossibleSpeeds, DecisionRule]]:
        """Draw the speeds of each series that has a measured baseline, with its criteria.

        Args:
            seed: Seed of the draws.
        """
        spec = self.experiment.spec
        return [
            (speeds, self.rule_of(series))
            for series, _ in self.series()
            if (speeds := PossibleSpeeds.of(series, spec.scaling, spec.repeats, seed)) is not None
        ]

    def goes_on(self, number: int) -> bool:
        """Return whether the study requests runs in a round, by the rounds before it.

        Args:
            number: Number of that round, from 1.
        """
        rounds = known_rounds(self.experiment.spec, self.folder)[: number - 1]
        return len(rounds) == number - 1 and all(each.requests_more for each in rounds[-1:])


def choose(study: StudySoFar, number: int, sisters: Sequence[StudySoFar] = ()) -> Round:
    """Judge a study that chooses its device counts.

    Args:
        study: The study before the round.
        number: Number of the round, from 1.
        sisters: The same experiment on the other partitions, before the same round.
    """
    experiment, terms, spending = study.experiment, study.terms, study.spending
    found, asked = study.found, study.asked
    spec, rule = experiment.spec, experiment.spec.repeats
    purse = _Purse.of(study, sisters, number)
    of_point = found.runs["run"].map(lambda run: parse_run_name(run)[0])
    wins = chance_among(study, sisters)
    goes_on = wins is None or wins > OTHER_ANSWER
    wanted: dict[str, tuple[Verdict, int]] = {}
    choices = []
    for series, names in study.series():
        following = next_runs(series, study.rule_of(series), spec.scaling, rule, purse.affords)
        choices.append(following.choice)
        again: Wanted = {
            devices: ("disturbed", asked[point] + more)
            for devices, point in names.items()
            if (more := in_place_of_disturbed(found.runs[of_point == point], rule))
        }
        if goes_on:
            wanted |= _paid({**following.wanted, **again}, names, asked, purse, rule.max)
    judged = [
        _judged(
            point.name,
            found.runs[of_point == point.name],
            asked[point.name],
            wanted.get(point.name),
            rule.max,
        )
        for point in points(spec)
    ]
    return Round(
        experiment=experiment.name,
        number=number,
        rule=rule,
        points=judged,
        choices=choices,
        spent_device_hours=spending.device_hours,
        budget_device_hours=terms.budget,
        spent_by_sisters=sum(each.spending.device_hours for each in sisters),
        wins=wins,
    )


def chance_among(study: StudySoFar, sisters: Sequence[StudySoFar]) -> float | None:
    """Return the chance that the study's partition gives the answer across partitions.

    None where there is no other partition, where the baseline has no run yet, or where energy decides, of
    which no speed tells.

    Args:
        study: The study before the round.
        sisters: The same experiment on the other partitions, before the same round.
    """
    by = study.experiment.spec.decision.by
    if not sisters or by == "energy":
        return None
    # in one order and with one seed each, so that all partitions see the same leader
    everyone = sorted([study, *sisters], key=lambda each: each.experiment.name)
    drawn = [(each, each.possible_speeds(SEED + place)) for place, each in enumerate(everyone)]
    drawn = [(each, series) for each, series in drawn if series]
    names = [each.experiment.name for each, _ in drawn]
    if study.experiment.name not in names:
        return None
    work = None
    if study.experiment.spec.steps is None:
        work = float(drawn[0][1][0][0].times.work[0])
    contenders = [Contender.of(series, each.terms.price, work) for each, series in drawn]
    aims = AIMS if by is None else (by,)
    min_gain = study.experiment.spec.decision.min_gain
    return chance_to_win(names.index(study.experiment.name), contenders, aims, min_gain)


def series_so_far(study: StudySoFar, options: Options, names: Mapping[int, str]) -> SeriesSoFar:
    """The measurements of one series, and its decision on these alone.

    Args:
        study: The study so far.
        options: Options of the series.
        names: Names of the series' points, by devices.
    """
    experiment, found = study.experiment, study.found
    spec, name = experiment.spec, series_name(options)
    settings = settings_of(spec, options)
    runs = found.runs[found.runs["series"] == name]
    done = runs[runs["outcome"] == "completed"]
    # what cannot be trained is no candidate, and no baseline
    impossible = set(runs["devices"]) - set(runs.loc[~runs["outcome"].isin(NEVER_MORE), "devices"])
    shapes = {shape.world_size: shape for shape in study.terms.shapes.values()}
    candidates = [
        Candidate(
            devices=devices,
            nodes=shapes[devices].nodes,
            billed=experiment.billed_devices.get(devices, float(devices)),
            samples=global_batch(settings, devices),
            queue_minutes=experiment.queue_minutes.get(devices, 0.0),
        )
        for devices in sorted(names)
        if devices not in impossible
    ]
    decision = decide_on_series(experiment, found, name)
    at = {devices: done[done["devices"] == devices] for devices in names}
    rates = {devices: _rates(point, decision.measure) for devices, point in at.items()}
    trained = {
        devices: point.loc[rates[devices].index, "train_seconds"].astype(float)
        for devices, point in at.items()
    }
    others = {}
    for devices, point in at.items():
        seconds = point.loc[rates[devices].index, "run"].map(study.spending.seconds)
        others[devices] = [float(rest) for rest in (seconds - trained[devices]).dropna() if rest >= 0]
    predicted = {
        devices: PredictedEfficiency(
            point.efficiency, point.speedup_low / devices, point.speedup_high / devices, point.interpolated
        )
        for (series, shape), point in read_predictions(study.folder).items()
        if series == name and (devices := shape.world_size) > 1 and devices in names
    }
    return SeriesSoFar(
        series=name,
        candidates=candidates,
        asked={devices: study.asked[point] for devices, point in names.items()},
        speeds={devices: rate.tolist() for devices, rate in rates.items() if len(rate)},
        train_seconds={devices: seconds.fillna(0.0).tolist() for devices, seconds in trained.items()},
        other_seconds=others,
        decision=decision,
        ended_by_steps=spec.steps is not None,
        predicted=predicted if spec.predict else {},
    )


def _rates(point: pd.DataFrame, measure: Measure) -> pd.Series:
    """The speed of each run, of that kind which decides."""
    if measure == "time to target":
        return 1 / point["time_to_accuracy_seconds"].astype(float).dropna()
    return speeds(point)


@dataclass
class _Purse:
    """The share of a budget that a study may still pay; a run counts with all the time that it may take.

    Args:
        left: Device-hours; None without a budget.
        run_minutes: Time limit of a run.
        billed: Devices that are paid, by device count, where they are more than a run uses.
    """

    left: float | None
    run_minutes: int
    billed: Mapping[int, float]

    @classmethod
    def of(cls, study: StudySoFar, sisters: Sequence[StudySoFar], number: int) -> _Purse:
        """Divide what is left of the budget equally among the partitions that go on."""
        left = study.terms.budget
        if left is not None:
            left -= sum(each.spending.device_hours for each in (study, *sisters))
            left /= 1 + sum(each.goes_on(number) for each in sisters)
        return cls(left, study.terms.run_minutes or 0, study.experiment.held_devices)

    def affords(self, devices: int, runs: int = 1) -> bool:
        return self.left is None or runs * self.most(devices) <= self.left

    def most(self, devices: int) -> float:
        return device_hours(60 * self.run_minutes, devices, self.billed)

    def pay(self, devices: int, runs: int) -> None:
        if self.left is not None:
            self.left -= runs * self.most(devices)


def _paid(
    following: Wanted, names: Mapping[int, str], asked: Mapping[str, int], purse: _Purse, most: int
) -> dict[str, tuple[Verdict, int]]:
    """Repeats that are wanted of each point, as far as they can be paid, by its name."""
    found: dict[str, tuple[Verdict, int]] = {}
    for devices, (why, wanted) in following.items():
        name, repeats = names[devices], min(wanted, most)
        more = max(repeats - asked[name], 0)
        while more and not purse.affords(devices, more):
            more -= 1
        if more == 0 and repeats > asked[name]:
            found[name] = ("over the budget", asked[name])
            continue
        purse.pay(devices, more)
        found[name] = (why, asked[name] + more)
    return found


def _judged(
    name: str, runs: pd.DataFrame, asked: int, wanted: tuple[Verdict, int] | None, most: int
) -> JudgedPoint:
    """A point of a study that chooses, with what it is asked for.

    Args:
        name: Name of the point.
        runs: A row for each repeat asked for so far.
        asked: Repeats that are there or were asked for.
        wanted: Reason for more, and the repeats that there should be.
        most: Most repeats of a point.
    """
    rates = runs.loc[runs["outcome"] == "completed", THROUGHPUT].dropna().tolist()
    interval = geometric_interval(rates) if len(rates) >= ENOUGH_REPEATS else None
    verdict, total = wanted or ("not needed", asked)
    if verdict not in {"not needed", "over the budget"} and total <= asked:
        verdict = "most repeats" if asked >= most else "too few completed"
    return JudgedPoint(
        point=name,
        asked=asked,
        completed=len(rates),
        half_width_fraction=None if interval is None else interval.half_width_fraction,
        verdict=verdict,
        next_asked=max(total, asked),
    )


def _with_those_found(
    experiment: AnalysisSpec, terms: ChoiceTerms, asked: Mapping[str, int], runs_folder: Path
) -> dict[str, int]:
    """Repeats of each point that were asked for, or are there from an earlier study of the same runs.

    Args:
        experiment: The experiment, the way the plan defined it.
        terms: Shapes and launchers, which tell whether a run is the same.
        asked: Repeats that were asked for, by the name of each point.
        runs_folder: Holds a folder for each run.
    """
    spec, found = experiment.spec, dict(asked)
    for point in points(spec):
        settings = settings_of(spec, point.options)
        for repeat in range(found[point.name] + 1, spec.max_repeats + 1):
            folder = runs_folder / point.run_name(repeat)
            if not (folder / SUMMARY).exists():
                break
            try:
                made = read_summary(folder).definition
            except RecordError:
                break
            place = (terms.shapes[str(point.devices)], terms.launchers[point.name])
            if (made.shape, made.launcher) != place or not made_with(made, settings):
                break
            found[point.name] = repeat
    return found
