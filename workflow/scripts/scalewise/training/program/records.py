"""The records of a program's run: what the probe saw from within, and its ranks from outside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from scalewise import __version__
from scalewise.execution.messages import RankSetup, TrainSpec
from scalewise.plan.catalog.program_files import program_files
from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.site import cpu_model
from scalewise.records import (
    EPOCHS,
    RANKS,
    RECORD,
    UTILIZATION,
    Environment,
    EpochRecord,
    GpuLimits,
    Measurements,
    MetricReading,
    ProgramMeasurements,
    Provenance,
    RankRecord,
    Resumption,
    RunRecord,
    Startup,
    UtilizationRecord,
    write_json,
    write_rows,
    write_text,
)
from scalewise.training.distributed.cpus import cpu_list
from scalewise.training.distributed.identity import Identity
from scalewise.training.measure.environments import commit, merge_environments, operating_system
from scalewise.training.measure.machine_load import CpuUse, other_cpu_fraction
from scalewise.training.measure.monitor import Monitor, MonitorReport, across_ranks
from scalewise.training.measure.sensors import driver_version, gpu_sensor
from scalewise.training.measure.throughput import quantile, slowest_part, throughput
from scalewise.training.measure.waiting import communication_fraction, waiting_seconds
from scalewise.training.program.judgement import Planned, samples_seen
from scalewise.training.program.merge import (
    MeasuredSteps,
    divergence,
    evaluation_seconds,
    first_step_seconds,
    measured_steps,
    metric_reading,
    step_seconds,
)
from scalewise.training.program.probe_records import ProbeRecord

_REPORT = "program{rank}.report.json"


@dataclass(frozen=True)
class OuterReport:
    """Findings of the process beside a program, for one rank or for all ranks of a node.

    Args:
        monitors: Findings on each GPU, or on the CPU processes together; empty where the program ended
            before one could be watched.
        cpu_use: CPU time while the program was at work.
        launch_seconds: Time from the start of the run to that of the program; None on other hosts than the
            supervisor's, whose clocks may differ.
        gpu_limits: Limits of each rank's GPU; None for a CPU process.
        driver: Version of the GPUs' driver; None where no GPU was trained on.
        ended_at: UTC, ISO 8601.
    """

    rank: int
    host: str
    slurm_job_id: str | None
    restart_count: int
    cpu_model: str
    operating_system: str
    monitors: list[MonitorReport]
    cpu_use: CpuUse
    launch_seconds: float | None
    gpu_limits: list[GpuLimits | None]
    driver: str | None
    ended_at: str

    @classmethod
    def of(
        cls,
        identity: Identity,
        monitors: Sequence[Monitor],
        cpu_use: CpuUse,
        launch_seconds: float | None,
        records: Sequence[ProbeRecord],
        ended_at: str,
    ) -> OuterReport:
        """Collect it once the program has ended."""
        return cls(
            rank=identity.rank,
            host=identity.host,
            slurm_job_id=identity.slurm_job_id,
            restart_count=identity.restart_count,
            cpu_model=cpu_model(),
            operating_system=operating_system(),
            monitors=[monitor.stop() for monitor in monitors],
            cpu_use=cpu_use,
            launch_seconds=launch_seconds,
            gpu_limits=[_gpu_limits(record) for record in records],
            driver=driver_version() if any(record.cuda for record in records) else None,
            ended_at=ended_at,
        )


_OUTER = TypeAdapter(OuterReport)


def write_report(folder: Path, report: OuterReport) -> None:
    """Leave a report for rank 0, in the attempt's folder."""
    write_text(folder / _REPORT.format(rank=report.rank), _OUTER.dump_json(report).decode())


def read_reports(folder: Path) -> list[OuterReport]:
    """The reports that are there, by rank."""
    paths = [path for path in folder.iterdir() if path.name.endswith(".report.json")]
    reports = [
        _OUTER.validate_json(path.read_text(encoding="utf-8"))
        for path in paths
        if path.name.startswith("program")
    ]
    return sorted(reports, key=lambda report: report.rank)


