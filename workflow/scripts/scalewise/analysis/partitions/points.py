"""The points of an experiment on all of its partitions: the time, cost and energy of each run.

A point is compared with points of other partitions by amounts for the same work, never by efficiency or
speedup: these are relative to one device of the point's partition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import pandas as pd

from scalewise.analysis.analysis_spec import STATED_WAITS, AnalysisSpec
from scalewise.analysis.comparison.gains import (
    Gains,
    Measure,
    gains,
    has_reached,
    interval_of_all,
    ratio_of_all,
)
from scalewise.analysis.conclusion import judgeable
from scalewise.analysis.decision.criteria import SUCCESSFUL_FROM, may_meet, may_miss, miss_text
from scalewise.analysis.decision.selection import SAME_TRAINING, candidates
from scalewise.analysis.decision.walk import CRITERIA, missed
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.partitions.wording import sentence
from scalewise.analysis.scaling import known_columns
from scalewise.analysis.statistics.intervals import Interval, geometric_interval
from scalewise.analysis.statistics.ratios import Ratio, ratio_of
from scalewise.plan.config.experiment import AnyExperiment, DecisionRule, Experiment
from scalewise.plan.runs.runs import Options, points_by_series, series_name

Aim = Literal["time", "cost", "energy", "soonest"]
"""``soonest`` is the wait in the queue and the time together."""

AIMS: tuple[Aim, ...] = ("time", "cost", "energy", "soonest")

CostUnit = Literal["price", "billing", "device-hours"]

WORK = 1e6
"""Samples that times, costs and energies are for if how long a whole run takes is unknown."""

JOULES_PER_KWH = 3.6e6

EFFICIENCY_ENDS = ("efficiency_to_best_low", "efficiency_to_best_high")

FREE = 1e-12
"""Stands for a price of 0."""


class Place(NamedTuple):
    """A point among those of all partitions."""

    partition: str
    series: str
    devices: int


@dataclass(frozen=True)
class PartitionStudy:
    """An experiment as one partition ran it.

    Args:
        partition: Name of the partition.
        experiment: The experiment as the plan defined it for this partition.
        results: Tables of the experiment on this partition.
        price: Price, or billing weight, of a device for an hour; None if unknown.
        waits: Seconds that each run waited in the queue, by its name. A run without an entry is taken to have
            waited as the site file states.
        conditions: The conditions behind each fingerprint.
    """

    partition: str
    experiment: AnalysisSpec
    results: ExperimentResults
    price: float | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs, with all columns that the analysis reads."""
        return known_columns(self.results.runs, self.conditions)

    @cached_property
    def gains(self) -> Gains:
        """The ratios of this partition's points, as its report has them."""
        return gains(self.runs)

    def paid(self, billed_devices: float) -> float | None:
        """Return what an hour of a run costs; None if the price is unknown."""
        return None if self.price is None else self.price * billed_devices

    def queue_minutes(self, devices: int) -> float | None:
        """Return the usual wait, by the site file or else by this study's jobs; None if it is unknown."""
        return self.experiment.queue_minutes.get(devices)


@dataclass(frozen=True)
class PartitionPoint:
    """A point with the amounts of its runs.

    Args:
        place: Partition, series and devices.
        clock: The time that is compared.
        runs: Completed, comparable runs.
        paid: Billed devices times the price of one for an hour; None if the price is unknown.
        waits: Seconds that each run waited; NaN if unknown.
        row: Row of the point in the partition's scaling table.
        misses: Criteria of the user that it misses, a clause each.
        is_open: Whether its runs leave open if it meets the criteria.
    """

    place: Place
    clock: Measure
    runs: pd.DataFrame
    paid: float | None
    waits: pd.Series
    row: pd.Series
    misses: Sequence[str] = ()
    is_open: bool = False

    def amounts(self, aim: Aim) -> list[float]:
        """Return the amount of each run for the same work: seconds, cost or kWh; none if it is unknown."""
        found = self._amounts(aim).dropna()
        return [float(value) for value in found[found > 0]]

    def _amounts(self, aim: Aim) -> pd.Series:
        seconds = self._seconds
        if aim == "time":
            return seconds
        if aim == "cost":
            return seconds * (math.nan if self.hourly is None else self.hourly / 3600)
        if aim == "soonest":
            # how long a whole run takes is unknown to the throughput
            return self.waits + (math.nan if self.clock == "throughput" else seconds)
        if self.clock == "throughput":
            return WORK / self._column("samples_per_joule") / JOULES_PER_KWH
        drawn = self._column("energy_joules") / JOULES_PER_KWH
        return drawn * seconds / self._column("train_seconds") if self.clock == "time to target" else drawn

    @property
    def hourly(self) -> float | None:
        """Cost of an hour, above 0 also if it costs nothing; None if unknown.

        Costs are compared by their logarithms: of two free points, the one of fewer device-hours is first.
        """
        return None if self.paid is None else self.paid or FREE * float(self.row["billed_devices"])

    @property
    def _seconds(self) -> pd.Series:
        if self.clock == "time to target":
            return self._column("time_to_accuracy_seconds").where(has_reached(self.runs))
        if self.clock == "total time":
            return self._column("wall_seconds")
        return WORK / self._column("throughput_samples_per_second")

    def _column(self, name: str) -> pd.Series:
        return self.runs.reindex(columns=[name])[name].astype(float)

    def interval(self, aim: Aim) -> Interval | None:
        """Return the mean amount with its 95 % interval; None if it is unknown."""
        values = self.amounts(aim)
        if not values:
            return None
        found = geometric_interval(values)
        return interval_of_all(found, self.runs) if self.clock == "time to target" else found


