"""A built-in training under the hooks learns the same, and what each of its starts did is recorded."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from scalewise.builtin import loop
from scalewise.builtin.checkpoints import state as states
from scalewise.builtin.checkpoints.storage import load, save
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.train_log import StepLog
from scalewise.builtin.trainer import Trainer
from scalewise.execution.checkpoint_files import CheckpointError
from scalewise.ranks.results.facts import Facts
from scalewise.ranks.results.joined_starts import JoinedStarts, join_starts, without_measurements
from scalewise.ranks.results.starts import StartRecords, kept_starts, read_start
from tests.small_runs import definition_of, rank_setup
from tests.unit.training.small_training import CPU, ONE_RANK, random_images, record, settings_of, trainer_of

from scalewise.execution.messages import TrainSpec
from scalewise.measure import measured_process, origins, steps
from scalewise.measure.hooks import hooked
from scalewise.measure.memory import MemoryPhase, PeakMemory
from scalewise.measure.probe_spec import FAULT
from scalewise.measure.step_flags import NEW_ITERATION
from scalewise.plan.config.settings import Settings
from scalewise.ranks.monitoring.monitor import MonitorReport, Reading
from scalewise.ranks.results import rank_report
from scalewise.ranks.results.rank_report import RankReport, write_report
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.write import write_records
from scalewise.records import Measurements, Resumption

pytestmark = pytest.mark.usefixtures("one_thread")


def trained(measured: bool, **chosen: Any) -> tuple[Trainer, TrainingState]:
    """Train two epochs of three whole batches and a smaller one."""
    gc.collect()  # DDP of the training before must not outlive it
    trainer = trainer_of(random_images(77), settings_of(**{"model": "digits_cnn", "epochs": 2} | chosen))
    state = TrainingState.start(CPU)
    with hooked(trainer.measured) if measured else nullcontext():
        train(trainer, state, lambda _epoch: None)
    return trainer, state


@pytest.mark.parametrize(
    "chosen",
    [
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


LATE_SECONDS = 1000.0


def test_no_evaluation_and_no_line_of_the_log_is_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them takes a quarter of an hour here, by the clock of the steps."""
    evaluate, enter = loop.evaluate, PeakMemory.enter
    entered: list[str] = []
    late: list[str] = []

    def note_phase(memory: PeakMemory, phase: MemoryPhase) -> None:
        entered.append(phase)
        enter(memory, phase)

    def evaluate_slowly(trainer: Trainer) -> tuple[float, float]:
        late.append("evaluation")
        return evaluate(trainer)

    monkeypatch.setattr(PeakMemory, "enter", note_phase)
    monkeypatch.setattr(loop, "evaluate", evaluate_slowly)
    for module in (steps, measured_process):
        monkeypatch.setattr(module, "perf_counter", lambda: time.perf_counter() + LATE_SECONDS * len(late))
    settings = settings_of(global_batch_size=8, warmup_steps=2, epochs=2)
    trainer = trainer_of(random_images(80), settings)
    log = StepLog(trainer, late.append, seconds=0.0)

    def goes_on(state: TrainingState) -> bool:
        log.after_step(state)
        return False

    with hooked(trainer.measured):
        train(trainer, TrainingState.start(CPU), lambda _epoch: None, goes_on)
    assert len(late) == 2 * (9 + 1)
    phases = [phase for phase, _ in groupby(entered)]
    assert phases[phases.index("evaluate") :] == ["evaluate", "train", "evaluate"]
    assert trainer.measured.steps.done == 20
    assert trainer.measured.steps.training_seconds(0, 20) < LATE_SECONDS
    columns = trainer.measured.steps.snapshot().columns(fed=True)
    assert columns["seconds_without_training"] == [0.0] * 20


