"""Studies with planted speeds, and the answer that they get from the table of their runs on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pandas as pd

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.study import Analysis, Part, analyze, conclude
from scalewise.config.experiment import AnyExperiment, DecisionRule, read_experiment
from scalewise.plan.run_definition import NO_OPTIONS
from scalewise.plan.runs import Options

ONLY = NO_OPTIONS
"""The series of a study without a sweep."""

Point = tuple[str, int]
"""Series and devices."""

START_UP, SAMPLES = 120.0, 600_000.0
"""Seconds that every run takes in addition to its training, and samples that it trains on."""


def spread(rate: float, by: float = 0.01, repeats: int = 3) -> list[float]:
    """Return repeats around a rate, one of them on it."""
    return [rate * (1 + by * (repeat - repeats // 2)) for repeat in range(repeats)]


def make_spec(counts: Sequence[int], **keys: Any) -> AnyExperiment:
    """Return an experiment on some device counts."""
    usual = {"dataset": "digits", "model": "digits_cnn", "scaling": "strong", "global_batch_size": 5040}
    return read_experiment(usual | {"devices": list(counts), "repeats": 3, "epochs": 10} | keys)


def make_runs(points: Mapping[Point, Sequence[float | str]], **columns: Any) -> pd.DataFrame:
    """Return the table of runs as ``collect`` makes it.

    Args:
        points: Samples per second of each repeat, or the outcome of one that has none.
        columns: Further columns, or others than usual.
    """
    rows: list[dict[str, Any]] = []
    most = max(map(len, points.values()))
    for repeat in range(most):
        for (series, devices), results in points.items():
            if repeat >= len(results):
                continue
            result = results[repeat]
            row: dict[str, Any] = {
                "experiment": "study", "run": f"d{devices}.{series}.r{repeat + 1}", "series": series,
                "devices": devices, "repeat": repeat + 1, "nodes": 1.0, "place": len(rows),
            }  # fmt: skip
            if isinstance(result, str):
                row |= {"outcome": result, "reason": f"why it is {result}"}
            else:
                seconds = SAMPLES / result
                wall = START_UP + seconds
                row |= {
                    "outcome": "completed", "reason": "", "throughput_samples_per_second": float(result),
                    "train_seconds": seconds, "wall_seconds": wall, "device_hours": wall * devices / 3600,
                    "final_accuracy": 0.98, "peak_memory_bytes": 7e8, "samples": SAMPLES,
                }  # fmt: skip
            rows.append(row)
    runs = pd.DataFrame(rows)
    started = pd.Timestamp("2026-01-05T09:00:00+00:00") + pd.to_timedelta(6 * runs.pop("place"), unit="min")
    runs["started_at"] = started.map(pd.Timestamp.isoformat)
    return runs.assign(disturbance="").assign(**columns)


def make_tables(runs: pd.DataFrame, **others: Any) -> Any:
    """Return what ``collect`` returns, of a table of runs."""
    usual: dict[str, Any] = {"epochs": pd.DataFrame(columns=["run"]), "cautions": [], "origins": []}
    return SimpleNamespace(runs=runs, **usual | others)


def analysis_of(
    runs: pd.DataFrame,
    options: Mapping[str, Options] | None = None,
    queue_minutes: Mapping[int, float] = MappingProxyType({}),
    billed: Mapping[int, float] = MappingProxyType({}),
    **keys: Any,
) -> Analysis:
    """Return the analysis of a table of runs.

    Args:
        runs: Runs, the way ``make_runs`` gives them.
        options: Options of each series; by default one that the name stands for.
        queue_minutes: Usual wait by device count.
        billed: Devices that are paid, by device count.
        keys: Keys of the experiment.
    """
    spec = make_spec(sorted(set(runs["devices"])), **keys)
    experiment = AnalysisSpec("study", spec, queue_minutes, billed, "cuda")
    named: dict[str, Options] = {
        name: (("gradient_as_bucket_view", name),) for name in dict.fromkeys(runs["series"])
    }
    return conclude("study", [Part("", experiment)], [make_tables(runs)], options=options or named)


@dataclass(frozen=True)
class Planted:
    """The results of planted runs, and what the site and the configuration add to them.

    Args:
        points: Samples per second of each repeat, or the outcome of one that has none.
        target: Accuracy that counts as trained.
        epochs: Epochs of 60,000 samples until each repeat of a point reached it; None for one that did not.
        swept: Options that the series differ in.
        queue_minutes: Usual wait by device count.
        billed: Devices that are paid, by device count.
        walls: The time of whole runs is known.
    """

    points: Mapping[Point, Sequence[float | str]]
    target: float | None = None
    epochs: Mapping[Point, Sequence[float | None]] = field(default_factory=dict)
    swept: Sequence[str] = ("gradient_as_bucket_view",)
    queue_minutes: Mapping[int, float] = field(default_factory=dict)
    billed: Mapping[int, float] = field(default_factory=dict)
    walls: bool = True

    @property
    def runs(self) -> pd.DataFrame:
        """The table of runs."""
        # the repeats of ``spread`` have one pattern, which pairs within blocks would take for a fact
        runs = make_runs(self.points, started_at=None)
        if self.target is not None:
            reached = [
                self.epochs.get((series, devices), (None,) * 99)[repeat - 1]
                for series, devices, repeat in zip(
                    runs["series"], runs["devices"], runs["repeat"], strict=True
                )
            ]
            runs["epochs_to_accuracy"] = pd.Series(reached, dtype=float)
            runs["time_to_accuracy_seconds"] = (
                runs["epochs_to_accuracy"] * 60_000 / runs["throughput_samples_per_second"]
            )
            runs["final_accuracy"] = runs["epochs_to_accuracy"].notna().map({True: 0.98, False: 0.9})
        if not self.walls:
            runs[["wall_seconds", "device_hours"]] = math.nan
        return runs

    def analysis(self, rule: DecisionRule | None = None, **keys: Any) -> Analysis:
        """Return the analysis by a rule.

        Args:
            rule: The criteria.
            keys: Keys of the experiment, or ``runs``, a table in place of the planted one.
        """
        if self.target is not None:
            keys["target"] = {"accuracy": self.target}
        keys["decision"] = (rule or DecisionRule()).model_dump(exclude_none=True)
        names = dict.fromkeys(series for series, _ in self.points)
        options: dict[str, Options] = {name: tuple((key, name) for key in self.swept) for name in names}
        return analysis_of(keys.pop("runs", self.runs), options, self.queue_minutes, self.billed, **keys)


def concluded(folder: Path, spec: AnyExperiment) -> Analysis:
    """Analyze a study from the records in its folder ``runs``, and write its tables."""
    part = Part("", AnalysisSpec("study", spec), folder / "runs")
    return analyze("study", [part], folder)


def at(analysis: Analysis, devices: int, series: str = ONLY) -> pd.Series:
    """Return the only row of a point in the scaling table."""
    table = analysis.scaling
    (row,) = (row for _, row in table.iterrows() if (row["series"], row["devices"]) == (series, devices))
    return row
