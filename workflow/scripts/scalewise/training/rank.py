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

from scalewise.execution.messages import Assignment, Muster
from scalewise.execution.parent_death import exit_with
from scalewise.execution.progress_reporter import say
from scalewise.execution.rank_files import Attempt
from scalewise.execution.signals import Signals
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape
from scalewise.records import EpochRecord, Resumption, Startup, utc_now
from scalewise.training.checkpoints.checkpointer import Session
from scalewise.training.data import datasets
from scalewise.training.distributed.devices import claim_cpus, claim_device
from scalewise.training.distributed.identity import Identity, check_place, identify
from scalewise.training.distributed.process_group import gather, process_group
from scalewise.training.loop import train
from scalewise.training.measure.machine_load import CpuMeter
from scalewise.training.pass_timing import time_passes
from scalewise.training.run_records import (
    RankReport,
    measure,
    report_rank,
    save_model,
    trace,
    write_conclusion,
    write_series,
)
from scalewise.training.trainer import Task, build_loaders, build_task

BEAT_SECONDS = 2.0


class Stopwatch:
    """Seconds of consecutive phases, on the monotonic clock."""

    def __init__(self, started: float) -> None:
        self._last = started

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        return seconds


def run_rank(attempt: Attempt, process_started: float, signals: Signals) -> None:
    """Train this rank's part and, on rank 0, write the records of the run.

    A training that is asked to end leaves a checkpoint and no records; the next start goes on from it.

    Args:
        attempt: Holds what is to be trained, and how the ranks meet.
        process_started: ``time.monotonic()`` before the imports.
        signals: Those that this process has got and gets.
    """
    watch = Stopwatch(process_started)
    seconds = {"imports_seconds": watch.lap()}
    assignment = attempt.assignment()
    muster = attempt.muster()
    seconds["launch_seconds"] = 0.0
    if socket.gethostname() == muster.supervisor_host:
        # the clocks of two nodes may differ by more than a launch takes
        ago = time.monotonic() - process_started
        seconds["launch_seconds"] = seconds_between(assignment.started_at, ago)
    identity, affinity, device = report_for_duty(attempt, muster)
    with process_group(attempt, muster, identity, device):
        seconds["process_group_seconds"] = watch.lap()
        began = process_started - seconds["launch_seconds"]
        rank = Rank(attempt, assignment, muster, identity, affinity, device, began)
        # in a function of its own: with it goes DDP, which must be gone before its process group
        train_and_record(rank, seconds, watch, signals)
    attempt.finished(identity.rank)


@dataclass(frozen=True)
class Rank:
    """This process among the others, and what all of them are to do.

    Args:
        attempt: The folder that all of them see.
        assignment: The run that they train.
        muster: Says how they were started and meet.
        affinity: The CPUs that this rank may run on, such as ``0-3,8``.
        began: Monotonic seconds, by this host's clock, at which this start of the run began.
    """

    attempt: Attempt
    assignment: Assignment
    muster: Muster
    identity: Identity
    affinity: str
    device: torch.device
    began: float


def train_and_record(rank: Rank, seconds: dict[str, float], watch: Stopwatch, signals: Signals) -> None:
    """Build the task, train it and write the records, inside the process group.

    Args:
        rank: This process and what it is to do.
        seconds: Parts of ``Startup`` up to here, by name; the others are added.
        watch: Goes on from the last of these parts.
        signals: Those that this process has got and gets.
    """
    assignment, muster, identity = rank.assignment, rank.muster, rank.identity
    definition = assignment.definition
    settings = Settings.model_validate(definition.settings)
    dataset = datasets.load(assignment.dataset)
    loaders = build_loaders(settings, dataset, identity.rank, rank.device, muster.timeout_seconds)
    seconds["data_seconds"] = watch.lap()
    batch_size = definition.global_batch_size
    task = build_task(settings, batch_size, dataset, loaders, identity, rank.device, assignment.weights)
    session = Session(
        task, rank.attempt, assignment, rank.began, muster.timeout_seconds, lambda: signals.received
    )
    state = session.begin()
    seconds["model_seconds"] = watch.lap()

    def tell(record: EpochRecord) -> None:
        if identity.rank == 0:
            say(describe(record, settings.epochs))
        session.tell(state)

    with (
        task.monitor,
        session.messenger,
        signals.instead_of_an_end(lambda: rank.attempt.terminated(identity.rank)),
    ):
        meter = CpuMeter(identity.host)
        ending = train(task, state, tell, session.at_edge)
        cpu_use = meter.used()
    if ending == "stopped":
        return
    rank.attempt.check_current()
    startup = Startup(**seconds, first_step_seconds=task.clock.first_step_seconds)
    report = report_rank(task, rank.affinity, startup, session.peak_memory_bytes, cpu_use)
    trained = Trained(task, state.records, ending == "diverged", utc_now(), session.resumption)
    keep(trained, report, assignment, muster)


