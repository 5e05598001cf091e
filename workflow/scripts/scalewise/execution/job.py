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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.config.program import ProgramSettings
from scalewise.config.site import Site
from scalewise.execution.lock import (
    MACHINE_WAIT_SECONDS,
    LockError,
    lock_run,
    machine_lock,
    wait_for_earlier_job,
)
from scalewise.execution.next_try import dataset_path, earlier_failure, limit_of_try
from scalewise.execution.rank_files import ATTEMPT, Rank, RankFiles, RankSetup
from scalewise.execution.reason import (
    MORE_TIME,
    explain_os_error,
    failure_reason,
    free_bytes,
    in_minutes,
    root_cause,
    would_end_alike,
)
from scalewise.execution.run_folder import (
    OUTPUT,
    input_hashes,
    log_tail,
    prepare_to_train,
    printable,
    remove_after_training,
    saved_epochs,
    saved_steps,
)
from scalewise.execution.slurm import other_jobs, requeue, restart_count
from scalewise.execution.start import SCRIPTS
from scalewise.execution.watchdog import Ended, Outcome, supervise
from scalewise.plan.launch import Launch, build_launch, program_folders
from scalewise.plan.plan_file import TrainJob
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
        planned: The run's job in the plan.
        log: Receives what this job reports; Snakemake shows it if the job fails.
        attempt: Snakemake's count of its tries at this run, from 1.
        record: ``record.json``, in the folder of all records.
    """

    definition: RunDefinition
    dataset: Path | None
    planned: TrainJob
    log: Path
    attempt: int
    record: Path

    @classmethod
    def of(cls, job: TrainJob, log: Path, record: Path, attempt: int) -> RunJob:
        """Return the job of a run of the plan."""
        definition = RunDefinition.model_validate_json(job["definition"])
        return cls(definition, dataset_path(job), job, log, attempt, record)

    @property
    def folder(self) -> Path:
        """The folder of the run's records."""
        return self.record.parent

    def report(self, text: str, *, failed: bool = False) -> None:
        """Show a message, or how the run failed, also in Snakemake's log of the job."""
        mark = "" if failed else ":"
        print(f"scalewise: {self.definition.label}{mark} {text}", file=sys.stderr, flush=True)
        with suppress(OSError), self.log.open("a", encoding="utf-8") as file:  # the disk may be full
            file.write(f"{text}\n")


def run_train_job(job: RunJob, site: Site) -> int:
    """Train one run, unless another job has; returns the exit code of the process."""
    # Slurm sends SIGUSR1 before the time limit. The ranks handle it; the default would end this process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        failure = train(job, site)
    except LockError as error:
        job.report(str(error))
    except OSError as error:
        job.report(explain_os_error(job.folder, error), failed=True)
    except KeyboardInterrupt:
        job.report("interrupted while no rank of it was at work; the same command trains it")
    else:
        if failure is None:
            return 0
        lines = [f"{failure.outcome}: {failure.reason}", *failure.output]
        job.report("\n".join([*lines, f"All output of the ranks: {job.folder / OUTPUT}"]), failed=True)
    return 1


def train(job: RunJob, site: Site) -> Failure | None:
    """Train the run to its record, or find that of another job; return why there is none.

    Raises:
        LockError: Another process trains the run, or uses this machine, for too long.
        OSError: The run's folder cannot be used.
    """
    files = RankFiles(job.folder / ATTEMPT, uuid.uuid4().hex)
    with turn_of(job, site) as earlier_job:
        inputs = input_hashes(job.definition, job.dataset)
        if has_result(job, inputs):
            job.report("another job has left its result")
            return None
        if earlier_job:
            # too little of this job's time may be left
            raise LockError(f"Slurm job {earlier_job} was training this run, and has left no result")
        setup = set_up(job, site, files, inputs)
        if setup.limit_seconds <= 0:
            reason = f"all of its {in_minutes(job.planned['limit_seconds'])} are used. {MORE_TIME}"
            return leave_failure(job, setup, Ended(1, "limit"), reason, permanent=True)
        for name in (RECORD, EPOCHS, RANKS, UTILIZATION, MODEL):
            (job.folder / name).unlink(missing_ok=True)
        files.begin(setup)
        ended = supervise(launch_of(job, site, files), files, setup, job.report)
        if not job.record.exists():
            cause = root_cause(files.ranks(setup.world_size))
            if cause is None or not cause.out_of_memory or ended.outcome != "failed":
                return end_without_result(job, files, setup, ended)
            write_out_of_memory(setup, cause, ended)
        remove_after_training(job.folder, job.definition)
        (job.folder / FAILURE).unlink(missing_ok=True)
        files.end()
    return None


