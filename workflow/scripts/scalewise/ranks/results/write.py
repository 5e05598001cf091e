"""Write the records of a run: what its ranks measured, joined, and what only the built-in training knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scalewise import __version__
from scalewise.execution.messages import RankSetup, TrainSpec
from scalewise.measure.probe_spec import FAULT
from scalewise.plan.config.program import AnySettings, ProgramSettings
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.cpus import cpu_list
from scalewise.ranks.monitoring.environments import commit, merge_environments
from scalewise.ranks.monitoring.machine_load import other_cpu_fraction
from scalewise.ranks.monitoring.monitor import DeviceUse, across_ranks
from scalewise.ranks.results.facts import Facts
from scalewise.ranks.results.figures import (
    communication_fraction,
    quantile,
    slowest_part,
    throughput,
    waiting_seconds,
)
from scalewise.ranks.results.joined_starts import JoinedStarts
from scalewise.ranks.results.measured_steps import MeasuredSteps, measured_steps
from scalewise.ranks.results.probe_record import ProbeRecord
from scalewise.ranks.results.program_findings import divergence, evaluation_seconds, program_measurements
from scalewise.ranks.results.rank_report import RankReport
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.starts import StartRecords
from scalewise.records import (
    EPOCHS,
    RANKS,
    RECORD,
    UTILIZATION,
    Environment,
    EpochRecord,
    Measurements,
    ProgramMeasurements,
    Provenance,
    RankRecord,
    Resumption,
    RunRecord,
    Startup,
    UtilizationRecord,
    most_known,
    write_json,
    write_rows,
)

NO_GPUS = "not monitored: CPU processes have no utilization"


def write_records(
    spec: TrainSpec,
    rank_setup: RankSetup,
    planned: Planned,
    starts: Sequence[StartRecords],
    facts: Facts | None = None,
    argv: Sequence[str] = (),
    readings: Sequence[tuple[float, float]] = (),
    metric_line: str = "",
) -> RunRecord:
    """Write the run's records, the summary last: if it is there, the others are complete.

    Args:
        spec: The run.
        rank_setup: Says what started the ranks.
        planned: The plan of the run.
        starts: Records of the run's starts, as ``kept_starts`` returns them.
        facts: Those of the built-in training; None for a user's program.
        argv: Interpreter, program and arguments of rank 0 of a program.
        readings: Monotonic seconds and value of each metric that rank 0 of a program printed.
        metric_line: First line of which the metric was read, and the number.

    Returns:
        The summary.

    Raises:
        ValueError: No step of a program was measured.
    """
    settings, (*_, last) = spec.definition.settings, starts
    joined = JoinedStarts(starts, settings.warmup_steps)
    program = settings if isinstance(settings, ProgramSettings) else None
    steps = measured_steps(joined.ranks, planned, None if program is None else program.no_grad_passes)
    if program is not None and not steps.kept:
        done = min(record.step_count for record in joined.ranks)
        raise ValueError(
            f"{program.program} made {done} steps, and none of them after the {joined.warmup_steps} of "
            "the warm-up can be measured: each of them evaluates or saves too, or there is none. Lower "
            "warmup_steps, or let it train for longer."
        )
    uses = joined.device_uses(steps.kept)
    rows = _rank_rows(joined, last, steps, uses)
    found = None
    if program is not None:
        found = program_measurements(program, joined, last, steps, argv, readings, metric_line)
    measurements = _measurements(spec, joined, steps, rows, uses, facts, found)
    write_rows(spec.folder / EPOCHS, EpochRecord, _epochs(facts, joined.ranks[0]) if facts else [])
    write_rows(spec.folder / UTILIZATION, UtilizationRecord, joined.utilization())
    write_rows(spec.folder / RANKS, RankRecord, rows)
    diverged, reason = divergence(joined.ranks) if facts is None else facts.diverged, ""
    if diverged and isinstance(settings, Settings):
        reason = f"the loss is no longer finite {diverged}. Lower learning_rate ({settings.learning_rate})."
    elif diverged and program is not None:
        reason = f"{diverged}. Lower the learning rate of {program.program}."
    record = RunRecord(
        definition=spec.definition,
        outcome="diverged" if diverged else "completed",
        reason=reason,
        measurements=measurements,
        provenance=_provenance(spec, rank_setup, last, facts),
    )
    write_json(spec.folder / RECORD, record)
    return record


def _epochs(facts: Facts, rank: ProbeRecord) -> list[EpochRecord]:
    """Add to each epoch the seconds of its steps, by the clock of rank 0's device."""
    records, begin = [], 0
    for each in facts.epochs:
        steps = range(max(begin - rank.from_step, 0), each.end_step - rank.from_step)
        seconds = sum(rank.step_seconds(index, training_only=True) for index in steps)
        records.append(
            EpochRecord(
                epoch=each.epoch,
                train_seconds=seconds,
                evaluation_seconds=each.evaluation_seconds,
                samples_per_second=each.samples / seconds,
                train_loss=each.train_loss,
                test_loss=each.test_loss,
                test_accuracy=each.test_accuracy,
                learning_rate=each.learning_rate,
            )
        )
        begin = each.end_step
    return records


