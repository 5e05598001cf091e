"""One rank of a run, from its identity to its records."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType

import torch

from scalewise.plan.settings import Settings
from scalewise.plan.topology import Shape
from scalewise.records import EpochRecord, Startup, utc_now
from scalewise.training.data import datasets
from scalewise.training.loop import train
from scalewise.training.passes import time_passes
from scalewise.training.ranks.distributed import (
    Identity,
    check_place,
    claim_cpus,
    claim_device,
    gather,
    identify,
    process_group,
)
from scalewise.training.recording import (
    RankReport,
    measure,
    report_rank,
    save_model,
    trace,
    write_conclusion,
    write_series,
)
from scalewise.training.supervision.attempt import Assignment, Attempt, Muster, Progress
from scalewise.training.supervision.orphan import exit_with
from scalewise.training.task import Task, build_loaders, build_task


class Stopwatch:
    """Seconds of consecutive phases, on the monotonic clock."""

    def __init__(self, started: float) -> None:
        self._last = started

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        return seconds


def run_rank(attempt: Attempt, process_started: float) -> None:
    """Train this rank's part and, on rank 0, write the records of the run.

    Args:
        attempt: holds the assignment.
        process_started: ``time.monotonic()`` before the imports.
    """
    watch = Stopwatch(process_started)
    imports_seconds = watch.lap()
    assignment = attempt.assignment()
    launch_seconds = seconds_between(assignment.started_at, time.monotonic() - process_started)
    definition = assignment.definition
    settings = Settings.model_validate(definition.settings)
    muster = attempt.muster()
    identity, affinity, device = report_for_duty(attempt, muster)

    def report(record: EpochRecord) -> None:
        if identity.rank == 0:
            print(describe(record, settings.epochs), flush=True)
            attempt.progress(Progress(epoch=record.epoch, epochs=settings.epochs))

    with process_group(attempt, muster, identity, device):
        process_group_seconds = watch.lap()
        dataset = datasets.load(assignment.dataset)
        loaders = build_loaders(settings, dataset, identity.rank, device, muster.timeout_seconds)
        data_seconds = watch.lap()
        task = build_task(definition, dataset, loaders, identity, device, assignment.weights)
        model_seconds = watch.lap()

        with task.monitor:
            epochs, diverged = train(task, report)

        startup = Startup(
            imports_seconds=imports_seconds,
            process_group_seconds=process_group_seconds,
            data_seconds=data_seconds,
            model_seconds=model_seconds,
            first_step_seconds=task.clock.first_step_seconds,
            launch_seconds=launch_seconds,
        )
        own_report = report_rank(task, affinity, startup)
        ended_at = utc_now()
        if settings.save_model:
            save_model(task.replica, identity.rank, assignment.folder)
        trained = Trained(task, epochs, diverged, ended_at)
        reports = gather(own_report, identity.world_size)
        if identity.rank == 0:
            write_series(assignment.folder, epochs, reports)
            conclude(trained, reports, assignment, muster)
        if not diverged:
            # the training is kept by now, whatever becomes of the passes
            times = gather(time_passes(task), identity.world_size)
            if identity.rank == 0:
                timed = [report.with_passes(each) for report, each in zip(reports, times, strict=True)]
                conclude(trained, timed, assignment, muster)
        del trained
        del task  # DDP must be gone before its process group
    attempt.finished(identity.rank)


def seconds_between(started_at: str, ago: float) -> float:
    """From a time by the clock on the wall, UTC, ISO 8601, to what was so many seconds ago; 0 at least.

    Clocks of two nodes may differ by a little.
    """
    since = datetime.now(UTC) - datetime.fromisoformat(started_at)
    return max(since.total_seconds() - ago, 0.0)


@dataclass(frozen=True)
class Trained:
    """A training that has ended.

    Args:
        task: this rank's part.
        epochs: of the run.
        diverged: how it ended.
        ended_at: when; UTC, ISO 8601.
    """

    task: Task
    epochs: Sequence[EpochRecord]
    diverged: bool
    ended_at: str


def conclude(trained: Trained, reports: Sequence[RankReport], assignment: Assignment, muster: Muster) -> None:
    """Write what all ranks report together, on rank 0."""
    origin = trace(reports, trained.task.identity, muster.launcher, assignment, trained.ended_at)
    measurements = measure(trained.task, trained.epochs, reports)
    write_conclusion(
        *(assignment.folder, assignment.definition, trained.epochs, reports, measurements, origin),
        trained.diverged,
    )


def report_for_duty(attempt: Attempt, muster: Muster) -> tuple[Identity, str, torch.device]:
    """Who this rank is, the CPUs it may use and its device; the supervisor learns that it is there.

    Raises:
        RuntimeError: something is not as planned.
    """
    identity = identify(os.environ, muster.launcher)
    attempt.started(identity.rank, identity.host)
    exit_with(muster.supervisor_pid, muster.supervisor_host == identity.host)
    check_place(identity, Shape.parse(muster.shape))
    affinity = claim_cpus(muster.accelerator, identity, muster.cpus_per_device)
    return identity, affinity, claim_device(muster.accelerator, identity.local_rank)


def describe(record: EpochRecord, epochs: int) -> str:
    """One line of train.log an epoch."""
    return (
        f"epoch {record.epoch}/{epochs}  train loss {record.train_loss:.4f}  test loss "
        f"{record.test_loss:.4f}  accuracy {record.test_accuracy:.2%}  "
        f"{record.samples_per_second:,.0f} samples/s  {record.train_seconds:.2f} s"
    )


def leave_word(attempt: Attempt, rank: int) -> None:
    """Tell SIGTERM, which a launcher sends to the peers of a failed rank, from SIGKILL."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        attempt.terminated(rank)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)


def run_or_complain(attempt: Attempt, work: Callable[[], None]) -> None:
    """A rank's work, with an exception left for the supervisor before it is raised again.

    Args:
        attempt: where the supervisor looks.
        work: what the rank does.
    """
    rank = identify(os.environ, attempt.muster().launcher).rank
    leave_word(attempt, rank)
    try:
        work()
    except Exception as error:
        # a loader process that ends makes torch raise wherever the rank is, and so also while it tells why
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        attempt.failed(rank, socket.gethostname(), error, out_of_memory)
        raise
