"""One rank of a user's program: it starts the program, watches it, and on rank 0 leaves the run's records.

The process that the launcher starts is this one, and the program is its child. No torch is loaded here: the
program's own process is measured from within by the probe, and from outside by this one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalewise.execution.messages import (
    PROGRAM_FOLDER,
    GracefulStop,
    RankSetup,
    TrainSpec,
    is_out_of_memory,
)
from scalewise.execution.progress_reporter import say
from scalewise.execution.rank_files import RANK_HEARTBEAT_SECONDS, RankFiles
from scalewise.execution.signals import exit_when_parent_dies
from scalewise.plan.config.program import SEEN_SAMPLES, ProgramSettings
from scalewise.plan.config.templates import names_in
from scalewise.ranks.distributed.cpus import take_cpus
from scalewise.ranks.distributed.identity import Identity, check_place, identify, node_rank
from scalewise.ranks.monitoring.machine_load import CpuMeter
from scalewise.ranks.monitoring.monitor import TRAIN, WARM_UP, Monitor
from scalewise.ranks.monitoring.sensors import CpuSensor, NvmlSensor, gpu_sensor
from scalewise.ranks.program.child import Child
from scalewise.ranks.program.end_request import GRACE_SECONDS, EndRequest
from scalewise.ranks.program.environment import (
    command,
    rank_values,
    rendezvous,
    template_values,
    variables,
    write_startup,
)
from scalewise.ranks.program.hints import NO_OUTPUT, hint, with_source
from scalewise.ranks.program.judgement import CHECK_AFTER_STEPS, contradiction
from scalewise.ranks.program.told_progress import ToldProgress
from scalewise.ranks.results.rank_record import (
    RECORD,
    SEEN,
    ProbeRecord,
    backwards_without_step,
    measures,
    read_records,
    steps_done,
)
from scalewise.ranks.results.rank_report import read_reports, report_of, write_report
from scalewise.ranks.results.samples import Planned
from scalewise.ranks.results.starts import StartRecords
from scalewise.ranks.results.write import write_records
from scalewise.records import later, seconds_between, utc_now, write_text

LOOK_SECONDS = 0.5
"""Time between two looks at the probe's files, which may lie on a file system that many ranks share."""
GAVE_UP = "Watchdog caught collective operation timeout"
"""Words of NCCL's watchdog before it aborts a rank that has waited for another one in vain."""

END_SECONDS = 30.0
"""Time that the program has to end once it has been measured; then it is ended."""


class ProgramError(Exception):
    """The program left nothing that could be measured; the message is for the user.

    Args:
        message: One sentence or more.
        traceback: The program's last lines; empty where they say nothing.
        permanent: Whether another try would end alike.
    """

    def __init__(self, message: str, traceback: str = "", permanent: bool = False) -> None:
        super().__init__(message)
        self.traceback = traceback
        self.permanent = permanent


