"""Several trainings on the same devices whose best split is known, and the answers that they get."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from tests.truth.partitions import Planted, concluded, run_table

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.splits import SplitAnswer, answer_splits
from scalewise.plan.config.experiment import Experiment

USUAL = {
    "dataset": "digits", "model": "linear", "global_batch_size": 256, "repeats": 3, "scaling": "strong",
}  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """Trainings that share devices.

    Args:
        planted: True figures by the devices of a training.
        spec: Further keys of the experiment.
    """

    planted: Planted
    trainings: int = 8
    spec: Mapping[str, object] = field(default_factory=dict)

    def seconds(self, devices: int) -> float:
        """Return the true time until all trainings are done; infinite if runs end without a result."""
        rate = self.planted.rates[devices]
        if rate is None:
            return math.inf
        training = 1 / rate if "samples_per_training" in self.spec else self.planted.truth("time", devices)
        at_a_time = max(self.planted.rates) // devices
        return math.ceil(self.trainings / at_a_time) * training

    def loss(self, devices: int) -> float:
        """Return what a split needs more than the fastest one, a fraction."""
        return self.seconds(devices) / min(map(self.seconds, self.planted.rates)) - 1


SCALES_BADLY = Planted({1: 100.0, 2: 170.0, 4: 260.0, 8: 350.0})
SCALES_WELL = Planted({1: 100.0, 2: 196.0, 4: 384.0, 8: 740.0})
CASES: dict[str, Truth] = {
    "8 trainings that scale badly": Truth(SCALES_BADLY),
    "8 trainings that scale well": Truth(SCALES_WELL),
    "3 trainings that scale well": Truth(SCALES_WELL, trainings=3),
    # on 2 devices a training takes half the time that it takes on 1, start-up included
    "a tie": Truth(Planted({1: 100.0, 2: 1e6 / 4970, 4: 300.0, 8: 450.0})),
    "close, 8 % apart": Truth(Planted({1: 100.0, 2: 1e6 / 4568, 4: 300.0, 8: 450.0})),
    "more work to the target": Truth(
        Planted({1: 100.0, 2: 195.0, 4: 380.0, 8: 730.0}, work={1: 1.0, 2: 1.05, 4: 1.3, 8: 1.9}),
        spec={"target": {"accuracy": 0.9}},
    ),
    "less work to the target": Truth(
        Planted({1: 100.0, 2: 195.0, 4: 380.0, 8: 730.0}, work={1: 1.5, 2: 1.2, 4: 1.0, 8: 1.1}),
        spec={"target": {"accuracy": 0.9}},
    ),
    "a number of samples": Truth(SCALES_BADLY, spec={"samples_per_training": 5_000_000}),
    "1 device out of memory": Truth(Planted({1: None, 2: 170.0, 4: 260.0, 8: 350.0})),
}
"""Trainings that differ in what the right answer is."""


def answer_on(truth: Truth, generator: np.random.Generator, scatter: float, n: int) -> SplitAnswer:
    keys = {**USUAL, "devices": list(truth.planted.rates), "trainings": truth.trainings, **truth.spec}
    experiment = AnalysisSpec("study", Experiment.model_validate(keys), accelerator="cuda")
    runs = run_table(truth.planted, generator, scatter, n)
    found = answer_splits(experiment, concluded(experiment, runs))
    assert found is not None, "every case has a series"
    return found


def judge(truth: Truth, found: SplitAnswer) -> str:
    """Return how good an answer is.

    Returns:
        ``right``: the split needs no more than the fastest one by the gain worth having. ``cannot tell``: the
        answer says that it is open. ``wrong``: another split is faster, and the answer does not say so.
    """
    if found.status in ("cannot tell", "unknown"):
        return "cannot tell"
    assert found.best is not None
    gain = Experiment.model_validate({**USUAL, "devices": [1]}).decision.min_gain
    return "right" if truth.loss(found.best) <= gain + 1e-9 else "wrong"


def verdicts(name: str, generator: np.random.Generator, scatter: float, n: int) -> list[str]:
    """Return how good the answer to one drawn study of a case is."""
    return [judge(CASES[name], answer_on(CASES[name], generator, scatter, n))]
