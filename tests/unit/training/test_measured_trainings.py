"""A built-in training under the hooks learns the same, and what it did is recorded as it was."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from scalewise.builtin import loop
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.measure.hooks import hooked
from scalewise.measure.memory import MemoryPhase, PeakMemory
from scalewise.measure.probe_spec import FAULT
from scalewise.measure.step_flags import NEW_ITERATION
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity

CPU = torch.device("cpu")
ALONE = Identity(0, 0, 1, 1, "node", None, 0)
SAMPLES, BATCH = 77, 24


@pytest.fixture(autouse=True)
def one_thread(one_rank: None) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(measured: bool, **chosen: Any) -> tuple[Trainer, TrainingState]:
    """Train two epochs of three whole batches and a smaller one."""
    gc.collect()  # DDP of the training before must not outlive it
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (SAMPLES + 8, 1, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (SAMPLES + 8,), generator=generator)
    dataset = Dataset(images[:SAMPLES], labels[:SAMPLES], images[SAMPLES:], labels[SAMPLES:], 10)
    usual = {"dataset": "digits", "model": "digits_cnn", "global_batch_size": BATCH, "epochs": 2}
    settings = Settings.model_validate(usual | {"warmup_steps": 1} | chosen)
    trainer = build_trainer(
        settings, BATCH, dataset, build_loaders(settings, dataset, 0, CPU, 60), ALONE, CPU
    )
    state = TrainingState.start(CPU)
    with hooked(trainer.measured) if measured else nullcontext():
        train(trainer, state, lambda _epoch: None)
    return trainer, state


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param({}, id="resident"),
        pytest.param({"crop_padding": 1, "horizontal_flip": True}, id="random crops"),
        pytest.param({"accumulation_steps": 2, "precision": "bf16"}, id="accumulation in bf16"),
        pytest.param({"parallelism": "zero1", "optimizer": "adamw", "learning_rate": 1e-3}, id="zero1"),
        pytest.param({"loader": "workers"}, id="workers", marks=pytest.mark.slow),
    ],
)
def test_losses_and_weights_are_the_same_with_and_without_measuring(chosen: dict[str, Any]) -> None:
    # one that stays: its optimizer is none of the other training's
    unmeasured = trained(False, **chosen)
    plain = learned(*unmeasured)
    trainer, state = trained(True, **chosen)
    assert trainer.measured.steps.done == 8
    # notes may be of what other tests have compiled in this process
    assert [event for event in trainer.measured.notes.events if event.startswith(FAULT)] == []
    assert learned(trainer, state) == plain


def learned(trainer: Trainer, state: TrainingState) -> tuple[list[tuple[float, float]], dict[str, bytes]]:
    """Return the losses of all epochs, and the bits of the weights."""
    weights = trainer.parallel_model.module.state_dict()
    bits = {name: value.numpy().tobytes() for name, value in weights.items()}
    return [(each.train_loss, each.test_loss) for each in state.epochs], bits


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_samples_of_each_step_are_those_of_its_batches_and_each_epoch_begins_an_iteration(
    micro_batches: int,
) -> None:
    trainer, _ = trained(True, accumulation_steps=micro_batches)
    columns = trainer.measured.steps.snapshot().columns(fed=True)
    assert columns["samples"] == [24, 24, 24, 5] * 2
    assert [bool(bits & NEW_ITERATION) for bits in columns["flags"]] == [True, False, False, False] * 2
    assert columns["backward_passes"] == [micro_batches] * 8
    assert all(seconds is not None and seconds > 0 for seconds in columns["seconds"])


def test_the_step_after_an_evaluation_begins_once_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    ended: list[float] = []
    enter, evaluate = PeakMemory.enter, loop.evaluate

    def note_phase(memory: PeakMemory, phase: MemoryPhase) -> None:
        entered.append(phase)
        enter(memory, phase)

    def note_end(trainer: Trainer) -> tuple[float, float]:
        found = evaluate(trainer)
        ended.append(time.perf_counter())
        return found

    monkeypatch.setattr(PeakMemory, "enter", note_phase)
    monkeypatch.setattr(loop, "evaluate", note_end)
    trainer, _ = trained(True)
    columns = trainer.measured.steps.snapshot().columns(fed=True)
    assert entered[entered.index("evaluate") :] == ["evaluate", "train", "evaluate"]
    assert columns["ended_at"][3] < ended[0] <= columns["ended_at"][4] - columns["seconds"][4]
    assert columns["seconds_without_training"] == [0.0] * 8
