"""Published measurements as a cluster: a study's runs get the speeds that others measured.

A run scatters about its point's published speed by a share, or as the published repeats do. Both kinds of
study see the same speed where both make the same run. Both go through the functions of the pipeline,
``conclude`` and ``request_runs``, round by round until nothing more is requested. The tables do not state
when or on which nodes a run was made, so neither do the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from scalewise.analysis.analysis_spec import THROUGHPUT, AnalysisSpec
from scalewise.analysis.judge_round import Limits, request_runs
from scalewise.analysis.runs import RUN_COLUMNS, Tables
from scalewise.analysis.study import Part, conclude
from scalewise.config.experiment import AnyExperiment, read_experiment
from scalewise.config.shape import Shape
from scalewise.plan.rounds import first_repeats
from scalewise.plan.run_definition import NO_OPTIONS

PUBLISHED = Path(__file__).resolve().parent / "published"
T4_STEPS, V100_REPEATS = PUBLISHED / "t4-steps.csv", PUBLISHED / "v100-repeats.csv"
FEWEST_COUNTS = 3
"""Device counts of a series below which there is nothing to choose among."""
NAME = "replayed"
REPEATS = {"min": 6, "max": 10}
"""Fewest and most repeats of a point, as ``repeats: {}`` has them."""
_NO_SERIES = {"devices", "nodes", "repeat", "step_seconds", "accumulation_steps", "exposed_sync_seconds"}

Place = tuple[bool, bool]
"""Whether a shape is one device, and whether it is one node: runs scatter differently."""


@dataclass(frozen=True)
class ReplayedSeries:
    """A training on device counts that fill nodes, each with its published speeds.

    Args:
        table: Name of the file.
        name: Values of the columns that set series apart.
        shapes: The shape of each count, fewest devices first.
        batch: Samples of a step, of a device with weak scaling, of all with strong; 1 if unknown.
        is_strong: Whether the samples of a step are the same on all counts.
        speeds: Samples/s of each published run, by count.
    """

    table: str
    name: str
    shapes: Mapping[int, Shape]
    batch: int
    is_strong: bool
    speeds: Mapping[int, Sequence[float]]

    @property
    def counts(self) -> list[int]:
        """Device counts, fewest first."""
        return list(self.shapes)

    def true_speed(self, devices: int) -> float:
        """Return the published speed, of several runs their median."""
        return float(np.median(self.speeds[devices]))

    def step_samples(self, devices: int) -> int:
        """Return the samples of a step on all devices."""
        return self.batch if self.is_strong else self.batch * devices


def read_series(path: Path) -> list[ReplayedSeries]:
    """Read the series of a table (``run.py --help`` has its form) that have enough device counts."""
    table = pd.read_csv(path)
    is_strong = "global_batch_size" in table
    rate = next((name for name in table.columns if name.endswith("_per_second")), "samples_per_second")
    if rate not in table:
        batch = table["global_batch_size" if is_strong else "batch_size_per_device"]
        table[rate] = batch * (1 if is_strong else table["devices"]) / table["step_seconds"]
    table["nodes"] = table.get("nodes", 1)
    left_out = _NO_SERIES | {rate} | ({"batch_size_per_device"} if is_strong else set())
    keys = [name for name in table.columns if name not in left_out]
    groups = table.groupby(keys, sort=False, dropna=False) if keys else [((), table)]
    found = (_series(path.name, ", ".join(map(str, key)), rows, rate) for key, rows in groups)
    return [series for series in found if len(series.shapes) >= FEWEST_COUNTS]


def _series(table: str, name: str, rows: pd.DataFrame, rate: str) -> ReplayedSeries:
    per_node = int((rows["devices"] // rows["nodes"]).max())
    is_strong = "global_batch_size" in rows
    batch = rows.get("global_batch_size" if is_strong else "batch_size_per_device", pd.Series([1]))
    shapes, speeds = {}, {}
    for _, same in rows.groupby(["devices", "nodes"]):
        devices, nodes = (int(same[each].iloc[0]) for each in ("devices", "nodes"))
        shape = Shape(nodes, max(devices // nodes, 1))
        whole = shape.world_size == devices and shape.devices_per_node == per_node
        if whole or (nodes == 1 and per_node % devices == 0) or rows["nodes"].max() == 1:
            shapes[devices] = shape
            speeds[devices] = same[rate].astype(float).tolist()
    return ReplayedSeries(table, name, shapes, int(batch.iloc[0]), is_strong, speeds)


@cache
def published_scatter() -> Mapping[Place, float]:
    """Return the standard deviation of a run's speed over its mean: the median of the points of a kind."""
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
        decision: The criterion, as in experiments.yaml.
        speeds: Samples/s of each run by count, as many as the most repeats.
        steps: Optimizer steps that end a run; None for whole runs.
        samples: Of a whole run.
    """

    series: ReplayedSeries
    decision: Mapping[str, float]
    speeds: Mapping[int, Sequence[float]]
    steps: int | None
    samples: float

    def spec(self, *, chosen: bool) -> AnyExperiment:
        """Return the experiment with its counts as a list, or to choose among."""
        strong, counts = self.series.is_strong, self.series.counts
        return read_experiment(
            {
                "model": "cnn",
                "dataset": "digits",
                "scaling": "strong" if strong else "weak",
                "global_batch_size" if strong else "batch_size_per_device": self.series.batch,
                "devices": {"up_to": max(counts), "counts": counts} if chosen else counts,
                "repeats": REPEATS,
                "decision": dict(self.decision),
                "steps": self.steps,
                "epochs": 1,
            }
        )

    def seconds(self, devices: int, repeat: int) -> float:
        """Return the length of a run."""
        samples = self.samples
        if self.steps is not None:
            samples = self.steps * self.series.step_samples(devices)
        return samples / self.speeds[devices][repeat - 1]

    def device_hours(self, repeats: Mapping[int, int]) -> float:
        """Return the cost of so many repeats of each count."""
        return sum(
            devices * self.seconds(devices, repeat) / 3600
            for devices, n in repeats.items()
            for repeat in range(1, n + 1)
        )

    def tables(self, repeats: Mapping[int, int]) -> Tables:
        """Return the runs, as ``collect`` would read them."""
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
    """The answer of a study.

    Args:
        devices: The answer; None if no count meets the criteria.
        clear: Nothing is left open.
        repeats: Runs of each count.
        rounds: Times that runs were requested.
        device_hours: Of all runs.
    """

    devices: int | None
    clear: bool
    repeats: Mapping[int, int]
    rounds: int
    device_hours: float


def play(replay: Replay, *, chosen: bool) -> Answer:
    """Return the answer of a study that chooses its counts round by round, or of a list of all counts.

    Both repeat until the decision is clear.
    """
    spec = replay.spec(chosen=chosen)
    experiment = AnalysisSpec(NAME, spec)
    named = {f"d{devices}": devices for devices in replay.series.counts}
    requested, number = first_repeats(spec), 1
    while True:
        repeats = {devices: requested[name] for name, devices in named.items()}
        found = conclude(NAME, [Part("", experiment)], [replay.tables(repeats)])
        judged = request_runs(experiment, number, requested, found, Limits())
        if not judged.further:
            hours = replay.device_hours(repeats)
            return Answer(found.answer.devices, found.answer.is_clear, repeats, number, hours)
        requested, number = judged.requested, number + 1
