"""Run one training job: wait for its turn, start the ranks, write the result or the reason for failing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from scalewise.config.catalog.program_files import program_files
from scalewise.config.program import ProgramSettings
from scalewise.execution.inputs import input_hashes
from scalewise.execution.lock import (
    MACHINE_WAIT_SECONDS,
    LockError,
    lock_run,
    machine_lock,
    wait_for_earlier_job,
)
from scalewise.execution.log import OUTPUT, log_tail, printable
from scalewise.execution.next_try import dataset_path, earlier_failure, limit_of_try
from scalewise.execution.rank_files import ATTEMPT, Rank, RankFiles, RankSetup, TrainSpec
from scalewise.execution.reason import (
    MORE_TIME,
    explain_os_error,
    failure_reason,
    free_bytes,
    in_minutes,
    root_cause,
    would_end_alike,
)
from scalewise.execution.saved import prepare_to_train, remove_after_training, saved_training
from scalewise.execution.slurm import other_jobs, requeue, restart_count
from scalewise.execution.start import SCRIPTS
from scalewise.execution.watchdog import Ended, Outcome, RankGroup, RunTakenError, supervise
from scalewise.plan.launch import Launch, RankLaunch, SiteLaunch, build_launch
from scalewise.plan.plan_file import Limits, TrainJob
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import program_of
from scalewise.records import (
    EPOCHS,
    FAILURE,
    MODEL,
    RANKS,
    RECORD,
    UTILIZATION,
    EpochRecord,
    Failure,
    Provenance,
    RankRecord,
    RecordError,
    RunRecord,
    UtilizationRecord,
    later,
    read_record,
    utc_now,
    write_json,
    write_rows,
)

REASON_CHARACTERS = 4000
"""Most characters of a reason, which begins with what matters."""

FULL_BYTES = 1 << 20
"""Free bytes below which a disk counts as full: the last files of the ranks may be missing."""

REQUEUE_SECONDS, SIGNAL_SPREAD_SECONDS = 120.0, 2.0
"""Time for Slurm to end a job that it has put back into the queue, and for a signal to reach all of a job."""


@dataclass(frozen=True)
class RunJob:
    """One run from the plan, and the paths of its files.

    Args:
        definition: The run.
        dataset: The prepared file; None if a user's program trains.
        log: Receives what this job reports; Snakemake shows it if the job fails.
        attempt: Snakemake's count of its tries at this run, from 1.
        record: ``record.json``, in the folder of all records.
    """

    definition: RunDefinition
    dataset: Path | None
    log: Path
    limits: Limits
    attempt: int
    record: Path

    @classmethod
    def of(cls, job: TrainJob, log: Path, record: Path, attempt: int) -> RunJob:
        """Return the job of a run of the plan."""
        definition = RunDefinition.model_validate_json(job["definition"])
        return cls(definition, dataset_path(job), log, Limits(**job["limits"]), attempt, record)

    @property
    def label(self) -> str:
        """The run as messages name it."""
        return self.definition.label

    @property
    def folder(self) -> Path:
        """The folder of the run's records."""
        return self.record.parent

    @property
    def program(self) -> ProgramSettings:
        """The program that trains."""
        return program_of(self.definition, dataset=self.dataset)

    @property
    def is_users(self) -> bool:
        """Whether it is a user's program, whose files are its own."""
        return isinstance(self.definition.settings, ProgramSettings)

    def report(self, text: str, *, failed: bool = False) -> None:
        """Show a message, or how the run failed, also in Snakemake's log of the job."""
        print(f"scalewise: {self.label}{'' if failed else ':'} {text}", file=sys.stderr, flush=True)
        with suppress(OSError), self.log.open("a", encoding="utf-8") as file:  # the disk may be full
            file.write(f"{text}\n")


class RunFailedError(Exception):
    """The run has no result.

    Args:
        requeue: Whether Slurm's signal before the end of the job's time ended it, and the next start resumes.
    """

    def __init__(self, failure: Failure, *, requeue: bool = False) -> None:
        super().__init__("\n".join([f"{failure.outcome}: {failure.reason}", *failure.output]))
        self.failure, self.requeue = failure, requeue


