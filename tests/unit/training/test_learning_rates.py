"""Optimizers and schedules do what their keys say, step by step."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import nn, optim

from scalewise.plan.config import Settings
from scalewise.training.optim import build_optimizer, build_schedule


def settings(**changed: Any) -> Settings:
    return Settings(dataset="digits", model="linear", **changed)


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def rates(chosen: Settings, steps_per_epoch: int) -> list[float]:
    """The learning rate that each step of the whole run uses."""
    optimizer = build_optimizer(chosen, [parameter()])
    schedule = build_schedule(chosen, optimizer, steps_per_epoch)
    used = []
    for _ in range(chosen.epochs * steps_per_epoch):
        used.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return used


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", optim.SGD), ("adam", optim.Adam), ("adadelta", optim.Adadelta)]
)
def test_the_optimizer_is_the_one_that_is_asked_for(name: str, kind: type[optim.Optimizer]) -> None:
    optimizer = build_optimizer(
        settings(optimizer=name, learning_rate=0.03, weight_decay=0.02, momentum=0.8), [parameter()]
    )
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert group["lr"] == 0.03
    assert group["weight_decay"] == 0.02
    assert group.get("momentum", 0.8) == 0.8


def test_every_optimizer_and_schedule_of_the_configuration_is_tested_here() -> None:
    assert set(get_args(Settings.model_fields["optimizer"].annotation)) == {"sgd", "adam", "adadelta"}
    assert set(get_args(Settings.model_fields["schedule"].annotation)) == {"constant", "step", "onecycle"}


def test_sgd_follows_momentum_and_weight_decay_as_written_down() -> None:
    weight = parameter()
    chosen = settings(optimizer="sgd", learning_rate=0.1, momentum=0.5, weight_decay=0.2)
    optimizer = build_optimizer(chosen, [weight])
    expected, velocity = 1.0, 0.0
    for gradient in (1.0, -2.0, 0.5):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
        velocity = 0.5 * velocity + gradient + 0.2 * expected
        expected -= 0.1 * velocity
        assert float(weight.detach()) == pytest.approx(expected, rel=1e-6)


def test_a_constant_rate_stays() -> None:
    assert rates(settings(learning_rate=0.3, epochs=3, schedule="constant"), 4) == [0.3] * 12


def test_a_step_schedule_counts_epochs_not_steps() -> None:
    chosen = settings(
        learning_rate=0.8, epochs=5, schedule="step", schedule_gamma=0.5, schedule_step_epochs=2
    )
    assert rates(chosen, 3) == pytest.approx([0.8] * 6 + [0.4] * 6 + [0.2] * 3)


def test_onecycle_rises_for_three_tenths_and_falls_for_the_rest() -> None:
    total, peak = 20, 0.2
    top = 0.3 * total - 1  # where it peaks, counted from step 0

    def cosine(start: float, end: float, share: float) -> float:
        return end + (start - end) / 2 * (1 + math.cos(math.pi * share))

    first, last = peak / 25, peak / 25 / 1e4
    expected = [
        cosine(first, peak, step / top)
        if step <= top
        else cosine(peak, last, (step - top) / (total - 1 - top))
        for step in range(total)
    ]
    chosen = settings(learning_rate=peak, epochs=4, schedule="onecycle")
    assert rates(chosen, 5) == pytest.approx(expected)
    assert max(expected) == peak == expected[5]


@pytest.mark.parametrize("total", range(1, 31))
def test_onecycle_lasts_the_whole_run_however_short(total: int) -> None:
    for epochs, steps in ((1, total), (total, 1)):
        used = rates(settings(learning_rate=0.1, epochs=epochs, schedule="onecycle"), steps)
        assert len(used) == total
        assert all(0 < rate <= 0.1 for rate in used)
        assert used[-1] == pytest.approx(0.1 / 25 / 1e4)


def test_onecycle_leaves_the_momentum_as_it_was_set() -> None:
    chosen = settings(optimizer="sgd", momentum=0.6, epochs=2, schedule="onecycle")
    optimizer = build_optimizer(chosen, [parameter()])
    schedule = build_schedule(chosen, optimizer, 5)
    for _ in range(10):
        assert optimizer.param_groups[0]["momentum"] == 0.6
        optimizer.step()
        schedule.step()
