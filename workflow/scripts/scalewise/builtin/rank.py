"""One rank of a run, from its identity to its records."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from scalewise.builtin.checkpoints.checkpointer import Checkpointer
from scalewise.builtin.data import datasets
from scalewise.builtin.data.datasets import Dataset
from scalewise.builtin.loop import TrainingState, train
from scalewise.builtin.step_flops import count_step_flops
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
from scalewise.ranks.distributed.process_group import process_group
from scalewise.ranks.monitoring.machine_load import CpuMeter, CpuUse
from scalewise.ranks.monitoring.monitor import Monitor
from scalewise.ranks.rank_process import initialize_rank
from scalewise.ranks.results.facts import Epoch, Facts
from scalewise.ranks.results.rank_report import RankReport, report_of, write_report
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.starts import (
    StartRecords,
    kept_starts,
    read_earlier_starts,
    wait_for_start,
)
from scalewise.ranks.results.write import write_records
from scalewise.records import (
    MODEL,
    RECORD,
    Startup,
    later,
    seconds_between,
    utc_now,
    write_json,
)


class StartupTimer:
    """Divides the time since the start of this process into the parts of ``Startup``."""

    def __init__(self, process_started: float) -> None:
        self._last = process_started
        self.seconds: dict[str, float] = {}

    def end(self, part: str) -> None:
        """Count the time since the end of the last part as this one's."""
        now = time.monotonic()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


def run_rank(rank_files: RankFiles, process_started: float, signals: Signals) -> None:
    """Train this rank's part and, on rank 0, write the records of the run.

    A training that is requested to stop leaves a checkpoint and no records; the next start resumes from it.

    Args:
        rank_files: Hold the training and the rendezvous of the ranks.
        process_started: ``time.monotonic()`` before the imports.
        signals: Those that this process has received and receives.
    """
    timer = StartupTimer(process_started)
    timer.end("imports_seconds")
    rank_setup = rank_files.rank_setup()
    spec = rank_setup.training
    assert spec is not None, "the job has started a training"
    launch_seconds = 0.0
    if socket.gethostname() == rank_setup.supervisor_host:
        # the clocks of two nodes may differ by more than a launch takes
        process_seconds = time.monotonic() - process_started
        launch_seconds = max(seconds_between(spec.started_at, utc_now()) - process_seconds, 0.0)
    timer.seconds["launch_seconds"] = launch_seconds
    identity, _, device = initialize_rank(rank_files, rank_setup)
    timer.end("process_group_seconds")
    settings = spec.definition.settings
    assert isinstance(settings, Settings), "the job has started the entry point of the built-in training"
    assert spec.dataset is not None, "a built-in training has one"
    dataset = datasets.load(spec.dataset)
    # before the process group, whose threads must not meet the fork of a loader's processes
    loaders = build_loaders(settings, dataset, identity.rank, device, rank_setup.timeout_seconds)
    timer.end("data_seconds")
    with process_group(rank_files, rank_setup, identity, device):
        timer.end("process_group_seconds")
        began = process_started - launch_seconds
        rank = RankContext(
            rank_files,
            rank_setup,
            spec,
            settings,
            identity,
            device,
            began,
            process_started,
            timer,
            [Monitor(str(torch.cuda.get_device_properties(device).uuid))] if device.type == "cuda" else [],
        )
        for monitor in rank.monitors:
            monitor.start()
        # in a function of its own: with it goes DDP, which must be gone before its process group
        train_and_record(rank, dataset, loaders, signals)
    rank_files.finished(identity.rank)


@dataclass(frozen=True)
class RankContext:
    """This process among the ranks, and the run that they train.

    Args:
        rank_files: The folder that all ranks share.
        rank_setup: The start of the ranks, and their rendezvous.
        settings: They hold the seed of this repeat.
        began: Monotonic seconds, by this host's clock, at which this start of the run began.
        process_started: Monotonic seconds at which this process began.
        timer: Divides the time before the first step.
        monitors: Reads its GPU; empty for a CPU process.
    """

    rank_files: RankFiles
    rank_setup: RankSetup
    spec: TrainSpec
    settings: Settings
    identity: Identity
    device: torch.device
    began: float
    process_started: float
    timer: StartupTimer
    monitors: list[Monitor]

    @property
    def measured(self) -> Path:
        """The folder of the records of this start."""
        return self.rank_files.folder / "measured"


