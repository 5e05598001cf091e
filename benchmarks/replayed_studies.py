"""Published measurements as a cluster: a study's runs get the speeds that others measured.

A table of repeats (``repeat, samples_per_second``) gives each run its own published speed. A table of steps
(``batch_size_per_device, step_seconds``) gives one value a point; runs scatter about it as published repeats
do. Both ways of a study see the same speed where both make the same run, and go through the functions of
the pipeline: ``conclude`` and then ``repeats.judge`` or ``judge_round.choose``, round by round until nothing
more is asked for. The tables do not tell when or on which nodes a run was made, so neither do the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.conclusion import Conclusion, conclude
from scalewise.analysis.decision.decision import Decision
from scalewise.analysis.rounds.judge_round import ChoiceTerms, StudySoFar, choose
from scalewise.analysis.rounds.repeats import judge
from scalewise.analysis.tables import RUN_COLUMNS, Tables
from scalewise.plan.config.experiment import AnyExperiment, DecisionRule, Repeats, read_experiment
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.rounds import Round, first_repeats
from scalewise.plan.runs.run_definition import NO_OPTIONS
from scalewise.plan.runs.runs import Point, points
from scalewise.plan.runs.spending import Spending

from .published_tables import EXPOSED, REPEATS, STEPS, V100_REPEATS

FEWEST_COUNTS = 3
"""Device counts of a series below which there is nothing to choose among."""
NAME = "replayed"

Place = tuple[bool, bool]
"""Whether a shape is one device, and whether it is one node: runs scatter differently."""


@dataclass(frozen=True)
class ReplayedSeries:
    """A training on device counts that fill nodes, each with its published speeds.

    Args:
        table: Name of the file.
        name: Values of the columns that set series apart.
        shapes: The shape of each count, fewest devices first.
        batch_size_per_device: Samples of a device in a step; 1 where the table tells none.
        speeds: Samples/s of each run by count; a single one is the value that runs scatter about.
    """

    table: str
    name: str
    shapes: Mapping[int, Shape]
    batch_size_per_device: int
    speeds: Mapping[int, Sequence[float]]

    @property
    def counts(self) -> list[int]:
        """Device counts, fewest first."""
        return list(self.shapes)

    @property
    def is_noise_drawn(self) -> bool:
        """Whether the table tells no repeats."""
        return any(len(each) == 1 for each in self.speeds.values())

    def true_speed(self, devices: int) -> float:
        """The published speed, of several runs their median."""
        return float(np.median(self.speeds[devices]))

    def efficiency(self, devices: int) -> float:
        """The published efficiency."""
        base = self.counts[0]
        return self.true_speed(devices) / self.true_speed(base) * base / devices


def read_series(path: Path) -> list[ReplayedSeries]:
    """The series of a table that have enough device counts."""
    table = pd.read_csv(path)
    with_steps = set(table.columns) >= STEPS
    own = [name for name in table.columns if name not in (STEPS | {EXPOSED} if with_steps else REPEATS)]
    own += ["batch_size_per_device"] if with_steps else []
    found = (
        _series(path.name, tuple(map(str, key)), rows, with_steps)
        for key, rows in table.groupby(own, sort=False, dropna=False)
    )
    return [series for series in found if series is not None]


def _series(table: str, key: tuple[str, ...], rows: pd.DataFrame, with_steps: bool) -> ReplayedSeries | None:
    per_node = int((rows["devices"] // rows["nodes"]).max())
    batch = int(rows["batch_size_per_device"].iloc[0]) if with_steps else 1
    shapes, speeds = {}, {}
    for _, same in rows.groupby(["devices", "nodes"]):
        devices, nodes = (int(same[name].iloc[0]) for name in ("devices", "nodes"))
        shape = Shape(nodes, max(devices // nodes, 1))
        whole = shape.world_size == devices and shape.devices_per_node == per_node
        part = nodes == 1 and per_node % devices == 0
        rates = same["samples_per_second"] if not with_steps else devices * batch / same["step_seconds"]
        if (whole or part) and (with_steps or len(rates) > 1):
            shapes[devices] = shape
            speeds[devices] = [float(np.median(rates))] if with_steps else rates.tolist()
    if len(shapes) < FEWEST_COUNTS:
        return None
    return ReplayedSeries(table, ", ".join(key), shapes, batch, speeds)


@cache
def published_scatter() -> Mapping[Place, float]:
    """Standard deviation of a run's speed over its mean, the median of published points of each kind."""
    table = pd.read_csv(V100_REPEATS)
    points = table.groupby(["source", "case", "devices", "nodes"])["samples_per_second"]
    scatter = (points.std() / points.mean()).reset_index()
    kind = [(d == 1, n == 1) for d, n in zip(scatter["devices"], scatter["nodes"], strict=True)]
    return {
        place: float(scatter["samples_per_second"][[each == place for each in kind]].median())
        for place in set(kind)
    }


