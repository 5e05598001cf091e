"""One rank of a run, from its identity to its records."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType

import torch

from scalewise.execution.messages import RankSetup, TrainSpec, is_out_of_memory
from scalewise.execution.progress_reporter import say
from scalewise.execution.rank_files import RANK_HEARTBEAT_SECONDS, RankFiles
from scalewise.execution.signals import Signals, exit_when_parent_dies
from scalewise.plan.config.settings import Settings
from scalewise.records import EpochRecord, Measurements, OwnInterval, Resumption, Startup, later
from scalewise.training.checkpoints.checkpointer import Checkpointer
from scalewise.training.data import datasets
from scalewise.training.data.datasets import Dataset
from scalewise.training.distributed.devices import claim_cpus, claim_device
from scalewise.training.distributed.identity import Identity, check_place, identify
from scalewise.training.distributed.process_group import gather, process_group
from scalewise.training.loop import TrainingState, train
from scalewise.training.measure.machine_load import CpuMeter
from scalewise.training.pass_timing import time_forward_backward
from scalewise.training.run_records import (
    RankReport,
    aggregate,
    collect_provenance,
    report_rank,
    save_model,
    with_waiting,
    write_epochs_and_utilization,
    write_ranks_and_record,
)
from scalewise.training.train_log import (
    StepLog,
    describe_early_stop,
    describe_epoch,
    describe_interval,
    describe_run,
    describe_steps,
)
from scalewise.training.trainer import Loaders, Trainer, build_loaders, build_trainer


class Stopwatch:
    """Seconds of consecutive phases, on the monotonic clock."""

    def __init__(self, started: float) -> None:
        self._last = started

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        return seconds


def run_rank(rank_files: RankFiles, process_started: float, signals: Signals) -> None:
    """Train this rank's part and, on rank 0, write the records of the run.

    A training that is asked to end leaves a checkpoint and no records; the next start goes on from it.

    Args:
        rank_files: Holds what is to be trained, and how the ranks meet.
        process_started: ``time.monotonic()`` before the imports.
        signals: Those that this process has got and gets.
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
    identity, affinity, device = initialize_rank(rank_files, rank_setup)
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
            rank_files, spec, rank_setup, settings, dataset, loaders, identity, affinity, device, began
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
        affinity: The CPUs that this rank may run on, such as ``0-3,8``.
        began: Monotonic seconds, by this host's clock, at which this start of the run began.
    """

    rank_files: RankFiles
    spec: TrainSpec
    rank_setup: RankSetup
    settings: Settings
    dataset: Dataset
    loaders: Loaders
    identity: Identity
    affinity: str
    device: torch.device
    began: float


def train_and_record(
    rank: RankContext, seconds: dict[str, float], watch: Stopwatch, signals: Signals
) -> None:
    """Build the trainer, train and write the records, inside the process group.

    Args:
        rank: This process and what it is to do.
        seconds: Parts of ``Startup`` up to here, by name; the others are added.
        watch: Goes on from the last of these parts.
        signals: Those that this process has got and gets.
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
        rank_setup.timeout_seconds,
    )
    checkpointer = Checkpointer(
        trainer, rank.rank_files, spec, rank.began, rank_setup.timeout_seconds, lambda: signals.received
    )
    state = checkpointer.begin()
    seconds["model_seconds"] = watch.lap()

    step_log = StepLog(trainer, checkpointer.reporter.say) if identity.rank == 0 else None

    def after_step(state: TrainingState) -> bool:
        if step_log is not None:
            step_log.after_step(state)
        return checkpointer.after_step(state)

    def tell(record: EpochRecord) -> None:
        if identity.rank == 0:
            checkpointer.reporter.say(describe_epoch(record, settings.epochs))
        checkpointer.tell(state)

    with (
        trainer.monitor,
        checkpointer.reporter,
        signals.instead_of_an_end(lambda: rank.rank_files.terminated(identity.rank)),
    ):
        meter = CpuMeter(identity.host)
        ending = train(trainer, state, tell, after_step)
        cpu_use = meter.used()
        checkpointer.tell(state)
    if ending == "stopped":
        return
    early_end = trainer.early_end
    own_interval = None if early_end is None else early_end.conclude(settings.warmup_steps)
    if identity.rank == 0 and (line := describe_early_stop(state.records, settings)):
        say(line)
    if settings.steps is not None and identity.rank == 0:
        say(describe_steps(state, trainer.clock.windows))
        if own_interval is not None:
            say(describe_interval(own_interval))
    rank.rank_files.check_current()
    startup = Startup(**seconds, first_step_seconds=trainer.clock.first_step_seconds)
    report = report_rank(trainer, rank.affinity, startup, cpu_use)
    diverged = ending == "diverged"
    # by the monotonic clock: the other may be set while the run trains
    ended_at = later(spec.started_at, time.monotonic() - rank.began)
    trained = TrainResult(trainer, state, diverged, ended_at, checkpointer.resumption, own_interval)
    finalize(trained, report, spec, rank_setup)