def train_and_record(rank: RankContext, dataset: Dataset, loaders: Loaders, signals: Signals) -> None:
    """Build the trainer, train and write the records, inside the process group.

    Args:
        rank: This rank and its run.
        dataset: Mapped from its file.
        loaders: Give the batches of both splits.
        signals: Those that this process has received and receives.
    """
    spec, settings, identity = rank.spec, rank.settings, rank.identity
    trainer = build_trainer(
        settings,
        spec.definition.global_batch_size,
        dataset,
        loaders,
        identity,
        rank.device,
        spec.weights,
        rank.process_started,
    )
    checkpointer = Checkpointer(
        trainer,
        rank.rank_files,
        spec,
        rank.began,
        rank.rank_setup.timeout_seconds,
        lambda: signals.received,
        lambda: rank_report(rank, trainer),
    )
    state = checkpointer.begin()
    rank.timer.end("model_seconds")

    step_log = StepLog(trainer, checkpointer.reporter.say) if identity.rank == 0 else None

    def after_step(state: TrainingState) -> bool:
        if step_log is not None:
            step_log.after_step(state)
        return checkpointer.after_step(state)

    def report(epoch: Epoch) -> None:
        if identity.rank == 0:
            checkpointer.reporter.say(describe_epoch(epoch, trainer))
        checkpointer.update_progress(state)

    with (
        checkpointer.reporter,
        signals.instead_of_an_end(lambda: rank.rank_files.terminated(identity.rank)),
    ):
        meter = CpuMeter(identity.host)
        with hooked(trainer.measured):
            ending = train(trainer, state, report, after_step)
        cpu_use = meter.used()
        checkpointer.update_progress(state)
    if ending == "stopped":
        return
    if identity.rank == 0 and (line := describe_early_stop(state.epochs, settings)):
        say(line)
    rank.rank_files.check_current()
    rank.measured.mkdir(exist_ok=True)
    trainer.measured.write_record(rank.measured, "steps")
    write_report(rank.measured, rank_report(rank, trainer, cpu_use))
    diverged = divergence(state) if ending == "diverged" else ""
    record_training(rank, trainer, state, Facts(state.epochs, diverged, checkpointer.resumption))


def rank_report(rank: RankContext, trainer: Trainer, cpu_use: CpuUse | None = None) -> RankReport:
    """Collect what is known of this rank in addition to its steps, during the training or after it.

    Args:
        rank: This rank and its run.
        trainer: The rank's part of the training.
        cpu_use: CPU time of the training; None before its end.
    """
    identity = rank.identity
    monitored = [each.report() if cpu_use is None else each.stop() for each in rank.monitors]
    # by the monotonic clock: the other may be set while the run trains
    ended_at = later(rank.spec.started_at, time.monotonic() - rank.began)
    tested = shard_range(len(trainer.test), identity.rank, identity.world_size)
    return replace(
        report_of(identity, monitored, cpu_use, rank.timer.seconds["launch_seconds"], ended_at),
        local_rank=identity.local_rank,
        startup=Startup(**rank.timer.seconds, first_step_seconds=None),
        train_samples=trainer.sampler.samples_of_rank,
        test_samples=len(tested) if rank.settings.steps is None else None,
    )


def record_training(rank: RankContext, trainer: Trainer, state: TrainingState, facts: Facts) -> None:
    """Write the weights, if they are requested, and the records of the run; all ranks must call it."""
    writes, folder = rank.identity.rank == 0, rank.spec.folder
    if rank.settings.save_model:
        weights = trainer.parallel_model.state()
        if writes:
            datasets.save_whole(weights, folder / MODEL)
    if writes:
        record = write_records(rank.spec, rank.rank_setup, planned(rank), starts_of(rank), facts)
        measurements = record.measurements
        assert measurements is not None, "of steps that were made"
        if rank.settings.steps is not None:
            say(describe_steps(state, measurements))
            if measurements.own_interval is not None:
                say(describe_interval(measurements.own_interval))
        say(describe_run(measurements, rank.rank_setup.shape, rank.rank_setup.accelerator))
    if not facts.diverged:
        # after the records, which stay if this fails
        flops, note = count_step_flops(trainer, rank.spec.definition.global_batch_size)
        if writes:
            assert record.measurements is not None, "of steps that were made"
            counted = record.measurements.model_copy(update={"step_flops": flops, "step_flops_note": note})
            write_json(folder / RECORD, record.model_copy(update={"measurements": counted}))


def starts_of(rank: RankContext) -> list[StartRecords]:
    """Return the records of the starts whose steps are in the training, once all ranks have left theirs.

    Raises:
        TimeoutError: A rank left no report.
    """
    world_size, timeout = rank.identity.world_size, rank.rank_setup.timeout_seconds
    last = wait_for_start(rank.measured, world_size, timeout)
    if missing := sorted(set(range(world_size)) - {report.rank for report in last.reports}):
        raise TimeoutError(f"ranks {missing} left no report in {rank.measured} within {timeout} s")
    return kept_starts([*read_earlier_starts(rank.spec), last])


def planned(rank: RankContext) -> Planned:
    """Return the run as it was planned."""
    definition = rank.spec.definition
    return Planned(
        program="the built-in training",
        devices=definition.shape.world_size,
        global_batch_size=definition.global_batch_size,
        accumulation_steps=rank.settings.accumulation_steps,
        samples_given=False,
        names=frozenset(),
        accelerator=definition.accelerator,
    )


def divergence(state: TrainingState) -> str:
    """Return the place and the losses at which a training was no longer finite, for its record."""
    if not state.epochs:
        return f"by step {state.steps} (training {state.train_loss})"
    last = state.epochs[-1]
    return f"in epoch {last.epoch} (training {last.train_loss}, test {last.test_loss})"
