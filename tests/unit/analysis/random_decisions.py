"""Studies and rules drawn at random, ties and gaps among them, for two programs to be held together."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from tests.unit.analysis.planted_decisions import SAMPLES, START_UP, PlantedResults
from tests.unit.analysis.planted_tables import ALONE, Point

from scalewise.plan.config.experiment import DecisionRule

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SCATTERS = (0.0, 0.002, 0.01, 0.03, 0.1)
FAILURES = ("failed", "out-of-memory", "timed-out")

Asked = tuple[DecisionRule, float | None]
"""The criteria, and one wait in the queue for all device counts or None for the site's."""


def random_study(chance: random.Random) -> PlantedResults:
    """A study of one to four series, with whatever may befall one."""
    names = [ALONE, "on", "off", "7"][: chance.choice((1, 1, 2, 3, 4))]
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