@dataclass(frozen=True)
class PartitionPoints:
    """The points of all partitions that can be compared, and why others cannot.

    Args:
        studies: The experiment on each partition, by its name.
        clock: The time that is compared.
        points: Points with a known time, also those that miss a criterion.
        not_compared: Reason for each point that has none, a sentence.
        min_gain: Least difference that is worth having, a fraction.
        noun: Name of a device.
        unit: Unit of costs.
        left_out: Sentences on device counts that a partition cannot have.
    """

    studies: Mapping[str, PartitionStudy]
    clock: Measure
    points: Mapping[Place, PartitionPoint]
    not_compared: Mapping[Place, str]
    min_gain: float
    noun: str
    unit: CostUnit
    left_out: Sequence[str] = ()
    _ratios: dict[tuple[Aim, Place, Place], Ratio | None] = field(
        default_factory=dict, repr=False, compare=False
    )

    @property
    def candidates(self) -> list[Place]:
        """The points that miss no criterion."""
        return [place for place, point in self.points.items() if not point.misses]

    @property
    def has_queue(self) -> bool:
        """Whether runs were jobs of Slurm, or a wait in the queue is known."""
        on_slurm = any(study.gains.on_slurm for study in self.studies.values())
        return on_slurm or any(point.waits.notna().any() for point in self.points.values())

    @property
    def order(self) -> list[Place]:
        """All points, by partition as configured, series and device count."""
        partitions, series = list(self.studies), list(self.options)
        return sorted(
            [*self.points, *self.not_compared],
            key=lambda place: (partitions.index(place.partition), series.index(place.series), place.devices),
        )

    @property
    def options(self) -> Mapping[str, Options]:
        """Options of each series, by its name."""
        return options_of(next(iter(self.studies.values())).experiment.spec)

    def ratio(self, aim: Aim, place: Place, than: Place) -> Ratio | None:
        """Return the amount of a point over that of another; None if one of them is unknown."""
        key = (aim, place, than)
        if key not in self._ratios:
            self._ratios[key] = self._compare(aim, self.points[place], self.points[than])
        return self._ratios[key]

    def _compare(self, aim: Aim, point: PartitionPoint, than: PartitionPoint) -> Ratio | None:
        if point.place == than.place:
            return None
        if aim in ("time", "cost") and point.place.partition == than.place.partition:
            # runs of one partition are compared as in its report: of the same days, and by pairs if it drifts
            study = self.studies[point.place.partition]
            ratio = study.gains.of(self.clock, than.place[1:], point.place[1:])
            if ratio is not None and aim == "time":
                return ratio
            if ratio is not None and point.hourly is not None and than.hourly is not None:
                return replace(ratio, log_mean=ratio.log_mean + math.log(point.hourly / than.hourly))
        ratio = ratio_of(point.amounts(aim), than.amounts(aim))
        if ratio is None or self.clock != "time to target":
            return ratio
        return ratio_of_all(ratio, point.runs, than.runs)


def options_of(spec: AnyExperiment) -> dict[str, Options]:
    """Return the options of each series, in the order of the configuration."""
    return {series_name(each): each for each in points_by_series(spec)}


def collect_points(
    studies: Sequence[PartitionStudy], unit: CostUnit = "price", left_out: Sequence[str] = ()
) -> PartitionPoints:
    """Return the points of an experiment on all of its partitions.

    Only series that train the same as the first one of the configuration are compared.

    Args:
        studies: The experiment on each partition, one or more.
        unit: Unit of the studies' prices. Without any price, costs are device-hours.
        left_out: Sentences on device counts that a partition cannot have.
    """
    if all(study.price is None for study in studies):
        studies, unit = [replace(study, price=1.0) for study in studies], "device-hours"
    clock = _clock(studies)
    points: dict[Place, PartitionPoint] = {}
    not_compared: dict[Place, str] = {}
    for study in studies:
        rule, _ = judgeable(study.experiment.spec)
        for point, reason in _points_of(study, clock, rule):
            if reason:
                not_compared[point.place] = reason
            else:
                points[point.place] = point
    first = studies[0].experiment
    return PartitionPoints(
        studies={study.partition: study for study in studies},
        clock=clock,
        points=points,
        not_compared=not_compared,
        min_gain=first.spec.decision.min_gain,
        noun=first.noun,
        unit=unit,
        left_out=left_out,
    )


