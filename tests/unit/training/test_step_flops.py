"""Floating-point operations of a step: the numbers by hand, and that counting changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

from scalewise.measure.flops import CountedStep, FlopCount


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(800, 10),
    )


def train(network: nn.Module, images: torch.Tensor) -> None:
    network(images).sum().backward()


def test_linear_and_convolution_by_hand() -> None:
    batch = 4
    # 10 x 10 pixels: each of 8 channels is 3 x 3 x 3 products; the first layer computes no gradient of images
    convolution = 2 * batch * 10 * 10 * 8 * 3 * 3 * 3
    linear = 2 * batch * 800 * 10
    with FlopCount() as count:
        train(model(), torch.randn(batch, 3, 10, 10))

    assert count.by_format == {"fp32": 2 * convolution + 3 * linear}
    assert count.reason == ""


def test_the_count_is_that_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    tokens = torch.randn(2, 16, 32)
    with FlopCounterMode(display=False) as expected:
        train(layer, tokens)
    with FlopCount() as count:
        train(layer, tokens)

    assert sum(count.by_format.values()) == expected.get_total_flops()


def test_each_format_is_counted_by_itself() -> None:
    layer, images = nn.Linear(8, 4), torch.randn(2, 8)
    with FlopCount() as count:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(images)
        layer(images)

    assert count.by_format == {"bf16": 2 * 2 * 8 * 4, "fp32": 2 * 2 * 8 * 4}


def test_an_operator_without_a_formula_is_named() -> None:
    @torch.library.custom_op("scalewise_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with FlopCount() as count:
        nn.Linear(8, 4)(twice(torch.randn(2, 8)))

    assert "scalewise_test.twice" in count.reason


def steps(count: bool) -> tuple[dict[str, Any], CountedStep]:
    """Train some steps of a model with dropout and batch statistics, one of them counted."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    counted = CountedStep(warmup_steps=4)
    for step in range(1, 7):
        optimizer.zero_grad()
        train(network, torch.randn(4, 3, 10, 10))
        optimizer.step()
        if count:
            counted.after_step(step, is_plain=True, compiled=False)
    return network.state_dict() | {"random": torch.get_rng_state()}, counted


def test_counting_changes_no_weight_buffer_or_random_number() -> None:
    expected, _ = steps(count=False)
    found, counted = steps(count=True)

    assert counted.by_format
    assert counted.reason == ""
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize(
    ("warmup_steps", "is_plain", "compiled", "reason"),
    [
        pytest.param(1, True, False, "warmup_steps is 1", id="no step to count"),
        pytest.param(4, False, False, "something else than training", id="evaluations"),
        pytest.param(4, True, True, "compiles", id="a compiled model"),
    ],
)
def test_a_step_that_cannot_be_counted_has_its_reason(
    warmup_steps: int, is_plain: bool, compiled: bool, reason: str
) -> None:
    counted = CountedStep(warmup_steps)
    for step in range(1, 7):
        counted.after_step(step, is_plain=is_plain, compiled=compiled)

    assert counted.by_format == {}
    assert reason in counted.reason


def test_no_mode_is_left_after_the_counted_step() -> None:
    counted = CountedStep(warmup_steps=2)
    counted.after_step(1, is_plain=True, compiled=False)
    assert isinstance(_get_current_dispatch_mode(), FlopCount)
    # a program that has entered a mode of its own meanwhile keeps it
    with FlopCounterMode(display=False):
        counted.after_step(2, is_plain=True, compiled=False)
        assert not isinstance(_get_current_dispatch_mode(), FlopCount)
    assert _get_current_dispatch_mode() is None
