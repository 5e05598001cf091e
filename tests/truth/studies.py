"""Studies whose right answer is known: true speeds, planted noise, and the answer that they get.

A planted study goes the way of a real one from the table of its runs on: ``scaling_table``, ``gains``,
``decide``. Its right answer is that of the same rule applied to the true speeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import numpy as np
import pandas as pd

from scalewise.analysis.comparison.confounding import confounding_sentences
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.decision.decision import Decision, decide
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import DecisionRule

Rates = Mapping[int, float]
"""True samples/s by device count."""

SERIES = "all runs"
START = datetime(2026, 1, 5, 9, tzinfo=UTC)
SAMPLES = 1e6
START_UP_SECONDS = 30.0
DEVICES_PER_NODE = 4
NODES = 16


@dataclass(frozen=True)
class Circumstances:
    """What disturbs the runs of a study, in addition to the scatter of each.

    Args:
        trend: Relative change of speed from the first run to the last.
        sticky_nodes: Every count has other nodes, which differ by this standard deviation; 0 where runs
            are spread over equal nodes.
        nodes_to_a_count: Nodes that each count draws its own from, all of one speed; by default it has no
            more than it needs.
        other_day: Relative speed of a later day, on which the most devices were added; 0 for none.
        scatter_of_most: Scatter of the most devices over that of the others.
        tail: Draws of the noise, of mean 0 and standard deviation 1.
    """

    trend: float = 0.0
    sticky_nodes: float = 0.0
    nodes_to_a_count: int = 0
    other_day: float = 0.0
    scatter_of_most: float = 1.0
    tail: Callable[[np.random.Generator, int], np.ndarray] = field(
        default=lambda generator, n: generator.standard_normal(n)
    )


@dataclass(frozen=True)
class Planted:
    """A study with a known answer.

    Args:
        epochs: True epochs to the target by device count; None without a target.
    """

    rates: Rates
    rule: DecisionRule
    epochs: Mapping[int, int] | None = None

    @property
    def speeds(self) -> Rates:
        """What decides: throughput, or over the epochs that it takes."""
        if self.epochs is None:
            return self.rates
        return {devices: rate / self.epochs[devices] for devices, rate in self.rates.items()}


def run_table(
    planted: Planted, generator: np.random.Generator, scatter: float, n: int, how: Circumstances
) -> pd.DataFrame:
    """Return the runs of a planted study, as ``collect`` makes them.

    Args:
        scatter: Standard deviation of the logarithm of a run's speed.
    """
    counts = sorted(planted.rates)
    most = counts[-1]
    own = {devices: math.exp(how.sticky_nodes * generator.standard_normal()) for devices in counts}
    order = [
        (repeat, devices) for repeat in range(1, n + 1) for devices in generator.permutation(counts).tolist()
    ]
    rows = []
    for place, (repeat, devices) in enumerate(order):
        late = how.other_day != 0 and devices == most
        noise = float(how.tail(generator, 1)[0]) * scatter
        if devices == most:
            noise *= how.scatter_of_most
        speed = math.exp(noise) * (1 + how.trend * place / max(len(order) - 1, 1))
        if how.sticky_nodes:
            speed *= own[devices]
        if late:
            speed *= 1 + how.other_day
        nodes = max(1, devices // DEVICES_PER_NODE)
        pool = how.nodes_to_a_count or (nodes if how.sticky_nodes else NODES)
        first = counts.index(devices) * NODES if how.sticky_nodes else 0
        hosts = sorted(generator.choice(max(pool, nodes), nodes, replace=False) + first)
        rate = planted.rates[devices] * speed
        begun = START + timedelta(minutes=6 * place) + (timedelta(days=2) if late else timedelta())
        row = run_row(devices, repeat, ", ".join(f"node{host}" for host in hosts), rate)
        row |= {"nodes": float(nodes), "started_at": begun.isoformat()}
        row["wall_seconds"] = START_UP_SECONDS + SAMPLES / rate
        if planted.epochs is not None:
            row["epochs_to_accuracy"] = float(planted.epochs[devices])
            row["time_to_accuracy_seconds"] = planted.epochs[devices] * SAMPLES / rate
            row["train_seconds"] = row["time_to_accuracy_seconds"]
        rows.append(row)
    return pd.DataFrame(rows)


def run_row(devices: int, repeat: int, hosts: str, rate: float | None, outcome: str = "") -> dict[str, Any]:
    """Return the row of a run on one node.

    Args:
        rate: Samples/s; None if it ended with an outcome and without a result.
        outcome: How it ended, if it did not complete.
    """
    row: dict[str, Any] = {"experiment": "study", "run": f"d{devices}.r{repeat}", "series": SERIES}
    row |= {"devices": devices, "nodes": 1.0, "repeat": repeat, "hosts": hosts}
    if rate is None:
        return row | {"outcome": outcome, "reason": f"the run was {outcome}"}
    figures = {"throughput_samples_per_second": rate, "peak_memory_bytes": 1e9}
    return row | {"outcome": "completed", "reason": ""} | figures


def answer(planted: Planted, runs: pd.DataFrame) -> Decision:
    """The decision on a planted study."""
    known = known_columns(runs)
    compared = gains(known)
    return decide(
        "study",
        scaling_table(known, None, compared),
        option_table(known, {}),
        planted.rule,
        compared=compared,
        target=None if planted.epochs is None else 0.9,
        confounded=confounding_sentences(known),
    )


def right_answer(planted: Planted) -> int | None:
    """The rule applied to the true speeds."""
    counts = sorted(planted.rates)
    base = counts[0]
    rule, speeds = planted.rule, planted.speeds

    def minutes(devices: int) -> float:
        return (START_UP_SECONDS + SAMPLES / planted.rates[devices]) / 60

    met = [
        devices
        for devices in counts
        if efficiency(planted, devices) >= (rule.min_efficiency or 0) - 1e-9
        and (rule.deadline_minutes is None or minutes(devices) <= rule.deadline_minutes)
        and (rule.max_device_hours is None or minutes(devices) * devices / 60 <= rule.max_device_hours)
    ]
    if not met:
        return None
    if rule.deadline_minutes is not None:
        return met[0]
    steps = [met[0]]
    for devices in met[1:]:
        if speeds[devices] > speeds[steps[-1]] * (1 + rule.min_gain):
            steps.append(devices)
    if rule.without_criterion:
        return max(steps, key=lambda devices: speeds[devices] ** 2 / devices / speeds[base])
    return steps[-1]


def efficiency(planted: Planted, devices: int) -> float:
    base = min(planted.rates)
    return planted.speeds[devices] / planted.speeds[base] * base / devices


def usl(counts: Iterable[int], contention: float, coherency: float) -> dict[int, float]:
    """True speeds by the universal scalability law; 100 samples/s on one device."""
    return {n: 100 * n / (1 + contention * (n - 1) + coherency * n * (n - 1)) for n in counts}


DOUBLED = (1, 2, 4, 8, 16)
STUDIES: dict[str, Planted] = {
    "no gain at all": Planted(dict.fromkeys((1, 2, 4, 8), 100.0), DecisionRule(min_efficiency=0.01)),
    "+20 % on 2": Planted({1: 100, 2: 120}, DecisionRule(min_efficiency=0.1)),
    "a dip: 1, 3.6, 2.5, 3.6 on 1, 4, 8, 16": Planted(
        {1: 100, 4: 360, 8: 250, 16: 360}, DecisionRule(min_efficiency=0.1)
    ),
    "efficiency far from 0.7": Planted({1: 100, 2: 185, 4: 310, 8: 430}, DecisionRule(min_efficiency=0.7)),
    "efficiency near 0.7": Planted({1: 100, 2: 180, 4: 290, 8: 430}, DecisionRule(min_efficiency=0.7)),
    "every count from 1 to 8": Planted(usl(range(1, 9), 0.05, 0.0), DecisionRule(min_efficiency=0.6)),
    "a target that more devices reach later": Planted(
        {1: 100, 2: 190, 4: 360, 8: 660}, DecisionRule(min_efficiency=0.01), {1: 5, 2: 5, 4: 8, 8: 18}
    ),
    "the knee": Planted(usl(DOUBLED, 0.05, 0.002), DecisionRule()),
    "a deadline": Planted(usl(DOUBLED, 0.05, 0.002), DecisionRule(deadline_minutes=60)),
    "a budget": Planted(usl(DOUBLED, 0.05, 0.002), DecisionRule(max_device_hours=4)),
}
"""Studies whose right answers differ in what they hang on."""


Verdict = Literal["right", "near", "reported", "wrong"]


def judge(planted: Planted, decision: Decision) -> Verdict:
    """How good an answer is.

    Returns:
        ``right``: that of the true speeds. ``near``: another, but it loses no more than the gain worth
        having. ``reported``: it loses more, and the answer says that it may. ``wrong``: it does not say so.
    """
    truth, given = right_answer(planted), decision.devices
    if given == truth:
        return "right"
    if _loss(planted, truth, given) <= planted.rule.min_gain + 1e-9:
        return "near"
    return "wrong" if decision.clear else "reported"


def _loss(planted: Planted, truth: int | None, given: int | None) -> float:
    """What the given answer loses against the right one, as a share."""
    rule, speeds = planted.rule, planted.speeds
    if truth is None or given is None:
        return math.inf if rule.deadline_minutes is None and rule.max_device_hours is None else 1.0
    lost = [0.0]
    if rule.without_criterion:
        power = {devices: speeds[devices] ** 2 / devices for devices in (truth, given)}
        return power[truth] / power[given] - 1
    if rule.deadline_minutes is not None:
        walls = {d: (START_UP_SECONDS + SAMPLES / planted.rates[d]) / 60 for d in (truth, given)}
        late = walls[given] / rule.deadline_minutes - 1
        # more devices than needed: what the fewer ones would have missed by, were they as slow as feared
        spare = rule.deadline_minutes / walls[truth] - 1 if given > truth else 0.0
        return max(late, spare)
    if given < truth:
        lost.append(speeds[truth] / speeds[given] - 1)
        if rule.min_efficiency:
            lost[-1] = min(lost[-1], efficiency(planted, truth) / rule.min_efficiency - 1)
    else:
        worth = (1 + rule.min_gain) * speeds[truth] / speeds[given] - 1
        if rule.min_efficiency:
            lost.append(rule.min_efficiency / efficiency(planted, given) - 1)
        if efficiency(planted, given) >= (rule.min_efficiency or 0) - 1e-9:
            lost.append(worth + 2e-9)
    return max(lost)
