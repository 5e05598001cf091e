"""Optimizers, schedules and number formats do what their keys say, step by step."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.training.options import build_optimizer, build_schedule, make_parser
from train import choose_algorithms

OPTIMIZERS = ("sgd", "adam", "adamw", "adadelta")


def options(**changed: Any) -> Namespace:
    """The options of train.py, but for those that change."""
    return Namespace(**vars(make_parser().parse_args([])) | changed)


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def rates(chosen: Namespace, steps_per_epoch: int) -> list[float]:
    """The learning rate that each step of the whole run uses."""
    optimizer = build_optimizer(chosen, [parameter()], 1)
    schedule = build_schedule(chosen, optimizer, steps_per_epoch)
    used = []
    for _ in range(chosen.epochs * steps_per_epoch):
        used.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return used


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_made_by_its_keys(name: str) -> None:
    chosen = options(optimizer=name, learning_rate=0.1, weight_decay=0.2, momentum=0.8)
    optimizer = build_optimizer(chosen, [parameter()], 1)
    (group,) = optimizer.param_groups
    assert type(optimizer).__name__.lower() == name
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.2)
    assert group.get("momentum", 0.8) == 0.8


def cosine(peak: float, steps: int) -> list[float]:
    return [peak * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.8] * 12),
        # it counts epochs, not steps
        ("step", [0.8] * 4 + [0.56] * 4 + [0.392] * 4),
        ("cosine", cosine(0.8, 12)),
    ],
)
def test_the_rate_of_each_step_follows_the_schedule(schedule: str, expected: list[float]) -> None:
    assert rates(options(learning_rate=0.8, epochs=3, schedule=schedule), 4) == pytest.approx(expected)


CPU = torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_tf32_rounds_what_fp32_does_not() -> None:
    matrix = torch.rand(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    exact = matrix.double() @ matrix.double()
    errors = {}
    for name in ("fp32", "tf32"):
        choose_algorithms(options(precision=name), CPU)
        errors[name] = float((matrix @ matrix - exact).abs().max())
    assert errors["tf32"] > 10 * errors["fp32"]


def trained_by_fp16(optimizer_name: str, sizes: Sequence[float], device: torch.device) -> torch.Tensor:
    """Weights after a step of fp16 for each of these gradients."""
    weight = nn.Parameter(torch.zeros(4096, device=device))
    optimizer = build_optimizer(options(optimizer=optimizer_name), [weight], 1)
    scaler = torch.amp.GradScaler(device.type)
    for size in sizes:
        optimizer.zero_grad()
        scaler.scale((weight * size).sum()).backward()
        # what is taken next without being filled holds this
        torch.full_like(weight, float("nan"))
        scaler.step(optimizer)
        scaler.update()
    return weight.detach().cpu()


@pytest.mark.parametrize("home", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
def test_a_step_that_overflows_leaves_weights_as_if_it_had_not_been(
    optimizer_name: str, home: str, accelerator: str
) -> None:
    device = torch.device(accelerator if home == "gpu" else "cpu")
    sizes = [1e-3, -2e-3, 3e-3, 1e-3]
    overflowing = [*sizes[:2], 1e38, *sizes[2:]]
    expected, found = (trained_by_fp16(optimizer_name, each, device) for each in (sizes, overflowing))
    assert expected.abs().min() > 0
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
