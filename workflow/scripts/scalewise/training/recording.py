"""From what the ranks measured to the records of the run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from scalewise.plan.batches import share
from scalewise.records import (
    EPOCHS,
    RANKS,
    SUMMARY,
    Definition,
    EpochRecord,
    Measurements,
    Provenance,
    RankRecord,
    Startup,
    Summary,
    Window,
    utc_now,
    write_json,
    write_rows,
)
from scalewise.training import provenance
from scalewise.training.attempt import Assignment
from scalewise.training.distributed import Identity
from scalewise.training.loop import Task
from scalewise.training.memory import MemoryKind, peak_memory
from scalewise.training.throughput import quantile, slowest, throughput


@dataclass(frozen=True)
class RankReport:
    """What one rank brings to the records of the run."""

    record: RankRecord
    windows: list[Window]
    memory_kind: MemoryKind


def report_rank(task: Task, affinity: str, startup: Startup) -> RankReport:
    """The figures of this rank, after training.

    Args:
        task: as trained.
        affinity: CPUs of the rank.
        startup: seconds of this rank.
    """
    identity, clock = task.identity, task.clock
    memory, memory_kind = peak_memory(task.device)
    tested = share(len(task.test), identity.rank, identity.world_size)
    record = RankRecord(
        rank=identity.rank,
        local_rank=identity.local_rank,
        host=identity.host,
        device=provenance.device_name(task.device),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        threads=torch.get_num_threads(),
        cpu_affinity=affinity,
        train_samples=sum(len(indices) for _, indices in task.sampler),
        test_samples=len(tested),
        step_seconds_p05=quantile(clock.step_seconds, 0.05),
        step_seconds_p50=quantile(clock.step_seconds, 0.50),
        step_seconds_p95=quantile(clock.step_seconds, 0.95),
        step_seconds_max=max(clock.step_seconds, default=0.0),
        loader_wait_seconds=clock.loader_wait_seconds,
        peak_memory_bytes=memory,
        **startup.model_dump(),
    )
    return RankReport(record, clock.windows, memory_kind)


def measure(task: Task, epochs: Sequence[EpochRecord], reports: Sequence[RankReport]) -> Measurements:
    """The figures of the run: the slowest rank counts, and the one that used most memory."""
    ranks = [report.record for report in reports]
    windows = slowest([report.windows for report in reports])
    measured_seconds = sum(window.seconds for window in windows if not window.warmup)
    waited = max(rank.loader_wait_seconds for rank in ranks)
    accuracies = [record.test_accuracy for record in epochs]
    return Measurements(
        parameters=sum(p.numel() for p in task.model.parameters() if p.requires_grad),
        epochs_completed=len(epochs),
        throughput_samples_per_second=throughput(windows),
        windows=windows,
        train_seconds=sum(window.seconds for window in windows),
        evaluation_seconds=sum(record.evaluation_seconds for record in epochs),
        final_accuracy=accuracies[-1],
        best_accuracy=max(accuracies),
        peak_memory_bytes=max(rank.peak_memory_bytes for rank in ranks),
        peak_memory_kind=reports[0].memory_kind,
        loader_wait_fraction=waited / measured_seconds if measured_seconds else 0.0,
        startup=Startup(
            **{part: max(getattr(rank, part) for rank in ranks) for part in Startup.model_fields}
        ),
    )


def trace(
    ranks: Sequence[RankRecord], identity: Identity, launcher: str, assignment: Assignment
) -> Provenance:
    """Where the figures of this run come from."""
    return Provenance(
        commit=provenance.commit(),
        versions=provenance.versions(),
        hosts=list(dict.fromkeys(record.host for record in ranks)),
        devices=[record.device for record in ranks],
        cpu_model=provenance.cpu_model(),
        operating_system=provenance.operating_system(),
        launcher=launcher,
        started_at=assignment.started_at,
        ended_at=utc_now(),
        slurm_job_id=identity.slurm_job_id,
        restart_count=identity.restart_count,
        other_jobs=assignment.other_jobs,
    )


def write_records(
    folder: Path,
    definition: Definition,
    epochs: Sequence[EpochRecord],
    ranks: Sequence[RankRecord],
    measurements: Measurements,
    origin: Provenance,
    diverged: bool,
) -> None:
    """Write the run's files, the summary last: where it stands, the others do."""
    reason = ""
    if diverged:
        last = epochs[-1]
        reason = (
            f"the loss is no longer finite in epoch {last.epoch} (training {last.train_loss}, test "
            f"{last.test_loss}). Lower learning_rate ({definition.settings['learning_rate']})."
        )
    write_rows(folder / EPOCHS, EpochRecord, epochs)
    write_rows(folder / RANKS, RankRecord, ranks)
    summary = Summary(
        definition=definition,
        outcome="diverged" if diverged else "completed",
        reason=reason,
        measurements=measurements,
        provenance=origin,
    )
    write_json(folder / SUMMARY, summary)