def seconds_between(started_at: str, ago: float) -> float:
    """Seconds from a time of this host's clock to what was ``ago`` seconds before now; 0 at least.

    Args:
        started_at: UTC, ISO 8601.
        ago: Seconds.
    """
    since = datetime.now(UTC) - datetime.fromisoformat(started_at)
    return max(since.total_seconds() - ago, 0.0)


@dataclass(frozen=True)
class Trained:
    """A training that has ended.

    Args:
        epochs: Records of all epochs, those of earlier starts among them.
        diverged: True where the loss was no longer finite.
        ended_at: UTC, ISO 8601.
        resumption: The account of where the run was cut off and went on.
    """

    task: Task
    epochs: Sequence[EpochRecord]
    diverged: bool
    ended_at: str
    resumption: Resumption


def keep(trained: Trained, own: RankReport, assignment: Assignment, muster: Muster) -> None:
    """Write the model, if it is asked for, and the records of the run; all ranks must call it."""
    task = trained.task
    if task.settings.save_model:
        save_model(task.replica, task.identity.rank, assignment.folder)
    writes = task.identity.rank == 0
    reports = gather(own, task.identity.world_size)
    if writes:
        write_series(assignment.folder, trained.epochs, reports)
        conclude(trained, reports, assignment, muster)
    if not trained.diverged:
        # the training is kept by now, whatever becomes of the passes
        times = gather(time_passes(task), task.identity.world_size)
        if writes:
            timed = [report.with_passes(each) for report, each in zip(reports, times, strict=True)]
            conclude(trained, timed, assignment, muster)


def conclude(trained: Trained, reports: Sequence[RankReport], assignment: Assignment, muster: Muster) -> None:
    """Write what all ranks report together, on rank 0."""
    resumption = trained.resumption
    origin = trace(reports, trained.task.identity, muster.launcher, assignment, resumption, trained.ended_at)
    measurements = measure(trained.task, trained.epochs, reports, resumption)
    write_conclusion(
        assignment.folder,
        assignment.definition,
        trained.epochs,
        reports,
        measurements,
        origin,
        trained.diverged,
    )


def report_for_duty(attempt: Attempt, muster: Muster) -> tuple[Identity, str, torch.device]:
    """Claim this rank's CPUs and device, and tell the supervisor that the rank is there.

    Returns:
        The rank's identity, the CPUs it may run on, such as ``0-3,8``, and its device.

    Raises:
        RuntimeError: Place, CPUs or device are not as planned.
    """
    identity = identify(os.environ, muster.launcher)
    attempt.started(identity.rank, identity.host)
    exit_with(muster.supervisor_pid, muster.supervisor_host == identity.host)
    if identity.rank == 0:
        threading.Thread(target=_beat, args=(attempt,), name="beat", daemon=True).start()
    check_place(identity, Shape.parse(muster.shape))
    affinity = claim_cpus(muster.accelerator, identity, muster.cpus_per_device)
    return identity, affinity, claim_device(muster.accelerator, identity.local_rank)


def _beat(attempt: Attempt) -> None:
    """Show the supervisor that rank 0 runs: nobody else waits for a single rank, which may be stopped."""
    while True:
        with suppress(OSError):
            attempt.beat()
        time.sleep(BEAT_SECONDS)


def describe(record: EpochRecord, epochs: int) -> str:
    """The line of train.log that tells of an epoch."""
    return (
        f"epoch {record.epoch}/{epochs}  train loss {record.train_loss:.4f}  test loss "
        f"{record.test_loss:.4f}  accuracy {record.test_accuracy:.2%}  "
        f"{record.samples_per_second:,.0f} samples/s  {record.train_seconds:.2f} s"
    )


def leave_word(attempt: Attempt, rank: int) -> None:
    """Tell SIGTERM, which a launcher sends to the peers of a failed rank, from SIGKILL."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # the folder may be gone, or another's
            attempt.terminated(rank)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)


def run_or_complain(attempt: Attempt, work: Callable[[], None]) -> None:
    """Do a rank's work, and leave an exception for the supervisor before it is raised again."""
    rank = identify(os.environ, attempt.muster().launcher).rank
    leave_word(attempt, rank)
    try:
        work()
    except Exception as error:
        # a loader process that ends makes torch raise wherever the rank is, and so also while it tells why
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        # a full disk, or a folder that is gone, must not hide what happened: raised again, it is printed
        with suppress(OSError):
            attempt.failed(rank, socket.gethostname(), error, out_of_memory)
        raise
