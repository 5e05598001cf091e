"""Studies with planted speeds, and what the package decides from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
from tests.unit.analysis.planted_tables import Point, make_runs

from scalewise.analysis.comparison.gains import Gains, gains
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.decision.selection import candidates, select
from scalewise.analysis.scaling import option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.runs.runs import Options

START_UP, SAMPLES = 120.0, 600_000.0
"""Seconds that every run takes in addition to its training, and samples that it trains on."""


@dataclass(frozen=True)
class PlantedResults:
    """The results of planted runs, and what the site and the configuration add to them.

    Args:
        points: Samples per second of each repeat, or the outcome of one that has none.
        target: Accuracy that counts as trained.
        epochs: Epochs of 60,000 samples until each repeat of a point reached it; None for one that did not.
        swept: Options that the series differ in.
        queue_minutes: Usual wait by device count.
        billed: Devices that are paid, by device count.
        walls: How long whole runs take is known.
    """

    points: Mapping[Point, Sequence[float | str]]
    target: float | None = None
    epochs: Mapping[Point, Sequence[float | None]] = field(default_factory=dict)
    swept: Sequence[str] = ("static_graph",)
    queue_minutes: Mapping[int, float] = field(default_factory=dict)
    billed: Mapping[int, float] = field(default_factory=dict)
    walls: bool = True

    @cached_property
    def runs(self) -> pd.DataFrame:
        reached = [
            self.epochs.get(point, (None,) * len(results))[repeat]
            for point, results in self.points.items()
            for repeat in range(len(results))
        ]
        runs = make_runs(self.points, epochs_to_accuracy=pd.Series(reached, dtype=float))
        rate = runs["throughput_samples_per_second"]
        wall = START_UP + SAMPLES / rate if self.walls else math.nan
        return runs.assign(
            train_seconds=SAMPLES / rate,
            wall_seconds=wall,
            device_hours=wall * runs["devices"] / 3600,
            final_accuracy=runs["epochs_to_accuracy"].notna().map({True: 0.98, False: 0.9}),
            time_to_accuracy_seconds=runs["epochs_to_accuracy"] * 60_000 / rate,
        )

    @property
    def options_of(self) -> dict[str, Options]:
        """The options of each series; the name stands for the values."""
        return {name: tuple((key, name) for key in self.swept) for name, _ in self.points}

    @cached_property
    def compared(self) -> Gains:
        """The ratios of all pairs of points."""
        return gains(self.runs)

    @cached_property
    def scaling(self) -> pd.DataFrame:
        return as_billed(scaling_table(self.runs, "strong", {}, self.compared), self.billed)

    def decision(self, rule: DecisionRule, queue_minutes: float | None = None) -> Decision:
        """The package's decision.

        Args:
            queue_minutes: One wait for all device counts, in place of the site's.
        """
        return decide(
            "study",
            self.scaling,
            option_table(self.runs, {}),
            rule,
            compared=self.compared,
            target=self.target,
            queue_minutes=self._waits(queue_minutes),
            options_of=self.options_of,
        )

    def concluded(self, rule: DecisionRule, queue_minutes: float | None = None) -> dict[str, Any]:
        """The package's decision in plain values."""
        found = candidates(
            self.scaling,
            rule,
            self.compared,
            options=self.options_of,
            target=self.target,
            queue_minutes=self._waits(queue_minutes),
        )[0]
        chosen, decision = select(found, rule, self.compared), self.decision(rule, queue_minutes)
        own = found.points[found.points["series"] == decision.series]
        return {
            "devices": decision.devices,
            "series": decision.series,
            "clear": decision.clear,
            "verdict": decision.card.verdict,
            "next": decision.card.next,
            "open": [
                [question.kind, question.devices, question.than]
                for question in (chosen.open_questions if chosen else ())
            ],
            "misses": [list(misses) for misses in own["misses"]],
        }

    def _waits(self, queue_minutes: float | None) -> Mapping[int, float]:
        if queue_minutes is None:
            return self.queue_minutes
        return dict.fromkeys(self.scaling["devices"].tolist(), queue_minutes)
