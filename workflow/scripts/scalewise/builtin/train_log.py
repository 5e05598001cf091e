"""Lines of train.log by rank 0 of a built-in training: steps, epochs, its early end and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from scalewise.builtin.loop import TrainingState, is_accurate_enough
from scalewise.builtin.trainer import Trainer
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape
from scalewise.ranks.results.facts import Epoch
from scalewise.records import Measurements, OwnInterval

LINE_SECONDS = 1.0
"""Least time between two lines on steps."""


class StepLog:
    """Reports on the training now and then, outside its steps.

    Args:
        trainer: This rank's part of the training.
        say: Receives a line. The next step waits for it.
        seconds: Least time between two lines.
    """

    def __init__(self, trainer: Trainer, say: Callable[[str], None], seconds: float = LINE_SECONDS) -> None:
        self._trainer = trainer
        self._say = say
        self._seconds = seconds
        self._due = 0.0

    def after_step(self, state: TrainingState) -> None:
        """Write a line if one is due; the next step begins after it."""
        trainer = self._trainer
        # the line of the epoch follows its last step
        if state.step == len(trainer.sampler) or (now := time.monotonic()) < self._due:
            return
        self._due = now + self._seconds
        loss = state.loss_sum.item() / trainer.sampler.samples_before(state.step)
        rate = float(trainer.schedule.get_last_lr()[0])
        self._say(f"train {self._place(state)}  loss {loss:.4f}  learning rate {rate:.4g}")
        trainer.measured.resume()

    def _place(self, state: TrainingState) -> str:
        settings = self._trainer.settings
        if settings.last_step is not None:
            return f"step {state.steps}/{settings.last_step}"
        return f"epoch {state.epoch + 1}/{settings.epochs}  step {state.step}/{len(self._trainer.sampler)}"


def describe_epoch(epoch: Epoch, trainer: Trainer) -> str:
    """Return the line on an epoch that was trained and evaluated, with the pace in this start of the run."""
    steps, done = len(trainer.sampler), trainer.measured.steps.done
    in_this_start = min(steps, done)
    seconds = trainer.measured.steps.training_seconds(done - in_this_start, done)
    rate = f"  {epoch.samples * in_this_start / steps / seconds:,.0f} samples/s" if seconds else ""
    return (
        f"epoch {epoch.epoch}/{trainer.settings.epochs}  train loss {epoch.train_loss:.4f}  test loss "
        f"{epoch.test_loss:.4f}  accuracy {100 * epoch.test_accuracy:.2f} %{rate}  {seconds:.2f} s"
    )


def describe_early_stop(epochs: Sequence[Epoch], settings: Settings) -> str:
    """Return the line on a training that its accuracy ended, in the words of Sigma2's guide; else no text."""
    if len(epochs) == settings.epochs:
        return ""
    if not is_accurate_enough([epoch.test_accuracy for epoch in epochs], settings):
        return ""
    return f"Target accuracy reached. Early stopping after epoch {epochs[-1].epoch}."


def describe_steps(state: TrainingState, measured: Measurements) -> str:
    """Return the line on a training that steps end."""
    loss = f"  train loss {state.train_loss:.4f}" if state.train_loss is not None else ""
    rate = measured.throughput_samples_per_second
    speed = f"  {rate:,.0f} samples/s" if rate is not None else ""
    return f"step {state.steps}{loss}{speed}  {measured.train_seconds:.2f} s"


def describe_interval(own: OwnInterval) -> str:
    """Return the line on how well the run's own throughput is known."""
    warmup = f"after {own.warmup_steps} steps of warm-up"
    if own.half_width_fraction is None:
        return f"throughput of this run: too few windows for an interval {warmup}"
    return (
        f"throughput of this run known to {100 * own.half_width_fraction:.2g} % "
        f"({100 * own.confidence:.0f} % confidence, {own.windows} windows {warmup})"
    )


def describe_run(measurements: Measurements, shape: Shape, accelerator: str) -> str:
    """Return the lines that sum up a training, with the figures of its summary.json."""
    devices = "GPUs" if accelerator == "cuda" else "CPU processes"
    rate = measurements.throughput_samples_per_second
    lines = {"training time": f"{measurements.train_seconds:.2f} s"}
    if measurements.epochs_completed:
        lines["evaluation time"] = f"{measurements.evaluation_seconds:.2f} s"
    lines |= {
        "throughput": "not measured: all steps warmed up" if rate is None else f"{rate:,.0f} samples/s",
        "nodes": f"{shape.nodes}",
        f"{devices} per node": f"{shape.devices_per_node}",
        devices: f"{shape.world_size}",
    }
    return "\n".join(["Training summary", *(f"  {name + ':':<24}{value}" for name, value in lines.items())])
