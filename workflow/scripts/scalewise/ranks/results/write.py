"""Write the records of a run: what its ranks measured, joined, and the epochs that its program wrote."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from scalewise import __version__
from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.execution.rank_files import RankSetup
from scalewise.measure.probe_spec import FAULT
from scalewise.ranks.distributed.cpus import cpu_list
from scalewise.ranks.monitoring.environments import commit, merge_environments
from scalewise.ranks.monitoring.machine_load import other_cpu_fraction
from scalewise.ranks.monitoring.monitor import DeviceUse, across_ranks
from scalewise.ranks.results.epochs import read_epochs
from scalewise.ranks.results.figures import (
    communication_fraction,
    slowest_part,
    throughput,
    waiting_seconds,
)
from scalewise.ranks.results.measured_steps import MeasuredSteps, measured_steps
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.program_findings import divergence, evaluation_seconds, program_measurements
from scalewise.ranks.results.rank_report import RankReport
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.start_records import StartRecords, with_warmup
from scalewise.records import (
    EPOCHS,
    MODEL,
    RANKS,
    RECORD,
    STARTUP,
    UTILIZATION,
    Environment,
    EpochRecord,
    Measurements,
    ProgramMeasurements,
    Provenance,
    RankRecord,
    RunRecord,
    UtilizationRecord,
    write_json,
    write_rows,
)

NO_GPUS = "not monitored: CPU processes have no utilization"


def write_records(
    setup: RankSetup,
    planned: Planned,
    start: StartRecords,
    program: ProgramSettings,
    argv: Sequence[str] = (),
    readings: Sequence[tuple[float, float]] = (),
    metric_line: str = "",
) -> RunRecord:
    """Write the run's records, the summary last: if it is there, the others are complete.

    Args:
        setup: The run.
        planned: The plan of the run.
        start: The records of its ranks.
        program: The program that trained.
        argv: Interpreter, program and arguments of rank 0.
        readings: Monotonic seconds and value of each metric that rank 0 printed.
        metric_line: First line of which the metric was read, and the number.

    Returns:
        The summary.

    Raises:
        ValueError: No step was measured, or the epochs that the program wrote cannot be read.
    """
    settings, warmup_steps = setup.definition.settings, program.warmup_steps
    ranks = with_warmup(start.ranks, warmup_steps)
    steps = measured_steps(ranks, planned, program.no_grad_passes)
    if not steps.kept:
        done = min(record.step_count for record in ranks)
        raise ValueError(
            f"{program.program} made {done} steps, and none of them after the {warmup_steps} of "
            "the warm-up can be measured: each of them evaluates or saves too, or there is none. Lower "
            "warmup_steps, or let it train for longer."
        )
    epochs, unread = _epochs_of(setup)
    uses = start.device_uses(steps.kept)
    rows = _rank_rows(ranks, start, steps, uses)
    found = None
    if settings is program:
        found = program_measurements(program, ranks, steps, argv, readings, metric_line)
        found.notes.extend(unread)
    measurements = _measurements(setup, program, ranks, start, steps, rows, uses, epochs, found)
    write_rows(setup.folder / EPOCHS, EpochRecord, epochs)
    write_rows(setup.folder / UTILIZATION, UtilizationRecord, start.utilization())
    write_rows(setup.folder / RANKS, RankRecord, rows)
    if (weights := setup.output / MODEL).exists() and isinstance(settings, Settings):
        weights.replace(setup.folder / MODEL)
    diverged, reason = divergence(ranks) or _divergence_of_epochs(epochs), ""
    if diverged and isinstance(settings, Settings):
        reason = f"{diverged}. Lower learning_rate ({settings.learning_rate})."
    elif diverged:
        reason = f"{diverged}. Lower the learning rate of {program.program}."
    record = RunRecord(
        definition=setup.definition,
        outcome="diverged" if diverged else "completed",
        reason=reason,
        measurements=measurements,
        provenance=_provenance(setup, start),
    )
    write_json(setup.folder / RECORD, record)
    return record


def _epochs_of(setup: RankSetup) -> tuple[list[EpochRecord], list[str]]:
    """Return the epochs that the program wrote, and a note if a user's program has a file of another kind."""
    try:
        return read_epochs(setup.output), []
    except ValueError as error:
        if isinstance(setup.definition.settings, Settings):
            raise
        return [], [f"Its epochs are not drawn: {error}."]


def _divergence_of_epochs(epochs: Sequence[EpochRecord]) -> str:
    """Say that the losses of the last epoch are no longer finite; empty if they are."""
    if not epochs or all(
        math.isfinite(loss or 0.0) for loss in (epochs[-1].train_loss, epochs[-1].test_loss)
    ):
        return ""
    last = epochs[-1]
    return (
        f"the loss is no longer finite in epoch {last.epoch} (training {last.train_loss}, test "
        f"{last.test_loss})"
    )


def _rank_rows(
    ranks: Sequence[ProbeRecord], start: StartRecords, steps: MeasuredSteps, uses: Sequence[DeviceUse]
) -> list[RankRecord]:
    waiting = waiting_seconds([record.timed_exchanges for record in ranks])
    busy = [use.mean_utilization for use in uses] or [None for _ in waiting]
    return [
        _rank_row(record, start.report_of(record.rank), utilization, steps, waited)
        for record, utilization, waited in zip(ranks, busy, waiting, strict=True)
    ]


