"""Passes timed after a training: which sizes they tell of, and that they leave all as it was."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.startup.planted_models import deep
from tests.unit.training.small_training import CPU, random_images, settings_of, trainer_of
from torch import nn

from scalewise.builtin.loop import TrainingState, train_epoch
from scalewise.builtin.models.builders import BUILDERS, ModelBuilder
from scalewise.builtin.pass_timing import (
    LEAST_COUNTED,
    PassTimes,
    _as_compiled_for_each_size,
    _budget,
    affordable,
    merge_ranks,
    smaller_passes,
    time_forward_backward,
)
from scalewise.builtin.trainer import Trainer
from scalewise.measure.hooks import hooked
from scalewise.records import Pass

ENOUGH_SECONDS = 300.0
"""For all sizes, however busy the machine is."""

SLEEP_SECONDS = 0.05


def normed(image: torch.Size, classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(image.numel(), 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


class Even(nn.Module):
    def __init__(self, image: torch.Size, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(image.numel(), classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if len(images) % 2:
            raise ValueError("an even number of images is needed")
        logits: torch.Tensor = self.layer(images.flatten(1))
        return logits


def slow(image: torch.Size, classes: int) -> nn.Module:
    """Sleeps between its first layer and its last ones, of 1.3 MB, for longer in its backward pass."""
    first, *last = nn.Linear(image.numel(), 400), nn.Linear(400, 800), nn.Linear(800, classes)
    network = nn.Sequential(nn.Flatten(), first, *last)
    first.register_forward_hook(lambda *_: time.sleep(SLEEP_SECONDS))
    last[0].register_full_backward_hook(lambda *_: time.sleep(3 * SLEEP_SECONDS))
    return network


MODELS: dict[str, ModelBuilder] = {"deep": deep, "normed": normed, "even": Even, "slow": slow}

MakeTask = Callable[..., Trainer]


@pytest.fixture
def make_task(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> MakeTask:
    """A task of one rank after an epoch of training."""
    for name, build in MODELS.items():
        monkeypatch.setitem(BUILDERS, name, build)

    def make(model: str, **chosen: Any) -> Trainer:
        trainer = trainer_of(random_images(72), settings_of(model=model, **chosen))
        with hooked(trainer.measured):
            trainer.measured.begin_training(trainer.optimizer, 0, None, CPU)
            train_epoch(trainer, TrainingState.start(trainer.device))
        return trainer

    return make


def test_passes_are_of_the_runs_own_batch_and_of_what_common_device_counts_get_of_it(
    make_task: MakeTask,
) -> None:
    found = time_forward_backward(make_task("deep"), ENOUGH_SECONDS).passes
    # of 24 samples: halves for 2, 4, 8, 16 devices, thirds for 3, 6, 12
    assert [each.batch_size for each in found] == [24, 12, 8, 6, 4, 3, 2, 1]
    assert all(each.forward_seconds > 0 and each.backward_seconds > 0 for each in found)


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        pytest.param("normed", [24, 12, 8, 6, 4, 3, 2], "", id="too small for batch norm"),
        pytest.param("even", [24, 12, 8, 6, 4, 2], "an even number of images is needed", id="of the model"),
    ],
)
def test_a_size_that_a_model_refuses_is_named_and_the_others_stay(
    model: str, sizes: list[int], message: str, make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    found = time_forward_backward(make_task(model), ENOUGH_SECONDS).passes
    assert [each.batch_size for each in found] == sizes
    printed = capsys.readouterr().out
    assert ("passes of 1 samples are not timed" in printed) is bool(message)
    assert message in printed


def test_an_error_of_the_device_is_not_passed_over(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_task("deep")

    def lost(*_given: object) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("scalewise.builtin.pass_timing._time_local", lost)
    with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
        list(smaller_passes(trainer, 24, deadline=math.inf))


def test_smaller_batches_are_left_when_the_time_is_up_and_the_runs_own_never_is(make_task: MakeTask) -> None:
    trainer = make_task("deep")
    assert list(smaller_passes(trainer, 24, deadline=0.0)) == []
    assert time_forward_backward(trainer, 0.0).passes[0].batch_size == 24


def test_a_pass_of_a_step_is_what_is_timed_where_steps_have_several(make_task: MakeTask) -> None:
    trainer = make_task("deep", accumulation_steps=3)
    steps = trainer.measured.steps
    _, expected = _budget(trainer, 0.3)
    # the first of three steps is its warm-up
    assert expected == pytest.approx(steps.training_seconds(1, 3) / 2 / 3)
    assert time_forward_backward(trainer, 0.0).passes[0].batch_size == 8


@pytest.mark.parametrize(("compiled", "sizes"), [(False, [1, 3, 6, 12]), (True, [12, 6, 3, 1])])
def test_the_smallest_passes_come_first_unless_each_size_is_compiled(
    compiled: bool, sizes: list[int], make_task: MakeTask
) -> None:
    trainer = make_task("deep")
    trainer = replace(trainer, settings=trainer.settings.model_copy(update={"compile": compiled}))
    with _as_compiled_for_each_size(trainer.settings):
        assert (torch._dynamo.config.recompile_limit == 64) is compiled
        found = [each.batch_size for each in smaller_passes(trainer, 24, math.inf)]
    assert found[:4] == sizes


def test_forward_and_backward_are_separate_and_sum_to_the_ranks_pass(make_task: MakeTask) -> None:
    times = time_forward_backward(make_task("slow"), 0.0)
    own = times.passes[0]
    assert own.forward_seconds >= 0.05
    assert own.backward_seconds >= 0.15
    assert times.local_seconds is not None
    assert times.local_seconds == pytest.approx(own.forward_seconds + own.backward_seconds, rel=0.5)
    assert times.exchanged_seconds is None


def test_a_model_in_parts_has_no_passes(make_task: MakeTask) -> None:
    assert time_forward_backward(make_task("deep", parallelism="fsdp")) == PassTimes()


def test_weights_buffers_and_optimizer_are_as_the_training_left_them(
    make_task: MakeTask,
) -> None:
    trainer = make_task("normed", momentum=0.9)
    network = trainer.parallel_model.module
    network.eval()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    momenta = json.dumps(trainer.optimizer.state_dict(), default=lambda tensor: tensor.tolist())
    time_forward_backward(trainer, 0.0)
    after = network.state_dict()
    assert any("running_mean" in name for name in state)
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    assert json.dumps(trainer.optimizer.state_dict(), default=lambda tensor: tensor.tolist()) == momenta
    assert not network.training
    assert all(weight.grad is None for weight in network.parameters())
    assert all(not weight._post_accumulate_grad_hooks for weight in network.parameters())


def test_long_passes_are_few_and_short_ones_no_more_than_needed() -> None:
    assert affordable(10.0, 0.001, 8) == 8
    assert affordable(10.0, 2.0, 8) == 4
    assert affordable(10.0, 60.0, 8) == LEAST_COUNTED


def test_a_run_of_several_ranks_records_the_median_pass_under_the_size_of_rank_0() -> None:
    sizes_and_seconds = [(63, 1.0), (62, 5.0), (62, 2.0)]
    ranks = [
        PassTimes(passes=[Pass(batch_size=size, forward_seconds=seconds, backward_seconds=2 * seconds)])
        for size, seconds in sizes_and_seconds
    ]
    assert merge_ranks(ranks) == [Pass(batch_size=63, forward_seconds=2.0, backward_seconds=4.0)]
    assert merge_ranks([replace(rank, passes=[]) for rank in ranks]) == []
