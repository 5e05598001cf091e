"""Run one rank of a user's program: start it, watch it, and on rank 0 write the run's records.

The launcher starts this process, and the program is its child. This process does not load torch. It measures
the program from outside; the probe measures it from inside.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from scalewise.config.program import SEEN_SAMPLES, ProgramSettings
from scalewise.execution.rank_files import RankFiles, RankSetup, State, is_consequence, steps_by_rank
from scalewise.plan.run_definition import program_of
from scalewise.ranks.distributed.cpus import take_cpus
from scalewise.ranks.distributed.identity import Identity, check_place, identify, node_rank
from scalewise.ranks.monitoring.machine_load import CpuMeter
from scalewise.ranks.monitoring.monitor import Monitor
from scalewise.ranks.program.child import GRACE_SECONDS, Child, EndRequest, exit_when_parent_dies, say
from scalewise.ranks.program.environment import (
    build_command,
    build_environment,
    find_endpoint,
    own_gpu,
    template_values,
    write_startup,
)
from scalewise.ranks.program.failure import ProgramError, check_end, is_out_of_memory
from scalewise.ranks.program.metric import MetricReader
from scalewise.ranks.program.plan_check import CHECK_AFTER_STEPS, check_ends, check_inputs, check_plan
from scalewise.ranks.results.probe_record import (
    RECORD,
    SEEN,
    UNEVEN,
    ProbeRecord,
    read_records,
)
from scalewise.ranks.results.rank_report import report_of, write_report
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.start_records import wait_for_start
from scalewise.ranks.results.write import write_records
from scalewise.records import later, seconds_between, utc_now, write_text

POLL_SECONDS = 0.5
"""Time between two reads of the probe's files, which may lie on a file system that many ranks share."""

END_SECONDS = 30.0
"""Time that the program has to end after its last measured step; then it is killed."""

FINISH_SECONDS = 3.0
"""Longest wait for the end of a rank's process after the rank itself has ended."""