def _rank_rows(
    joined: JoinedStarts, last: StartRecords, steps: MeasuredSteps, uses: Sequence[DeviceUse]
) -> list[RankRecord]:
    waiting = waiting_seconds([record.timed_exchanges for record in joined.ranks])
    reports = {report.rank: report for report in last.reports}
    busy = [use.mean_utilization for use in uses] or [None for _ in waiting]
    return [
        _rank_row(record, reports.get(record.rank), utilization, steps, waited)
        for record, utilization, waited in zip(joined.ranks, busy, waiting, strict=True)
    ]


def _rank_row(
    record: ProbeRecord,
    report: RankReport | None,
    mean_utilization: float | None,
    steps: MeasuredSteps,
    waited: float | None,
) -> RankRecord:
    seconds = [record.step_seconds(index) for index in steps.kept]
    counted, memory = record.timed_exchanges, record.peak_memory
    local_rank = record.local_rank if report is None or report.local_rank is None else report.local_rank
    return RankRecord(
        rank=record.rank,
        local_rank=record.rank if local_rank is None else local_rank,
        host=record.host,
        device=record.device,
        visible_devices=record.visible_devices,
        threads=record.threads,
        cpu_affinity=cpu_list(record.affinity),
        train_samples=_train_samples(record, report),
        test_samples=None if report is None else report.test_samples,
        step_seconds_p05=quantile(seconds, 0.05),
        step_seconds_p50=quantile(seconds, 0.50),
        step_seconds_p95=quantile(seconds, 0.95),
        step_seconds_max=max(seconds, default=0.0),
        loader_wait_seconds=sum(record.wait_seconds[index] for index in steps.kept)
        if record.wait_seconds
        else None,
        peak_memory_bytes=memory.whole_bytes if steps.no_grad == "training" else memory.training_bytes,
        **_startup(record, report).model_dump(),
        mean_utilization=mean_utilization,
        communication_seconds_per_step=sum(counted) / len(counted) if counted else None,
        waiting_seconds_per_step=waited,
        evaluation_peak_memory_bytes=memory.evaluation_bytes,
    )


def _train_samples(record: ProbeRecord, report: RankReport | None) -> int | None:
    if report is not None and report.train_samples is not None:
        return report.train_samples
    return sum(each or 0 for each in record.samples) if record.samples else None


def _startup(record: ProbeRecord, report: RankReport | None) -> Startup:
    """Return the parts of a rank's start-up; a program makes most of them unseen."""
    first = record.first_step_seconds
    if report is not None and report.startup is not None:
        return report.startup.model_copy(update={"first_step_seconds": first})
    return Startup(
        imports_seconds=record.torch_imported - record.process_started,
        process_group_seconds=None,
        data_seconds=None,
        model_seconds=None,
        first_step_seconds=first,
        launch_seconds=report.launch_seconds if report is not None else None,
        preparation_seconds=None
        if record.first_step_began is None
        else record.first_step_began - record.torch_imported,
    )