@dataclass(frozen=True)
class Replay:
    """A study of one series by one criterion, with the speed of every run that it can make.

    Args:
        series: The training.
        criterion: Name of the rule.
        rule: The criteria.
        repeats: Fewest and most of a point.
        speeds: Samples/s of each run by count, as many as the most repeats.
        steps: Optimizer steps that end a run; None for whole runs.
        samples: Of a whole run.
    """

    series: ReplayedSeries
    criterion: str
    rule: DecisionRule
    repeats: Repeats
    speeds: Mapping[int, Sequence[float]]
    steps: int | None
    samples: float

    def spec(self, *, chosen: bool) -> AnyExperiment:
        """The experiment with its counts as a list, or to choose among."""
        counts = self.series.counts
        return read_experiment(
            {
                "model": "cnn",
                "dataset": "digits",
                "scaling": "weak",
                "batch_size_per_device": self.series.batch_size_per_device,
                "devices": {"among": counts} if chosen else counts,
                "repeats": self.repeats.model_dump(),
                "decision": self.rule.model_dump(),
                "steps": self.steps,
                "epochs": 1,
            }
        )

    def seconds(self, devices: int, repeat: int) -> float:
        """Length of a run."""
        samples = self.samples
        if self.steps is not None:
            samples = self.steps * self.series.batch_size_per_device * devices
        return samples / self.speeds[devices][repeat - 1]

    def device_hours(self, repeats: Mapping[int, int]) -> float:
        """Cost of so many repeats of each count."""
        return sum(
            devices * self.seconds(devices, repeat) / 3600
            for devices, n in repeats.items()
            for repeat in range(1, n + 1)
        )

    def tables(self, repeats: Mapping[int, int]) -> Tables:
        """The runs, as ``collect`` would read them."""
        rows = [
            {
                "experiment": NAME,
                "run": f"d{devices}.r{repeat}",
                "series": NO_OPTIONS,
                "devices": devices,
                "nodes": float(shape.nodes),
                "devices_per_node": float(shape.devices_per_node),
                "repeat": repeat,
                "outcome": "completed",
                "reason": "",
                "fingerprint": "all alike",
                THROUGHPUT: self.speeds[devices][repeat - 1],
                "train_seconds": self.seconds(devices, repeat),
                "wall_seconds": None if self.steps else self.seconds(devices, repeat),
                "device_hours": None if self.steps else devices * self.seconds(devices, repeat) / 3600,
            }
            for devices, shape in self.series.shapes.items()
            for repeat in range(1, repeats[devices] + 1)
        ]
        return Tables(pd.DataFrame(rows).reindex(columns=RUN_COLUMNS), pd.DataFrame(columns=["run"]), [])


@dataclass(frozen=True)
class Answer:
    """What a study came to.

    Args:
        devices: The answer; None where no count meets the criteria.
        clear: Nothing is left open.
        repeats: Runs of each count.
        rounds: Times that runs were asked for.
        device_hours: Of all runs.
    """

    devices: int | None
    clear: bool
    repeats: Mapping[int, int]
    rounds: int
    device_hours: float

    @property
    def measured(self) -> int:
        """Number of counts that have runs."""
        return sum(n > 0 for n in self.repeats.values())


def full_grid(replay: Replay) -> Answer:
    """Every count, with repeats until the decision is clear."""
    spec = replay.spec(chosen=False)
    experiment = AnalysisSpec(NAME, spec)

    def judged(number: int, found: Conclusion, _asked: Mapping[str, int]) -> Round:
        return judge(NAME, number, found.runs, replay.repeats, found.decision)

    return _walk(replay, experiment, judged)


def chosen_study(replay: Replay) -> Answer:
    """The counts that the answer needs, chosen round by round."""
    experiment = AnalysisSpec(NAME, replay.spec(chosen=True))
    shapes = replay.series.shapes
    terms = ChoiceTerms({str(devices): shape for devices, shape in shapes.items()}, {})
    nowhere = Path("no-results")

    def judged(number: int, found: Conclusion, asked: Mapping[str, int]) -> Round:
        repeats = {devices: asked[point.name] for devices, point in _points(experiment.spec)}
        seconds = {
            f"d{devices}.r{repeat}": replay.seconds(devices, repeat)
            for devices, n in repeats.items()
            for repeat in range(1, n + 1)
        }
        spending = Spending(seconds, replay.device_hours(repeats))
        return choose(StudySoFar(experiment, terms, asked, found, spending, nowhere), number)

    return _walk(replay, experiment, judged)


def _walk(
    replay: Replay,
    experiment: AnalysisSpec,
    judged: Callable[[int, Conclusion, Mapping[str, int]], Round],
) -> Answer:
    asked = first_repeats(experiment.spec)
    number = 1
    while True:
        repeats = {devices: asked[point.name] for devices, point in _points(experiment.spec)}
        found = conclude(experiment, replay.tables(repeats))
        following = judged(number, found, asked)
        if not following.requests_more:
            return _answer(replay, found.decision, repeats, number)
        asked = {point.point: point.next_asked for point in following.points}
        number += 1


def _points(spec: AnyExperiment) -> Iterator[tuple[int, Point]]:
    return ((point.world_size, point) for point in points(spec))


def _answer(replay: Replay, decision: Decision, repeats: Mapping[int, int], rounds: int) -> Answer:
    return Answer(decision.devices, decision.clear, repeats, rounds, replay.device_hours(repeats))