def run_train_job(job: RunJob, site: SiteLaunch) -> int:
    """Train one run, unless another job has; returns the exit code of the process."""
    # Slurm sends SIGUSR1 before the time limit. The ranks handle it; the default would end this process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        train(job, site)
        return 0
    except RunFailedError as error:
        with suppress(OSError):  # a full disk; the reason is in the message
            write_json(job.folder / FAILURE, error.failure)
        if error.requeue:
            requeue_job(job)  # Slurm ends this process, if it agrees
        job.report(f"{error}\nAll output of the ranks: {job.folder / OUTPUT}", failed=True)
    except (ValueError, LockError, RecordError, RunTakenError) as error:
        job.report(str(error))
    except OSError as error:
        job.report(explain_os_error(job.folder, error), failed=True)
    except KeyboardInterrupt:
        job.report("interrupted while no rank of it was at work; the same command trains it")
    return 1


def train(job: RunJob, site: SiteLaunch) -> None:
    """Train the run to its record, or find that of another job.

    Raises:
        RunFailedError: There is no result.
        ValueError: The ranks cannot be started on this site.
        LockError: Another process trains the run, or uses this machine, for too long.
        RunTakenError: Another process trains the run by now.
        RecordError: The ranks' record cannot be read.
        OSError: The run's folder cannot be used.
    """
    if site.slurm:  # the ranks inherit it; the executor hides it from a job step
        os.environ["SLURM_RESTART_COUNT"] = restart_count(os.environ)
    rank_files = RankFiles(job.folder / ATTEMPT, uuid.uuid4().hex)
    launch = launch_of(job, site, rank_files)
    with turn_of(job, site) as earlier_job:
        inputs = input_hashes(job.definition, job.dataset)
        if has_result(job, inputs):
            job.report("another job has left its result")
            return
        if earlier_job:
            # too little of this job's time may be left
            raise LockError(f"Slurm job {earlier_job} was training this run, and has left no result")
        start = Start.of(job, site, rank_files, inputs)
        limit_seconds = limit_of_try(job.limits, job.attempt, start.earlier)
        group = RankGroup(
            rank_files=rank_files,
            launch=launch,
            world_size=job.definition.shape.world_size,
            log=job.folder / OUTPUT,
            limit_seconds=limit_seconds - saved_training(job.folder, job.definition).seconds,
            resumes=job.program.resumes,
        )
        if group.limit_seconds <= 0:
            why = f"all of its {in_minutes(limit_seconds)} are used. {MORE_TIME}"
            raise RunFailedError(start.failure("timed-out", why, permanent=True))
        for name in (RECORD, EPOCHS, RANKS, UTILIZATION, MODEL):
            (job.folder / name).unlink(missing_ok=True)
        rank_files.begin(start.setup)
        ended = supervise(group, job.report)
        if not job.record.exists():
            cause = root_cause(rank_files.ranks(group.world_size))
            if cause is None or not cause.out_of_memory or ended.outcome != "failed":
                raise failed(group, start, ended)
            start.write_out_of_memory(cause)
        read_record(job.record, RunRecord)
        remove_after_training(job.folder, job.definition)
        (job.folder / FAILURE).unlink(missing_ok=True)
        rank_files.end()


@contextmanager
def turn_of(job: RunJob, site: SiteLaunch) -> Iterator[str]:
    """Hold the run and this machine; yields the job of Slurm that trained the run while this one waited."""
    if site.slurm:  # which assigns devices to jobs
        yield wait_for_earlier_job(job.limits.limit_seconds, job.report)
    else:
        with (
            lock_run(job.folder, MACHINE_WAIT_SECONDS, job.report),
            machine_lock(MACHINE_WAIT_SECONDS, job.report),
        ):
            yield ""