def _measurements(
    spec: TrainSpec,
    joined: JoinedStarts,
    steps: MeasuredSteps,
    rows: Sequence[RankRecord],
    uses: Sequence[DeviceUse],
    facts: Facts | None,
    program: ProgramMeasurements | None,
) -> Measurements:
    ranks, windows, settings = joined.ranks, steps.windows, spec.definition.settings
    measured_seconds = sum(window.seconds for window in windows if not window.warmup)
    waits = [row.loader_wait_seconds for row in rows]
    known_waits = [wait for wait in waits if wait is not None]
    epochs = [] if facts is None else facts.epochs
    accuracies = [epoch.test_accuracy for epoch in epochs]
    evaluated = [row.evaluation_peak_memory_bytes for row in rows]
    known_evaluated = [each for each in evaluated if each is not None]
    monitored = (
        across_ranks(uses) if uses else {"monitor_note": "not monitored" if ranks[0].cuda else NO_GPUS}
    )
    notes = [monitored["monitor_note"], *(rank.peak_memory.note for rank in ranks)]
    if facts is not None:
        notes += steps.notes
        notes += [event for rank in ranks for event in rank.events if event.startswith(FAULT)]
    monitored["monitor_note"] = "; ".join(dict.fromkeys(filter(None, notes)))
    resumption = Resumption(starts=spec.start_number) if facts is None else facts.resumption
    return Measurements(
        parameters=ranks[0].parameters,
        epochs_completed=len(epochs),
        throughput_samples_per_second=throughput(windows),
        windows=windows,
        excluded_steps=steps.excluded,
        train_seconds=sum(window.seconds for window in windows),
        evaluation_seconds=max(evaluation_seconds(record, steps.no_grad) for record in ranks)
        if facts is None
        else sum(epoch.evaluation_seconds for epoch in epochs),
        final_accuracy=accuracies[-1] if accuracies else None,
        best_accuracy=max(accuracies, default=None),
        peak_memory_bytes=max(row.peak_memory_bytes for row in rows),
        peak_memory_kind=ranks[0].peak_memory.kind,
        # the most of some ranks might be less than that of all
        evaluation_peak_memory_bytes=max(known_evaluated) if len(known_evaluated) == len(rows) else None,
        loader_wait_fraction=_share(max(known_waits), measured_seconds)
        if len(known_waits) == len(rows)
        else None,
        startup=Startup(
            **{part: slowest_part([getattr(row, part) for row in rows]) for part in Startup.model_fields}
        ),
        **monitored,
        communication_fraction=communication_fraction(rows, windows),
        other_cpu_fraction=other_cpu_fraction(
            [report.cpu_use for report in joined.reports if report.cpu_use is not None]
        ),
        loader=settings.loader if isinstance(settings, Settings) else "program",
        own_interval=ranks[0].own_interval,
        **_step_flops(settings, ranks),
        program=program,
        resumption=resumption.model_copy(
            update={
                "unmeasured_steps": joined.unmeasured_steps,
                "problems": [*resumption.problems, *joined.problems],
            }
        ),
    )


def _step_flops(settings: AnySettings, ranks: Sequence[ProbeRecord]) -> dict[str, Any]:
    """Return the floating-point operations of a step of all ranks, or the reason that they are unknown."""
    if isinstance(settings, ProgramSettings) and not settings.count_flops:
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


def _provenance(
    spec: TrainSpec, rank_setup: RankSetup, last: StartRecords, facts: Facts | None
) -> Provenance:
    environments = []
    for record in last.ranks:
        report = last.report_of(record.rank)
        environments.append(
            Environment(
                hosts=[record.host],
                cpu_model=report.cpu_model,
                operating_system=report.operating_system,
                versions={"scalewise": __version__, **last.versions_of(record)},
            )
        )
    first, resumption = environments[0], facts.resumption if facts else Resumption()
    return Provenance(
        commit=commit(),
        versions=first.versions,
        hosts=list(dict.fromkeys([*resumption.earlier_hosts, *(record.host for record in last.ranks)])),
        devices=[record.device for record in last.ranks],
        cpu_model=first.cpu_model,
        operating_system=first.operating_system,
        launcher=rank_setup.launcher,
        started_at=spec.started_at,
        ended_at=max(report.ended_at for report in last.reports),
        slurm_job_id=last.reports[0].slurm_job_id,
        restart_count=last.reports[0].restart_count,
        other_jobs=most_known(resumption.earlier_other_jobs, spec.other_jobs),
        study_jobs=most_known(resumption.earlier_study_jobs, spec.study_jobs),
        inputs=spec.input_hashes,
        environments=merge_environments(environments),
        gpu_limits=last.gpu_limits,
    )
