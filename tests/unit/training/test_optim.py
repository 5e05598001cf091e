"""Optimizers and schedules do what their keys say, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import nn, optim

from scalewise.builtin.optim import STATES_OF_A_WEIGHT, build_optimizer, build_schedule, initial_rate
from scalewise.plan.config.settings import Settings


def settings(**changed: Any) -> Settings:
    return Settings(dataset="digits", model="linear", **changed)


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def rates(chosen: Settings, steps_per_epoch: int, world_size: int = 1) -> list[float]:
    """The learning rate that each step of the whole run uses."""
    optimizer = build_optimizer(chosen, [parameter()], world_size)
    schedule = build_schedule(chosen, optimizer, steps_per_epoch)
    used = []
    for _ in range(chosen.epochs * steps_per_epoch):
        used.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return used


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", optim.SGD), ("adam", optim.Adam), ("adamw", optim.AdamW), ("adadelta", optim.Adadelta)],
)
def test_the_optimizer_is_the_one_that_is_asked_for(name: str, kind: type[optim.Optimizer]) -> None:
    chosen = settings(optimizer=name, learning_rate=0.03, weight_decay=0.02, momentum=0.8)
    optimizer = build_optimizer(chosen, [parameter()], 1)
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert group["lr"] == 0.03
    assert group["weight_decay"] == 0.02
    assert group.get("momentum", 0.8) == 0.8


def test_every_optimizer_and_schedule_of_the_configuration_is_tested_here() -> None:
    optimizers = get_args(Settings.model_fields["optimizer"].annotation)
    schedules = get_args(Settings.model_fields["schedule"].annotation)
    assert set(optimizers) == {"sgd", "adam", "adamw", "adadelta"}
    assert set(schedules) == {"constant", "step", "cosine", "onecycle"}


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("sgd", lambda weight: optim.SGD([weight], lr=0.1, momentum=0.9, weight_decay=0.2)),
        ("adam", lambda weight: optim.Adam([weight], lr=0.1, weight_decay=0.2)),
        ("adamw", lambda weight: optim.AdamW([weight], lr=0.1, weight_decay=0.2)),
        ("adadelta", lambda weight: optim.Adadelta([weight], lr=0.1, weight_decay=0.2)),
    ],
)
def test_steps_are_those_of_torchs_own_optimizer(
    name: str, plain: Callable[[nn.Parameter], optim.Optimizer]
) -> None:
    """Fused kernels and all."""
    ours, theirs = parameter(), parameter()
    optimizer = build_optimizer(settings(optimizer=name, learning_rate=0.1, weight_decay=0.2), [ours], 1)
    expected = plain(theirs)
    for gradient in (1.0, -2.0, 0.5):
        ours.grad, theirs.grad = torch.tensor([gradient]), torch.tensor([gradient])
        optimizer.step()
        expected.step()
        assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6)
    assert float(ours.detach()) != 1.0


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "adadelta"])
def test_weight_decay_pulls_weights_towards_zero(name: str) -> None:
    free, pulled = parameter(), parameter()
    for weight, decay in ((free, 0.0), (pulled, 0.2)):
        chosen = settings(optimizer=name, learning_rate=0.1, weight_decay=decay)
        optimizer = build_optimizer(chosen, [weight], 1)
        # a second step, as the first of adam has one length whatever the gradient
        for gradient in (0.1, -0.1):
            weight.grad = torch.tensor([gradient])
            optimizer.step()
    assert float(pulled.detach()) < float(free.detach())


def test_sgd_follows_momentum_and_weight_decay_as_written_down() -> None:
    weight = parameter()
    chosen = settings(optimizer="sgd", learning_rate=0.1, momentum=0.5, weight_decay=0.2)
    optimizer = build_optimizer(chosen, [weight], 1)
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


def test_a_cosine_falls_from_the_whole_rate_to_nothing_over_the_whole_run() -> None:
    total = 12
    expected = [0.8 * (1 + math.cos(math.pi * step / total)) / 2 for step in range(total)]
    assert rates(settings(learning_rate=0.8, epochs=3, schedule="cosine"), 4) == pytest.approx(expected)
    assert expected[0] == 0.8


def test_a_warm_up_rises_in_equal_steps_and_reaches_the_whole_rate_right_after() -> None:
    chosen = settings(learning_rate=0.8, epochs=3, learning_rate_warmup_epochs=1)
    assert rates(chosen, 3) == pytest.approx([0.2, 0.4, 0.6] + [0.8] * 6)


def test_a_warm_up_of_a_part_of_an_epoch_is_counted_in_steps() -> None:
    chosen = settings(learning_rate=0.9, epochs=1, learning_rate_warmup_epochs=0.25)
    assert rates(chosen, 8) == pytest.approx([0.3, 0.6] + [0.9] * 6)


def test_a_step_schedule_counts_its_epochs_from_the_end_of_the_warm_up() -> None:
    chosen = settings(
        learning_rate=0.8, epochs=4, learning_rate_warmup_epochs=0.5, schedule="step", schedule_gamma=0.5
    )
    expected = [0.8 / 3, 1.6 / 3] + [0.8] * 4 + [0.4] * 4 + [0.2] * 4 + [0.1] * 2
    assert rates(chosen, 4) == pytest.approx(expected)


def test_a_cosine_falls_over_what_the_warm_up_leaves_of_the_run() -> None:
    chosen = settings(learning_rate=0.8, epochs=3, learning_rate_warmup_epochs=1, schedule="cosine")
    after = [0.8 * (1 + math.cos(math.pi * step / 6)) / 2 for step in range(6)]
    assert rates(chosen, 3) == pytest.approx([0.2, 0.4, 0.6, *after])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_rate_grows_with_the_devices_as_the_rule_says(world_size: int) -> None:
    factors = {"none": 1, "linear": world_size, "sqrt": math.sqrt(world_size)}
    for rule, factor in factors.items():
        chosen = settings(learning_rate=0.03, epochs=2, learning_rate_scaling=rule)
        assert initial_rate(chosen, world_size) == pytest.approx(0.03 * factor), rule
        assert rates(chosen, 2, world_size) == pytest.approx([0.03 * factor] * 4), rule
    assert set(factors) == set(get_args(Settings.model_fields["learning_rate_scaling"].annotation))


@pytest.mark.parametrize("schedule", ["constant", "step", "cosine", "onecycle"])
def test_every_schedule_starts_from_the_scaled_rate(schedule: str) -> None:
    chosen = settings(learning_rate=0.03, epochs=2, learning_rate_scaling="linear", schedule=schedule)
    four, one = rates(chosen, 5, world_size=4), rates(chosen, 5)
    assert four == pytest.approx([4 * rate for rate in one])


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
    optimizer = build_optimizer(chosen, [parameter()], 1)
    schedule = build_schedule(chosen, optimizer, 5)
    for _ in range(10):
        assert optimizer.param_groups[0]["momentum"] == 0.6
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("optimizer", get_args(Settings.model_fields["optimizer"].annotation))
def test_no_optimizer_keeps_more_of_a_weight_than_room_is_asked_for(optimizer: str) -> None:
    """Checkpoints ask for that room before the first step."""
    settings = Settings.model_validate({"dataset": "digits", "model": "linear", "optimizer": optimizer})
    weight = nn.Parameter(torch.ones(8))
    built = build_optimizer(settings, [weight], 1)
    weight.grad = torch.ones(8)
    built.step()
    kept = [
        value
        for value in built.state[weight].values()
        if torch.is_tensor(value) and value.shape == weight.shape
    ]
    assert len(kept) <= STATES_OF_A_WEIGHT[settings.optimizer]
