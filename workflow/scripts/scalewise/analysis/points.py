"""The points of an experiment, by partition, series and device count, and the clock of its answer.

One clock decides: it is chosen once for an experiment, and every speedup, efficiency, cost and sentence of
its answer uses it. Other clocks stand in scaling.csv under their own names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import pandas as pd

from scalewise.analysis.analysis_spec import EPOCH_RATE, THROUGHPUT, WITH_NO_GRAD
from scalewise.analysis.conditions import NEVER_MORE, OTHER_CONDITIONS
from scalewise.analysis.disturbed import disturbed_columns, disturbed_of
from scalewise.analysis.memory import peaks_of_one_kind
from scalewise.analysis.statistics import (
    Interval,
    Ratio,
    Sample,
    Scatter,
    Tries,
    geometric_interval,
    mean_interval,
    next_value_bound,
    ratio_of,
    scatter_of,
    target_ratio,
)
from scalewise.analysis.steps import STEP_SECONDS
from scalewise.config.experiment import AnyExperiment, Experiment
from scalewise.records import STARTUP

Clock = Literal["steps", "epochs", "target", "runs"]
"""Time that is compared: of steps, of whole epochs, until the target, or of whole runs with start-up."""

MILLION = 1e6
"""Samples that times and costs are for, if nothing says how many a training has."""

JOULES_PER_KWH = 3.6e6
UNSUCCESSFUL = ("diverged", "out-of-memory", "failed", "timed-out")
"""Outcomes of runs that ended by themselves without a result, and so count against their point."""

AT_WORK = (
    "loader_wait_fraction", "communication_fraction", "mean_utilization", "lowest_utilization",
    "energy_joules", "flops_per_step", "model_flops_utilization", "samples_per_joule",
    "device_memory_bytes",
)  # fmt: skip
"""Use of the devices' time and memory: medians over the repeats."""
GEOMETRIC = ("time_to_accuracy_seconds", "wall_seconds", "device_hours", THROUGHPUT, EPOCH_RATE)
"""Geometric means over the repeats; all but the device-hours with their intervals."""
ARITHMETIC = ("final_accuracy", "peak_memory_bytes")
"""Arithmetic means over the repeats, with their intervals."""
TEXTS = (
    "experiment", "partition", "loader", "mfu_note", "mfu_basis", "peak_memory_kind", "disturbance", "reason",
    "started_at", "hosts", "slurm_job_id",
)  # fmt: skip
NUMBERS = (
    "nodes", "epochs_to_accuracy", "samples_to_target", "samples", *GEOMETRIC, *ARITHMETIC, *STARTUP,
    *AT_WORK, *STEP_SECONDS, "train_seconds", WITH_NO_GRAD, "block", "session", "started", "ended", "resumed",
)  # fmt: skip
"""Columns that are read of a run where they are known: published figures lack some."""

SPEEDUPS: Mapping[Clock, str] = {"runs": "wall_speedup", "target": "time_to_accuracy_speedup"}
"""Column of the speedup by a clock that does not decide."""

_ENDS = ("", "_low", "_high")
SCALING_COLUMNS = [
    "partition", "series", "devices", "n", "recommended",
    *(f"{name}{end}" for name in (THROUGHPUT, "speedup", "parallel_efficiency") for end in _ENDS),
    "clock", *(f"{name}{end}" for name in ("seconds", "cost", "energy_kwh") for end in _ENDS),
    "device_hours", *(f"{name}{end}" for name in ("wall_seconds", "time_to_accuracy_seconds",
    "final_accuracy", "peak_memory_bytes", EPOCH_RATE, *SPEEDUPS.values()) for end in _ENDS),
    "note", "experiment", "nodes", "baseline_devices", "best_baseline", "best_baseline_devices",
    "billed_devices", "n_failed", "n_unsuccessful", "unsuccessful", "n_left_out", "n_disturbed",
    "n_set_apart",
    "disturbed", "n_reached", "epochs_to_accuracy", "wall_n", "wall_seconds_next", "queue_minutes",
    "startup_seconds", *STEP_SECONDS, "loader", *AT_WORK, "mfu_note", "mfu_basis", WITH_NO_GRAD,
]  # fmt: skip
"""Columns of scaling.csv."""


class Place(NamedTuple):
    """A point among those of all partitions and series."""

    partition: str
    series: str
    devices: int


