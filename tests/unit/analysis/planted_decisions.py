"""Studies with planted or drawn speeds, and what the package and the page's script are given of them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
from tests.unit.analysis.planted_tables import ONLY, Point, make_runs

from scalewise.analysis.comparison.gains import Gains, gains
from scalewise.analysis.conclusion import Terms
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.decision.selection import candidates, select
from scalewise.analysis.report.what_if import facts
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
        return as_billed(scaling_table(self.runs, {}, self.compared), self.billed)

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

    def facts(self, rule: DecisionRule | None = None) -> dict[str, Any]:
        """The numbers in the page."""
        rule = rule or DecisionRule()
        terms = Terms(rule, self.options_of, self.target, self.queue_minutes)
        found = facts(self.scaling, self.compared, self.decision(rule), terms)
        return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]

    def _waits(self, queue_minutes: float | None) -> Mapping[int, float]:
        if queue_minutes is None:
            return self.queue_minutes
        return dict.fromkeys(self.scaling["devices"].tolist(), queue_minutes)


_JUDGE = """
(jobs) => jobs.map(({facts, rule}) => {
  const found = scalewiseWhatIf.decide(facts, rule);
  const {verdict, notes} = scalewiseWhatIf.describe(facts, found);
  return {
    devices: found.devices, series: found.series, clear: found.clear, verdict,
    next: found.best ? notes[0] : "",
    open: found.open.map(({kind, devices, than}) => [kind, devices, than]),
    misses: found.points.map((point) => point.misses),
  };
})
"""


def concluded_by_script(page: Any, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The script's decisions, in the shape of ``PlantedResults.concluded``.

    Args:
        page: A page of Playwright's that has the script.
    """
    found: list[dict[str, Any]] = page.evaluate(_JUDGE, list(jobs))
    return found


def asked(rule: DecisionRule, queue_minutes: float | None = None) -> dict[str, Any]:
    return rule.model_dump() | {"queue_minutes": queue_minutes}


# --- drawn at random, ties and gaps among them ----------------------------------------------------------

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SCATTERS = (0.0, 0.002, 0.01, 0.03, 0.1)
FAILURES = ("failed", "out-of-memory", "timed-out")

Asked = tuple[DecisionRule, float | None]
"""The criteria, and one wait in the queue for all device counts or None for the site's."""


def random_study(chance: random.Random) -> PlantedResults:
    """A study of one to four series, with whatever may befall one."""
    names = [ONLY, "on", "off", "7"][: chance.choice((1, 1, 2, 3, 4))]
    counts = sorted(chance.sample(COUNTS, chance.randint(2, 6)))
    points: dict[Point, list[float | str]] = {}
    epochs: dict[Point, list[float | None]] = {}
    to_target = chance.random() < 0.25
    failing = chance.choice((0.0, 0.0, 0.1, 0.4))
    for name in names:
        one, serial = chance.choice((100.0, 101.0, 110.0)), chance.choice((0.0, 0.01, 0.05, 0.2))
        coherency, scatter = chance.choice((0.0, 0.0, 0.01)), chance.choice(SCATTERS)
        repeats = chance.choice((1, 2, 3, 3, 6))
        for devices in counts:
            if chance.random() < 0.05:
                continue
            speedup = devices / (1 + serial * (devices - 1) + coherency * devices * (devices - 1))
            rate = one * speedup * (chance.choice((0.6, 1.05)) if chance.random() < 0.1 else 1)
            rates = [rate * math.exp(chance.gauss(0, scatter)) for _ in range(repeats)]
            if chance.random() < 0.3:
                rates = [round(each, -1) or 10.0 for each in rates]  # ties
            points[name, devices] = [
                chance.choice(FAILURES) if chance.random() < failing else each for each in rates
            ]
            epochs[name, devices] = [
                None if chance.random() < 0.2 else float(chance.randint(3, 5) + devices // 8) for _ in rates
            ]
    return PlantedResults(
        points,
        target=0.97 if to_target else None,
        epochs=epochs if to_target else {},
        swept=chance.choice((["static_graph"], ["static_graph"], ["precision"])),
        queue_minutes={count: float(count) for count in counts} if chance.random() < 0.3 else {},
        billed={count: 4 * math.ceil(count / 4) for count in counts} if chance.random() < 0.3 else {},
        walls=chance.random() < 0.9,
    )


def random_rules(chance: random.Random, study: PlantedResults) -> Iterator[Asked]:
    """Some criteria for a study: round numbers, and those that one of its points just meets or misses."""
    rates = [each for results in study.points.values() for each in results if not isinstance(each, str)]
    for _ in range(4):
        given: dict[str, Any] = {"min_gain": chance.choice((0.0, 0.05, 0.05, 0.3))}
        if chance.random() < 0.5:
            given["min_efficiency"] = chance.choice(
                (0.25, 0.5, 0.7, 0.9, 1.0, round(chance.random(), 2) or 0.01)
            )
        if rates and chance.random() < 0.3:
            seconds = START_UP + SAMPLES / chance.choice(rates)
            given["deadline_minutes"] = chance.choice((1, 1.02, 1.3)) * seconds / 60
        if rates and chance.random() < 0.3:
            seconds = START_UP + SAMPLES / chance.choice(rates)
            given["max_device_hours"] = chance.choice((1, 1.2, 3)) * seconds / 3600
        yield DecisionRule(**given), chance.choice((None, None, 0.0, 7.5))
