"""The device's sensor is read between windows, not in one."""

from __future__ import annotations

import pytest
import torch

from scalewise.plan.config.settings import Settings
from scalewise.training.data.datasets import Dataset
from scalewise.training.distributed.identity import Identity
from scalewise.training.loop import TrainingState, train_epoch
from scalewise.training.measure.device_timers import HostTimer
from scalewise.training.measure.interval_clock import IntervalClock
from scalewise.training.measure.sensors import Reading
from scalewise.training.trainer import build_loaders, build_trainer

CPU = torch.device("cpu")
READING_SECONDS = 1000.0


class SlowToTell:
    """A sensor that takes a quarter of an hour for each reading, by the clock of the steps."""

    def __init__(self, timer: SkippingTimer) -> None:
        self._timer = timer
        self.readings = 0

    def read(self) -> Reading:
        self.readings += 1
        self._timer.skipped += READING_SECONDS
        return Reading(0.5, 1)

    def missing(self) -> str:
        return ""

    def close(self) -> None:
        """Holds nothing."""


class SkippingTimer(HostTimer):
    """A clock that can be put forward."""

    skipped = 0.0

    def record(self) -> float:
        return super().record() + self.skipped

    def now(self) -> float:
        return super().now() + self.skipped


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("steps", [None, {"most": 1000, "until_interval": 0.01}], ids=["epochs", "interval"])
def test_a_change_of_phase_is_in_no_window_and_in_no_step(steps: dict[str, float] | None) -> None:
    """At the begin of each epoch, and as the warm-up ends in the middle of one."""
    images = torch.zeros(80, 1, 8, 8, dtype=torch.uint8)
    dataset = Dataset(images, torch.arange(80) % 10, images[:10], torch.arange(10), 10)
    settings = Settings.model_validate(
        {"dataset": "digits", "model": "linear", "warmup_steps": 2, "steps": steps}
    )
    loaders = build_loaders(settings, dataset, 0, CPU, 60)
    trainer = build_trainer(settings, 8, dataset, loaders, Identity(0, 0, 1, 1, "node", None, 0), CPU)
    timer = SkippingTimer()
    trainer.clock._timer = timer
    sensor = SlowToTell(timer)
    trainer.monitor._sensor = sensor
    # no reading of the thread beside: only changes of phase take one
    trainer.monitor._interval = 3600.0
    with trainer.monitor:
        for epoch in range(2):
            train_epoch(trainer, TrainingState.start(CPU, epoch))
            trainer.monitor.phase = "evaluate"
    if isinstance(trainer.clock, IntervalClock):
        trainer.clock.conclude(0)
    windows, step_seconds = trainer.clock.windows, trainer.clock.step_seconds
    assert sensor.readings >= 4
    assert sum(window.steps for window in windows) == 20
    assert max(window.seconds for window in windows) < READING_SECONDS
    assert max(step_seconds) < READING_SECONDS
