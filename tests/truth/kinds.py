"""Planted studies of every kind that has once misled an answer, each with its right answers.

A study is a table of runs, as the analysis reads it from their records. What the machine does to the runs in
the order of their starts is a ``Machine``: noise, drift, slow runs, siblings. Runs of a queue start small
jobs first.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from scalewise.config.experiment import DecisionRule


class Point(NamedTuple):
    """Something that can be chosen. ``series`` is the value of the study's option."""

    series: str
    devices: int
    partition: str = ""


class Job(NamedTuple):
    point: Point
    repeat: int


Logs = npt.NDArray[np.float64]
Machine = Callable[[np.random.Generator, Sequence[Job], float], Logs]
"""Logarithms of the speed of jobs in the order of their starts, for a scatter, relative to the true speed."""

START = datetime(2026, 1, 5, 9, tzinfo=UTC)
SAMPLES = 1e5
START_UP_SECONDS = 30.0
ON, OFF = "on", "off"


def normal(generator: np.random.Generator, jobs: Sequence[Job], scatter: float) -> Logs:
    return scatter * generator.standard_normal(len(jobs))


def sometimes_slow(share: float, speed: float) -> Machine:
    """Return a machine on which a share of the runs is slower."""

    def machine(generator: np.random.Generator, jobs: Sequence[Job], scatter: float) -> Logs:
        slow = generator.random(len(jobs)) < share
        return normal(generator, jobs, scatter) + math.log(speed) * slow

    return machine


def slower(which: Callable[[int, Job], bool], speed: float) -> Machine:
    """Return a machine on which certain jobs, by their place and what they are, are slower."""

    def machine(generator: np.random.Generator, jobs: Sequence[Job], scatter: float) -> Logs:
        slow = np.array([which(place, job) for place, job in enumerate(jobs)])
        return normal(generator, jobs, scatter) + math.log(speed) * slow

    return machine


def drifting(change: float) -> Machine:
    """Return a machine whose speed changes steadily from the first run to the last."""

    def machine(generator: np.random.Generator, jobs: Sequence[Job], scatter: float) -> Logs:
        places = np.arange(len(jobs)) / max(len(jobs) - 1, 1)
        return normal(generator, jobs, scatter) + np.log1p(change * places)

    return machine


def wandering(generator: np.random.Generator, jobs: Sequence[Job], scatter: float) -> Logs:
    """Return speeds that wander: autocorrelation 0.9, 5 %, on top of the scatter."""
    logs = 0.05 * generator.standard_normal(len(jobs))
    for place in range(1, len(jobs)):
        logs[place] = 0.9 * logs[place - 1] + math.sqrt(1 - 0.9**2) * logs[place]
    return logs + normal(generator, jobs, scatter)


@dataclass(frozen=True)
class Study:
    """A study with a known answer.

    Args:
        rates: True samples/s of each point.
        rule: The criteria.
        right: Points that are right answers. Without any, no answer may be clear.
        machine: What happens to the runs.
        order: ``blocks``: shuffled repeats, one after the other. ``queue``: small jobs first.
            ``tends``: small jobs mostly first.
        option: Name of the option in which series differ.
        accuracy: True final accuracy of each point.
        target: Accuracy that counts as trained; a run as good reaches it at its end.
        timed_out: Device counts of which the slowest run of one more ran out of time.
        days: Days after which a partition was measured.
        price: Of a device-hour on each partition; empty without partitions.
        shared_node: Runs that leave a part of a node free run at the same time, on one node.
    """

    rates: Mapping[Point, float]
    rule: DecisionRule
    right: Collection[Point] = ()
    machine: Machine = normal
    order: Literal["blocks", "queue", "tends"] = "blocks"
    option: str = "loader"
    accuracy: Mapping[Point, float] = field(default_factory=dict)
    target: float | None = None
    timed_out: Collection[int] = ()
    days: Mapping[str, float] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)
    shared_node: bool = False


def draw(study: Study, generator: np.random.Generator, scatter: float, n: int) -> pd.DataFrame:
    """Return the runs of a study, with ``partition``."""
    tables = []
    for partition in dict.fromkeys(point.partition for point in study.rates):
        points = [point for point in study.rates if point.partition == partition]
        jobs = _in_order(study, points, generator, n)
        tables.append(_runs(study, jobs, study.machine(generator, jobs, scatter), generator))
    return pd.concat(tables, ignore_index=True)


