"""Studies whose runs differ by more than noise, with their right answers.

``studies.py`` has one series whose runs scatter; here something else decides: an option that is good on few
devices, a queue that starts small jobs first, a loss of accuracy, runs that are missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pandas as pd
from tests.truth.studies import SAMPLES, START, START_UP_SECONDS, run_row

from scalewise.analysis.comparison.confounding import confounding_sentences, trend_sentences
from scalewise.analysis.comparison.gains import Point, gains
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule
from scalewise.plan.runs.runs import Options

Order = Literal["blocks", "queue"]
"""``blocks``: repeats of all points in shuffled order, one after the other. ``queue``: small jobs first."""

ON, OFF = "on", "off"
NOT_CLEAR: frozenset[Point] = frozenset()
"""No answer may be clear."""


@dataclass(frozen=True)
class Study:
    """A study with a known answer.

    Args:
        rates: True samples/s of each series and device count.
        rule: The criteria.
        right: Points that are right answers; of others a clear one is wrong.
        order: Order in which the runs start.
        trend: Relative change of speed from the first run to the last.
        accuracy: True final accuracy by device count.
        slow: Device counts that have one run more, of which the slowest ran out of time.
        option: Name of the option in which the series differ.
        target: Accuracy that counts as trained; runs whose accuracy is as high reach it in the first epoch.
    """

    rates: Mapping[Point, float]
    rule: DecisionRule
    right: Collection[Point]
    order: Order = "blocks"
    trend: float = 0.0
    accuracy: Mapping[Point, float] = field(default_factory=dict)
    slow: Collection[int] = ()
    option: str = "loader"
    target: float | None = None


def run_table(study: Study, generator: np.random.Generator, scatter: float, n: int) -> pd.DataFrame:
    """Return the runs of a study, as ``collect`` makes them."""
    points: list[Point] = list(study.rates)
    order: list[tuple[Point, int]] = []
    for repeat in range(1, n + 1):
        order += [(points[index], repeat) for index in generator.permutation(len(points))]
    order += [(point, n + 1) for point in points if point[1] in study.slow]
    if study.order == "queue":
        order.sort(key=lambda job: job[0][1])
    rows: list[dict[str, Any]] = []
    for place, ((series, devices), repeat) in enumerate(order):
        speed = math.exp(scatter * generator.standard_normal())
        speed *= 1 + study.trend * place / max(len(order) - 1, 1)
        rate = study.rates[series, devices] * speed
        row = run_row(devices, repeat, "node0", rate) | {"series": series, study.option: series}
        row |= {"started_at": (START + timedelta(minutes=6 * place)).isoformat()}
        wall = START_UP_SECONDS + SAMPLES / rate
        row |= {"wall_seconds": wall, "device_hours": wall * devices / 3600, "train_seconds": SAMPLES / rate}
        if study.accuracy:
            row["final_accuracy"] = study.accuracy[series, devices] + 0.002 * generator.standard_normal()
            if study.target is not None and row["final_accuracy"] >= study.target:
                row |= {"epochs_to_accuracy": 1.0, "time_to_accuracy_seconds": SAMPLES / rate}
        rows.append(row)
    for series, devices in points:
        if devices in study.slow:
            # the slowest of the runs did not end in time
            mine = [row for row in rows if (row["series"], row["devices"]) == (series, devices)]
            slowest = min(mine, key=lambda row: row["throughput_samples_per_second"])
            lost = run_row(devices, slowest["repeat"], "node0", None, "timed-out")
            rows[rows.index(slowest)] = lost | {"series": series, study.option: series}
    # in the order of the configuration
    rows.sort(key=lambda row: (points.index((row["series"], row["devices"])), row["repeat"]))
    return pd.DataFrame(rows)


def answer(study: Study, runs: pd.DataFrame) -> Decision:
    """Return the decision on a table of runs, the way ``conclude`` makes it."""
    known = known_columns(runs)
    compared = gains(known)
    options: dict[str, Options] = {series: ((study.option, series),) for series, _ in study.rates}
    return decide(
        "study",
        scaling_table(known, None, compared),
        option_table(known, {}),
        study.rule,
        compared=compared,
        target=study.target,
        confounded=confounding_sentences(known),
        differences=list(trend_sentences(known)),
        options_of=options,
    )


def one(rates: Mapping[int, float], series: str = OFF) -> dict[Point, float]:
    return {(series, devices): rate for devices, rate in rates.items()}


FAR = {1: 100.0, 2: 185.0, 4: 310.0, 8: 430.0}
"""Efficiencies 1, 0.93, 0.78 and 0.54."""
GOOD_ON_FEW = one({1: 1000, 2: 1900, 4: 3600, 8: 7000}) | one({1: 1100, 2: 2090, 4: 2200, 8: 2300}, ON)
ALONE_ON_MORE = one({1: 100, 2: 196}) | one({1: 100, 2: 196, 4: 385}, ON)
TWICE = one(FAR) | one({devices: 2 * rate for devices, rate in FAR.items()}, ON)
EQUAL = one(FAR) | one(FAR, ON)
DRIFTING = one({1: 100.0, 2: 190.0, 4: 264.0, 8: 330.0})
"""Efficiency 0.66 on 4."""
FLAT = one(dict.fromkeys((1, 2, 4, 8), 100.0))
WELL = {1: 100.0, 2: 196.0, 4: 384.0, 8: 740.0}


def hours(devices: int, rate: float) -> float:
    return (START_UP_SECONDS + SAMPLES / rate) * devices / 3600


EFFICIENT = DecisionRule(min_efficiency=0.7)

WRONG: dict[str, Study] = {
    "an option good on few devices": Study(GOOD_ON_FEW, EFFICIENT, {(OFF, 8)}),
    "the same, by speedup x efficiency": Study(GOOD_ON_FEW, DecisionRule(), {(OFF, 8)}),
    "the same, by device-hours": Study(GOOD_ON_FEW, DecisionRule(max_device_hours=0.5), {(OFF, 8)}),
    "an option alone on the most devices": Study(ALONE_ON_MORE, EFFICIENT, {(ON, 4)}),
    "an option twice as fast": Study(TWICE, EFFICIENT, {(ON, 4)}),
    "only another training reaches the target": Study(
        one(WELL) | one(WELL, ON), EFFICIENT, NOT_CLEAR,
        accuracy={point: 0.95 if point[0] == ON else 0.5 for point in one(WELL) | one(WELL, ON)},
        option="learning_rate", target=0.9,
    ),
    "accuracy at chance": Study(
        one(WELL), EFFICIENT, NOT_CLEAR,
        accuracy=dict(zip(one(WELL), (0.98, 0.98, 0.98, 0.1), strict=True)),
    ),
    "accuracy falls by 8 points": Study(
        one(WELL), EFFICIENT, NOT_CLEAR,
        accuracy=dict(zip(one(WELL), (0.98, 0.97, 0.95, 0.9), strict=True)),
    ),
    "queue order, speed rises by 15 %": Study(DRIFTING, EFFICIENT, {(OFF, 2)}, order="queue", trend=0.15),
    "queue order, no gain at all": Study(
        FLAT, DecisionRule(min_efficiency=0.01), {(OFF, 1)}, order="queue", trend=0.15
    ),
    "queue order, no drift": Study(one(FAR), EFFICIENT, NOT_CLEAR, order="queue"),
    **{
        f"device-hours {share:.1%} above the truth": Study(
            one(WELL), DecisionRule(max_device_hours=hours(8, WELL[8]) * (1 + share)), {(OFF, 8)}
        )
        for share in (0.005, 0.01, 0.02)
    },
    **{
        f"device-hours {share:.1%} above the only count": Study(
            one(WELL), DecisionRule(max_device_hours=hours(1, WELL[1]) * (1 + share)), {(OFF, 1)}
        )
        for share in (0.005, 0.02)
    },
    "survivors of a walltime": Study(one(FAR), EFFICIENT, NOT_CLEAR, slow={4}),
}  # fmt: skip
"""Studies that must not get a wrong answer that is clear."""

RIGHT: dict[str, Study] = {
    "quiet": Study(one(FAR), EFFICIENT, {(OFF, 4)}),
    "quiet, the knee": Study(one(FAR), DecisionRule(), {(OFF, 4)}),
    "quiet, a budget": Study(one(FAR), DecisionRule(max_device_hours=3.3), {(OFF, 2)}),
    "quiet, two equal options": Study(EQUAL, EFFICIENT, {(OFF, 4), (ON, 4)}),
    "quiet, an option twice as fast": Study(TWICE, EFFICIENT, {(ON, 4)}),
    "quiet, equal accuracies": Study(one(FAR), EFFICIENT, {(OFF, 4)}, accuracy=dict.fromkeys(one(FAR), 0.97)),
    "shuffled blocks, speed rises by 15 %": Study(DRIFTING, EFFICIENT, {(OFF, 2)}, trend=0.15),
    "shuffled blocks, speed falls by 15 %": Study(one(FAR), EFFICIENT, {(OFF, 4)}, trend=-0.15),
    "shuffled blocks, no gain at all": Study(FLAT, DecisionRule(min_efficiency=0.01), {(OFF, 1)}, trend=0.15),
}
"""Studies whose answers are right, and should stay clear."""


def verdicts(study: Study, scatter: float, n: int, studies: int, seed: int = 20260131) -> Counter[str]:
    """Return how many drawn studies get which answer: ``right`` or ``wrong``, and ``clear`` if it is."""
    generator = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for _ in range(studies):
        decision = answer(study, run_table(study, generator, scatter, n))
        is_right = (decision.series, decision.devices) in study.right
        is_clear = decision.clear or decision.card.certainty == "Clear"
        found[f"{'right' if is_right else 'wrong'}{', clear' if is_clear else ''}"] += 1
    return found
