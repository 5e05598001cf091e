"""One rank of a run, from its identity to its records."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import torch
from torch import nn

from scalewise.plan.config import Settings
from scalewise.plan.topology import Shape
from scalewise.records import Definition, EpochRecord, Startup
from scalewise.training import datasets
from scalewise.training.attempt import Attempt, Muster, Progress
from scalewise.training.clock import CudaTimeline, HostTimeline
from scalewise.training.distributed import (
    Identity,
    check_place,
    claim_cpus,
    claim_device,
    gather,
    identify,
    process_group,
)
from scalewise.training.loaders import ResidentLoader, channel_statistics
from scalewise.training.loop import Task, train
from scalewise.training.models import build
from scalewise.training.optim import build_optimizer, build_schedule
from scalewise.training.orphan import exit_with
from scalewise.training.recording import measure, report_rank, trace, write_records
from scalewise.training.sampling import EpochSampler
from scalewise.training.throughput import StepClock


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
        train_loader, test_loader = resident_loaders(dataset, device)
        data_seconds = watch.lap()
        task = build_task(definition, dataset, train_loader, test_loader, identity, device)
        model_seconds = watch.lap()

        epochs, diverged = train(task, settings.epochs, report)

        startup = Startup(
            imports_seconds=imports_seconds,
            process_group_seconds=process_group_seconds,
            data_seconds=data_seconds,
            model_seconds=model_seconds,
            first_step_seconds=task.clock.first_step_seconds,
        )
        reports = gather(report_rank(task, affinity, startup), identity.world_size)
        if identity.rank == 0:
            ranks = [report.record for report in reports]
            origin = trace(ranks, identity, muster.launcher, assignment)
            measurements = measure(task, epochs, reports)
            write_records(assignment.folder, definition, epochs, ranks, measurements, origin, diverged)
        del task  # DDP must be gone before its process group
    attempt.finished(identity.rank)


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


def resident_loaders(
    dataset: datasets.Dataset, device: torch.device
) -> tuple[ResidentLoader, ResidentLoader]:
    """Batches of both splits, normalised by the statistics of the training split."""
    mean, std = channel_statistics(dataset.train_images)
    return (
        ResidentLoader(dataset.train_images, dataset.train_labels, mean, std, device),
        ResidentLoader(dataset.test_images, dataset.test_labels, mean, std, device),
    )


def build_task(
    definition: Definition,
    dataset: datasets.Dataset,
    train_loader: ResidentLoader,
    test_loader: ResidentLoader,
    identity: Identity,
    device: torch.device,
) -> Task:
    """Model, optimizer, schedule, sampler and clock of this rank; one device takes the same path."""
    settings = Settings.model_validate(definition.settings)
    torch.manual_seed(settings.seed)
    network = build(settings.model, dataset.train_images.shape[1:], dataset.classes).to(device)
    model = nn.parallel.DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
    )
    optimizer = build_optimizer(settings, model.parameters())
    sampler = EpochSampler(
        len(train_loader),
        definition.global_batch_size,
        identity.rank,
        identity.world_size,
        settings.seed,
    )
    timeline = CudaTimeline(device) if device.type == "cuda" else HostTimeline()
    return Task(
        model=model,
        optimizer=optimizer,
        schedule=build_schedule(settings, optimizer, len(sampler)),
        sampler=sampler,
        train=train_loader,
        test=test_loader,
        clock=StepClock(timeline, settings.warmup_steps),
        identity=identity,
        device=device,
    )


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
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        attempt.failed(rank, socket.gethostname(), error, out_of_memory)
        raise