def _in_order(study: Study, points: Sequence[Point], generator: np.random.Generator, n: int) -> list[Job]:
    jobs = [
        Job(points[index], repeat)
        for repeat in range(1, n + 1)
        for index in generator.permutation(len(points))
    ]
    jobs += [Job(point, n + 1) for point in points if point.devices in study.timed_out]
    if study.order != "blocks":
        spread = 0.0 if study.order == "queue" else 1.0
        late = [math.log2(job.point.devices) + spread * generator.standard_normal() for job in jobs]
        jobs = [jobs[index] for index in np.argsort(late, kind="stable")]
    return jobs


def _runs(study: Study, jobs: Sequence[Job], logs: Logs, generator: np.random.Generator) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    begun = START + timedelta(days=study.days.get(jobs[0].point.partition, 0.0))
    for (point, repeat), log in zip(jobs, logs.tolist(), strict=True):
        alone = not study.shared_node or point.devices >= 4
        rate = study.rates[point] * math.exp(log) * (1.0 if alone else 0.85)
        trained = SAMPLES / rate
        wall = START_UP_SECONDS + trained
        row: dict[str, Any] = {
            "experiment": "study", "series": point.series, study.option: point.series, "repeat": repeat,
            "run": f"d{point.devices}.{point.series}.r{repeat}", "devices": point.devices, "nodes": 1.0,
            "partition": point.partition, "hosts": f"{point.partition}node0", "outcome": "completed",
            "reason": "", "throughput_samples_per_second": rate, "peak_memory_bytes": 1e9,
            "started_at": begun.isoformat(), "wall_seconds": wall, "train_seconds": trained,
            "device_hours": wall * point.devices / 3600,
        }  # fmt: skip
        if study.accuracy:
            row["final_accuracy"] = study.accuracy[point] + 0.002 * generator.standard_normal()
            if study.target is not None and row["final_accuracy"] >= study.target:
                row |= {"epochs_to_accuracy": 1.0, "time_to_accuracy_seconds": trained}
        rows.append(row)
        begun += timedelta(seconds=wall + 5 if alone else 10)
    for devices in study.timed_out:
        _time_out([row for row in rows if row["devices"] == devices])
    # in the order of the configuration
    points = list(study.rates)
    place = {(point.series, point.devices): index for index, point in enumerate(points)}
    rows.sort(key=lambda row: (place[row["series"], row["devices"]], row["repeat"]))
    return pd.DataFrame(rows)


def _time_out(rows: Sequence[dict[str, Any]]) -> None:
    """Take the result from the slowest of runs."""
    slowest = min(rows, key=lambda row: row["throughput_samples_per_second"])
    slowest |= {"outcome": "timed-out", "reason": "the run was timed-out"}
    measured = ("throughput_samples_per_second", "peak_memory_bytes", "wall_seconds", "train_seconds")
    slowest |= dict.fromkeys((*measured, "device_hours"))


def one(rates: Mapping[int, float], series: str = OFF, partition: str = "") -> dict[Point, float]:
    return {Point(series, devices, partition): rate for devices, rate in rates.items()}


def hours(devices: int, rate: float) -> float:
    return (START_UP_SECONDS + SAMPLES / rate) * devices / 3600


FAR = {1: 100.0, 2: 185.0, 4: 310.0, 8: 430.0}
"""Efficiencies 1, 0.93, 0.78 and 0.54."""
NEAR = {1: 100.0, 2: 185.0, 4: 290.0, 8: 400.0}
"""Efficiency 0.725 on 4."""
BELOW = {1: 100.0, 2: 190.0, 4: 264.0, 8: 330.0}
"""Efficiency 0.66 on 4."""
WELL = {1: 100.0, 2: 196.0, 4: 384.0, 8: 740.0}
FLAT = dict.fromkeys((1, 2, 4, 8), 100.0)
GOOD_ON_FEW = one({1: 1000, 2: 1900, 4: 3600, 8: 7000}) | one({1: 1100, 2: 2090, 4: 2200, 8: 2300}, ON)
TWICE = one(FAR) | one({devices: 2 * rate for devices, rate in FAR.items()}, ON)

EFFICIENT, ANY = DecisionRule(min_efficiency=0.7), DecisionRule(min_efficiency=0.01)

FOUR = Study(one(FAR), EFFICIENT, {Point(OFF, 4)})
CLOSE = Study(one(NEAR), EFFICIENT, {Point(OFF, 4)})
NOT_FOUR = Study(one(BELOW), EFFICIENT, {Point(OFF, 2)})
NO_GAIN = Study(one(FLAT), ANY, {Point(OFF, 1)})
SHRINKING = Study(one(WELL), EFFICIENT)