@dataclass(frozen=True, eq=False)
class Point:
    """The runs of one series on one number of devices.

    Args:
        place: Partition, series and devices.
        planned: All its runs.
        runs: Those of them that completed and are compared.
        billed: Devices that a training pays for.
        price: Price of a device for an hour, 1 in device-hours; None if unknown.
        queue_minutes: Usual wait in the queue; None if unknown.
    """

    place: Place
    planned: pd.DataFrame
    runs: pd.DataFrame
    billed: float
    price: float | None = 1.0
    queue_minutes: float | None = None

    @cached_property
    def has_reached(self) -> pd.Series:
        """Whether each run reached the target, also if its time to it is unknown."""
        return self.runs["epochs_to_accuracy"].fillna(self.runs["samples_to_target"]).notna()

    @property
    def unsuccessful(self) -> Mapping[str, int]:
        """Number of runs that ended without a result, by outcome."""
        ended = self.planned["outcome"][self.planned["outcome"].isin(UNSUCCESSFUL)]
        return {str(outcome): int(number) for outcome, number in ended.value_counts().items()}

    @property
    def n(self) -> int:
        """Number of runs that are compared."""
        return len(self.runs)

    def column(self, name: str) -> pd.Series:
        """Return the values of the runs that know a quantity."""
        return self.runs[name].dropna()

    def seconds(self, clock: Clock, work: float) -> pd.Series:
        """Return the seconds of each run for the same work, without those that do not know them.

        Args:
            clock: Time that is compared.
            work: Samples of the work, for a rate.
        """
        if clock in ("steps", "epochs"):
            return work / self.column(THROUGHPUT if clock == "steps" else EPOCH_RATE)
        if clock == "target":
            return self.column("time_to_accuracy_seconds")[self.has_reached]
        return self.column("wall_seconds")

    def sample(self, values: pd.Series) -> Sample:
        """Return values of runs with the blocks that the runs belong to, and their starts."""
        known = self.runs.loc[values.index]
        starts = known["started"] if known["started"].notna().all() else ()
        return Sample.of(values, known["block"].fillna(0), starts)

    def failed_seconds(self) -> tuple[float, ...]:
        """Return the training time of each run that never reached the target."""
        return tuple(self.runs.loc[~self.has_reached, "train_seconds"].dropna())


@dataclass(frozen=True, eq=False)
class Points:
    """All points of an experiment, with the clock of its answer.

    Args:
        all: Points by place, in the order of the configuration.
        clock: Time that is compared.
        work: Samples of the work that times and costs are for.
        unit: Unit of costs: ``device-hours``, ``price`` or ``billing``.
    """

    all: Mapping[Place, Point]
    clock: Clock
    work: float
    unit: str = "device-hours"
    _times: dict[tuple[Place, Clock], Sample] = field(default_factory=dict, repr=False)
    _ratios: dict[tuple[Place, Place, Clock], Ratio | None] = field(default_factory=dict, repr=False)

    @cached_property
    def scatter(self) -> Scatter | None:
        """Scatter of the runs, over all points."""
        return scatter_of([self.time(place) for place in self.all])

    def time(self, place: Place, clock: Clock | None = None) -> Sample:
        """Return the seconds of each run of a point, by the clock of the answer or by another."""
        key = place, clock or self.clock
        if key not in self._times:
            point = self.all[place]
            self._times[key] = point.sample(point.seconds(key[1], self.work))
        return self._times[key]

    def faster(self, place: Place, other: Place, clock: Clock | None = None) -> Ratio | None:
        """Return how many times faster a point is than another; None if unknown, or for a point itself."""
        key = place, other, clock or self.clock
        if key not in self._ratios:
            self._ratios[key] = self._compare(*key)
        return self._ratios[key]

    def _compare(self, place: Place, other: Place, clock: Clock) -> Ratio | None:
        one, base = self.time(place, clock), self.time(other, clock)
        if place == other or not one.values or not base.values:
            return None
        scatter = self.scatter if clock == self.clock else None
        if clock != "target":
            return ratio_of(*self._side_by_side(other, place, clock), scatter)
        return target_ratio(self.tries(other), self.tries(place), scatter)

    def _side_by_side(self, place: Place, other: Place, clock: Clock) -> tuple[Sample, Sample]:
        """Return the times of two points, of the sessions that both have runs of, if there are any."""
        found = []
        sessions = [set(self.all[each].runs["session"]) - {0} for each in (place, other)]
        shared = sessions[0] & sessions[1]
        for each in (place, other):
            seconds = self.all[each].seconds(clock, self.work)
            inside = self.all[each].runs.loc[seconds.index, "session"].isin(shared)
            found.append(self.all[each].sample(seconds[inside]))
        if shared and place.partition == other.partition and all(each.values for each in found):
            return found[0], found[1]
        return self.time(place, clock), self.time(other, clock)

    def tries(self, place: Place) -> Tries:
        """Return the runs of a point that reached the target, and those that did not."""
        return Tries(self.time(place, "target"), self.all[place].failed_seconds())