# ---- before the ranks


@contextmanager
def turn_of(job: RunJob, site: Site) -> Iterator[str]:
    """Hold the run and this machine; yields the job of Slurm that trained the run while this one waited."""
    if site.slurm:  # which assigns devices to jobs
        yield wait_for_earlier_job(job.planned["limit_seconds"], job.report)
    else:
        with (
            lock_run(job.folder, MACHINE_WAIT_SECONDS, job.report),
            machine_lock(MACHINE_WAIT_SECONDS, job.report),
        ):
            yield ""


def has_result(job: RunJob, inputs: Mapping[str, str]) -> bool:
    """Whether another job has finished the run while this one waited: Snakemake deletes earlier records."""
    try:
        record = read_record(job.record, RunRecord)
    except RecordError:
        return False
    origin = record.provenance
    return record.definition == job.definition and (origin is None or origin.inputs == dict(inputs))


def set_up(job: RunJob, site: Site, files: RankFiles, inputs: dict[str, str]) -> RankSetup:
    """Prepare the folder of a run; return what its ranks read."""
    run, last = job.definition, files.unfinished()
    earlier = earlier_failure(job.folder, run, inputs)
    is_cut_off = last is not None and (last.definition, last.inputs) == (run, inputs)
    resumes = is_cut_off and program_of(run).resumes
    if earlier is None and not resumes:
        (job.folder / OUTPUT).unlink(missing_ok=True)
    prepare_to_train(job.folder, run, resumes=resumes)
    saved_seconds = sum(
        epoch["train_seconds"] + epoch["evaluation_seconds"] for epoch in saved_epochs(job.folder, run)
    )
    others, of_study = None, None
    if site.slurm:
        others, of_study = other_jobs(os.environ)
        # the ranks inherit it; the executor hides it from a job step
        os.environ["SLURM_RESTART_COUNT"] = restart_count(os.environ)
    return RankSetup(
        definition=run,
        dataset=job.dataset,
        folder=job.folder,
        inputs=inputs,
        started_at=utc_now(),
        timeout_seconds=job.planned["timeout_seconds"],
        limit_seconds=limit_of_try(job.planned, job.attempt, earlier, saved_seconds),
        supervisor_host=socket.gethostname(),
        supervisor_pid=None if site.slurm else os.getpid(),
        network_interface=site.facts.network_interface,
        from_step=saved_steps(job.folder, run),
        failed_seconds=0.0 if earlier is None else earlier.seconds,
        # a user's session inside a job is none of the study's jobs
        slurm_job_id=os.environ.get("SLURM_JOB_ID") if site.slurm else None,
        restart_count=int(os.environ["SLURM_RESTART_COUNT"]) if site.slurm else 0,
        other_jobs=others,
        study_jobs=of_study,
    )


def launch_of(job: RunJob, site: Site, files: RankFiles) -> Launch:
    """Return the command that starts a rank on each device.

    A container shows the ranks the working folder, the scripts, the folders of their files and the one that
    holds the run's files, where they also write. Each may be behind a link.
    """
    run = job.definition
    program = program_of(run, dataset=job.dataset)
    dataset = [] if job.dataset is None else [job.dataset.resolve().parent]
    return build_launch(
        run,
        site,
        (str(SCRIPTS / "program_rank.py"), str(files.folder)),
        [SCRIPTS, files.folder.parent.resolve(), *dataset, *program_folders(program)],
        once_a_node=program.starts == "itself",
    )