HEAVY = sometimes_slow(0.1, 0.7)
TWO_NODES = sometimes_slow(0.3, 0.85)
FIRST_REPEAT_COLD = slower(lambda place, job: job.repeat == 1, 0.75)
SLOW_FILES = slower(lambda place, job: job.point.devices == 8 and job.repeat % 3 == 0, 0.55)

NOISE: dict[str, Study] = {
    "quiet": FOUR,
    "quiet, efficiency 0.725": CLOSE,
    "quiet, no gain": NO_GAIN,
    "one run in ten 30 % slow": replace(FOUR, machine=HEAVY),
    "one run in ten 30 % slow, efficiency 0.725": replace(CLOSE, machine=HEAVY),
    "one run in ten 30 % slow, no gain": replace(NO_GAIN, machine=HEAVY),
    "nodes of two speeds": replace(FOUR, machine=TWO_NODES),
    "nodes of two speeds, no gain": replace(NO_GAIN, machine=TWO_NODES),
    "the first repeat is cold": replace(FOUR, machine=FIRST_REPEAT_COLD),
}
"""Studies of which each run has something by chance."""

SYSTEMATIC: dict[str, Study] = {
    "shuffled blocks, speed rises by 15 %": replace(NOT_FOUR, machine=drifting(0.15)),
    "shuffled blocks, speed falls by 15 %": replace(FOUR, machine=drifting(-0.15)),
    "shuffled blocks, no gain, speed rises": replace(NO_GAIN, machine=drifting(0.15)),
    "shuffled blocks, speed wanders": replace(NOT_FOUR, machine=wandering),
    "small jobs first, speed rises by 15 %": replace(NOT_FOUR, machine=drifting(0.15), order="queue"),
    "small jobs first, no gain, speed rises": replace(NO_GAIN, machine=drifting(0.15), order="queue"),
    "small jobs first, speed wanders": replace(NOT_FOUR, machine=wandering, order="queue"),
    "small jobs mostly first, speed rises by 15 %": replace(NOT_FOUR, machine=drifting(0.15), order="tends"),
    "small jobs mostly first, no gain, speed rises": replace(NO_GAIN, machine=drifting(0.15), order="tends"),
    "small runs share a node": replace(NOT_FOUR, shared_node=True),
    "every third run on 8 waits for files": Study(
        one({1: 100.0, 2: 190.0, 4: 330.0, 8: 584.0}), EFFICIENT, {Point(OFF, 4)}, SLOW_FILES
    ),
    "an option good on few devices": Study(GOOD_ON_FEW, EFFICIENT, {Point(OFF, 8)}),
    "an option twice as fast": Study(TWICE, EFFICIENT, {Point(ON, 4)}),
    "two equal options": Study(one(FAR) | one(FAR, ON), EFFICIENT, {Point(OFF, 4), Point(ON, 4)}),
    "an option alone on the most devices": Study(
        one({1: 100, 2: 196}) | one({1: 100, 2: 196, 4: 385}, ON), EFFICIENT, {Point(ON, 4)}
    ),
    "accuracy at chance on 8": replace(
        SHRINKING, accuracy=dict(zip(one(WELL), (0.98, 0.98, 0.98, 0.1), strict=True))
    ),
    "accuracy falls by 8 points": replace(
        SHRINKING, accuracy=dict(zip(one(WELL), (0.98, 0.97, 0.95, 0.9), strict=True))
    ),
    "only another training reaches the target": Study(
        one(WELL) | one(WELL, ON), EFFICIENT, option="learning_rate", target=0.9,
        accuracy={point: 0.95 if point.series == ON else 0.5 for point in one(WELL) | one(WELL, ON)},
    ),
    **{
        f"device-hours {share:.1%} above the truth of 8": Study(
            one(WELL), DecisionRule(max_device_hours=hours(8, WELL[8]) * (1 + share)), {Point(OFF, 8)}
        )
        for share in (0.005, 0.02)
    },
    "the slowest run on 4 timed out": replace(FOUR, right=(), timed_out={4}),
    "partitions a week apart, files 20 % slower then": Study(
        one({1: 100.0, 2: 190.0}, partition="a100") | one({1: 160.0, 2: 300.0}, partition="h200"),
        ANY,
        machine=slower(lambda place, job: job.point.partition == "h200", 0.8),
        days={"h200": 7.0},
        price={"a100": 1.0, "h200": 1.45},
    ),
}  # fmt: skip
"""Studies in which something else than chance decides."""

KINDS = NOISE | SYSTEMATIC
