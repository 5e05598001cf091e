"""Run one training job: wait for the lock, start the ranks, write the result or the reason for failing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from scalewise.config.catalog.program_files import program_files
from scalewise.config.program import ProgramSettings
from scalewise.execution.inputs import input_hashes
from scalewise.execution.lock import (
    MACHINE_WAIT_SECONDS,
    LockError,
    Owner,
    lock_run,
    machine_lock,
)
from scalewise.execution.log import append_log, log_tail, printable, restore_log, say, shorten_log
from scalewise.execution.next_try import dataset_path, earlier_failure, limit_of_try
from scalewise.execution.rank_files import ATTEMPT, RankError, RankFiles, TrainSpec
from scalewise.execution.reason import (
    explain_os_error,
    failure_reason,
    free_bytes,
    in_minutes,
    root_cause,
    would_end_alike,
)
from scalewise.execution.saved import prepare_to_train, remove_after_training, saved_training
from scalewise.execution.slurm import OtherJobs, other_jobs, requeue, restart_count
from scalewise.execution.start import command_for, rank_setup_for
from scalewise.execution.watchdog import Ended, Outcome, RankGroup, RunTakenError, supervise
from scalewise.plan.launch import Launch, RankLaunch, SiteLaunch
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
        log: Receives what the ranks print.
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


class RunFailedError(Exception):
    """The run has no result.

    Args:
        job: The run.
        failure: The reason.
        requeue: Whether Slurm's signal before the end of the job's time ended it, and the next start resumes.
    """

    def __init__(self, job: RunJob, failure: Failure, *, requeue: bool = False) -> None:
        lines = [f"{job.label} {failure.outcome}: {failure.reason}", *failure.output, f"Whole log: {job.log}"]
        super().__init__("\n".join(lines))
        self.failure, self.requeue = failure, requeue


def run_train_job(job: RunJob, site: SiteLaunch) -> int:
    """Train one run, unless another job has; returns the exit code of the process."""
    # Slurm sends SIGUSR1 before the time limit. The ranks handle it; the default would end this process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        train(job, site)
        return 0
    except RunFailedError as error:
        append_log(job.log, f"{error.failure.outcome}: {error.failure.reason}")
        with suppress(OSError):  # a full disk; the reason is in the message
            write_json(job.folder / FAILURE, error.failure)
        if error.requeue:
            requeue_job(job)  # Slurm ends this process, if it agrees
        say(f"scalewise: {error}")
        shorten_log(job.log)
    except RunTakenError as error:
        say(f"scalewise: {error}")  # the other process writes the log
    except (ValueError, LockError, RecordError) as error:
        say(f"scalewise: {job.label}: {error}")
        if not job.log.exists():  # else it is of the training that this one waited for
            append_log(job.log, str(error))
    except OSError as error:
        text = explain_os_error(job.label, job.folder, error)
        say(f"scalewise: {text}")
        append_log(job.log, text)
    except KeyboardInterrupt:
        say(f"scalewise: {job.label} interrupted while no rank of it was at work; the same command trains it")
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
    owner = Owner.this_process(in_job=site.slurm)
    rank_files = RankFiles(job.folder / ATTEMPT, owner.token)
    launch = launch_of(job, site, rank_files)
    # Slurm assigns devices to jobs; without it, all trainings of a machine take turns
    machine = nullcontext() if site.slurm else machine_lock(MACHINE_WAIT_SECONDS, say)
    wait_seconds = job.limits.limit_seconds if site.slurm else MACHINE_WAIT_SECONDS
    with (
        lock_run(job.folder, wait_seconds, lambda text: say(f"{job.label}: {text}"), owner) as waited,
        machine,
    ):
        inputs = input_hashes(job.definition, job.dataset)
        if has_result(job, inputs):
            say(f"{job.label}: another job has left its result")
            return
        earlier = earlier_failure(job.folder, job.definition, inputs)
        prepare_to_train(job.folder, job.definition, resumes=is_unfinished(job, rank_files, inputs))
        saved = saved_training(job.folder, job.definition)
        others = other_jobs(os.environ) if site.slurm else OtherJobs()
        spec = TrainSpec(
            definition=job.definition,
            dataset=job.dataset,
            folder=job.folder,
            started_at=utc_now(),
            other_jobs=others.all,
            study_jobs=others.of_study,
            input_hashes=inputs,
            from_step=saved.step,
            failed_seconds=0.0 if earlier is None else earlier.seconds,
        )
        limit_seconds = limit_of_try(job.limits, job.attempt, earlier)
        group = RankGroup(
            label=job.label,
            rank_files=rank_files,
            launch=launch,
            world_size=job.definition.shape.world_size,
            log=job.log,
            limit_seconds=limit_seconds - saved.seconds,
            resumes=job.program.resumes,
        )
        began = Began(job, spec, owner, waited, time.monotonic())
        if group.limit_seconds <= 0:
            why = (
                f"all of its {in_minutes(limit_seconds)} are used. {group.fix} The same command then resumes."
            )
            raise RunFailedError(job, began.failure("timed-out", why, permanent=True))
        restore_log(job.log)
        for name in (RECORD, EPOCHS, RANKS, UTILIZATION, MODEL):
            (job.folder / name).unlink(missing_ok=True)
        setup = rank_setup_for(RankLaunch.for_run(job.definition), site, job.limits.timeout_seconds)
        rank_files.begin(setup.model_copy(update={"training": spec}))
        ended = supervise(group)
        if not job.record.exists():
            cause = root_cause(rank_files.ranks(group.world_size))
            if cause is None or not cause.out_of_memory or ended.outcome != "failed":
                raise failed(group, began, ended, in_slurm=site.slurm)
            _record_out_of_memory(spec, cause)
        read_record(job.record, RunRecord)
        remove_after_training(job.folder, job.definition)
        (job.folder / FAILURE).unlink(missing_ok=True)
        rank_files.end()


def launch_of(job: RunJob, site: SiteLaunch, rank_files: RankFiles) -> Launch:
    """Return the command that starts the ranks of a run; a container shows them the folders that they read.

    Raises:
        ValueError: The ranks cannot be started on this site.
    """
    program = job.program
    files = [] if job.dataset is None else [job.dataset]
    if job.is_users:  # train.py lies next to the program of a rank
        files += [*program_files(program), *map(Path, program.files)]
    visible = [path.resolve().parent for path in files]
    if program.working_directory is not None:
        visible.append(Path(program.working_directory).absolute())
    return command_for(RankLaunch.for_run(job.definition), site, rank_files, visible, program)


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


def _record_out_of_memory(spec: TrainSpec, cause: RankError) -> None:
    """Write the records of a run that had too little device memory: another start would end the same way."""
    write_rows(spec.folder / EPOCHS, EpochRecord, [])
    write_rows(spec.folder / RANKS, RankRecord, [])
    write_rows(spec.folder / UTILIZATION, UtilizationRecord, [])
    record = RunRecord(
        definition=spec.definition,
        outcome="out-of-memory",
        reason=printable(str(cause)[:REASON_CHARACTERS]),
        measurements=None,
        provenance=None,
    )
    write_json(spec.folder / RECORD, record)


# ---- without a result


@dataclass(frozen=True)
class Began:
    """A start of a run, with what its failure states.

    Args:
        waited: Whether the job had to wait for another one, and has less time to train.
        monotonic: Time of the start: the clock on the wall may be changed.
    """

    job: RunJob
    spec: TrainSpec
    owner: Owner
    waited: bool
    monotonic: float

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self.monotonic

    def failure(self, outcome: Outcome, reason: str, *, permanent: bool, traceback: str = "") -> Failure:
        """Return the failure of this start, which ends now."""
        job = self.job
        return Failure(
            definition=job.definition,
            inputs=self.spec.input_hashes,
            outcome=outcome,
            reason=printable(reason[:REASON_CHARACTERS]),
            permanent=permanent,
            started_at=self.spec.started_at,
            ended_at=later(self.spec.started_at, self.seconds),
            host=self.owner.host,
            attempt=job.attempt,
            slurm_job_id=self.owner.job,
            limit_seconds=job.limits.limit_seconds,
            job_seconds=job.limits.job_seconds,
            seconds=self.spec.failed_seconds + self.seconds,
            traceback=printable(traceback),
            log_tail=log_tail(job.log),
        )


def failed(group: RankGroup, began: Began, ended: Ended, *, in_slurm: bool) -> RunFailedError:
    """Return the error of ranks that left no result."""
    job = began.job
    reason, permanent = failure_reason(group, ended), would_end_alike(group, ended)
    if (free := free_bytes(job.folder)) < FULL_BYTES:
        reason += f" {job.folder} has {free:,} free bytes left: make room there."
    for name in (EPOCHS, RANKS, UTILIZATION, MODEL):
        (job.folder / name).unlink(missing_ok=True)
    cause = root_cause(group.rank_files.ranks(group.world_size))
    traceback = cause.traceback if cause is not None and ended.outcome == "failed" else ""
    # a signal to this process means that a user, or Slurm for another job, wants the run to end
    if in_slurm and ended.cause is None and ended.stop_source == signal.SIGUSR1.name:
        if comes_further(group, began):
            return RunFailedError(job, began.failure("interrupted", reason, permanent=False), requeue=True)
        reason = (
            f"Slurm's signal before the end of the job's time came after {in_minutes(began.seconds)}, before "
            "the program had saved anything new. Raise the job's time (slurm.longest_walltime), or let it "
            "save more often."
        )
        return RunFailedError(job, began.failure("timed-out", reason, permanent=not began.waited))
    return RunFailedError(job, began.failure(ended.outcome, reason, permanent=permanent, traceback=traceback))


def comes_further(group: RankGroup, began: Began) -> bool:
    """Whether the next start of a job that goes back into the queue has less to do than this one had.

    What a user's program saves is unknown: it has the limit of the run, over all starts of the job.
    """
    if not group.resumes:
        return False
    if began.job.is_users:
        spent = (began.owner.restart + 1) * began.seconds
        return group.rank_files.read_progress() is not None and spent < began.job.limits.limit_seconds
    return saved_training(began.job.folder, began.job.definition).step > began.spec.from_step


def requeue_job(job: RunJob) -> None:
    """Put a job whose time is nearly over back into Slurm's queue, and wait for Slurm to end it here."""
    # a job that is cancelled gets its signals one after the other, and must not be requeued
    time.sleep(SIGNAL_SPREAD_SECONDS)
    text = f"Slurm job {os.environ['SLURM_JOB_ID']} goes back into the queue, to resume"
    append_log(job.log, text)
    say(f"{job.label}: {text}")
    if refusal := requeue(os.environ):
        text = f"it does not go back: {refusal}. The next start of the run resumes"
        append_log(job.log, text)
        say(f"{job.label}: {text}")
    else:
        time.sleep(REQUEUE_SECONDS)