# ---- after ranks that left no result


def write_out_of_memory(setup: RankSetup, cause: Rank, ended: Ended) -> None:
    """Write the records of a run with too little device memory: another start would end the same way."""
    for name, kind in ((EPOCHS, EpochRecord), (RANKS, RankRecord), (UTILIZATION, UtilizationRecord)):
        write_rows(setup.folder / name, kind, [])
    record = RunRecord(
        definition=setup.definition,
        outcome="out-of-memory",
        reason=printable(cause.failure[:REASON_CHARACTERS]),
        measurements=None,
        # its time is paid; the ranks left nothing on their devices and libraries
        provenance=setup.provenance(later(setup.started_at, ended.seconds), hosts=[cause.host]),
    )
    write_json(setup.folder / RECORD, record)


def end_without_result(job: RunJob, files: RankFiles, setup: RankSetup, ended: Ended) -> Failure:
    """Leave why there is no result; put a job whose time is nearly over back into Slurm's queue."""
    # another signal means that a user, or Slurm for another job, wants the run to end
    if setup.slurm_job_id and ended.outcome == "interrupted" and ended.stop_source == signal.SIGUSR1.name:
        if comes_further(job, files, setup, ended):
            failure = leave_failure(job, setup, ended, "ended by Slurm's signal before its time is over.")
            requeue_job(job, setup.slurm_job_id)
            return failure
        reason = (
            f"Slurm's signal before the end of the job's time came after {in_minutes(ended.seconds)}, before "
            "the program had saved anything new. Raise the job's time (slurm.longest_walltime), or let it "
            "save more often."
        )
        return leave_failure(job, setup, ended, reason, permanent=True, outcome="failed")
    reason, permanent = failure_reason(files, setup, ended), would_end_alike(files, setup, ended)
    if (free := free_bytes(job.folder)) < FULL_BYTES:
        reason += f" {job.folder} has {free:,} free bytes left: make room there."
    cause = root_cause(files.ranks(setup.world_size))
    traceback = printable(cause.traceback) if cause else ""
    return leave_failure(job, setup, ended, reason, permanent=permanent, traceback=traceback)


def leave_failure(
    job: RunJob, setup: RankSetup, ended: Ended, reason: str, outcome: Outcome | None = None, **facts: Any
) -> Failure:
    """Write ``failure.json``; facts are further fields of ``Failure``."""
    failure = Failure(
        definition=setup.definition,
        inputs=setup.inputs,
        outcome=outcome or ended.outcome,
        reason=printable(reason[:REASON_CHARACTERS]),
        started_at=setup.started_at,
        ended_at=later(setup.started_at, ended.seconds),
        slurm_job_id=setup.slurm_job_id,
        limit_seconds=job.planned["limit_seconds"],
        seconds=setup.failed_seconds + ended.seconds,
        log_tail=log_tail(job.folder / OUTPUT),
        **facts,
    )
    with suppress(OSError):  # a full disk; the reason is also shown
        write_json(job.folder / FAILURE, failure)
    return failure


def comes_further(job: RunJob, files: RankFiles, setup: RankSetup, ended: Ended) -> bool:
    """Whether the next start of a job that goes back into the queue has less to do than this one had.

    What a user's program saves is unknown: it has the limit of the run, over all of its starts.
    """
    if isinstance(job.definition.settings, ProgramSettings):
        has_time = setup.failed_seconds + ended.seconds < job.planned["limit_seconds"]
        return setup.resumes and has_time and files.read_progress() is not None
    return saved_steps(job.folder, job.definition) > setup.from_step


def requeue_job(job: RunJob, number: str) -> None:
    """Put the job back into Slurm's queue, and wait for Slurm to end it here."""
    # a job that is cancelled gets its signals one after the other, and must not be requeued
    time.sleep(SIGNAL_SPREAD_SECONDS)
    job.report(f"Slurm job {number} goes back into the queue, to resume")
    if refusal := requeue(number):
        job.report(f"it does not go back: {refusal}. The next start of the run resumes")
    else:
        time.sleep(REQUEUE_SECONDS)
