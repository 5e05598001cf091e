"""One rank of a run, from its identity to its records."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from safetensors.torch import save_file

from scalewise.builtin.checkpoints.checkpointer import Checkpointer
from scalewise.builtin.data import datasets
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.parallel_model import ParallelModel
from scalewise.builtin.pass_timing import merge_ranks, time_forward_backward
from scalewise.builtin.train_log import (
    StepLog,
    describe_early_stop,
    describe_epoch,
    describe_interval,
    describe_run,
    describe_steps,
)
from scalewise.builtin.trainer import Loaders, Trainer, build_loaders, build_trainer
from scalewise.execution.messages import RankSetup, TrainSpec
from scalewise.execution.progress_reporter import say
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.signals import Signals
from scalewise.measure.hooks import hooked
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.batches import shard_range
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.distributed.process_group import gather, process_group
from scalewise.ranks.monitoring.machine_load import CpuMeter, CpuUse
from scalewise.ranks.rank_process import initialize_rank
from scalewise.ranks.results.rank_report import RankReport, report_of, write_report
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.starts import StartRecords, kept_starts, read_earlier_starts, read_start
from scalewise.ranks.results.write import Epoch, Facts, write_records
from scalewise.records import MODEL, Measurements, Startup, later, replaced_whole

LOOK_SECONDS = 0.1
"""Time between two looks for the records of the other ranks."""


class Stopwatch:
    """Seconds of consecutive phases, on the monotonic clock."""

    def __init__(self, started: float) -> None:
        self._last = started

    def lap(self) -> float:
        """Return the seconds since the last lap."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        return seconds


def run_rank(rank_files: RankFiles, process_started: float, signals: Signals) -> None:
    """Train this rank's part and, on rank 0, write the records of the run.

    A training that is asked to end leaves a checkpoint and no records; the next start resumes from it.

    Args:
        rank_files: Holds what is to be trained, and how the ranks meet.
        process_started: ``time.monotonic()`` before the imports.
        signals: Those that this process has received and receives.
    """
    watch = Stopwatch(process_started)
    seconds = {"imports_seconds": watch.lap()}
    rank_setup = rank_files.rank_setup()
    spec = rank_setup.training
    assert spec is not None, "the job has started a training"
    seconds["launch_seconds"] = 0.0
    if socket.gethostname() == rank_setup.supervisor_host:
        # the clocks of two nodes may differ by more than a launch takes
        ago = time.monotonic() - process_started
        seconds["launch_seconds"] = seconds_between(spec.started_at, ago)
    identity, _, device = initialize_rank(rank_files, rank_setup)
    claimed = watch.lap()
    settings = spec.definition.settings
    assert isinstance(settings, Settings), "the job has started the entry point of the built-in training"
    assert spec.dataset is not None, "a built-in training has one"
    dataset = datasets.load(spec.dataset)
    # before the process group, whose threads must not meet the fork of a loader's processes
    loaders = build_loaders(settings, dataset, identity.rank, device, rank_setup.timeout_seconds)
    seconds["data_seconds"] = watch.lap()
    with process_group(rank_files, rank_setup, identity, device):
        seconds["process_group_seconds"] = claimed + watch.lap()
        began = process_started - seconds["launch_seconds"]
        rank = RankContext(
            rank_files, spec, rank_setup, settings, dataset, loaders, identity, device, began, process_started
        )
        # in a function of its own: with it goes DDP, which must be gone before its process group
        train_and_record(rank, seconds, watch, signals)
    rank_files.finished(identity.rank)


@dataclass(frozen=True)
class RankContext:
    """This process among the others, and what all of them are to do.

    Args:
        rank_files: The folder that all of them see.
        spec: The run that they train.
        rank_setup: Says how they were started and meet.
        settings: They hold the seed of this repeat.
        dataset: Mapped from its file.
        loaders: Give the batches of both splits.
        began: Monotonic seconds, by this host's clock, at which this start of the run began.
        process_started: Monotonic seconds at which this process began.
    """

    rank_files: RankFiles
    spec: TrainSpec
    rank_setup: RankSetup
    settings: Settings
    dataset: Dataset
    loaders: Loaders
    identity: Identity
    device: torch.device
    began: float
    process_started: float

    @property
    def measured(self) -> Path:
        """The folder of what the ranks measured in this start."""
        return self.rank_files.folder / "measured"


def train_and_record(
    rank: RankContext, seconds: dict[str, float], watch: Stopwatch, signals: Signals
) -> None:
    """Build the trainer, train and write the records, inside the process group.

    Args:
        rank: This process and what it is to do.
        seconds: Parts of ``Startup`` up to here, by name; the others are added.
        watch: Continues from the last of these parts.
        signals: Those that this process has received and receives.
    """
    spec, rank_setup, settings, identity = rank.spec, rank.rank_setup, rank.settings, rank.identity
    trainer = build_trainer(
        settings,
        spec.definition.global_batch_size,
        rank.dataset,
        rank.loaders,
        identity,
        rank.device,
        spec.weights,
        rank.measured,
        rank.process_started,
    )
    checkpointer = Checkpointer(
        trainer,
        rank.rank_files,
        spec,
        rank.began,
        rank_setup.timeout_seconds,
        lambda: signals.received,
        lambda: rank_report(rank, trainer, seconds),
    )
    state = checkpointer.begin()
    seconds["model_seconds"] = watch.lap()

    step_log = StepLog(trainer, checkpointer.reporter.say) if identity.rank == 0 else None

    def after_step(state: TrainingState) -> bool:
        if step_log is not None:
            step_log.after_step(state)
        return checkpointer.after_step(state)

    def report(epoch: Epoch) -> None:
        if identity.rank == 0:
            checkpointer.reporter.say(describe_epoch(epoch, trainer))
        checkpointer.tell(state)

    with (
        trainer.monitor,
        checkpointer.reporter,
        signals.instead_of_an_end(lambda: rank.rank_files.terminated(identity.rank)),
    ):
        meter = CpuMeter(identity.host)
        with hooked(trainer.measured):
            ending = train(trainer, state, report, after_step)
        cpu_use = meter.used()
        checkpointer.tell(state)
    if ending == "stopped":
        return
    if identity.rank == 0 and (line := describe_early_stop(state.epochs, settings)):
        say(line)
    rank.rank_files.check_current()
    rank.measured.mkdir(exist_ok=True)
    trainer.measured.finish("steps")
    write_report(rank.measured, rank_report(rank, trainer, seconds, cpu_use))
    diverged = divergence(state) if ending == "diverged" else ""
    record_training(rank, trainer, state, Facts(state.epochs, diverged, checkpointer.resumption))