def known_columns(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with all columns that are read, numbers as numbers."""
    known = runs.reindex(columns=list(dict.fromkeys([*runs.columns, *TEXTS, *NUMBERS])))
    # a column of None only is of no number type
    known = known.astype(dict.fromkeys(NUMBERS, float))
    for name in ("partition", "disturbance"):
        known[name] = known[name].astype(object).fillna("")
    known["device_hours"] = known["device_hours"].fillna(known["wall_seconds"] * known["devices"] / 3600)
    return peaks_of_one_kind(known)


def choose_clock(spec: AnyExperiment, done: pd.DataFrame, *, total_times: bool = False) -> Clock:
    """Return the clock of an experiment's answer.

    Args:
        spec: The experiment.
        done: Completed runs that are compared.
        total_times: A computing centre demands the time of whole runs.
    """
    rule = spec.decision
    of_runs = bool(total_times or rule.by == "soonest" or rule.deadline_minutes or rule.max_device_hours)
    known = {name: bool(done[name].notna().any()) for name in ("wall_seconds", THROUGHPUT)}
    has_target = (spec.target if isinstance(spec, Experiment) else spec.metric) is not None
    # each of several trainings has a start-up of its own
    of_runs = of_runs or ((spec.trainings or 1) > 1 and spec.samples_per_training is None and not has_target)
    if of_runs and spec.steps is None and known["wall_seconds"]:
        return "runs"
    if has_target and done["time_to_accuracy_seconds"].notna().any():
        return "target"
    if known[THROUGHPUT] and done.loc[done[THROUGHPUT].notna(), EPOCH_RATE].notna().all():
        return "epochs"
    return "steps" if known[THROUGHPUT] else "runs"


def work_of(spec: AnyExperiment, done: pd.DataFrame) -> float:
    """Return the samples that times and costs are for: of a training, of a run, or a million."""
    if spec.samples_per_training is not None:
        return float(spec.samples_per_training)
    samples = done["samples"].dropna()
    equal = len(samples) and samples.max() <= 1.01 * samples.min()
    return float(samples.median()) if equal and spec.steps is None else MILLION


def baseline_of(points: Points, series: str, partition: str) -> Place | None:
    """Return the point of a series with the fewest devices on which its training is possible."""
    counts = [
        place
        for place, point in points.all.items()
        if (place.series, place.partition) == (series, partition)
        and not set(point.planned["outcome"]) <= {*NEVER_MORE, OTHER_CONDITIONS}
    ]
    return min(counts, key=lambda place: place.devices, default=None)


def scaling_table(
    points: Points,
    best_baselines: Mapping[Place, Place],
    answer: Place | None,
    amounts: Mapping[Place, Mapping[Any, Sample]],
) -> pd.DataFrame:
    """Return one row for each partition, series and device count.

    A speedup joins runs of one series, over its fewest devices; an efficiency is relative to the best
    measured configuration of the fewest devices among the series that train the same.

    Args:
        points: The points with the clock.
        best_baselines: Baseline of the efficiency of each point that has one.
        answer: The chosen point; None without one.
        amounts: Time, cost and energy of each candidate for the same work.
    """
    rows = [
        _row(points, place, best_baselines.get(place))
        | _amounts(amounts.get(place, {}))
        | {"recommended": place == answer}
        for place in points.all
    ]
    return pd.DataFrame(rows, columns=SCALING_COLUMNS)


AMOUNTS = {"time": "seconds", "cost": "cost", "energy": "energy_kwh"}
"""Column of each amount for the same work, by the clock of the answer."""


def _amounts(amounts: Mapping[Any, Sample]) -> dict[str, float]:
    return {
        name: value
        for aim, column in AMOUNTS.items()
        if aim in amounts and amounts[aim].values
        for name, value in geometric_interval(amounts[aim].values).as_columns(column).items()
    }


def _row(points: Points, place: Place, best: Place | None) -> dict[str, Any]:
    base = baseline_of(points, place.series, place.partition)
    row = place._asdict() | _own_columns(points.all[place])
    note = "; ".join(_notes(points, place, base, row["n_set_apart"]))
    row |= {"note": note, "baseline_devices": (base or place).devices}
    if base is None:
        return row
    row["clock"] = points.clock
    if _has_several(points, place):
        best = best or base
        row |= speedup(points, place, base).as_columns("speedup")
        row |= efficiency(points, place, best).as_columns("parallel_efficiency")
        row |= {"best_baseline": best.series, "best_baseline_devices": best.devices}
        for clock, name in SPEEDUPS.items():
            if clock != points.clock:
                row |= speedup(points, place, base, clock).as_columns(name)
    return row


def speedup(points: Points, place: Place, base: Place, clock: Clock | None = None) -> Interval:
    """Return the speed of a point over that of a baseline, by the clock of the answer or by another."""
    times = points.time(place, clock).values
    if place == base and times:
        return Interval(1.0, 1.0, 1.0, len(times))
    ratio = points.faster(place, base, clock)
    return Interval(math.nan, math.nan, math.nan, 0) if ratio is None else ratio.interval()


def efficiency(points: Points, place: Place, base: Place) -> Interval:
    """Return the speed of a point over that of a baseline, over the ratio of their devices."""
    return speedup(points, place, base).scaled(base.devices / place.devices)


def _has_several(points: Points, place: Place) -> bool:
    counts = {each.devices for each in points.all if each[:2] == place[:2]}
    return len(counts) > 1


def _own_columns(point: Point) -> dict[str, Any]:
    """Return the columns of a point by itself, over the runs that are compared."""
    done, planned = point.runs, point.planned
    apart = disturbed_columns(planned)
    left_out = int((planned["outcome"] == OTHER_CONDITIONS).sum())
    ended = point.unsuccessful
    row: dict[str, Any] = {
        "experiment": planned["experiment"].iloc[0],
        "nodes": planned["nodes"].max(),
        "n": len(done),
        "n_failed": len(planned) - len(done) - apart["n_set_apart"] - left_out,
        "n_unsuccessful": sum(ended.values()),
        "unsuccessful": ", ".join(f"{number} {outcome}" for outcome, number in ended.items()),
        "n_left_out": left_out,
        **apart,
        "n_reached": int(point.has_reached.sum()),
        "epochs_to_accuracy": done["epochs_to_accuracy"].median(),
        "billed_devices": point.billed,
        "queue_minutes": math.nan if point.queue_minutes is None else point.queue_minutes,
        "startup_seconds": startup_seconds(done).median(),
        "loader": ", ".join(dict.fromkeys(done["loader"].dropna())),
        "mfu_note": " ".join(dict.fromkeys(filter(None, done["mfu_note"].dropna()))),
        "mfu_basis": "; ".join(dict.fromkeys(filter(None, done["mfu_basis"].dropna()))),
        **{column: done[column].median() for column in AT_WORK},
        # arithmetic means: the parts sum to the step
        **{column: done[column].mean() for column in STEP_SECONDS},
    }
    for columns, interval in ((GEOMETRIC, geometric_interval), (ARITHMETIC, mean_interval)):
        for column in columns:
            if values := done[column].dropna().tolist():
                found = interval(values)
                if column == "final_accuracy":
                    found = Interval(found.estimate, max(found.low, 0.0), min(found.high, 1.0), found.n)
                row |= found.as_columns(column)
    if walls := done["wall_seconds"].dropna().tolist():
        row |= {"wall_n": len(walls), "wall_seconds_next": next_value_bound(walls)}
    if done[WITH_NO_GRAD].notna().any():
        # a run that knows whether they belong to the training has one rate
        rates = done[WITH_NO_GRAD].fillna(done[THROUGHPUT]).dropna()
        row[WITH_NO_GRAD] = geometric_interval(rates.tolist()).estimate
    return row


def startup_seconds(done: pd.DataFrame) -> pd.Series:
    """Return the seconds of each run before its second step: of the slowest rank in each part."""
    total = done[list(STARTUP)].sum(axis=1, skipna=False)
    # parts in which different ranks are slow may overlap
    room = done["wall_seconds"] - done["train_seconds"] + done["first_step_seconds"]
    return total.where(~(total > room), room)


def _notes(points: Points, place: Place, base: Place | None, set_apart: int) -> Iterator[str]:
    point = points.all[place]
    known = bool(points.time(place).values)
    if not known and point.n:
        yield "its time is unknown"
    elif not known:
        yield f"no completed run ({', '.join(sorted(set(point.planned['outcome'])))})"
    elif not _has_several(points, place):
        yield "no baseline: the series has one device count"
    elif base is not None and not points.time(base).values:
        yield f"no baseline: no completed run on {base.devices}"
    elif base is not None and base.devices > 1:
        yield f"relative to {base.devices} devices, not to 1"
    if known and points.clock == "runs" and point.runs[THROUGHPUT].isna().all():
        yield "of walls, which include start-up"
    left_out = point.planned.loc[point.planned["outcome"] == OTHER_CONDITIONS, "reason"]
    for reason, number in left_out.value_counts().items():
        yield f"{number} of {len(point.planned)} runs left out: {reason}"
    if set_apart:
        yield f"{disturbed_of(set_apart, point.n + set_apart)} and set apart"
