"""Experiments on two partitions whose right answers are known, and the answers that they get."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from tests.truth.studies import run_row

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.comparison.gains import gains
from scalewise.analysis.conclusion import Conclusion, Terms
from scalewise.analysis.decision.criteria import as_billed
from scalewise.analysis.decision.decision import decide
from scalewise.analysis.decision.selection import candidates, with_best_baseline
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.partitions.answer import PartitionAnswer, answer
from scalewise.analysis.partitions.points import Aim, PartitionStudy, Place, collect_points
from scalewise.analysis.scaling import known_columns, option_table, scaling_table
from scalewise.plan.config.experiment import Experiment

START_UP_SECONDS = 60.0
SAMPLES = 1e6
WAIT_SCATTER = 0.5
"""Standard deviation of the logarithm of a wait, far more than that of a run."""


@dataclass(frozen=True)
class Planted:
    """An experiment on one partition, with true figures.

    Args:
        rates: Samples/s by device count; None for runs that end with ``outcome``.
        price: Of a device for an hour; None if unknown.
        watts: Power that a device draws; None if it is not measured.
        wait_minutes: Geometric mean of the waits; None if they are unknown.
        outcome: How runs without a rate end.
        work: Work until the target relative to ``SAMPLES``, by device count; None without one.
    """

    rates: Mapping[int, float | None]
    price: float | None = 1.0
    watts: float | None = 400.0
    wait_minutes: float | None = 5.0
    outcome: str = "out-of-memory"
    work: Mapping[int, float] | None = None

    def truth(self, aim: Aim, devices: int) -> float:
        """Return the true amount; infinite if runs end without a result."""
        rate = self.rates[devices]
        if rate is None:
            return math.inf
        work = 1.0 if self.work is None else self.work[devices]
        trained = work * SAMPLES / rate
        seconds = trained + (START_UP_SECONDS if self.work is None else 0.0)
        if aim == "cost":
            return seconds * devices * (self.price or 1.0)
        if aim == "energy":
            return math.inf if self.watts is None else trained * devices * self.watts
        if aim == "soonest":
            return math.inf if self.wait_minutes is None else seconds + 60 * self.wait_minutes
        return seconds


@dataclass(frozen=True)
class Truth:
    partitions: Mapping[str, Planted]
    spec: Mapping[str, object] = field(default_factory=dict)

    def best(self, aim: Aim) -> float:
        """Return the least true amount."""
        return min(
            planted.truth(aim, devices) for planted in self.partitions.values() for devices in planted.rates
        )

    def loss(self, aim: Aim, place: Place) -> float:
        """Return what a point needs more than the best one, a fraction."""
        return self.partitions[place.partition].truth(aim, place.devices) / self.best(aim) - 1


A100 = {1: 100.0, 2: 190.0, 4: 350.0}
CASES: dict[str, Truth] = {
    "cheap and slow, fast and expensive": Truth(
        {"a100": Planted(A100), "h200": Planted({1: 300.0, 2: 540.0}, price=5.0, watts=700.0)}
    ),
    "fast and cheap": Truth(
        {"a100": Planted(A100, price=1.2), "h200": Planted({1: 460.0}, price=2.5, watts=700.0)}
    ),
    "a tie": Truth({"a100": Planted(A100), "h200": Planted(A100)}),
    "long queues": Truth(
        {
            "a100": Planted(A100, wait_minutes=10.0),
            "h200": Planted({1: 300.0, 2: 540.0}, price=3.1, wait_minutes=600.0, watts=700.0),
        }
    ),
    "one out of memory": Truth(
        {
            "a100": Planted({1: None, 2: None, 4: 350.0}),
            "h200": Planted({1: 300.0, 2: 540.0}, price=3.5, watts=700.0),
        }
    ),
    "one diverges": Truth(
        {
            "a100": Planted(A100),
            "h200": Planted({1: None, 2: None}, price=3.0, outcome="diverged", watts=700.0),
        }
    ),
    "more work to the target": Truth(
        {
            "a100": Planted(A100, work={1: 1.0, 2: 1.1, 4: 1.5}),
            "h200": Planted({1: 290.0, 2: 520.0}, price=3.0, work={1: 1.0, 2: 1.15}, watts=700.0),
        },
        {"target": {"accuracy": 0.9}},
    ),
    "close, 8 % apart": Truth(
        {"a100": Planted(A100), "h200": Planted({1: 108.0, 2: 205.0, 4: 378.0}, price=1.0)}
    ),
}
"""Experiments that differ in what the right answer is."""


def run_table(planted: Planted, generator: np.random.Generator, scatter: float, n: int) -> pd.DataFrame:
    """Return the runs of an experiment on one partition, as ``collect`` makes them.

    Args:
        scatter: Standard deviation of the logarithm of a run's speed.
    """
    rows = []
    for devices, true_rate in planted.rates.items():
        for repeat in range(1, n + 1):
            host = f"node{generator.integers(16)}"
            if true_rate is None:
                rows.append(run_row(devices, repeat, host, None, planted.outcome))
                continue
            rate = true_rate * math.exp(scatter * generator.standard_normal())
            work = 1.0 if planted.work is None else planted.work[devices]
            trained = work * SAMPLES / rate
            row = run_row(devices, repeat, host, rate)
            row |= {"train_seconds": trained, "wall_seconds": START_UP_SECONDS + trained}
            if planted.watts is not None:
                row["energy_joules"] = trained * devices * planted.watts
                row["samples_per_joule"] = work * SAMPLES / row["energy_joules"]
            if planted.work is not None:
                row |= {"epochs_to_accuracy": 10 * work, "time_to_accuracy_seconds": trained}
            rows.append(row)
    return pd.DataFrame(rows).assign(global_batch_size=256)


def partition_study(
    name: str, planted: Planted, runs: pd.DataFrame, waits: Mapping[str, float], **keys: object
) -> PartitionStudy:
    """Return an experiment on one partition with the tables that its runs give."""
    usual = {"dataset": "digits", "model": "linear", "global_batch_size": 256, "repeats": 3}
    spec = Experiment.model_validate(usual | {"devices": list(planted.rates)} | keys)
    experiment = AnalysisSpec(f"study@{name}", spec, accelerator="cuda")
    found = concluded(experiment, runs)
    facts = found.decision.as_dict() | {"repeats": [], "choice": None}
    results = ExperimentResults(experiment.name, Path(), facts, found.scaling, found.runs)
    return PartitionStudy(name, experiment, results, planted.price, waits)


def concluded(experiment: AnalysisSpec, runs: pd.DataFrame) -> Conclusion:
    """Return the decision on drawn runs, of which nothing has to be cautioned."""
    known, rule = known_columns(runs), experiment.spec.decision
    compared = gains(known)
    scaling = as_billed(scaling_table(known, None, compared), {})
    options, goal = option_table(known, {}), experiment.target
    scaling = with_best_baseline(scaling, candidates(scaling, rule, compared, target=goal))
    decision = decide(experiment.name, scaling, options, rule, compared=compared, target=goal, noun="GPU")
    return Conclusion(known, compared, scaling, options, decision, Terms(rule))


def studies_of(truth: Truth, generator: np.random.Generator, scatter: float, n: int) -> list[PartitionStudy]:
    """Return the experiment on each partition with drawn runs and waits."""
    found = []
    for name, planted in truth.partitions.items():
        runs = run_table(planted, generator, scatter, n)
        waits: dict[str, float] = {}
        if planted.wait_minutes is not None:
            drawn = 60 * planted.wait_minutes * np.exp(WAIT_SCATTER * generator.standard_normal(len(runs)))
            waits = dict(zip(runs["run"], drawn.tolist(), strict=True))
        found.append(partition_study(name, planted, runs, waits, **truth.spec))
    return found


def answer_on(truth: Truth, generator: np.random.Generator, scatter: float, n: int) -> PartitionAnswer:
    return answer(collect_points(studies_of(truth, generator, scatter, n)))


def judge(truth: Truth, found: PartitionAnswer, aim: Aim) -> str:
    """Return how good the answer by an aim is.

    Returns:
        ``right``: the partition needs no more than the best point by the gain worth having. ``cannot tell``:
        the answer says that it is open. ``wrong``: another partition is better, and the answer does not say
        so.
    """
    given, gain = found.aims[aim], found.points.min_gain
    assert given.best is not None, "every case has a point that can be used"
    if given.partition_status == "cannot tell":
        return "cannot tell"
    if truth.loss(aim, given.best) <= gain + 1e-9:
        return "right"
    # another count of the same partition may be the best, and the answer may say that this is open
    planted = truth.partitions[given.best.partition]
    own = min(planted.truth(aim, devices) for devices in planted.rates)
    if own / truth.best(aim) - 1 <= gain + 1e-9 and given.count_status == "cannot tell":
        return "right"
    return "wrong"


def verdicts(name: str, generator: np.random.Generator, scatter: float, n: int) -> list[str]:
    """Return how good the answers by each aim to one drawn study of a case are, each after its aim."""
    truth = CASES[name]
    found = answer_on(truth, generator, scatter, n)
    return [f"{aim}: {judge(truth, found, aim)}" for aim in found.aims]


def falsely_dominated(truth: Truth, found: PartitionAnswer) -> int:
    """Return the points that are called dominated though no point is as good by both time and cost."""
    gain = found.points.min_gain

    def amounts(place: Place) -> tuple[float, float]:
        planted = truth.partitions[place.partition]
        return planted.truth("time", place.devices), planted.truth("cost", place.devices)

    false = 0
    for place in found.dominated:
        mine = amounts(place)
        false += not any(
            all(theirs <= own * (1 + gain) for theirs, own in zip(amounts(other), mine, strict=True))
            for other in found.points.points
            if other != place
        )
    return false