def rank_report(
    rank: RankContext, trainer: Trainer, seconds: dict[str, float], cpu_use: CpuUse | None = None
) -> RankReport:
    """Collect what is known of this rank beside its steps, during the training or after it.

    Args:
        rank: This process.
        trainer: The rank's part of the training.
        seconds: Parts of ``Startup``, by name.
        cpu_use: CPU time of the training; None while it goes on.
    """
    identity, device = rank.identity, rank.device
    uuid = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None
    monitored = trainer.monitor.report() if cpu_use is None else trainer.monitor.stop()
    # by the monotonic clock: the other may be set while the run trains
    ended_at = later(rank.spec.started_at, time.monotonic() - rank.began)
    tested = shard_range(len(trainer.test), identity.rank, identity.world_size)
    return replace(
        report_of(identity, [uuid], [monitored], cpu_use, seconds["launch_seconds"], ended_at),
        local_rank=identity.local_rank,
        startup=Startup(**seconds, first_step_seconds=None),
        train_samples=trainer.sampler.samples_of_rank,
        test_samples=len(tested) if rank.settings.steps is None else None,
    )


def seconds_between(started_at: str, ago: float) -> float:
    """Return the seconds from a time of this host's clock to ``ago`` seconds before now; 0 at least.

    Args:
        started_at: UTC, ISO 8601.
        ago: Seconds.
    """
    since = datetime.now(UTC) - datetime.fromisoformat(started_at)
    return max(since.total_seconds() - ago, 0.0)


def record_training(rank: RankContext, trainer: Trainer, state: TrainingState, facts: Facts) -> None:
    """Write the model, if it is to be kept, and the records of the run; all ranks must call it."""
    world_size, writes = rank.identity.world_size, rank.identity.rank == 0
    if rank.settings.save_model:
        save_model(trainer.parallel_model, rank.identity.rank, rank.spec.folder)
    starts: list[StartRecords] = []
    if writes:
        starts = kept_starts([*read_earlier_starts(rank.spec), wait_for_records(rank)])
        measurements = write_results(rank, starts, facts)
        if rank.settings.steps is not None:
            say(describe_steps(state, measurements))
            if measurements.own_interval is not None:
                say(describe_interval(measurements.own_interval))
        say(describe_run(measurements, rank.rank_setup.shape, rank.rank_setup.accelerator))
    if not facts.diverged:
        # the records are kept by now, whatever becomes of the passes
        timed = gather(time_forward_backward(trainer), world_size)
        if writes:
            write_results(rank, starts, replace(facts, timed=timed, passes=merge_ranks(timed)))


def wait_for_records(rank: RankContext) -> StartRecords:
    """Wait until the records of all ranks of this start are there, also on a slow network file system.

    Raises:
        TimeoutError: One was missing.
    """
    deadline = time.monotonic() + rank.rank_setup.timeout_seconds
    while True:
        found = read_start(rank.measured)
        if min(len(found.ranks), len(found.reports)) >= rank.identity.world_size:
            return found
        if time.monotonic() > deadline:
            missing = sorted(set(range(rank.identity.world_size)) - {each.rank for each in found.ranks})
            raise TimeoutError(
                f"{rank.measured} has no record of ranks {', '.join(map(str, missing))} "
                f"{rank.rank_setup.timeout_seconds} s after the training"
            )
        time.sleep(LOOK_SECONDS)


def write_results(rank: RankContext, starts: list[StartRecords], facts: Facts) -> Measurements:
    """Write the records of the run, on rank 0; returns its figures."""
    definition = rank.spec.definition
    planned = Planned(
        program="the built-in training",
        devices=definition.shape.world_size,
        global_batch_size=definition.global_batch_size,
        accumulation_steps=rank.settings.accumulation_steps,
        samples_given=False,
        names=frozenset(),
        accelerator=definition.accelerator,
    )
    return write_records(rank.spec, rank.rank_setup, planned, starts, facts)


def save_model(parallel_model: ParallelModel, rank: int, folder: Path) -> None:
    """Write the trained weights next to the records; all ranks must call it."""
    state = parallel_model.state()
    if rank == 0:
        with replaced_whole(folder / MODEL) as temporary:
            save_file(state, temporary)


def divergence(state: TrainingState) -> str:
    """Return the place and the losses at which a training was no longer finite, for its record."""
    if not state.epochs:
        return f"by step {state.steps} (training {state.train_loss})"
    last = state.epochs[-1]
    return f"in epoch {last.epoch} (training {last.train_loss}, test {last.test_loss})"