def write_records(
    spec: TrainSpec,
    settings: ProgramSettings,
    rank_setup: RankSetup,
    planned: Planned,
    records: Sequence[ProbeRecord],
    reports: Sequence[OuterReport],
    argv: Sequence[str],
    readings: Sequence[tuple[float, float]],
) -> None:
    """Write the run's records, the summary last of all: where it stands, the others do.

    Args:
        spec: The run.
        settings: The program's.
        rank_setup: Says what started the ranks.
        planned: The plan that was held against the records.
        records: One for each rank.
        reports: One for each process that the launcher started.
        argv: Interpreter, program and arguments of rank 0.
        readings: Monotonic seconds and value of each metric that rank 0 printed.

    Raises:
        ValueError: No step was measured.
    """
    own_interval = records[0].own_interval
    warmup_steps = settings.warmup_steps if own_interval is None else own_interval.warmup_steps
    steps = measured_steps(records, warmup_steps, planned, settings.no_grad_passes)
    if not steps.kept:
        done = min(record.step_count for record in records)
        raise ValueError(
            f"{settings.program} made {done} steps, and none of them after the {warmup_steps} of "
            "the warm-up can be measured: each of them evaluates or saves too, or there is none. Lower "
            "warmup_steps, or let it train for longer."
        )
    unknown: dict[str, str] = {}
    rows = _rank_rows(records, reports, steps, unknown)
    metric = [metric_reading(records[0], at, value, steps.no_grad) for at, value in readings]
    reached = next(
        (
            reading.seconds
            for reading in metric
            if settings.metric is not None and settings.metric.is_reached(reading.value)
        ),
        None,
    )
    found = ProgramMeasurements(
        command=list(argv),
        ended="steps" if all(record.ended == "steps" for record in records) else "itself",
        samples_from=steps.samples.source,
        samples_seen=samples_seen(records).per_step,
        left_out=steps.left_out,
        optimizers=list(dict.fromkeys(each.name for record in records for each in record.optimizers)),
        skipped_steps=records[0].skipped_by_scaler,
        parallelism=list(dict.fromkeys(name for record in records for name in record.parallelism)),
        precision=_precision(records[0]),
        compiled=any(record.compiled for record in records),
        gradient_bytes=_gradient_bytes(records, unknown),
        losses=_losses(records[0]),
        metric=_thinned(metric),
        seconds_to_metric=reached,
        imported_files=_imported(records),
        unknown=unknown,
        notes=_notes(settings, records, steps),
        cautions=steps.cautions,
        throughput_with_no_grad=steps.throughput_with_no_grad,
    )
    measurements = _measurements(records, reports, steps, rows, found, spec.start_number)
    write_rows(spec.folder / EPOCHS, EpochRecord, [])
    samples = [row for report in reports for monitor in report.monitors for row in monitor.samples]
    write_rows(spec.folder / UTILIZATION, UtilizationRecord, sorted(samples, key=lambda row: row.timestamp))
    write_rows(spec.folder / RANKS, RankRecord, rows)
    diverged = divergence(records)
    summary = RunRecord(
        definition=spec.definition,
        outcome="diverged" if diverged else "completed",
        reason=f"{diverged}. Lower the learning rate of {settings.program}." if diverged else "",
        measurements=measurements,
        provenance=_provenance(spec, rank_setup, records, reports),
    )
    write_json(spec.folder / RECORD, summary)


def _losses(record: ProbeRecord) -> list[tuple[int, float | None]]:
    return sorted(((int(step), loss) for step, loss in record.losses.items()), key=lambda each: each[0])


MOST_READINGS = 1000
"""Readings of a metric that are kept, evenly over the run; the first that reached the target counts apart."""