BATCH, STEPS_PER_EPOCH, EPOCHS = 24, 3, 10
STEPS = STEPS_PER_EPOCH * EPOCHS
STARTED, ENDED = "2026-01-01T00:00:00.000+00:00", "2026-01-01T00:01:30.000+00:00"
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Change the hardware and software under the process, as far as the records tell."""

    def becomes(cpu_model: str, **packages: str) -> None:
        monkeypatch.setattr(rank_report, "cpu_model", lambda: cpu_model)
        monkeypatch.setattr(origins, "versions", lambda _cuda: {"torch": "2.15.0"} | packages)

    becomes("Old CPU")
    return becomes


@dataclass
class InParts:
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
        trainer = trainer_of(self.dataset, self.settings)
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
        return {path: path.read_bytes() for path in self.folder.glob("*.pt")}

    def restore(self, files: dict[Path, bytes]) -> None:
        """Put an older checkpoint in the place of the newest."""
        for path, content in files.items():
            path.write_bytes(content)

    def report(self) -> RankReport:
        return rank_report.report_of(ONE_RANK, [], None, 0.0, ENDED)

    def recorded(self) -> Measurements:
        spec = self.spec()
        starts = kept_starts([read_start(spec.starts / str(number + 1)) for number in range(self.parts)])
        planned = Planned("", 1, BATCH, 1, False, frozenset(), accelerator="cpu")
        facts = Facts(self.state.epochs, "", Resumption(problems=["of a checkpoint"]))
        record = write_records(spec, rank_setup(shape="1x1"), planned, starts, facts)
        assert record.measurements is not None
        return record.measurements

    def spec(self) -> TrainSpec:
        return TrainSpec(
            definition=definition_of(self.settings),
            dataset=None,
            folder=self.folder,
            started_at=STARTED,
            start_number=self.parts + 1,
        )

    @property
    def settings(self) -> Settings:
        return settings_of(model=self.model, epochs=EPOCHS, warmup_steps=self.warmup_steps)


@pytest.fixture
def training(one_thread: None, tmp_path: Path, machine: Machine) -> InParts:
    return InParts(tmp_path, random_images(BATCH * STEPS_PER_EPOCH))


def measured_steps(figures: Measurements) -> set[int]:
    return {
        step
        for window in figures.windows
        if not window.warmup
        for step in range(window.first_step, window.first_step + window.steps)
    }


FIRST_OF_EPOCH = set(range(0, STEPS, STEPS_PER_EPOCH))


OLD, NEW = {"cpu_model": "Old CPU"}, {"cpu_model": "New CPU", "torch": "2.16.0"}
CHANGES = (
    "step 12: resumed with CPU model New CPU (before: Old CPU), torch version 2.16.0 (before: 2.15.0); "
    "what was measured before it is excluded"
)
KEPT, END = [*range(2, 12), *range(14, STEPS)], STEPS + 1
RESUMED: dict[str, tuple[int, list[tuple[int, dict[str, str]]], Sequence[int], int, str]] = {
    "the same machine": (2, [(12, OLD), (END, OLD)], KEPT, 2, ""),
    "another machine": (2, [(12, OLD), (END, NEW)], range(14, STEPS), 12, CHANGES),
    "twice": (2, [(9, OLD), (18, NEW), (END, NEW)], [*range(11, 18), *range(20, STEPS)], 11, "step 9: "),
    "a package of no step": (
        *(2, [(12, OLD | {"snakemake": "1"}), (END, OLD | {"snakemake": "2"})], KEPT, 2, ""),
    ),
    "a package of each step": (
        *(2, [(12, OLD | {"nccl": "1"}), (END, OLD | {"nccl": "2"})], range(14, STEPS), 12),
        "step 12: resumed with nccl version 2 (before: 1)",
    ),
    # the first warm-up would have ended at step 10
    "within the warm-up": (10, [(4, OLD), (END, OLD)], range(14, STEPS), 4, ""),
    "after the warm-up": (10, [(12, OLD), (END, OLD)], [10, 11, *range(22, STEPS)], 10, ""),
}
"""Warm-up, end and machine of each start, steps that are measured, number of those lost, and the problem."""


@pytest.mark.parametrize(
    ("warmup_steps", "starts", "kept", "unmeasured", "problem"), RESUMED.values(), ids=RESUMED
)
def test_a_run_that_resumes_keeps_what_was_measured_unless_its_machine_has_changed(
    warmup_steps: int,
    starts: list[tuple[int, dict[str, str]]],
    kept: Sequence[int],
    unmeasured: int,
    problem: str,
    training: InParts,
    machine: Machine,
) -> None:
    training.warmup_steps = warmup_steps
    for stop, facts in starts:
        machine(**facts)
        training.part(stop)
    figures = training.recorded()
    assert measured_steps(figures) == set(kept) - FIRST_OF_EPOCH
    assert sum(window.steps for window in figures.windows) == STEPS
    assert figures.resumption.unmeasured_steps == unmeasured
    first, *changes = figures.resumption.problems
    assert (first, len(changes)) == ("of a checkpoint", bool(problem))
    assert "".join(changes).startswith(problem)
    rows = (training.folder / "epochs.csv").read_text().splitlines()[1:]
    assert len(rows) == EPOCHS
    assert problem or sum(float(row.split(",")[1]) for row in rows) == pytest.approx(figures.train_seconds)


@pytest.mark.parametrize("further", [15, 18])
def test_steps_beyond_the_checkpoint_that_is_resumed_are_counted_once(
    training: InParts, further: int
) -> None:
    """Those of the start that wrote it, which records more steps, and of one whose own was not used."""
    training.part(12)
    older = training.checkpoint()
    if further == 15:
        training.folder.joinpath("shared.pt").unlink()
        shutil.rmtree(training.spec().starts)
        training.parts = 0
    training.part(further)
    training.restore(older)
    training.part(STEPS)
    figures = training.recorded()
    assert sum(window.steps for window in figures.windows) == STEPS
    assert measured_steps(figures) == {*range(2, 12), *range(14, STEPS)} - FIRST_OF_EPOCH


def test_a_start_after_the_last_step_makes_none_and_ends_the_run(training: InParts) -> None:
    """The one before was ended between its last step and the evaluation."""
    training.part(STEPS)
    trainer = training.part(STEPS)
    figures = training.recorded()
    assert trainer.measured.steps.done == 0
    assert sum(window.steps for window in figures.windows) == STEPS
    assert figures.epochs_completed == EPOCHS


def test_one_rank_elsewhere_is_enough() -> None:
    here, there = record(0, world_size=2), record(1, world_size=2)
    report = rank_report.report_of(ONE_RANK, [], None, 0.0, ENDED)
    reports = [replace(report, host="n1"), replace(report, rank=1, host="n1")]
    before = StartRecords([here, there.model_copy(update={"device": "A"})], reports)
    after = StartRecords([here, there.model_copy(update={"device": "B"})], reports)
    assert before.changes(after) == ["device model B (before: A)"]


def test_energy_is_that_of_the_measured_steps_of_each_start() -> None:
    """Of two starts of ten steps, each of two seconds, the first two steps warm up."""
    readings = [Reading(at, "now", 0.5, 0.1, 1, 2, 300.0, 200.0 * at, ()) for at in range(990, 1030)]
    monitor = MonitorReport(readings, None, "580", "")
    report = rank_report.report_of(ONE_RANK, [monitor], None, 0.0, ENDED)
    starts = [
        StartRecords([record(seconds=[2.0] * 9, from_step=first, device="A GPU")], [report])
        for first in (0, 10)
    ]
    joined = JoinedStarts(starts, warmup_steps=2)
    (both,), (second,) = joined.device_uses([*range(2, 10), *range(12, 20)]), joined.device_uses([14, 15])
    assert (both.mean_utilization, both.energy_joules, both.throttled) == (0.5, 200.0 * 2 * 16, False)
    assert second.energy_joules == 200.0 * 4
    rows = joined.utilization()
    assert len(rows) == 2 * len(readings)
    assert (rows[0].host, rows[0].rank, rows[0].device, rows[0].power_watts) == ("n1", 0, "A GPU", 300.0)
    assert starts[0].versions_of(starts[0].ranks[0])["driver"] == "580"


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


def test_weights_of_another_network_are_distinguished_from_a_mistake_in_the_program(
    training: InParts,
) -> None:
    """The code that builds it may have changed."""
    training.part(3)
    training.model = "digits_cnn"
    with pytest.raises(CheckpointError, match=r"is of another network than the model builds now \(Error"):
        training.part(STEPS)
