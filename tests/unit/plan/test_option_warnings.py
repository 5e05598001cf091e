"""Options that are possible but seldom meant are warned of, with their values."""

from __future__ import annotations

import pytest
from tests.unit.plan.conftest import Load
from tests.unit.plan.kinds import built_in as experiment_of
from tests.unit.plan.refusals import built_in

from scalewise.plan.checks.options import option_warnings

STRONG = "model: linear, dataset: digits, global_batch_size: 240, devices: [1, 4]"
WEAK = "model: linear, dataset: digits, scaling: weak, batch_size_per_device: 64, devices: [1, 4]"


def warnings(load: Load, keys: str) -> list[str]:
    study = load(f"experiments:\n  study: {{{keys}}}\n")
    runs = study.experiments["study"].runs
    return list(
        option_warnings("study", experiment_of(study, "study"), [run.shape.world_size for run in runs])
    )


@pytest.mark.parametrize(
    ("option", "warning"),
    [
        pytest.param(
            "learning_rate_scaling: linear",
            "experiments.study.learning_rate_scaling is linear, but strong scaling keeps the global batch: "
            "4 devices would take the steps of one at 4 times its learning rate. Use none, or weak scaling.",
            id="linear",
        ),
        pytest.param(
            "sweep: {learning_rate_scaling: [none, sqrt]}",
            "experiments.study.sweep.learning_rate_scaling is sqrt, but strong scaling keeps the global "
            "batch: 4 devices would take the steps of one at 2 times its learning rate. "
            "Use none, or weak scaling.",
            id="square root in a sweep",
        ),
    ],
)
def test_a_learning_rate_that_grows_while_its_batch_stays_is_warned_of(
    option: str, warning: str, load: Load
) -> None:
    assert warnings(load, f"{STRONG}, {option}") == [warning]


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(STRONG, id="a rate that stays"),
        pytest.param(f"{WEAK}, learning_rate_scaling: linear", id="a batch that grows"),
        pytest.param(STRONG.replace("1, 4", "1") + ", learning_rate_scaling: linear", id="one device"),
    ],
)
def test_a_learning_rate_that_follows_its_batch_is_not_warned_of(keys: str, load: Load) -> None:
    assert warnings(load, keys) == []


@pytest.mark.refuses("topology: no 1-device run")
def test_without_one_device_the_user_is_warned_and_not_stopped(load: Load) -> None:
    study = load(built_in("devices: [2, 4]"))

    assert [run.shape.world_size for run in study.runs.values()] == [2, 2, 2, 4, 4, 4]
    assert study.warnings == [
        "experiments.digits.devices has no 1-device run: speedups will be relative to 2 devices. "
        "Add 1 for a baseline."
    ]


@pytest.mark.refuses("topology: no 1-device run")
def test_a_series_that_loses_its_baseline_by_exclude_is_warned_of(load: Load) -> None:
    study = load(
        built_in(
            "sweep: {gradient_as_bucket_view: [false, true]}",
            "exclude: [{devices: 1, gradient_as_bucket_view: true}]",
        )
    )

    assert len(study.warnings) == 1
    assert "no 1-device run" in study.warnings[0]