def seconds_between(started_at: str, ago: float) -> float:
    """Seconds from a time of this host's clock to what was ``ago`` seconds before now; 0 at least.

    Args:
        started_at: UTC, ISO 8601.
        ago: Seconds.
    """
    since = datetime.now(UTC) - datetime.fromisoformat(started_at)
    return max(since.total_seconds() - ago, 0.0)


@dataclass(frozen=True)
class TrainResult:
    """A training that has ended.

    Args:
        state: State at its end, with the records of all epochs, those of earlier starts among them.
        diverged: True where the loss was no longer finite.
        ended_at: UTC, ISO 8601.
        resumption: The account of where the run was cut off and went on.
        own_interval: Interval of the run's own throughput, where that was to end it.
    """

    trainer: Trainer
    state: TrainingState
    diverged: bool
    ended_at: str
    resumption: Resumption
    own_interval: OwnInterval | None = None


def finalize(trained: TrainResult, own: RankReport, spec: TrainSpec, rank_setup: RankSetup) -> None:
    """Write the model, if it is asked for, and the records of the run; all ranks must call it."""
    trainer = trained.trainer
    if trainer.settings.save_model:
        save_model(trainer.parallel_model, trainer.identity.rank, spec.folder)
    writes = trainer.identity.rank == 0
    reports = with_waiting(gather(own, trainer.identity.world_size))
    if writes:
        write_epochs_and_utilization(spec.folder, trained.state.records, reports)
        measurements = write_results(trained, reports, spec, rank_setup)
        say(describe_run(measurements, rank_setup.shape, rank_setup.accelerator))
    if not trained.diverged:
        # the training is kept by now, whatever becomes of the passes
        times = gather(time_forward_backward(trainer), trainer.identity.world_size)
        if writes:
            timed = [report.with_passes(each) for report, each in zip(reports, times, strict=True)]
            write_results(trained, timed, spec, rank_setup)


def write_results(
    trained: TrainResult, reports: Sequence[RankReport], spec: TrainSpec, rank_setup: RankSetup
) -> Measurements:
    """Write what all ranks report together, on rank 0; returns the figures of the run."""
    resumption = trained.resumption
    origin = collect_provenance(
        reports, trained.trainer.identity, rank_setup.launcher, spec, resumption, trained.ended_at
    )
    measurements = aggregate(
        trained.trainer, trained.state.records, reports, resumption, trained.own_interval
    )
    write_ranks_and_record(
        spec.folder,
        spec.definition,
        reports,
        measurements,
        origin,
        divergence(trained.state) if trained.diverged else "",
    )
    return measurements


def divergence(state: TrainingState) -> str:
    """Place and losses at which a training was no longer finite, for its record."""
    if not state.records:
        return f"by step {state.steps} (training {state.train_loss})"
    last = state.records[-1]
    return f"in epoch {last.epoch} (training {last.train_loss}, test {last.test_loss})"


def initialize_rank(rank_files: RankFiles, rank_setup: RankSetup) -> tuple[Identity, str, torch.device]:
    """Claim this rank's CPUs and device, and tell the supervisor that the rank is there.

    Returns:
        The rank's identity, the CPUs it may run on, such as ``0-3,8``, and its device.

    Raises:
        RuntimeError: Place, CPUs or device are not as planned.
    """
    identity = identify(os.environ, rank_setup.launcher)
    rank_files.started(identity.rank, identity.host)
    rank_files.keep_fault(identity.rank)
    exit_when_parent_dies(rank_setup.supervisor_pid, rank_setup.supervisor_host == identity.host)
    if identity.rank == 0:
        threading.Thread(target=_beat, args=(rank_files,), name="heartbeat", daemon=True).start()
    check_place(identity, rank_setup.shape)
    affinity = claim_cpus(rank_setup.accelerator, identity, rank_setup.cpus_per_device)
    in_slurm = identity.slurm_job_id is not None
    device = claim_device(rank_setup.accelerator, identity.local_rank, in_slurm=in_slurm)
    return identity, affinity, device


def _beat(rank_files: RankFiles) -> None:
    """Show the supervisor that rank 0 runs: nobody else waits for a single rank, which may be stopped."""
    while True:
        with suppress(OSError):
            rank_files.heartbeat()
        time.sleep(RANK_HEARTBEAT_SECONDS)


def install_sigterm_handler(rank_files: RankFiles, rank: int) -> None:
    """Tell SIGTERM, which a launcher sends to the peers of a failed rank, from SIGKILL."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # the folder may be gone, or another's
            rank_files.terminated(rank)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)


def run_and_report_errors(rank_files: RankFiles, work: Callable[[], None]) -> None:
    """Do a rank's work, and leave an exception for the supervisor before it is raised again."""
    rank = identify(os.environ, rank_files.rank_setup().launcher).rank
    install_sigterm_handler(rank_files, rank)
    try:
        work()
    except Exception as error:
        # a loader process that ends makes torch raise wherever the rank is, and so also while it tells why
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out_of_memory = is_out_of_memory(f"{type(error).__name__}: {error}")
        # a full disk, or a folder that is gone, must not hide what happened: raised again, it is printed
        with suppress(OSError):
            rank_files.failed(rank, socket.gethostname(), error, out_of_memory)
        raise
