"""Training ends after its epochs or steps, or when the accuracy asked for has been held, and not before."""

from __future__ import annotations

import math

import pytest
import torch

from scalewise.builtin.loop import TrainingState, is_accurate_enough
from scalewise.builtin.rank import divergence
from scalewise.builtin.train_log import describe_interval, describe_steps
from scalewise.plan.config.settings import Settings
from scalewise.ranks.results.facts import Epoch
from scalewise.records import Measurements, OwnInterval


def settings(stop: float | None, patience: int = 1) -> Settings:
    return Settings(dataset="digits", model="linear", stop_at_accuracy=stop, stop_patience_epochs=patience)


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
    assert is_accurate_enough(accuracies, settings(0.7, patience)) is ends


def test_without_an_accuracy_to_stop_at_training_goes_on() -> None:
    assert not is_accurate_enough([1.0, 1.0], settings(None))


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
    assert state.is_over(Settings.model_validate({"dataset": "digits", "model": "linear"} | asked)) is over


def test_an_epoch_that_was_not_evaluated_is_counted_and_leaves_no_record() -> None:
    state = TrainingState(torch.zeros(()), epoch=1, step=6, steps=12)
    state.end_epoch()
    assert (state.epoch, state.step, state.steps, state.epochs) == (2, 0, 12, [])


def test_a_loss_that_is_no_longer_finite_is_placed_by_its_epoch_or_else_by_its_step() -> None:
    state = TrainingState(torch.zeros(()), steps=30, train_loss=math.nan)
    assert divergence(state) == "by step 30 (training nan)"
    state.end_epoch(Epoch(4, 24, 60, 1.0, math.inf, 2.0, 0.1, 0.1))
    assert divergence(state) == "in epoch 4 (training inf, test 2.0)"


def test_the_log_tells_how_well_a_runs_own_throughput_is_known() -> None:
    own = OwnInterval(
        until_interval=0.01,
        half_width_fraction=0.0081,
        confidence=0.95,
        windows=24,
        effective_windows=12.0,
        warmup_steps=35,
        steady=True,
        ended="interval",
    )
    assert describe_interval(own) == (
        "throughput of this run known to 0.81 % (95 % confidence, 24 windows after 35 steps of warm-up)"
    )
    few = own.model_copy(update={"half_width_fraction": None})
    assert "too few windows for an interval" in describe_interval(few)


def test_the_log_tells_of_a_training_that_steps_have_ended() -> None:
    known = {"throughput_samples_per_second": 2000.0, "train_seconds": 11.0}
    measured = Measurements.model_construct(**known)  # type: ignore[arg-type]  # all that is read
    state = TrainingState(torch.zeros(()), steps=30, train_loss=0.5)
    assert describe_steps(state, measured) == "step 30  train loss 0.5000  2,000 samples/s  11.00 s"
    # one that resumes after its last step has trained nothing again
    unknown = measured.model_copy(update={"throughput_samples_per_second": None})
    assert describe_steps(TrainingState(torch.zeros(()), steps=30), unknown) == "step 30  11.00 s"
