"""Where a training ends, and a log that reads like one and costs no step."""

from __future__ import annotations

import math
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scalewise.builtin import train_log
from scalewise.builtin.loop import TrainingState, is_accurate_enough
from scalewise.builtin.rank import divergence
from scalewise.builtin.train_log import (
    StepLog,
    describe_early_stop,
    describe_interval,
    describe_run,
    describe_steps,
)
from scalewise.builtin.trainer import Trainer
from scalewise.ranks.results.facts import Epoch
from tests.unit.training.small_training import random_images, settings_of, trainer_of

from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape
from scalewise.records import Measurements, OwnInterval

STEPS = 20
"""Steps of an epoch."""
WARMUP = 5


def halving(**options: object) -> Trainer:
    """Return one rank that trains batches of 4 small images; its rate halves with each epoch."""
    usual = {"global_batch_size": 4, "epochs": 2, "warmup_steps": WARMUP, "learning_rate": 0.1}
    schedule = {"schedule": "step", "schedule_gamma": 0.5}
    return trainer_of(random_images(4 * STEPS, pixels=4), settings_of(**usual | schedule | options))


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("options", "step", "steps", "line"),
    [
        pytest.param({}, 5, 5, f"train epoch 1/2  step 5/{STEPS}", id="steps of an epoch"),
        pytest.param({"steps": 200}, 5, 125, "train step 125/205", id="all steps, where they end it"),
        pytest.param({}, STEPS, STEPS, "", id="no line in the place of the epoch's"),
    ],
)
def test_the_loss_is_the_mean_over_the_epochs_samples_so_far(
    options: dict[str, int], step: int, steps: int, line: str
) -> None:
    lines: list[str] = []
    StepLog(halving(**options), lines.append).after_step(
        TrainingState(torch.tensor(30.0), step=step, steps=steps)
    )
    assert lines == ([f"{line}  loss 1.5000  learning rate 0.1"] if line else [])


