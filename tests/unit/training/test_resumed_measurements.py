"""What is measured of a run that was cut off: what counts after a resume, and what no longer does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small_runs import definition_of

from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import Measurements, Resumption, Startup
from scalewise.training.checkpoints import state as states
from scalewise.training.checkpoints.storage import load, save
from scalewise.training.data.datasets import Dataset
from scalewise.training.distributed.identity import Identity
from scalewise.training.loop import TrainingState, train
from scalewise.training.measure import provenance
from scalewise.training.run_records import aggregate, report_rank
from scalewise.training.trainer import Trainer, build_loaders, build_trainer

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
ALONE = Identity(0, 0, 1, 1, "node", None, 0)
BATCH, STEPS_PER_EPOCH, EPOCHS = 24, 3, 10
STEPS = STEPS_PER_EPOCH * EPOCHS
NOTHING_YET = Startup(
    imports_seconds=0.0,
    process_group_seconds=0.0,
    data_seconds=0.0,
    model_seconds=0.0,
    first_step_seconds=0.0,
)


@dataclass
class Machine:
    """What the process runs on, as far as the records tell."""

    patch: pytest.MonkeyPatch

    def becomes(self, cpu_model: str, **versions: str) -> None:
        """Another one."""
        self.patch.setattr(states, "cpu_model", lambda: cpu_model)
        self.patch.setattr(provenance, "versions", lambda: {"torch": "2.15.0"} | versions)
        states.measured_on.cache_clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine(monkeypatch)
    found.becomes("Old CPU")
    yield found
    states.measured_on.cache_clear()


@dataclass
class Training:
    """One of one rank, in parts: a checkpoint is all that a part leaves to the next."""

    folder: Path
    dataset: Dataset
    warmup_steps: int = 2
    model: str = "linear"

    def part(self, stop: int, change: Callable[[dict[str, Any]], None] = lambda _own: None) -> Trainer:
        """Train up to a step, from the checkpoint if there is one.

        Args:
            stop: the step; that of the next checkpoint.
            change: of the rank's own file, before it is read.
        """
        # DDP of the part before must not outlive it
        gc.collect()
        definition = self._definition()
        settings = Settings.model_validate(definition.settings)
        loaders = build_loaders(settings, self.dataset, 0, CPU, 60)
        trainer = build_trainer(settings, definition.global_batch_size, self.dataset, loaders, ALONE, CPU)
        files = [self.folder / name for name in (states.SHARED, states.own_name(0))]
        if files[0].exists():
            shared, own = (load(path, CPU) for path in files)
            change(own)
            self.state = states.resume(trainer, shared, own)
        else:
            self.state = TrainingState.start(CPU)
        train(trainer, self.state, lambda _record: None, lambda state: state.steps == stop)
        trainer.clock.close_window()
        save(files[0], states.shared_state(trainer, self.state))
        save(files[1], states.own_state(trainer, self.state))
        return trainer

    def measured(self, trainer: Trainer, energy_joules: float | None = None) -> Measurements:
        """The figures of the run, once it has ended."""
        report = report_rank(trainer, "0", NOTHING_YET)
        report = replace(report, device=replace(report.device, energy_joules=energy_joules))
        return aggregate(trainer, self.state.records, [report], Resumption(problems=["of a checkpoint"]))

    def _definition(self) -> RunDefinition:
        settings = Settings(
            dataset="digits",
            model=self.model,
            global_batch_size=BATCH,
            epochs=EPOCHS,
            warmup_steps=self.warmup_steps,
        )
        return definition_of(settings)


@pytest.fixture
def training(one_rank: None, tmp_path: Path, machine: Machine) -> Iterator[Training]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    samples = BATCH * STEPS_PER_EPOCH
    images = torch.randint(256, (samples + 8, 1, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (samples + 8,), generator=generator)
    dataset = Dataset(images[:samples], labels[:samples], images[samples:], labels[samples:], 10)
    yield Training(tmp_path, dataset)
    torch.set_num_threads(threads)


def measured_steps(figures: Measurements) -> set[int]:
    return {
        step
        for window in figures.windows
        if not window.warmup
        for step in range(window.first_step, window.first_step + window.steps)
    }


def test_a_run_that_goes_on_with_the_same_keeps_what_was_measured(training: Training) -> None:
    training.part(12)
    trainer = training.part(STEPS)
    figures = training.measured(trainer, energy_joules=7.0)
    assert measured_steps(figures) == {*range(2, 12), *range(14, STEPS)}
    assert len(trainer.clock.step_seconds) == 10 + STEPS - 14
    assert figures.resumption.problems == ["of a checkpoint"]
    assert figures.resumption.unmeasured_steps == 2
    assert figures.energy_joules == 7.0


def test_a_run_that_goes_on_with_another_machine_is_measured_on_that_alone(
    training: Training, machine: Machine
) -> None:
    training.part(12)
    machine.becomes("New CPU", torch="2.16.0")
    trainer = training.part(STEPS)
    figures = training.measured(trainer, energy_joules=7.0)
    assert measured_steps(figures) == set(range(14, STEPS))
    assert len(trainer.clock.step_seconds) == STEPS - 14
    waited = trainer.clock.loader_wait_seconds
    assert waited <= sum(window.seconds for window in figures.windows if not window.warmup)
    assert figures.resumption.unmeasured_steps == 12
    assert figures.resumption.problems == [
        "of a checkpoint",
        "step 12: resumed with CPU model New CPU (before: Old CPU), torch version 2.16.0 (before: 2.15.0); "
        "what was measured before it is left out",
    ]
    assert figures.energy_joules is None, "it is that of two machines"


def test_what_was_left_out_once_stays_so(training: Training, machine: Machine) -> None:
    training.part(9)
    machine.becomes("New CPU")
    training.part(18)
    trainer = training.part(STEPS)
    figures = training.measured(trainer)
    assert measured_steps(figures) == {*range(11, 18), *range(20, STEPS)}
    (_, told) = figures.resumption.problems
    assert told.startswith("step 9: ")


@pytest.mark.parametrize(
    ("versions", "counts"),
    [({"snakemake": "9.1"}, True), ({"driver": "580.1"}, False), ({"nccl": "2.27"}, False)],
)
def test_what_takes_no_part_in_a_step_may_change(
    training: Training, machine: Machine, versions: dict[str, str], counts: bool
) -> None:
    training.part(12)
    machine.becomes("Old CPU", **versions)
    figures = training.measured(training.part(STEPS))
    assert (5 in measured_steps(figures)) == counts
    said = [f"{name} version {version} (before: unknown)" for name, version in versions.items()]
    assert any(said[0] in problem for problem in figures.resumption.problems) != counts


def test_one_rank_elsewhere_is_enough(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    training.part(12)
    elsewhere = ["device model B (before: A)"]
    monkeypatch.setattr(states, "gather", lambda own, _world_size: [own, elsewhere, elsewhere])
    figures = training.measured(training.part(STEPS))
    assert 5 not in measured_steps(figures)
    assert figures.resumption.problems[1].count("device model B (before: A)") == 1


@pytest.mark.parametrize(
    ("cpu_model", "seconds", "utilization"), [("Old CPU", 0.5, 0.75), ("New", None, None)]
)
def test_exchange_and_utilization_are_of_the_same_steps_as_the_throughput(
    training: Training, machine: Machine, cpu_model: str, seconds: float | None, utilization: float | None
) -> None:
    def earlier(own: dict[str, Any]) -> None:
        own["communication"] = {"steps": 1000, "seconds": 500.0}
        own["monitor"] |= {"busy_seconds": 750.0, "train_seconds": 1000.0}

    training.part(STEPS - 3)
    machine.becomes(cpu_model)
    trainer = training.part(STEPS, change=earlier)
    # the three steps since are the renewed warm-up, and one of which DDP has not yet told
    assert trainer.parallel_model.communication_seconds() == seconds
    assert trainer.monitor.stop().mean_utilization == utilization


@pytest.mark.parametrize(("stop", "unmeasured"), [(4, 4), (9, 9), (12, 10)])
def test_all_steps_that_a_resume_left_out_are_counted(training: Training, stop: int, unmeasured: int) -> None:
    """Also those of a window that begins within the first warm-up, which would have ended at step 10."""
    training.warmup_steps = 10
    training.part(stop)
    figures = training.measured(training.part(STEPS))
    assert figures.resumption.unmeasured_steps == unmeasured
    undisturbed = set(range(10, STEPS))
    assert len(undisturbed - measured_steps(figures)) == unmeasured


def test_weights_of_another_network_are_told_from_a_mistake_in_the_program(training: Training) -> None:
    """The code that builds it may have changed."""
    training.part(3)
    training.model = "digits_cnn"
    with pytest.raises(CheckpointError, match=r"is of another network than the model builds now \(Error"):
        training.part(STEPS)
