"""The records of a run, made of what its ranks measured."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file

from scalewise.execution.messages import TrainSpec
from scalewise.plan.config.settings import Settings
from scalewise.plan.runs.batches import shard_range
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.records import (
    EPOCHS,
    MODEL,
    RANKS,
    RECORD,
    UTILIZATION,
    Environment,
    EpochRecord,
    GpuLimits,
    Measurements,
    MemoryKind,
    OwnInterval,
    Provenance,
    RankRecord,
    Resumption,
    RunRecord,
    Startup,
    UtilizationRecord,
    Window,
    replaced_whole,
    write_json,
    write_rows,
)
from scalewise.training.distributed.identity import Identity
from scalewise.training.measure import provenance
from scalewise.training.measure.environments import commit, merge_environments
from scalewise.training.measure.machine_load import CpuUse, other_cpu_fraction
from scalewise.training.measure.monitor import MonitorReport, across_ranks
from scalewise.training.measure.throughput import quantile, slowest, slowest_part, throughput
from scalewise.training.measure.waiting import communication_fraction, waiting_seconds
from scalewise.training.parallel_model import ParallelModel
from scalewise.training.pass_timing import PassTimes, merge_ranks
from scalewise.training.trainer import Trainer

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class RankReport:
    """The part of the run's records that one rank brings.

    Args:
        record: The rank's row of ranks.csv.
        windows: All windows of the rank's steps, warm-up included.
        memory_kind: Says what the peaks of memory count.
        memory_note: Says which of them is not known, and why.
        device: The monitor's findings.
        environment: CPU and software of the rank's host, as the rank sees them.
        gpu_limits: Limits of the rank's GPU; None for a CPU process.
        times: Seconds of the passes after the training; empty until they are timed.
        cpu_use: CPU time while the last start trained.
        communication_seconds: Communication of single steps, those that DDP sampled on every rank.
    """

    record: RankRecord
    windows: list[Window]
    memory_kind: MemoryKind
    device: MonitorReport
    environment: Environment
    gpu_limits: GpuLimits | None = None
    memory_note: str = ""
    times: PassTimes = field(default_factory=PassTimes)
    cpu_use: CpuUse | None = None
    communication_seconds: list[float] = field(default_factory=list)

    def with_passes(self, times: PassTimes) -> RankReport:
        """Copy it with passes that were timed later, so that no memory or sample of theirs is in it."""
        return replace(self, record=times.apply_to(self.record), times=times)


def report_rank(
    trainer: Trainer, affinity: str, startup: Startup, cpu_use: CpuUse | None = None
) -> RankReport:
    """Collect the figures of this rank after its training."""
    identity, clock, memory = trainer.identity, trainer.clock, trainer.memory
    device = trainer.monitor.stop()
    evaluated = trainer.settings.steps is None
    tested = shard_range(len(trainer.test), identity.rank, identity.world_size)
    record = RankRecord(
        rank=identity.rank,
        local_rank=identity.local_rank,
        host=identity.host,
        device=provenance.device_name(trainer.device),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        threads=torch.get_num_threads(),
        cpu_affinity=affinity,
        train_samples=trainer.sampler.samples_of_rank,
        test_samples=len(tested) if evaluated else None,
        step_seconds_p05=quantile(clock.step_seconds, 0.05),
        step_seconds_p50=quantile(clock.step_seconds, 0.50),
        step_seconds_p95=quantile(clock.step_seconds, 0.95),
        step_seconds_max=max(clock.step_seconds, default=0.0),
        loader_wait_seconds=clock.loader_wait_seconds,
        peak_memory_bytes=memory.training_bytes,
        **startup.model_dump(),
        mean_utilization=device.mean_utilization,
        communication_seconds_per_step=trainer.parallel_model.communication_seconds(),
        evaluation_peak_memory_bytes=memory.evaluation_bytes,
    )
    return RankReport(
        record,
        clock.windows,
        memory.kind,
        device,
        provenance.environment(identity.host),
        provenance.gpu_limits(trainer.device),
        memory.note,
        cpu_use=cpu_use,
        communication_seconds=trainer.parallel_model.measured_communication().step_seconds,
    )


def with_waiting(reports: Sequence[RankReport]) -> list[RankReport]:
    """The reports of all ranks, each with its waiting for the last rank of each step.

    Args:
        reports: One for each rank, in rank order.
    """
    waiting = waiting_seconds([report.communication_seconds for report in reports])
    return [
        replace(
            report,
            record=replace(report.record, waiting_seconds_per_step=seconds),
            communication_seconds=[],
        )
        for report, seconds in zip(reports, waiting, strict=True)
    ]


def aggregate(
    trainer: Trainer,
    epochs: Sequence[EpochRecord],
    reports: Sequence[RankReport],
    resumption: Resumption,
    own_interval: OwnInterval | None = None,
) -> Measurements:
    """The figures of the run: the slowest rank counts, and the one that used most memory."""
    ranks = [report.record for report in reports]
    windows = slowest([report.windows for report in reports])
    measured_seconds = sum(window.seconds for window in windows if not window.warmup)
    waited = max(rank.loader_wait_seconds or 0.0 for rank in ranks)
    accuracies = [record.test_accuracy for record in epochs]
    passes, buckets = merge_ranks([report.times for report in reports])
    left_out = trainer.clock.left_out
    monitored = across_ranks([report.device for report in reports])
    # the same for all ranks of a node, as a rule
    notes = dict.fromkeys([monitored["monitor_note"], *(report.memory_note for report in reports)])
    monitored["monitor_note"] = "; ".join(filter(None, notes))
    evaluated = [rank.evaluation_peak_memory_bytes for rank in ranks]
    if left_out:
        # what two kinds of device drew is the energy of neither
        monitored["energy_joules"] = None
    return Measurements(
        parameters=trainer.parallel_model.parameters,
        epochs_completed=len(epochs),
        throughput_samples_per_second=throughput(windows),
        windows=windows,
        train_seconds=sum(window.seconds for window in windows),
        evaluation_seconds=sum(record.evaluation_seconds for record in epochs),
        final_accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        peak_memory_bytes=max(rank.peak_memory_bytes for rank in ranks),
        peak_memory_kind=reports[0].memory_kind,
        # the most of some ranks might be less than that of all
        evaluation_peak_memory_bytes=None if None in evaluated else max_known(*evaluated),
        loader_wait_fraction=waited / measured_seconds if measured_seconds else 0.0,
        startup=Startup(
            **{part: slowest_part([getattr(rank, part) for rank in ranks]) for part in Startup.model_fields}
        ),
        **monitored,
        communication_fraction=communication_fraction(ranks, windows),
        other_cpu_fraction=other_cpu_fraction([each.cpu_use for each in reports if each.cpu_use is not None]),
        loader=trainer.settings.loader,
        passes=passes,
        buckets=buckets,
        own_interval=own_interval,
        resumption=resumption.model_copy(
            update={
                "unmeasured_steps": _unmeasured(
                    trainer.settings, windows, own_interval, trainer.clock.tried_steps
                ),
                "problems": [*resumption.problems, *left_out],
            }
        ),
    )


def _unmeasured(
    settings: Settings, windows: Sequence[Window], own_interval: OwnInterval | None, tried_steps: int
) -> int:
    """Count the steps beyond the first warm-up that are left out because the run was resumed."""
    # a window may lie across the end of the first warm-up, where the run was cut off within it
    left_out = sum(
        max(window.first_step + window.steps - max(window.first_step, settings.warmup_steps), 0)
        for window in windows
        if window.warmup
    )
    unsteady = 0 if own_interval is None else own_interval.warmup_steps - settings.warmup_steps
    return left_out - unsteady - tried_steps


def collect_provenance(
    reports: Sequence[RankReport],
    identity: Identity,
    launcher: str,
    spec: TrainSpec,
    resumption: Resumption,
    ended_at: str,
) -> Provenance:
    """Collect the provenance of the run's figures.

    Args:
        reports: One for each rank, in rank order.
        identity: This rank, which is rank 0.
        launcher: The program that started the ranks.
        spec: Says when the run started, and beside which other jobs.
        resumption: Holds hosts and other jobs of earlier starts, whose figures are among these.
        ended_at: UTC, ISO 8601; the end of the training, before further passes were timed.
    """
    ranks = [report.record for report in reports]
    first = reports[0].environment
    return Provenance(
        commit=commit(),
        versions=first.versions,
        hosts=list(dict.fromkeys([*resumption.earlier_hosts, *(record.host for record in ranks)])),
        devices=[record.device for record in ranks],
        cpu_model=first.cpu_model,
        operating_system=first.operating_system,
        launcher=launcher,
        started_at=spec.started_at,
        ended_at=ended_at,
        slurm_job_id=identity.slurm_job_id,
        restart_count=identity.restart_count,
        other_jobs=max_known(resumption.earlier_other_jobs, spec.other_jobs),
        inputs=spec.input_hashes,
        environments=merge_environments([report.environment for report in reports]),
        gpu_limits=[report.gpu_limits for report in reports],
    )


def max_known(*values: Number | None) -> Number | None:
    """The largest of the values that are known; None where none is."""
    return max((value for value in values if value is not None), default=None)


def write_epochs_and_utilization(
    folder: Path, epochs: Sequence[EpochRecord], reports: Sequence[RankReport]
) -> None:
    """Write epochs and utilization, which grew with the training and which nothing after it changes."""
    write_rows(folder / EPOCHS, EpochRecord, epochs)
    samples = [sample for report in reports for sample in report.device.samples]
    write_rows(folder / UTILIZATION, UtilizationRecord, sorted(samples, key=lambda row: row.timestamp))


def write_ranks_and_record(
    folder: Path,
    definition: RunDefinition,
    reports: Sequence[RankReport],
    measurements: Measurements,
    origin: Provenance,
    diverged: str,
) -> None:
    """Write the ranks and the summary, the summary last of all: where it stands, the others do.

    Args:
        folder: The run's.
        definition: The run.
        reports: One for each rank, in rank order.
        measurements: Those of all ranks together.
        origin: The provenance of these figures.
        diverged: Place and losses at which the training was no longer finite; empty where it was to its end.
    """
    reason, settings = "", definition.settings
    if diverged:
        rate = f" ({settings.learning_rate})" if isinstance(settings, Settings) else ""
        reason = f"the loss is no longer finite {diverged}. Lower learning_rate{rate}."
    write_rows(folder / RANKS, RankRecord, [report.record for report in reports])
    summary = RunRecord(
        definition=definition,
        outcome="diverged" if diverged else "completed",
        reason=reason,
        measurements=measurements,
        provenance=origin,
    )
    write_json(folder / RECORD, summary)


def save_model(parallel_model: ParallelModel, rank: int, folder: Path) -> None:
    """Leave the trained weights beside the records; all ranks must call it."""
    state = parallel_model.state()
    if rank == 0:
        with replaced_whole(folder / MODEL) as temporary:
            save_file(state, temporary)