@pytest.mark.usefixtures("one_rank")
def test_lines_are_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    log, times = StepLog(halving(), lines.append, seconds=1.0), count(100.0, 0.4)
    monkeypatch.setattr(train_log, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for step in range(1, 9):
        log.after_step(TrainingState(torch.tensor(1.0), step=step, steps=step))
    # of the chances at 0, 0.4, 0.8, 1.2, ... s
    assert [line.partition("  loss")[0] for line in lines] == [
        f"train epoch 1/2  step {step}/{STEPS}" for step in (1, 4, 7)
    ]


@pytest.mark.parametrize(("accelerator", "devices"), [("cuda", "GPUs"), ("cpu", "CPU processes")])
def test_the_summary_has_time_throughput_and_numbers_of_nodes_and_devices(
    accelerator: str, devices: str
) -> None:
    known = {"epochs_completed": 1, "train_seconds": 131.204, "evaluation_seconds": 3.4}
    measured = Measurements.model_construct(throughput_samples_per_second=36926.594, **known)  # type: ignore[arg-type]
    first, *lines = describe_run(measured, Shape(2, 4), accelerator).splitlines()
    assert first == "Training summary"
    assert [tuple(part.strip() for part in line.split(":")) for line in lines] == [
        ("training time", "131.20 s"),
        ("evaluation time", "3.40 s"),
        ("throughput", "36,927 samples/s"),
        ("nodes", "2"),
        (f"{devices} per node", "4"),
        (devices, "8"),
    ]
    unknown = measured.model_copy(update={"throughput_samples_per_second": None, "epochs_completed": 0})
    said = describe_run(unknown, Shape(1, 1), accelerator)
    assert "throughput:             not measured" in said
    assert "evaluation" not in said


def test_an_early_stop_is_reported_in_the_words_of_the_guide() -> None:
    records = [Epoch(epoch, 6 * epoch, 60, 1.0, 1.0, 1.0, 0.95, 0.1) for epoch in (1, 2, 3)]
    chosen = settings(stop_at_accuracy=0.9, stop_patience_epochs=2, epochs=3)
    line = "Target accuracy reached. Early stopping after epoch 2."
    assert [describe_early_stop(records[:epochs], chosen) for epochs in range(4)] == ["", "", line, ""]


def settings(**chosen: Any) -> Settings:
    return Settings(dataset="digits", model="linear", **chosen)


@pytest.mark.parametrize(
    ("accuracies", "patience", "ends"),
    [
        pytest.param([0.5], 1, False, id="below"),
        pytest.param([0.5, 0.7], 1, True, id="just reached"),
        pytest.param([0.9], 2, False, id="too few epochs for the patience"),
        pytest.param([0.9, 0.8], 2, True, id="held"),
        pytest.param([0.9, 0.6, 0.9], 2, False, id="lost in between"),
        pytest.param([0.6, 0.7, 0.71, 0.9], 3, True, id="the last three"),
        pytest.param([0.9, 0.9, 0.6], 1, False, id="lost at the end"),
    ],
)
def test_the_accuracy_must_be_held_for_the_epochs_of_patience(
    accuracies: list[float], patience: int, ends: bool
) -> None:
    assert (
        is_accurate_enough(accuracies, settings(stop_at_accuracy=0.7, stop_patience_epochs=patience)) is ends
    )


@pytest.mark.parametrize(
    ("asked", "epoch", "steps", "over"),
    [
        pytest.param({"epochs": 3}, 2, 1000, False, id="in the last epoch"),
        pytest.param({"epochs": 3}, 3, 12, True, id="after the last epoch"),
        pytest.param({"epochs": 3, "steps": 20}, 9, 29, False, id="before the last step"),
        pytest.param({"epochs": 3, "steps": 20}, 0, 30, True, id="after the last step"),
        pytest.param({"epochs": 3, "steps": 20, "warmup_steps": 0}, 0, 20, True, id="without a warm-up"),
    ],
)
def test_a_training_is_over_after_its_epochs_or_after_its_steps_and_warm_up(
    asked: dict[str, int], epoch: int, steps: int, over: bool
) -> None:
    state = TrainingState(torch.zeros(()), epoch=epoch, steps=steps)
    assert state.is_over(settings(**asked)) is over


def test_a_loss_that_is_no_longer_finite_is_placed_by_its_epoch_or_else_by_its_step() -> None:
    state = TrainingState(torch.zeros(()), step=6, steps=30, train_loss=math.nan)
    assert divergence(state) == "by step 30 (training nan)"
    state.end_epoch()
    assert (state.epoch, state.step, state.steps, state.epochs) == (1, 0, 30, [])
    state.end_epoch(Epoch(4, 24, 60, 1.0, math.inf, 2.0, 0.1, 0.1))
    assert divergence(state) == "in epoch 4 (training inf, test 2.0)"


def test_the_log_has_the_interval_of_a_runs_throughput() -> None:
    known = {"half_width_fraction": 0.0081, "confidence": 0.95, "windows": 24, "warmup_steps": 35}
    own = OwnInterval.model_construct(**known)  # type: ignore[arg-type]  # all that is read
    assert describe_interval(own) == (
        "throughput of this run known to 0.81 % (95 % confidence, 24 windows after 35 steps of warm-up)"
    )
    few = own.model_copy(update={"half_width_fraction": None})
    assert "too few windows for an interval" in describe_interval(few)


def test_the_log_of_a_training_by_steps_states_its_last_step_and_speed() -> None:
    known = {"throughput_samples_per_second": 2000.0, "train_seconds": 11.0}
    measured = Measurements.model_construct(**known)  # type: ignore[arg-type]  # all that is read
    state = TrainingState(torch.zeros(()), steps=30, train_loss=0.5)
    assert describe_steps(state, measured) == "step 30  train loss 0.5000  2,000 samples/s  11.00 s"
    # one that resumes after its last step has trained nothing again
    unknown = measured.model_copy(update={"throughput_samples_per_second": None})
    assert describe_steps(TrainingState(torch.zeros(()), steps=30), unknown) == "step 30  11.00 s"
