"""What is measured of a run that was cut off: what counts after a resume, and what no longer does."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests.small_runs import definition_of, rank_setup
from tests.unit.training.probe_record_of import record

from scalewise.builtin.checkpoints import state as states
from scalewise.builtin.checkpoints.storage import load, save
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.trainer import Trainer, build_loaders, build_trainer
from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.execution.messages import TrainSpec
from scalewise.measure import origins
from scalewise.measure.hooks import hooked
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.monitoring.monitor import MonitorReport, across_starts
from scalewise.ranks.results import rank_report
from scalewise.ranks.results.facts import Facts
from scalewise.ranks.results.joined_starts import join_starts, without_measurements
from scalewise.ranks.results.rank_report import RankReport, write_report
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.starts import StartRecords, kept_starts, read_start
from scalewise.ranks.results.write import write_records
from scalewise.records import Measurements, Resumption

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
ALONE = Identity(0, 0, 1, 1, "node", None, 0)
BATCH, STEPS_PER_EPOCH, EPOCHS = 24, 3, 10
STEPS = STEPS_PER_EPOCH * EPOCHS
STARTED, ENDED = "2026-01-01T00:00:00.000+00:00", "2026-01-01T00:01:30.000+00:00"
WATCHED = MonitorReport(
    samples=[],
    mean_utilization=0.5,
    train_seconds=1.0,
    energy_joules=7.0,
    cpu_fraction=0.0,
    throttled=None,
    note="",
)


@dataclass
class Machine:
    """The hardware and software under the process, as far as the records tell."""

    patch: pytest.MonkeyPatch

    def becomes(self, cpu_model: str, **versions: str) -> None:
        """Change them."""
        self.patch.setattr(rank_report, "cpu_model", lambda: cpu_model)
        self.patch.setattr(origins, "versions", lambda _cuda: {"torch": "2.15.0"} | versions)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(monkeypatch)
    found.becomes("Old CPU")
    return found


@dataclass
class Training:
    """A training of one rank, in parts: checkpoint and records are all that a part leaves to the next."""

    folder: Path
    dataset: Dataset
    warmup_steps: int = 2
    model: str = "linear"
    parts: int = 0

    def part(self, stop: int) -> Trainer:
        """Train up to a step, from the checkpoint if there is one; leave the next one there."""
        # DDP of the part before must not outlive it
        gc.collect()
        definition = self.definition()
        settings = Settings.model_validate(definition.settings)
        loaders = build_loaders(settings, self.dataset, 0, CPU, 60)
        trainer = build_trainer(settings, definition.global_batch_size, self.dataset, loaders, ALONE, CPU)
        files = [self.folder / name for name in (states.SHARED, states.rank_file(0))]
        if files[0].exists():
            self.state = states.resume(trainer, *(load(path, CPU) for path in files))
        else:
            self.state = TrainingState.start(CPU)
        with hooked(trainer.measured):
            train(trainer, self.state, lambda _epoch: None, lambda state: state.steps == stop)
        self.parts += 1
        folder = self.spec().starts / str(self.parts)
        folder.mkdir(parents=True)
        trainer.measured.write_record(folder, "seen")
        write_report(folder, self.report())
        save(files[0], states.shared_state(trainer, self.state))
        save(files[1], states.rank_state(trainer, self.state))
        return trainer

    def checkpoint(self) -> dict[Path, bytes]:
        """Return the files of the checkpoint."""
        return {path: path.read_bytes() for path in self.folder.glob("*.pt")}

    def restore(self, files: dict[Path, bytes]) -> None:
        """Put an older checkpoint in the place of the newest."""
        for path, content in files.items():
            path.write_bytes(content)

    def report(self) -> RankReport:
        return rank_report.report_of(ALONE, [None], [WATCHED], None, 0.0, ENDED)

    def recorded(self) -> Measurements:
        """Return the figures of the run, once it has ended."""
        spec = self.spec()
        starts = kept_starts([read_start(spec.starts / str(number + 1)) for number in range(self.parts)])
        planned = Planned("", 1, BATCH, 1, False, frozenset(), accelerator="cpu")
        facts = Facts(self.state.epochs, "", Resumption(problems=["of a checkpoint"]))
        record, _ = write_records(spec, rank_setup(shape="1x1"), planned, starts, facts)
        assert record.measurements is not None
        return record.measurements

    def spec(self) -> TrainSpec:
        return TrainSpec(
            definition=self.definition(),
            dataset=None,
            folder=self.folder,
            started_at=STARTED,
            start_number=self.parts + 1,
        )

    def definition(self) -> RunDefinition:
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


FIRST_OF_EPOCH = set(range(0, STEPS, STEPS_PER_EPOCH))


def test_a_run_that_resumes_on_the_same_machine_keeps_what_was_measured(training: Training) -> None:
    training.part(12)
    training.part(STEPS)
    figures = training.recorded()
    assert measured_steps(figures) == {*range(2, 12), *range(14, STEPS)} - FIRST_OF_EPOCH
    assert sum(window.steps for window in figures.windows) == STEPS
    assert figures.resumption.problems == ["of a checkpoint"]
    assert figures.resumption.unmeasured_steps == 2
    assert figures.energy_joules == 14.0


def test_a_run_that_resumes_on_another_machine_is_measured_on_that_only(
    training: Training, machine: Machine
) -> None:
    training.part(12)
    machine.becomes("New CPU", torch="2.16.0")
    training.part(STEPS)
    figures = training.recorded()
    assert measured_steps(figures) == set(range(14, STEPS)) - FIRST_OF_EPOCH
    assert figures.resumption.unmeasured_steps == 12
    assert figures.resumption.problems == [
        "of a checkpoint",
        "step 12: resumed with CPU model New CPU (before: Old CPU), torch version 2.16.0 (before: 2.15.0); "
        "what was measured before it is excluded",
    ]
    assert figures.energy_joules is None, "it is that of two machines"


def test_what_was_excluded_once_stays_so(training: Training, machine: Machine) -> None:
    training.part(9)
    machine.becomes("New CPU")
    training.part(18)
    training.part(STEPS)
    figures = training.recorded()
    assert measured_steps(figures) == {*range(11, 18), *range(20, STEPS)} - FIRST_OF_EPOCH
    (_, problem) = figures.resumption.problems
    assert problem.startswith("step 9: ")


@pytest.mark.parametrize(("package", "counts"), [("snakemake", True), ("nccl", False)])
def test_a_package_that_takes_no_part_in_a_step_may_change(
    training: Training, machine: Machine, package: str, counts: bool
) -> None:
    machine.becomes("Old CPU", **{package: "1.0"})
    training.part(12)
    machine.becomes("Old CPU", **{package: "2.0"})
    training.part(STEPS)
    figures = training.recorded()
    assert (5 in measured_steps(figures)) == counts
    named = any(f"{package} version 2.0 (before: 1.0)" in each for each in figures.resumption.problems)
    assert named != counts


def test_a_start_whose_checkpoints_were_not_used_has_no_step_in_the_run(training: Training) -> None:
    """Its steps are made again from an older checkpoint."""
    training.part(12)
    older = training.checkpoint()
    training.part(18)
    training.restore(older)
    training.part(STEPS)
    figures = training.recorded()
    assert sum(window.steps for window in figures.windows) == STEPS
    assert measured_steps(figures) == {*range(2, 12), *range(14, STEPS)} - FIRST_OF_EPOCH


def test_steps_beyond_the_last_checkpoint_of_a_start_are_counted_once(training: Training) -> None:
    """A start records more steps than the checkpoint holds from which the next one resumes."""
    training.part(12)
    older = training.checkpoint()
    training.folder.joinpath("shared.pt").unlink()
    training.parts = 0
    shutil.rmtree(training.spec().starts)
    training.part(15)
    training.restore(older)
    training.part(STEPS)
    figures = training.recorded()
    assert sum(window.steps for window in figures.windows) == STEPS
    assert measured_steps(figures) == {*range(2, 12), *range(14, STEPS)} - FIRST_OF_EPOCH


def test_the_epochs_of_all_starts_add_up_to_the_time_of_their_steps(training: Training) -> None:
    training.part(10)
    training.part(STEPS + 1)
    figures = training.recorded()
    rows = (training.folder / "epochs.csv").read_text().splitlines()[1:]
    assert len(rows) == EPOCHS
    assert sum(float(row.split(",")[1]) for row in rows) == pytest.approx(figures.train_seconds)


def test_a_start_after_the_last_step_makes_none_and_ends_the_run(training: Training) -> None:
    """The one before was ended between its last step and the evaluation."""
    training.part(STEPS)
    trainer = training.part(STEPS)
    figures = training.recorded()
    assert trainer.measured.steps.done == 0
    assert sum(window.steps for window in figures.windows) == STEPS
    assert figures.epochs_completed == EPOCHS


def test_one_rank_elsewhere_is_enough() -> None:
    here, there = record(0, world_size=2), record(1, world_size=2)
    report = rank_report.report_of(ALONE, [None], [], None, 0.0, ENDED)
    reports = [replace(report, host="n1"), replace(report, rank=1, host="n1")]
    before = StartRecords([here, there.model_copy(update={"device": "A"})], reports)
    after = StartRecords([here, there.model_copy(update={"device": "B"})], reports)
    assert before.changes(after) == ["device model B (before: A)"]


@pytest.mark.parametrize(("changed", "mean"), [(False, 0.75), (True, 0.5)])
def test_utilization_is_that_of_the_starts_whose_steps_are_measured(changed: bool, mean: float) -> None:
    earlier = replace(WATCHED, mean_utilization=0.8, train_seconds=5.0)
    assert across_starts([earlier, WATCHED], changed=changed).mean_utilization == pytest.approx(mean)


def test_communication_is_that_of_the_starts_whose_steps_are_measured() -> None:
    def timed(*pairs: tuple[int, float]) -> list[float | None]:
        return [dict(pairs).get(index) for index in range(20)]

    # the exchange of its last step was made again
    earlier = record(steps=20, communication_seconds=timed((8, 0.5), (19, 0.7)))
    later = record(steps=20, communication_seconds=timed((7, 0.1)), from_step=19)
    (both,) = join_starts([[earlier], [later]], [5, 5])
    (last,) = join_starts([[without_measurements(earlier)], [later]], [5, 5])
    assert (both.timed_exchanges, last.timed_exchanges) == ([0.5, 0.1], [0.1])
    assert len(both.communication_seconds) == both.step_count == 39


@pytest.mark.parametrize(("stop", "unmeasured"), [(4, 4), (9, 9), (12, 10)])
def test_all_steps_that_a_resume_excluded_are_counted(training: Training, stop: int, unmeasured: int) -> None:
    """Also those within the first warm-up, which would have ended at step 10."""
    training.warmup_steps = 10
    training.part(stop)
    training.part(STEPS)
    figures = training.recorded()
    assert figures.resumption.unmeasured_steps == unmeasured
    undisturbed = set(range(10, STEPS)) - FIRST_OF_EPOCH
    excluded = {*range(stop, stop + 10)} | FIRST_OF_EPOCH
    assert measured_steps(figures) == undisturbed - excluded


def test_weights_of_another_network_are_told_from_a_mistake_in_the_program(training: Training) -> None:
    """The code that builds it may have changed."""
    training.part(3)
    training.model = "digits_cnn"
    with pytest.raises(CheckpointError, match=r"is of another network than the model builds now \(Error"):
        training.part(STEPS)