def _rank_row(
    record: ProbeRecord,
    report: RankReport,
    mean_utilization: float | None,
    steps: MeasuredSteps,
    waited: float | None,
) -> RankRecord:
    counted, memory = record.timed_exchanges, record.peak_memory
    return RankRecord(
        rank=record.rank,
        # of ranks that a program starts itself, the report is of the first on the node
        local_rank=record.rank - report.rank if record.local_rank is None else record.local_rank,
        host=record.host,
        device=record.device,
        visible_devices=record.visible_devices,
        threads=record.threads,
        cpu_affinity=cpu_list(record.affinity),
        train_samples=sum(each or 0 for each in record.samples) if record.samples else None,
        step_seconds_p50=median([record.step_seconds(index) for index in steps.kept]),
        loader_wait_seconds=sum(record.wait_seconds[index] for index in steps.kept)
        if record.wait_seconds
        else None,
        peak_memory_bytes=memory.whole_bytes if steps.no_grad == "training" else memory.training_bytes,
        imports_seconds=record.torch_imported - record.process_started,
        first_step_seconds=record.first_step_seconds,
        launch_seconds=report.launch_seconds,
        preparation_seconds=None
        if record.first_step_began is None
        else record.first_step_began - record.torch_imported,
        mean_utilization=mean_utilization,
        communication_seconds_per_step=sum(counted) / len(counted) if counted else None,
        waiting_seconds_per_step=waited,
    )


def _measurements(
    setup: RankSetup,
    program: ProgramSettings,
    ranks: Sequence[ProbeRecord],
    start: StartRecords,
    steps: MeasuredSteps,
    rows: Sequence[RankRecord],
    uses: Sequence[DeviceUse],
    epochs: Sequence[EpochRecord],
    found: ProgramMeasurements | None,
) -> Measurements:
    windows, settings = steps.windows, setup.definition.settings
    measured_seconds = sum(window.seconds for window in windows if not window.warmup)
    waits = [row.loader_wait_seconds for row in rows]
    known_waits = [wait for wait in waits if wait is not None]
    accuracies = [epoch.test_accuracy for epoch in epochs if epoch.test_accuracy is not None]
    monitored = (
        across_ranks(uses) if uses else {"monitor_note": "not monitored" if ranks[0].cuda else NO_GPUS}
    )
    notes = [monitored["monitor_note"]]
    if found is None:
        notes += steps.notes
        notes += [event for rank in ranks for event in rank.events if event.startswith(FAULT)]
    monitored["monitor_note"] = "; ".join(dict.fromkeys(filter(None, notes)))
    return Measurements(
        parameters=ranks[0].parameters or 0,
        epochs_completed=len(epochs),
        throughput_samples_per_second=throughput(windows),
        windows=windows,
        excluded_steps=steps.excluded,
        train_seconds=sum(window.seconds for window in windows),
        evaluation_seconds=max(evaluation_seconds(record, steps.no_grad) for record in ranks),
        final_accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        peak_memory_bytes=max(row.peak_memory_bytes for row in rows),
        peak_memory_kind=ranks[0].peak_memory.kind,
        loader_wait_fraction=_share(max(known_waits), measured_seconds)
        if len(known_waits) == len(rows)
        else None,
        **{part: slowest_part([getattr(row, part) for row in rows]) for part in STARTUP},
        **monitored,
        communication_fraction=communication_fraction(rows, windows),
        other_cpu_fraction=other_cpu_fraction(
            [report.cpu_use for report in start.reports if report.cpu_use is not None]
        ),
        loader=settings.loader if isinstance(settings, Settings) else "program",
        **_step_flops(program, ranks),
        program=found,
        from_step=setup.from_step,
    )


def _step_flops(program: ProgramSettings, ranks: Sequence[ProbeRecord]) -> dict[str, Any]:
    """Return the floating-point operations of a step of all ranks, or the reason that they are unknown."""
    if not program.count_flops:
        return {"step_flops_note": "not counted: write `count_flops: true`"}
    notes = list(filter(None, (rank.step_flops_note for rank in ranks)))
    if notes or not all(rank.step_flops for rank in ranks):
        return {"step_flops_note": notes[0] if notes else "not counted"}
    total: dict[str, float] = {}
    for rank in ranks:
        for number_format, flops in rank.step_flops.items():
            total[number_format] = total.get(number_format, 0) + flops
    return {"step_flops": total}


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _provenance(setup: RankSetup, start: StartRecords) -> Provenance:
    environments = []
    for record in start.ranks:
        report = start.report_of(record.rank)
        environments.append(
            Environment(
                hosts=[record.host],
                cpu_model=report.cpu_model,
                operating_system=report.operating_system,
                versions={"scalewise": __version__, **start.versions_of(record)},
            )
        )
    return setup.provenance(
        ended_at=max(report.ended_at for report in start.reports),
        commit=commit(),
        hosts=list(dict.fromkeys(record.host for record in start.ranks)),
        devices=[record.device for record in start.ranks],
        environments=merge_environments(environments),
        gpu_limits=start.gpu_limits,
    )