@dataclass
class ProgramRank:
    """One rank of a user's program, or all ranks of a node if the program starts them itself.

    Args:
        began: Monotonic seconds at which this process began.
        readings: Values of the metric in the program's output, with their monotonic seconds.
        refused: Reason that a line of the metric cannot be read; None without one.
    """

    rank_files: RankFiles
    rank_setup: RankSetup
    settings: ProgramSettings
    identity: Identity
    ranks: range
    began: float
    readings: list[tuple[float, float]] = field(default_factory=list)
    refused: ProgramError | None = None

    @cached_property
    def metric(self) -> MetricReader | None:
        """Return the reader of the metric, if the program has one."""
        return None if self.settings.metric is None else MetricReader(self.settings.metric)

    @property
    def probe_folder(self) -> Path:
        """Return the folder of the probe's files."""
        return self.rank_files.probe

    @property
    def is_first(self) -> bool:
        """Return whether this process checks the run against the plan and writes its records."""
        return self.identity.rank == 0

    def run(self) -> None:
        """Run the program to its end, or to its last measured step, and write the records.

        Raises:
            ProgramError: The program left no measurement.
        """
        setup, identity = self.rank_setup, self.identity
        gpu = own_gpu(os.environ, setup, identity, len(self.ranks))
        take_cpus(setup.definition.accelerator, identity, self.settings.cpus_per_device, len(self.ranks), gpu)
        self.probe_folder.mkdir(parents=True, exist_ok=True)
        startup = (self.probe_folder / f"startup{identity.rank}").absolute()
        write_startup(startup)
        endpoint = find_endpoint(self.rank_files, setup, identity)
        values = template_values(self.rank_setup.definition, self.settings, self.output, identity, endpoint)
        argv = build_command(self.settings, values, sys.executable)
        probe_spec = self._write_probe_spec(startup)
        environment = build_environment(self.settings, values, setup, identity, startup, probe_spec)
        if self.is_first:
            say(f"{utc_now()} {' '.join(argv)}")
        meter = CpuMeter(identity.host)
        with EndRequest(self.rank_files, self.ranks, self.settings.resumes) as request:
            line_read = self._read_metric if self.is_first else None
            child = Child(argv, environment, line_read, self.settings.working_directory)
            launched, launch_seconds = time.monotonic(), self._launch_seconds()
            # after the start of the program: a fork is not safe while other threads run
            exit_when_parent_dies(child, setup.supervisor_pid, setup.supervisor_host == identity.host)
            try:
                for rank in self.ranks:
                    self.rank_files.mark(rank, "running", host=identity.host, pid=child.pid)
                monitors, code = self._watch(child, request)
            finally:
                child.end()
        request.read_note()  # a peer may have ended because of a note that this process has not read
        if request.source:
            self._end_as_requested(request, code)
        self._check_metric()
        records = self._read_own(RECORD)
        try:
            check_end(
                child,
                code,
                self.settings,
                on_cpus=setup.definition.accelerator == "cpu",
                records=records or read_records(self.probe_folder, RECORD),
                rank_count=len(self.ranks),
                probe_folder=self.probe_folder,
                port=endpoint[1],
            )
        except ProgramError as error:
            if reason := self._lost_rank(str(error)):
                raise ProgramError(reason, error.traceback) from error
            raise
        ended_at = self._ended_at(launched, launch_seconds)
        monitored = [monitor.stop() for monitor in monitors or self._start_monitors(records)]
        report = report_of(identity, monitored, meter.used(), launch_seconds, ended_at)
        write_report(self.probe_folder, report)
        if self.is_first:
            self._write_records(argv)

    @property
    def output(self) -> Path:
        """Return the run's folder for the program's files."""
        return self.rank_setup.output.absolute()

    def _launch_seconds(self) -> float | None:
        """Return the seconds since the start of the run; None on another host, whose clock may differ."""
        if socket.gethostname() != self.rank_setup.supervisor_host:
            return None
        return max(seconds_between(self.rank_setup.started_at, utc_now()), 0.0)

    def _ended_at(self, launched: float, launch_seconds: float | None) -> str:
        """Return the time now, by the monotonic clock since the run began: the other one may be changed."""
        before = launched - self.began if launch_seconds is None else launch_seconds
        return later(self.rank_setup.started_at, before + time.monotonic() - launched)

    def _write_probe_spec(self, startup: Path) -> Path:
        path = self.probe_folder / f"spec{self.identity.rank}.json"
        probe_spec = {
            "folder": str(self.probe_folder.absolute()),
            "warmup_steps": self.settings.warmup_steps,
            "steps": self.settings.steps or 0,
            "check_after": CHECK_AFTER_STEPS,
            "optimizer": self.settings.optimizer,
            "count_flops": self.settings.count_flops,
            "not_imported": [str(self.output), str(startup)],
        }
        write_text(path, json.dumps(probe_spec))
        return path.absolute()

    def _watch(self, child: Child, request: EndRequest) -> tuple[list[Monitor], int]:
        """Wait for the end of the program; check its first steps and start to monitor its GPUs."""
        monitors: list[Monitor] = []
        checked = monitored = False
        stopped_since: float | None = None
        recorded_since: float | None = None
        while (code := child.wait(POLL_SECONDS)) is None:
            now = time.monotonic()
            if self.is_first:
                checked = self._check_steps(checked)
                self._check_metric()
            if not monitored and len(records := self._read_own(SEEN)) >= len(self.ranks):
                monitored, monitors = True, self._start_monitors(records)
            if recorded_since is None and len(self._read_own(RECORD)) >= len(self.ranks):
                recorded_since = now
            if recorded_since is not None and now - recorded_since > END_SECONDS:
                self._check_other_ends()
                because = f"its program did not end within {END_SECONDS:.0f} s of its last step"
                say(f"{because}, and was ended")
                child.end(GRACE_SECONDS)
                code = 0
                break
            if request.is_over(child, now):
                child.end()
                code = -signal.SIGKILL
                break
            stopped_since = (stopped_since or now) if child.is_stopped() else None
            if stopped_since is not None and now - stopped_since > self.rank_setup.timeout_seconds:
                raise ProgramError(
                    f"stopped by a signal for {now - stopped_since:.0f} s (SIGSTOP), while others waited"
                )
        return monitors, code

    def _read_own(self, kind: str) -> list[ProbeRecord]:
        """Return the probe's records of this process's ranks."""
        one = self.identity.rank if len(self.ranks) == 1 else None  # those of many ranks take their time
        records = read_records(self.probe_folder, kind, one)
        return [record for record in records if record.rank in self.ranks]

    def _start_monitors(self, records: list[ProbeRecord]) -> list[Monitor]:
        """Start a monitor for each GPU of these ranks."""
        monitors = [Monitor(record.device_uuid or "") for record in records if record.cuda]
        for monitor in monitors:
            monitor.start()
        return monitors

    @cached_property
    def planned(self) -> Planned:
        """Return the run as it was planned."""
        definition, settings = self.rank_setup.definition, self.settings
        return Planned(
            program=settings.program,
            devices=definition.shape.world_size,
            global_batch_size=definition.global_batch_size,
            accumulation_steps=settings.accumulation_steps,
            samples_given=settings.samples_given,
            names=settings.names,
            accelerator=definition.accelerator,
            samples_vary=settings.samples_per_step == SEEN_SAMPLES,
            same_batches=settings.same_batches,
        )

    def _check_steps(self, checked: bool) -> bool:
        """Compare the first steps of the ranks with the plan; return whether all ranks have made them.

        Args:
            checked: Whether they have been compared already.

        Raises:
            ProgramError: Something is not as planned, or a rank has no more batches while others train on.
        """
        if uneven := check_inputs(self.settings.program, steps_by_rank(self.probe_folder, UNEVEN)):
            raise ProgramError(uneven, permanent=True)
        if checked:
            return True
        records = read_records(self.probe_folder, SEEN)
        if difference := check_plan(self.planned, records):
            raise ProgramError(difference, permanent=True)
        return len(records) >= self.planned.devices

    def _check_other_ends(self) -> None:
        """Check that no other rank has yet to make its last step, long after these ranks.

        Raises:
            ProgramError: One has.
        """
        recorded = {record.rank for record in read_records(self.probe_folder, RECORD)}
        # of a rank that is at work, the number is written now and then only
        others = {rank: None for rank in steps_by_rank(self.probe_folder) if rank not in recorded}
        for record in self._read_own(RECORD):
            if reason := check_ends(self.settings.program, record, others, lambda _rank: False):
                raise ProgramError(reason)

    def _lost_rank(self, error: str) -> str:
        """Return that another rank has ended in order, if an error is the consequence of that."""
        if not is_consequence(error):
            return ""
        steps = steps_by_rank(self.probe_folder)
        own: dict[int, int | None] = {rank: done for rank, done in steps.items() if rank in self.ranks}
        deadline = time.monotonic() + FINISH_SECONDS

        def is_finished(rank: int) -> bool:
            while (state := self.rank_files.read_rank(rank)) is not None and state.state == "running":
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            return state is not None and state.state == "finished"

        for record in read_records(self.probe_folder, RECORD):
            if record.rank not in self.ranks and (
                reason := check_ends(self.settings.program, record, own, is_finished)
            ):
                return reason
        return ""

    def _end_as_requested(self, request: EndRequest, code: int) -> None:
        """Leave the message that the program was stopped as requested, and exit."""
        by_launcher = request.by_launcher
        state: State = "terminated" if by_launcher else "stopped"
        for rank in self.ranks:
            self.rank_files.mark(rank, state, stop_source="" if by_launcher else request.source)
        # a stop is no failure: a launcher would end the peers while they save
        raise SystemExit(128 + abs(code) if by_launcher else 0)

    def _write_records(self, argv: list[str]) -> None:
        """Wait for the reports of all processes, and write the run's records."""
        shape = self.rank_setup.definition.shape
        processes = shape.nodes if self.settings.starts == "itself" else shape.world_size
        # a rank may take its END_SECONDS
        longest = max(self.rank_setup.timeout_seconds, 2 * END_SECONDS)
        start = wait_for_start(self.probe_folder, processes, longest)
        firsts = range(0, shape.world_size, shape.world_size // processes)
        if missing := sorted({*firsts} - {report.rank for report in start.reports}):
            ranks = ", ".join(str(self.rank_files.read_rank(rank) or f"rank {rank}") for rank in missing)
            raise ProgramError(f"{ranks} did not end within {longest:.0f} s of the end of this one")
        if difference := check_plan(self.planned, start.ranks, all_ended=True):
            raise ProgramError(difference, permanent=True)
        self.rank_files.check_current()
        try:
            write_records(
                self.rank_setup,
                self.planned,
                start,
                self.settings,
                argv=argv,
                readings=self.readings,
                metric_line="" if self.metric is None else self.metric.first_line,
            )
        except ValueError as error:
            raise ProgramError(str(error), permanent=True) from error

    def _check_metric(self) -> None:
        if self.refused is not None:
            raise self.refused

    def _read_metric(self, line: str, now: float) -> None:
        """Add the values of the metric in a line to the readings."""
        if self.metric is None or self.refused is not None:
            return
        is_first = not self.readings
        try:
            self.readings += [(now, value) for value in self.metric.read(line)]
        except ProgramError as error:  # this is the thread that reads the output
            self.refused = error
        if is_first and self.readings:
            say(f"scalewise: the metric is read from {self.metric.first_line}")


def run_program_rank(rank_files: RankFiles, began: float) -> int:
    """Run this rank's program; return the exit code, and write the reason if it left no measurement."""
    rank_setup = rank_files.setup
    definition = rank_setup.definition
    settings = program_of(
        definition,
        dataset=rank_setup.dataset,
        rendezvous=rank_files.rendezvous_file,
        timeout_seconds=rank_setup.timeout_seconds,
    )
    shape = definition.shape
    if settings.starts == "itself":
        node = node_rank(os.environ)
        first = node * shape.devices_per_node
        identity = Identity(
            rank=first,
            local_rank=0,
            world_size=shape.world_size,
            local_world_size=shape.devices_per_node,
            host=socket.gethostname(),
            slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        )
        ranks = range(first, first + shape.devices_per_node)
    else:
        identity = identify(os.environ, definition.launcher)
        ranks = range(identity.rank, identity.rank + 1)
    try:
        check_place(identity, shape)
        ProgramRank(rank_files, rank_setup, settings, identity, ranks, began).run()
    except Exception as error:  # noqa: BLE001  # without its reason, the rank would pass for killed
        text = str(error) if isinstance(error, (ProgramError, OSError, RuntimeError)) else repr(error)
        say(f"scalewise: {text}")
        with suppress(OSError):
            rank_files.mark(
                identity.rank,
                "failed",
                host=identity.host,
                error=text,
                traceback=getattr(error, "traceback", ""),
                out_of_memory=is_out_of_memory(text),
                permanent=getattr(error, "permanent", False),
            )
        return 1
    for rank in ranks:
        rank_files.mark(rank, "finished")
    return 0