def launch_of(job: RunJob, site: SiteLaunch, rank_files: RankFiles) -> Launch:
    """Return the command that starts a rank on each device.

    A container shows the ranks the working folder, the scripts, the folders of their files and the one that
    holds the run's files, where they also write. Each may be behind a link.

    Raises:
        ValueError: The ranks cannot be started on this site.
    """
    program = job.program
    files = [] if job.dataset is None else [job.dataset]
    if job.is_users:  # train.py lies next to the program of a rank
        files += [*program_files(program), *map(Path, program.files)]
    visible = [SCRIPTS, rank_files.folder.parent.resolve(), *(path.resolve().parent for path in files)]
    if program.working_directory is not None:
        visible.append(Path(program.working_directory).absolute())
    return build_launch(
        RankLaunch.for_run(job.definition),
        site,
        (str(SCRIPTS / "program_rank.py"), str(rank_files.folder)),
        sys.executable,
        visible,
        once_a_node=program.starts == "itself",
    )


def has_result(job: RunJob, inputs: Mapping[str, str]) -> bool:
    """Whether another job has finished the run while this one waited: Snakemake deletes earlier records."""
    try:
        record = read_record(job.record, RunRecord)
    except RecordError:
        return False
    origin = record.provenance
    return record.definition == job.definition and (origin is None or origin.inputs == dict(inputs))


def is_unfinished(job: RunJob, rank_files: RankFiles, inputs: Mapping[str, str]) -> bool:
    """Whether the program has files of this very run, from which it may resume.

    A run that had a result trains from the beginning: its record is deleted when a user forces it, its other
    files are not.
    """
    earlier = rank_files.unfinished()
    return (
        job.program.resumes
        and earlier is not None
        and (earlier.definition, earlier.input_hashes) == (job.definition, dict(inputs))
        and not (job.folder / RANKS).exists()
    )


@dataclass(frozen=True)
class Start:
    """A start of a run.

    Args:
        in_slurm: Whether it is a job of Slurm.
        setup: The work of the ranks.
        spec: The run, as the setup has it.
        earlier: The failure of the last try at the run; None without one.
        monotonic: Time of the start: the clock on the wall may be changed.
    """

    job: RunJob
    in_slurm: bool
    setup: RankSetup
    spec: TrainSpec
    earlier: Failure | None
    monotonic: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, job: RunJob, site: SiteLaunch, rank_files: RankFiles, inputs: dict[str, str]) -> Start:
        """Prepare the folder of a run, and describe the start."""
        earlier = earlier_failure(job.folder, job.definition, inputs)
        resumes = is_unfinished(job, rank_files, inputs)
        if earlier is None and not resumes:
            (job.folder / OUTPUT).unlink(missing_ok=True)
        prepare_to_train(job.folder, job.definition, resumes=resumes)
        others, of_study = other_jobs(os.environ) if site.slurm else (None, None)
        spec = TrainSpec(
            definition=job.definition,
            dataset=job.dataset,
            folder=job.folder,
            started_at=utc_now(),
            other_jobs=others,
            study_jobs=of_study,
            input_hashes=inputs,
            from_step=saved_training(job.folder, job.definition).step,
            failed_seconds=0.0 if earlier is None else earlier.seconds,
        )
        setup = RankSetup(
            **RankLaunch.for_run(job.definition).model_dump(),
            network_interface=site.network_interface,
            timeout_seconds=job.limits.timeout_seconds,
            supervisor_host=socket.gethostname(),
            supervisor_pid=None if site.slurm else os.getpid(),
            training=spec,
        )
        return cls(job, site.slurm, setup, spec, earlier)

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.monotonic

    @property
    def slurm_job(self) -> str | None:
        """The job of Slurm; None for a user's session inside a job."""
        return os.environ.get("SLURM_JOB_ID") if self.in_slurm else None

    @property
    def restarts(self) -> int:
        """The number of times that Slurm has requeued the job."""
        return int(os.environ.get("SLURM_RESTART_COUNT", "0")) if self.in_slurm else 0

    def failure(
        self, outcome: Outcome, reason: str, *, permanent: bool = False, traceback: str = ""
    ) -> Failure:
        """Return the failure of this start, which ends now."""
        job, spec, seconds = self.job, self.spec, self.seconds
        before = self.earlier.command_seconds if self.earlier is not None and job.attempt > 1 else 0.0
        return Failure(
            definition=job.definition,
            inputs=spec.input_hashes,
            outcome=outcome,
            reason=printable(reason[:REASON_CHARACTERS]),
            permanent=permanent,
            started_at=spec.started_at,
            ended_at=later(spec.started_at, seconds),
            host=self.setup.supervisor_host,
            attempt=job.attempt,
            slurm_job_id=self.slurm_job,
            limit_seconds=job.limits.limit_seconds,
            job_seconds=job.limits.job_seconds,
            seconds=spec.failed_seconds + seconds,
            command_seconds=before + seconds,
            traceback=printable(traceback),
            log_tail=log_tail(job.folder / OUTPUT),
        )

    def write_out_of_memory(self, cause: Rank) -> None:
        """Write the records of a run with too little device memory: another start would end the same way."""
        job, spec = self.job, self.spec
        write_rows(job.folder / EPOCHS, EpochRecord, [])
        write_rows(job.folder / RANKS, RankRecord, [])
        write_rows(job.folder / UTILIZATION, UtilizationRecord, [])
        # its time is paid; the ranks left nothing on their devices and libraries
        origin = Provenance(
            commit=None,
            hosts=[cause.host],
            devices=[],
            launcher=self.setup.launcher,
            started_at=spec.started_at,
            ended_at=later(spec.started_at, self.seconds),
            slurm_job_id=self.slurm_job,
            restart_count=self.restarts,
            other_jobs=spec.other_jobs,
            study_jobs=spec.study_jobs,
            failed_seconds=spec.failed_seconds,
            inputs=spec.input_hashes,
            environments=[],
            gpu_limits=[],
        )
        record = RunRecord(
            definition=job.definition,
            outcome="out-of-memory",
            reason=printable(cause.failure[:REASON_CHARACTERS]),
            measurements=None,
            provenance=origin,
        )
        write_json(job.record, record)


