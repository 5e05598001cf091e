"""The device's sensor is read between steps, not in one."""

from __future__ import annotations

import time

import pytest
import torch

from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.trainer import build_loaders, build_trainer
from scalewise.measure import measured_process, steps
from scalewise.measure.hooks import hooked
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.monitoring.sensors import Reading

CPU = torch.device("cpu")
READING_SECONDS = 1000.0


class SlowSensor:
    """A sensor that takes a quarter of an hour for each reading, by the clock of the steps."""

    window_seconds = 0.0

    def __init__(self) -> None:
        self.readings = 0

    def read(self) -> Reading:
        self.readings += 1
        return Reading(0.5, 1)

    def missing(self) -> str:
        return ""

    def close(self) -> None:
        """Holds nothing."""


@pytest.mark.usefixtures("one_rank")
def test_a_change_of_phase_is_in_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the warm-up ends in the middle of an epoch, and at the evaluation."""
    sensor = SlowSensor()
    for module in (steps, measured_process):
        monkeypatch.setattr(
            module, "perf_counter", lambda: time.perf_counter() + READING_SECONDS * sensor.readings
        )
    images = torch.zeros(80, 1, 8, 8, dtype=torch.uint8)
    dataset = Dataset(images, torch.arange(80) % 10, images[:10], torch.arange(10), 10)
    settings = Settings(dataset="digits", model="linear", warmup_steps=2, epochs=2)
    loaders = build_loaders(settings, dataset, 0, CPU, 60)
    trainer = build_trainer(settings, 8, dataset, loaders, Identity(0, 0, 1, 1, "node", None, 0), CPU)
    trainer.monitor._sensor = sensor
    # no reading of the thread: only changes of phase take one
    trainer.monitor._interval = 3600.0
    with trainer.monitor, hooked(trainer.measured):
        train(trainer, TrainingState.start(CPU), lambda _epoch: None)
    assert sensor.readings >= 4
    assert trainer.measured.steps.done == 20
    assert trainer.measured.steps.training_seconds(0, 20) < READING_SECONDS