@dataclass
class ProgramRank:
    """A user's program at work for one rank, or for all ranks of a node where it starts them itself.

    Args:
        began: Monotonic seconds at which this process began.
    """

    rank_files: RankFiles
    rank_setup: RankSetup
    spec: TrainSpec
    settings: ProgramSettings
    identity: Identity
    ranks: range
    began: float
    readings: list[tuple[float, float]] = field(default_factory=list)

    @property
    def probed(self) -> Path:
        """The folder of the probe's files."""
        return self.rank_files.folder / "probe"

    @property
    def is_first(self) -> bool:
        """Whether this process judges the run and writes its records."""
        return self.identity.rank == 0

    def run(self) -> None:
        """Run the program to its end, or to the end of the steps that are measured.

        Raises:
            ProgramError: There is nothing to record.
        """
        definition, shape = self.spec.definition, self.rank_setup.shape
        take_cpus(
            self.rank_setup.accelerator, self.identity, self.rank_setup.cpus_per_device, len(self.ranks)
        )
        self.probed.mkdir(parents=True, exist_ok=True)
        startup = (self.probed / f"startup{self.identity.rank}").absolute()
        write_startup(startup)
        endpoint = rendezvous(self.rank_files, self.rank_setup, self.identity)
        values = rank_values(
            template_values(definition, self.settings, self.output), self.identity, endpoint, shape
        )
        argv = command(self.settings, values, sys.executable)
        environment = variables(
            self.settings, values, self.rank_setup, self.identity, startup, self._write_probe_spec(startup)
        )
        if self.is_first:
            say(f"{' '.join(argv)}")
        meter = CpuMeter(self.identity.host)
        with EndRequest(self.rank_files, self.ranks, self.settings.resumes) as request:
            line_read = self._line_read if self.is_first else None
            child = Child(argv, environment, line_read, self.settings.working_directory)
            launched, launch_seconds = time.monotonic(), self._launch_seconds()
            # after the program was started: a thread of this process must not meet a fork
            exit_when_parent_dies(
                self.rank_setup.supervisor_pid, self.rank_setup.supervisor_host == self.identity.host
            )
            try:
                for rank in self.ranks:
                    self.rank_files.started(rank, self.identity.host, child.pid)
                self._beat(child)
                monitors, code = self._watch(child, request)
            finally:
                child.end()
        request.read_note()  # the end of a peer may have come before it was read
        if request.source:
            self._end_as_requested(request, code)
        records = read_records(self.probed, RECORD)
        mine = [record for record in records if record.rank in self.ranks]
        self._check_end(child, code, mine or records)
        ended_at = self._ended_at(launched, launch_seconds)
        uuids = [record.device_uuid if record.cuda else None for record in mine]
        found = [monitor.stop() for monitor in monitors]
        report = report_of(self.identity, uuids, found, meter.used(), launch_seconds, ended_at)
        write_report(self.probed, report)
        if self.is_first:
            self._record(argv)

    @property
    def output(self) -> Path:
        """The run's own folder for what the program writes."""
        return (self.spec.folder / PROGRAM_FOLDER).absolute()

    def _launch_seconds(self) -> float | None:
        """Seconds from the start of the run to now, by one host's clock; None on another host."""
        if socket.gethostname() != self.rank_setup.supervisor_host:
            return None
        return max(seconds_between(self.spec.started_at, utc_now()), 0.0)

    def _ended_at(self, launched: float, launch_seconds: float | None) -> str:
        """Return the time now, by the monotonic clock since the run began: the other may be set meanwhile."""
        before = launched - self.began if launch_seconds is None else launch_seconds
        return later(self.spec.started_at, before + time.monotonic() - launched)

    def _write_probe_spec(self, startup: Path) -> Path:
        path = self.probed / f"spec{self.identity.rank}.json"
        steps = self.settings.steps
        told = {
            "folder": str(self.probed.absolute()),
            "warmup_steps": self.settings.warmup_steps,
            "steps": self.settings.most_steps or 0,
            "until_interval": (steps and steps.until_interval) or 0.0,
            "check_after": CHECK_AFTER_STEPS,
            "not_imported": [str(self.output), str(startup)],
        }
        write_text(path, json.dumps(told))
        return path.absolute()

    def _watch(self, child: Child, request: EndRequest) -> tuple[list[Monitor], int]:
        """Wait for the end of the program, and look meanwhile at what it does."""
        monitors: list[Monitor] = []
        judged = False
        stopped_since: float | None = None
        recorded_since: float | None = None
        phase = ""
        while (code := child.wait(LOOK_SECONDS)) is None:
            now = time.monotonic()
            if self.is_first and not judged:
                judged = self._judge()
            if not monitors and len(own := self._own_records(SEEN)) >= len(self.ranks):
                monitors = self._begin_monitors(child, own)
                phase = WARM_UP
            if phase == WARM_UP and measures(self.probed):
                phase = TRAIN
                for monitor in monitors:
                    monitor.phase = TRAIN
            if recorded_since is None and len(self._own_records(RECORD)) >= len(self.ranks):
                recorded_since = now
                for monitor in monitors:
                    monitor.stop()
            if recorded_since is not None and now - recorded_since > END_SECONDS:
                say(f"the program did not end within {END_SECONDS:.0f} s of its last step, and was ended")
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
        for monitor in monitors:
            monitor.stop()
        return monitors, code

    def _own_records(self, kind: str) -> list[ProbeRecord]:
        return [record for record in read_records(self.probed, kind) if record.rank in self.ranks]

    def _begin_monitors(self, child: Child, records: list[ProbeRecord]) -> list[Monitor]:
        """Watch each GPU of these ranks; CPU processes that one program has started are watched as one."""
        watched: list[tuple[ProbeRecord, CpuSensor | NvmlSensor | None, str]]
        if records[0].cuda:
            watched = [(record, *gpu_sensor(record.device_uuid or "")) for record in records]
        else:
            cpus = self.rank_setup.cpus_per_device * len(self.ranks)
            watched = [(records[0], CpuSensor(cpus, child.pid), "")]
        monitors = [
            Monitor(record.device, 1, record.host, record.rank, sensor=sensor, note=note)
            for record, sensor, note in watched
        ]
        for monitor in monitors:
            monitor.phase = WARM_UP
            monitor.start()
        return monitors

    def _planned(self) -> Planned:
        names = (name for text in self.settings.templates for name in names_in(text))
        definition = self.spec.definition
        return Planned(
            program=self.settings.program,
            devices=definition.shape.world_size,
            global_batch_size=definition.global_batch_size,
            accumulation_steps=self.settings.accumulation_steps,
            samples_given=self.settings.samples_given,
            names=frozenset(names),
            accelerator=definition.accelerator,
            samples_vary=self.settings.samples_per_step == SEEN_SAMPLES,
            same_batches=self.settings.same_batches,
        )

    def _judge(self) -> bool:
        """Hold what ranks have seen after a few steps against the plan; whether all have been looked at.

        Raises:
            ProgramError: Something is not as planned.
        """
        seen = read_records(self.probed, SEEN)
        planned = self._planned()
        if seen and (why := contradiction(planned, seen)):
            raise ProgramError(why, permanent=True)
        return len(seen) >= planned.devices

    def _check_end(self, child: Child, code: int, records: list[ProbeRecord]) -> None:
        """Tell an end that left a whole measurement from one that did not.

        Raises:
            ProgramError: It did not.
        """
        program, last = self.settings.program, child.last_error()
        whole = len(records) >= len(self.ranks) and all(
            record.ended == "steps" or code == 0 for record in records
        )
        if whole:
            if code:
                say(f"{program} ended with code {code} after its last measured step")
            return
        if code < 0:
            name = signal.Signals(-code).name
            by = ", as the system's out-of-memory killer does" if code == -signal.SIGKILL else ""
            if code == -signal.SIGABRT and any(GAVE_UP in line for line in child.tail):
                by = " after NCCL had timed out: another rank did not come"
            raise ProgramError(f"{program} was ended by {name}{by}", child.traceback())
        if code:
            raise ProgramError(self._reason(child, code), child.traceback())
        backwards = backwards_without_step(self.probed)
        if backwards:
            raise ProgramError(
                f"{program} made {backwards} backward passes or more and no step of a torch.optim.Optimizer, "
                "by which steps are counted. Its optimizer is of another kind, or it never steps.",
                child.traceback(),
                permanent=True,
            )
        if steps := steps_done(self.probed):
            raise ProgramError(
                f"{program} made optimizer steps, at least {steps}, and ended with code 0, but without "
                "Python's exit handlers, which write down its times. Replace os._exit by sys.exit.",
                child.traceback(),
            )
        if not last and self.rank_setup.accelerator == "cpu":
            raise ProgramError(f"{program} ended without error before its first optimizer step. {NO_OUTPUT}")
        output = f"Its last line: {last}" if last else "It printed nothing."
        raise ProgramError(
            f"{program} ended without error before its first optimizer step. {output}",
            child.traceback(),
        )

    def _reason(self, child: Child, code: int) -> str:
        """The error that ended the program, and its fix where one is known."""
        error = with_source(child.last_error(), child.tail)
        on_cpus, as_ranks = self.rank_setup.accelerator == "cpu", self.settings.starts == "ranks"
        fix = hint(error, child.traceback(), on_cpus=on_cpus, as_ranks=as_ranks)
        program = self.settings.program
        reason = (
            f"{program} ended with code {code}: {error}" if error else f"{program} ended with code {code}"
        )
        return f"{reason.rstrip('.')}. {fix}" if fix else reason

    def _end_as_requested(self, request: EndRequest, code: int) -> None:
        """Note that the program has ended because that was requested, and raise."""
        if request.by_launcher:
            raise SystemExit(128 + abs(code))
        if self.is_first:
            saved, step = self.settings.resumes, steps_done(self.probed)
            self.rank_files.stopped(GracefulStop(step=step, saved=saved, stop_source=request.source))
        # in order: a launcher would end the peers of a rank that fails, while they save
        raise SystemExit(0)

    def _record(self, argv: list[str]) -> None:
        """Write the run's records once all ranks have left theirs."""
        shape = self.rank_setup.shape
        processes = shape.nodes if self.settings.starts == "itself" else shape.world_size
        deadline = time.monotonic() + self.rank_setup.timeout_seconds
        planned = self._planned()
        while True:
            records, reports = read_records(self.probed, RECORD), read_reports(self.probed)
            if len(reports) >= processes and len(records) >= shape.world_size:
                break
            if time.monotonic() > deadline or len(reports) >= processes:
                break
            time.sleep(LOOK_SECONDS)
        if why := contradiction(planned, records, all_ended=True):
            raise ProgramError(why, permanent=True)
        if len(reports) < processes:
            raise ProgramError(
                f"{len(reports)} of {processes} processes left their report within "
                f"{self.rank_setup.timeout_seconds} s of the first rank's end"
            )
        self.rank_files.check_current()
        try:
            starts = [StartRecords(records, reports)]
            write_records(self.spec, self.rank_setup, planned, starts, argv=argv, readings=self.readings)
        except ValueError as error:
            raise ProgramError(str(error), permanent=True) from error

    def _line_read(self, line: str, now: float) -> None:
        """Look for the metric in a line."""
        metric = self.settings.metric
        if metric is None:
            return
        for found in re.finditer(metric.pattern, line):
            with suppress(ValueError, TypeError):
                self.readings.append((now, float(found[1])))

    def _beat(self, child: Child) -> None:
        """Show that rank 0 runs and how far it has come, as long as its program is not stopped."""
        if not self.is_first:
            return
        samples = self.settings.stated_samples or self.spec.definition.global_batch_size
        progress = ToldProgress(self.rank_files, self.probed, self.settings, samples)

        def beat() -> None:
            while True:
                if not child.is_stopped():
                    with suppress(OSError):
                        self.rank_files.heartbeat()
                    # a program must not be taken for hung because its progress cannot be told
                    with suppress(Exception):
                        progress.tell(time.monotonic())
                time.sleep(RANK_HEARTBEAT_SECONDS)

        threading.Thread(target=beat, name="heartbeat", daemon=True).start()


def run_program_rank(rank_files: RankFiles, began: float) -> int:
    """Run this rank's program, and leave the reason where there is nothing to record."""
    rank_setup = rank_files.rank_setup()
    spec = rank_setup.training
    assert spec is not None, "the job has started a training"
    settings = spec.definition.settings
    assert isinstance(settings, ProgramSettings), "the job has started the entry point of a program"
    shape = rank_setup.shape
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
            restart_count=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        )
        ranks = range(first, first + shape.devices_per_node)
    else:
        identity = identify(os.environ, rank_setup.launcher)
        ranks = range(identity.rank, identity.rank + 1)
    try:
        check_place(identity, shape)
        ProgramRank(rank_files, rank_setup, spec, settings, identity, ranks, began).run()
    except (ProgramError, OSError, RuntimeError) as error:
        text, traceback = str(error), getattr(error, "traceback", "")
        say(f"scalewise: {text}")
        with suppress(OSError):
            rank_files.failed_with(
                identity.rank,
                identity.host,
                text,
                traceback,
                out_of_memory=is_out_of_memory(text),
                permanent=getattr(error, "permanent", False),
            )
        return 1
    for rank in ranks:
        rank_files.finished(rank)
    return 0