def _clock(studies: Sequence[PartitionStudy]) -> Measure:
    """Return the time that is compared: to the target, of whole runs of equal work, or of a sample."""
    done = pd.concat([study.runs[study.runs["outcome"] == "completed"] for study in studies])
    spec = studies[0].experiment.spec
    if studies[0].experiment.target is not None and len(done) and has_reached(done).any():
        return "time to target"
    # a user's program may train longer with a larger global batch, or as long on more data
    equal_work = spec.scaling == "strong" or isinstance(spec, Experiment)
    if spec.steps is None and equal_work and len(done) and done["wall_seconds"].notna().all():
        return "total time"
    return "throughput"


def _points_of(
    study: PartitionStudy, clock: Measure, rule: DecisionRule
) -> Iterator[tuple[PartitionPoint, str]]:
    """Yield the points of a partition that train the same, each with the reason not to compare it."""
    spec, table = study.experiment.spec, study.results.scaling
    options = options_of(spec)
    trained = {
        name: [each for each in mine if each[0] not in SAME_TRAINING] for name, mine in options.items()
    }
    equal = {name for name, mine in trained.items() if mine == next(iter(trained.values()))}
    first = candidates(table, rule, study.gains, options=options, target=study.experiment.target)[0]
    # with `accept`, points of other series compete, too
    accepted = first.points if first.first in equal else first.points.iloc[:0]
    kept = {(str(row["series"]), int(row["devices"])) for _, row in accepted.iterrows()}
    for _, row in table.iterrows():
        place = Place(study.partition, str(row["series"]), int(row["devices"]))
        if place.series not in equal and place[1:] not in kept:
            continue
        runs = study.runs[(study.runs["series"] == place.series) & (study.runs["devices"] == place.devices)]
        done = runs[runs["outcome"] == "completed"]
        judged = _judged(row, rule, study.queue_minutes(place.devices) or 0.0)
        point = PartitionPoint(
            place=place,
            clock=clock,
            runs=done,
            paid=study.paid(float(row["billed_devices"])),
            waits=_waits(study, done, place.devices),
            row=row,
            misses=[
                *filter(None, [judged["unreliable"]]),
                *(miss_text(name, judged, rule, clock) for name in judged["missed"]),
            ],
            is_open=may_meet(judged, rule) if judged["missed"] else may_miss(judged, rule),
        )
        yield point, _reason(point, runs, study.experiment.noun)


def _waits(study: PartitionStudy, done: pd.DataFrame, devices: int) -> pd.Series:
    is_stated = study.experiment.queue_source == STATED_WAITS
    stated = study.queue_minutes(devices) if is_stated else None
    usual = math.nan if stated is None else 60 * stated
    return done["run"].map(lambda run: study.waits.get(str(run), usual)).astype(float)


def _judged(row: pd.Series, rule: DecisionRule, queue_minutes: float) -> pd.Series:
    """Return the row of a point with ``missed`` and ``unreliable``, and all else that ``criteria`` reads."""
    ended = row["n"] + row["n_unsuccessful"]
    too_few = row["n_unsuccessful"] > 0 and row["n"] / ended < SUCCESSFUL_FROM
    own = 1.0 if row["devices"] == row["baseline_devices"] else math.nan
    efficiency = row.get("efficiency_to_best", math.nan)
    longest = row["wall_seconds_next"] if pd.notna(row["wall_seconds_next"]) else row["wall_seconds_high"]
    judged = row.reindex([*row.index, *(end for end in EFFICIENCY_ENDS if end not in row.index)])
    judged["queue_minutes"] = queue_minutes
    judged["efficiency_to_best"] = own if pd.isna(efficiency) else efficiency
    judged["done_minutes"] = longest / 60 + queue_minutes
    judged["unreliable"] = f"{row['unsuccessful']} of {ended:.0f} runs" if too_few else ""
    found = missed(rule, {quantity: [judged[quantity]] for quantity in CRITERIA.values()})
    judged["missed"] = [name for name, where in found.items() if where[0]]
    return judged


def _reason(point: PartitionPoint, runs: pd.DataFrame, noun: str) -> str:
    """Return a sentence on why a point cannot be compared; empty if it can be."""
    if point.amounts("time"):
        return ""
    place = {"devices": point.place.devices, "partition": point.place.partition}
    if len(point.runs):
        key = "never reached" if point.clock == "time to target" else "no time"
        return sentence(key, noun, runs=len(point.runs), **place)
    outcomes = runs["outcome"].value_counts()
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    reasons = [str(reason).strip().rstrip(".") for reason in runs["reason"].dropna() if str(reason).strip()]
    return sentence("no result", noun, outcomes=counts, why=f": {reasons[0]}" if reasons else "", **place)