def failed(group: RankGroup, start: Start, ended: Ended) -> RunFailedError:
    """Return the error of ranks that left no result."""
    folder = start.job.folder
    reason, permanent = failure_reason(group, ended), would_end_alike(group, ended)
    if (free := free_bytes(folder)) < FULL_BYTES:
        reason += f" {folder} has {free:,} free bytes left: make room there."
    for name in (EPOCHS, RANKS, UTILIZATION, MODEL):
        (folder / name).unlink(missing_ok=True)
    # another signal means that a user, or Slurm for another job, wants the run to end
    if start.in_slurm and ended.outcome == "interrupted" and ended.stop_source == signal.SIGUSR1.name:
        if comes_further(group, start):
            return RunFailedError(start.failure("interrupted", reason), requeue=True)
        reason = (
            f"Slurm's signal before the end of the job's time came after {in_minutes(start.seconds)}, before "
            "the program had saved anything new. Raise the job's time (slurm.longest_walltime), or let it "
            "save more often."
        )
        return RunFailedError(start.failure("timed-out", reason, permanent=True))
    cause = root_cause(group.rank_files.ranks(group.world_size))
    traceback = cause.traceback if cause is not None and ended.outcome == "failed" else ""
    return RunFailedError(start.failure(ended.outcome, reason, permanent=permanent, traceback=traceback))


def comes_further(group: RankGroup, start: Start) -> bool:
    """Whether the next start of a job that goes back into the queue has less to do than this one had.

    What a user's program saves is unknown: it has the limit of the run, over all starts of the job.
    """
    job = start.job
    if job.is_users:
        spent = (start.restarts + 1) * start.seconds
        has_progress = group.rank_files.read_progress() is not None
        return group.resumes and has_progress and spent < job.limits.limit_seconds
    return saved_training(job.folder, job.definition).step > start.spec.from_step


def requeue_job(job: RunJob) -> None:
    """Put a job whose time is nearly over back into Slurm's queue, and wait for Slurm to end it here."""
    # a job that is cancelled gets its signals one after the other, and must not be requeued
    time.sleep(SIGNAL_SPREAD_SECONDS)
    number = os.environ["SLURM_JOB_ID"]
    job.report(f"Slurm job {number} goes back into the queue, to resume")
    if refusal := requeue(number):
        job.report(f"it does not go back: {refusal}. The next start of the run resumes")
    else:
        time.sleep(REQUEUE_SECONDS)
