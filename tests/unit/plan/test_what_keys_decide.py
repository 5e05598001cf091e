"""One table says of each key what is made again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scalewise.plan.config.experiment import (
    Budget,
    DecisionRule,
    Devices,
    Experiment,
    ProgramExperiment,
    Projection,
    Repeats,
    Sweep,
    Target,
)
from scalewise.plan.config.reruns import DECIDES
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.runs import expand
from scalewise.plan.study import PlannedExperiment, Study

STUDY = """\
experiments:
  digits:
    dataset: digits
    model: digits_cnn
    global_batch_size: 240
    devices: [1, 2]
    repeats: {min: 3, max: 6, until_interval: 0.03}
"""
FIELDS = Experiment.model_fields | ProgramExperiment.model_fields
CHANGED: dict[str, Any] = {
    "title": "Another",
    "description": "Another",
    "tensorboard": True,
    "runtime_minutes": 99,
    "memory_gb": 3.5,
    "timeout_seconds": 77,
    "checkpoint_minutes": 3.0,
    "keep_checkpoints": True,
    "budget": Budget(device_hours=3),
    "predict": False,
    "project": Projection(devices=[64]),
    "decision": DecisionRule(min_efficiency=0.7),
    "target": Target(accuracy=0.9),
    "exclude": [{"devices": 2}],
    "repeats": Repeats(min=4, max=6, until_interval=0.03),
    "devices": Devices(every=[1, 4]),
    "sweep": Sweep.model_validate({"momentum": [0.0, 0.9]}),
    "learning_rate": 0.2,
    "global_batch_size": 120,
}


def products(planned: PlannedExperiment) -> dict[str, Any]:
    """The definitions of an experiment's products."""
    runs = expand("digits", planned.experiment, {1: Shape(1, 1), 2: Shape(1, 2), 4: Shape(1, 4)}, "cpu")
    return {
        "runs": {run.run: run.as_json() for run in runs},
        "tables": planned.analysis_definition,
        "prediction": planned.prediction_definition,
        "rounds": planned.rounds_definition,
    }


def test_the_table_holds_every_key_and_no_other() -> None:
    assert set(DECIDES) == set(FIELDS)


@pytest.mark.parametrize("key", CHANGED)
def test_a_changed_key_changes_what_the_table_says(key: str, load: Callable[[str], Study]) -> None:
    before = load(STUDY).experiments["digits"]
    after = replace(before, experiment=before.experiment.model_copy(update={key: CHANGED[key]}))

    old, new = products(before), products(after)
    if "runs" not in DECIDES[key]:
        # which runs there are may change, but nothing of any run
        kept = old["runs"].keys() & new["runs"].keys()
        assert all(old["runs"][name] == new["runs"][name] for name in kept)
        new["runs"] = old["runs"]
    assert {product for product in old if old[product] != new[product]} == DECIDES[key]


def test_a_key_that_reruns_nothing_decides_no_run_and_no_table() -> None:
    said = {key for key, field in FIELDS.items() if "reruns nothing" in (field.description or "")}

    assert {"title", "runtime_minutes", "project"} <= said
    assert [key for key in said if DECIDES[key] & {"runs", "tables"}] == []