def _thinned(readings: list[MetricReading]) -> list[MetricReading]:
    stride = max(-(-len(readings) // MOST_READINGS), 1)
    return readings[::stride]


def _rank_rows(
    records: Sequence[ProbeRecord],
    reports: Sequence[OuterReport],
    steps: MeasuredSteps,
    unknown: dict[str, str],
) -> list[RankRecord]:
    waiting = waiting_seconds([record.communication_seconds or [] for record in records])
    if any(record.communication_seconds is None for record in records):
        unknown["communication"] = (
            "it is counted by DistributedDataParallel, and none was seen on every rank"
            if len(records) > 1
            else "there is no other rank"
        )
    if not all(record.wait_seconds for record in records):
        unknown["loader wait"] = "no DataLoader of PyTorch feeds the training"
    unknown["test accuracy"] = "the program does not tell it; `metric` reads a number from what it prints"
    unknown["parts of the start-up"] = "process group, data and model are made in the program"
    # of CPU processes that one program has started nobody is watched alone
    alone = {
        report.rank + index: monitor
        for report in reports
        for index, monitor in enumerate(report.monitors)
        if records[0].cuda or len(reports) == len(records)
    }
    outside = {report.rank: report for report in reports}
    rows = []
    for record, waited in zip(records, waiting, strict=True):
        outer, monitor = outside.get(record.rank), alone.get(record.rank)
        seconds = [step_seconds(record, index) for index in steps.kept]
        counted = record.communication_seconds
        rows.append(
            RankRecord(
                rank=record.rank,
                local_rank=record.local_rank if record.local_rank is not None else record.rank,
                host=record.host,
                device=record.device,
                visible_devices=record.visible_devices,
                threads=record.threads,
                cpu_affinity=cpu_list(record.affinity),
                train_samples=sum(each or 0 for each in record.samples) if record.samples else None,
                test_samples=None,
                step_seconds_p05=quantile(seconds, 0.05),
                step_seconds_p50=quantile(seconds, 0.50),
                step_seconds_p95=quantile(seconds, 0.95),
                step_seconds_max=max(seconds),
                loader_wait_seconds=sum(record.wait_seconds[index] for index in steps.kept)
                if record.wait_seconds
                else None,
                peak_memory_bytes=record.peak_memory.whole_bytes
                if steps.no_grad == "training"
                else record.peak_memory.training_bytes,
                imports_seconds=record.torch_imported - record.process_started,
                process_group_seconds=None,
                data_seconds=None,
                model_seconds=None,
                first_step_seconds=first_step_seconds(record),
                mean_utilization=monitor.mean_utilization if monitor else None,
                communication_seconds_per_step=sum(counted) / len(counted) if counted else None,
                launch_seconds=outer.launch_seconds if outer else None,
                waiting_seconds_per_step=waited,
                evaluation_peak_memory_bytes=None,
                preparation_seconds=None
                if record.first_step_began is None
                else record.first_step_began - record.torch_imported,
            )
        )
    return rows


def _measurements(
    records: Sequence[ProbeRecord],
    reports: Sequence[OuterReport],
    steps: MeasuredSteps,
    rows: Sequence[RankRecord],
    found: ProgramMeasurements,
    starts: int,
) -> Measurements:
    windows = steps.windows
    measured_seconds = sum(window.seconds for window in windows if not window.warmup)
    waits = [row.loader_wait_seconds for row in rows]
    known_waits = [wait for wait in waits if wait is not None]
    monitors = [monitor for report in reports for monitor in report.monitors]
    monitored = (
        across_ranks(monitors)
        if len(monitors) == (len(records) if records[0].cuda else len(reports))
        else {"monitor_note": "not monitored: the program ended before a sample could be taken"}
    )
    return Measurements(
        parameters=records[0].parameters,
        epochs_completed=0,
        throughput_samples_per_second=throughput(windows),
        windows=windows,
        train_seconds=sum(window.seconds for window in windows),
        evaluation_seconds=max(evaluation_seconds(record, steps.no_grad) for record in records),
        final_accuracy=None,
        best_accuracy=None,
        peak_memory_bytes=max(row.peak_memory_bytes for row in rows),
        peak_memory_kind=records[0].peak_memory.kind,
        loader_wait_fraction=max(known_waits) / measured_seconds
        if len(known_waits) == len(rows) and measured_seconds
        else None,
        startup=Startup(
            **{part: slowest_part([getattr(row, part) for row in rows]) for part in Startup.model_fields}
        ),
        **monitored,
        communication_fraction=communication_fraction(rows, windows),
        other_cpu_fraction=other_cpu_fraction([report.cpu_use for report in reports]),
        loader="program",
        own_interval=records[0].own_interval,
        resumption=Resumption(starts=starts),
        program=found,
    )


def _precision(record: ProbeRecord) -> str:
    """``bfloat16 by autocast, parameters float32``."""
    formats = sorted({name.rpartition(":")[2] for name in record.precision})
    parts = [f"{' and '.join(formats)} by autocast"] if formats else []
    stored = [name.removeprefix("torch.") for name in record.parameter_dtypes]
    return ", ".join([*parts, f"parameters {' and '.join(stored)}"] if stored else parts)


def _gradient_bytes(records: Sequence[ProbeRecord], unknown: dict[str, str]) -> int | None:
    if any(record.sharded for record in records):
        unknown["bytes of gradients"] = "the model is divided over the ranks, which exchange parameters too"
        return None
    return records[0].gradient_bytes


def _imported(records: Sequence[ProbeRecord]) -> dict[str, str]:
    """Imported files of all ranks, by a path from the working directory where they lie below it."""
    here = Path.cwd()
    found: dict[str, str] = {}
    for record in records:
        for name, digest in record.imported_files.items():
            path = Path(name)
            found[str(path.relative_to(here)) if path.is_relative_to(here) else name] = digest
    return dict(sorted(found.items()))


def _notes(settings: ProgramSettings, records: Sequence[ProbeRecord], steps: MeasuredSteps) -> list[str]:
    notes = [*steps.notes]
    events = dict.fromkeys(event for record in records for event in record.events)
    notes += [f"{event[0].upper()}{event[1:]}." if event else "" for event in events]
    done = min(record.step_count for record in records)
    by_itself = any(record.ended == "itself" for record in records)
    if settings.steps is not None and by_itself:
        asked = settings.warmup_steps + settings.steps.most
        up_to = "" if settings.steps.until_interval is None else "at most "
        if done < asked:
            notes.append(
                f"The program came to its own end after {done} steps, before the {up_to}{asked} that were "
                "asked for."
            )
    known = {str(path.resolve()) for path in program_files(settings)}
    known |= {str(Path(name).resolve()) for name in settings.files}
    imported = dict.fromkeys(name for record in records for name in record.imported_files)
    if unread := [name for name in imported if str(Path(name).resolve()) not in known]:
        notes.append(
            f"It imports {len(unread)} files that reading it did not show ({', '.join(unread[:3])}): a "
            "change in them does not train again by itself. Name them under `files` where they matter."
        )
    return notes


def _provenance(
    spec: TrainSpec, rank_setup: RankSetup, records: Sequence[ProbeRecord], reports: Sequence[OuterReport]
) -> Provenance:
    by_host = {report.host: report for report in reports}
    environments = [
        Environment(
            hosts=[record.host],
            cpu_model=by_host[record.host].cpu_model if record.host in by_host else "",
            operating_system=by_host[record.host].operating_system if record.host in by_host else "",
            versions={"scalewise": __version__, **record.versions, **_driver(by_host.get(record.host))},
        )
        for record in records
    ]
    first = environments[0]
    return Provenance(
        commit=commit(),
        versions=first.versions,
        hosts=list(dict.fromkeys(record.host for record in records)),
        devices=[record.device for record in records],
        cpu_model=first.cpu_model,
        operating_system=first.operating_system,
        launcher=rank_setup.launcher,
        started_at=spec.started_at,
        ended_at=max(report.ended_at for report in reports),
        slurm_job_id=reports[0].slurm_job_id,
        restart_count=reports[0].restart_count,
        other_jobs=spec.other_jobs,
        inputs=spec.input_hashes,
        environments=merge_environments(environments),
        gpu_limits=[limit for report in reports for limit in report.gpu_limits],
    )


def _driver(report: OuterReport | None) -> dict[str, str]:
    return {} if report is None or report.driver is None else {"driver": report.driver}


def _gpu_limits(record: ProbeRecord) -> GpuLimits | None:
    if not record.cuda or record.device_uuid is None:
        return None
    sensor, _ = gpu_sensor(record.device_uuid)
    if sensor is None:
        return None
    try:
        return sensor.limits()
    finally:
        sensor.close()
