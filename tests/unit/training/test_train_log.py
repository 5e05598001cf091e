"""train.log reads like a training's log, and writing it costs no step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from scalewise.builtin import train_log
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train_epoch
from scalewise.builtin.train_log import StepLog, describe_early_stop, describe_run
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.measure import measured_process, steps
from scalewise.measure.hooks import hooked
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.results.facts import Epoch
from scalewise.records import Measurements, Startup

CPU = torch.device("cpu")
ALONE = Identity(0, 0, 1, 1, "node", None, 0)
STEPS = 20
"""Steps of an epoch."""
WARMUP = 5


def trainer_of(**options: object) -> Trainer:
    """Return one rank that trains batches of 4 small images; its rate halves with each epoch."""
    images = torch.randint(256, (4 * STEPS + 10, 1, 4, 4), dtype=torch.uint8)
    labels = torch.arange(len(images)) % 10
    dataset = Dataset(images[:-10], labels[:-10], images[-10:], labels[-10:], 10)
    settings = Settings.model_validate(
        {
            "dataset": "digits",
            "model": "linear",
            "global_batch_size": 4,
            "epochs": 2,
            "warmup_steps": WARMUP,
            "schedule": "step",
            "schedule_gamma": 0.5,
            "learning_rate": 0.1,
        }
        | options
    )
    return build_trainer(settings, 4, dataset, build_loaders(settings, dataset, 0, CPU, 60), ALONE, CPU)


@dataclass
class Log:
    """The lines of a training."""

    trainer: Trainer
    say: Callable[[str], None] = lambda _line: None
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)

    def write(self, line: str) -> None:
        self.lines.append(line)
        self.say(line)

    def train(self, epochs: int) -> list[float]:
        """Train so many epochs; returns their losses."""
        step_log = StepLog(self.trainer, self.write, self.seconds)

        def after_step(state: TrainingState) -> bool:
            step_log.after_step(state)
            return False

        state = TrainingState.start(CPU)
        losses = []
        with hooked(self.trainer.measured):
            self.trainer.measured.begin_training(self.trainer.optimizer, 0, None, CPU)
            for _ in range(epochs):
                loss = train_epoch(self.trainer, state, after_step)
                assert loss is not None
                losses.append(loss)
                state.end_epoch()
        return losses


@pytest.mark.usefixtures("one_rank")
def test_lines_have_epoch_step_loss_and_learning_rate() -> None:
    log = Log(trainer_of())
    losses = log.train(epochs=2)
    words = [re.fullmatch(r"(train .*)  loss ([\d.]+)  (learning .*)", line) for line in log.lines]
    assert [(match[1], match[3]) for match in words if match is not None] == [
        (f"train epoch {epoch}/2  step {step}/{STEPS}", f"learning rate {rate}")
        for epoch, rate in ((1, 0.1), (2, 0.05))
        for step in range(1, STEPS)
    ]
    # late in an epoch, the mean so far is near that of the epoch
    late = [float(words[index][2]) for index in (STEPS - 2, 2 * STEPS - 3)]  # type: ignore[index]
    assert late == pytest.approx(losses, rel=0.2)


@pytest.mark.usefixtures("one_rank")
def test_the_loss_is_the_mean_over_the_epochs_samples_so_far() -> None:
    log = Log(trainer_of())
    StepLog(log.trainer, log.write).after_step(TrainingState(torch.tensor(30.0), step=5, steps=5))
    assert log.lines == [f"train epoch 1/2  step 5/{STEPS}  loss 1.5000  learning rate 0.1"]


@pytest.mark.usefixtures("one_rank")
def test_a_training_that_steps_end_counts_its_steps() -> None:
    log = Log(trainer_of(steps=200))
    state = TrainingState(torch.tensor(30.0), epoch=1, step=5, steps=125)
    StepLog(log.trainer, log.write).after_step(state)
    assert log.lines == ["train step 125/205  loss 1.5000  learning rate 0.1"]


@pytest.mark.usefixtures("one_rank")
def test_no_line_comes_in_the_place_of_the_epochs() -> None:
    log = Log(trainer_of())
    state = TrainingState(torch.tensor(30.0), step=STEPS, steps=STEPS)
    StepLog(log.trainer, log.write).after_step(state)
    assert log.lines == []


@pytest.mark.usefixtures("one_rank")
def test_the_time_that_a_line_takes_is_in_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    late = 0.0

    def wait_for_the_disk(_line: str) -> None:
        nonlocal late
        late += 1000.0

    monkeypatch.setattr(steps, "perf_counter", lambda: time.perf_counter() + late)
    monkeypatch.setattr(measured_process, "perf_counter", lambda: time.perf_counter() + late)
    log = Log(trainer_of(), wait_for_the_disk)
    log.train(epochs=1)
    assert len(log.lines) == STEPS - 1
    assert log.trainer.measured.steps.training_seconds(0, STEPS) < 1000.0


@pytest.mark.usefixtures("one_rank")
def test_lines_are_a_second_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(trainer_of(), seconds=1.0)
    times = count(100.0, 0.4)
    monkeypatch.setattr(train_log, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log.train(epochs=2)
    # of the chances at 0, 0.4, 0.8, 1.2, ... s
    assert [line.partition("  loss")[0] for line in log.lines[:3]] == [
        f"train epoch 1/2  step {step}/{STEPS}" for step in (1, 4, 7)
    ]


@pytest.mark.parametrize(
    ("accelerator", "devices"), [("cuda", "GPUs"), ("cpu", "CPU processes")], ids=["GPUs", "CPUs"]
)
def test_the_summary_has_time_throughput_and_numbers_of_nodes_and_devices(
    accelerator: str, devices: str
) -> None:
    measured = Measurements(
        parameters=10,
        epochs_completed=1,
        throughput_samples_per_second=36926.594,
        windows=[],
        train_seconds=131.204,
        evaluation_seconds=3.4,
        final_accuracy=None,
        best_accuracy=None,
        peak_memory_bytes=1,
        peak_memory_kind="CUDA allocator",
        loader_wait_fraction=0.0,
        startup=Startup(
            imports_seconds=None,
            process_group_seconds=None,
            data_seconds=None,
            model_seconds=None,
            first_step_seconds=None,
        ),
    )
    first, *lines = describe_run(measured, Shape(2, 4), accelerator).splitlines()
    assert first == "Training summary"
    assert [tuple(part.strip() for part in line.split(":")) for line in lines] == [
        ("training time", "131.20 s"),
        ("evaluation time", "3.40 s"),
        ("throughput", "36,927 samples/s"),
        ("nodes", "2"),
        (f"{devices} per node", "4"),
        (devices, "8"),
    ]
    unmeasured = measured.model_copy(update={"throughput_samples_per_second": None})
    assert "throughput:             not measured" in describe_run(unmeasured, Shape(1, 1), accelerator)
    unevaluated = measured.model_copy(update={"epochs_completed": 0})
    assert "evaluation" not in describe_run(unevaluated, Shape(1, 1), accelerator)


def test_an_early_stop_is_reported_in_the_words_of_the_guide() -> None:
    settings = Settings(
        dataset="digits", model="linear", epochs=3, stop_at_accuracy=0.9, stop_patience_epochs=2
    )
    records = [Epoch(epoch, 6 * epoch, 60, 1.0, 1.0, 1.0, 0.95, 0.1) for epoch in (1, 2, 3)]
    line = "Target accuracy reached. Early stopping after epoch 2."
    assert [describe_early_stop(records[:epochs], settings) for epochs in range(4)] == ["", "", line, ""]
