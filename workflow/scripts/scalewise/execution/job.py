"""Run one training job: wait for its turn, start the ranks, write the result or the reason for failing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scalewise.config.program import ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.site import Site
from scalewise.execution.lock import LockError, wait_for_turn
from scalewise.execution.rank_files import ATTEMPT, RankFiles, RankSetup
from scalewise.execution.reason import explain_os_error, failure_of, root_cause
from scalewise.execution.run_folder import (
    OUTPUT,
    dataset_path,
    earlier_failure,
    input_hashes,
    limit_of_try,
    prepare_to_train,
    saved_epochs,
)
from scalewise.execution.slurm import requeue, this_job
from scalewise.execution.start import SCRIPTS
from scalewise.execution.watchdog import Ended, supervise
from scalewise.plan.formatting import duration_text
from scalewise.plan.launch import Launch, build_launch, program_folders
from scalewise.plan.plan_file import TrainJob
from scalewise.plan.run_definition import RunDefinition, program_of, steps_per_epoch
from scalewise.records import (
    EPOCHS,
    FAILURE,
    MODEL,
    RANKS,
    RECORD,
    UTILIZATION,
    Failure,
    RecordError,
    RunRecord,
    read_record,
    utc_now,
    write_json,
)

REQUEUE_SECONDS, SIGNAL_SPREAD_SECONDS = 120.0, 2.0
"""Time for Slurm to end a job that it has put back into the queue, and for a signal to reach all of a job."""


@dataclass(frozen=True)
class RunJob:
    """One run from the plan, where it starts, and the paths of its files.

    Args:
        planned: The run's job in the plan.
        attempt: Snakemake's count of its tries at this run, from 1.
        folder: Receives the run's records.
        log: Receives what this job reports; Snakemake shows it if the job fails.
    """

    planned: TrainJob
    site: Site
    attempt: int
    folder: Path
    log: Path

    @cached_property
    def definition(self) -> RunDefinition:
        """The run."""
        return RunDefinition.model_validate_json(self.planned["definition"])

    @property
    def dataset(self) -> Path | None:
        """The prepared file; None if a user's program trains."""
        return dataset_path(self.planned)

    def report(self, text: str, *, failed: bool = False) -> None:
        """Show a message, or how the run failed, also in Snakemake's log of the job."""
        mark = "" if failed else ":"
        with suppress(OSError):  # of a pipe whose reader Ctrl-C has ended, or a lost terminal
            print(f"scalewise: {self.definition.label}{mark} {text}", file=sys.stderr, flush=True)
        with suppress(OSError), self.log.open("a", encoding="utf-8") as file:  # the disk may be full
            file.write(f"{text}\n")


def run_train_job(job: RunJob) -> int:
    """Train one run, unless another job has; returns the exit code of the process."""
    # Slurm sends SIGUSR1 before the time limit. The ranks handle it; the default would end this process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        failure = train(job)
    except LockError as error:
        job.report(str(error))
    except OSError as error:
        job.report(f"failed: {explain_os_error(job.folder, error)}", failed=True)
    except KeyboardInterrupt:
        job.report("interrupted while no rank of it was at work; the same command trains it")
    else:
        if failure is None:
            return 0
        lines = [f"{failure.outcome}: {failure.reason}", *failure.output]
        job.report("\n".join([*lines, f"All output of the ranks: {job.folder / OUTPUT}"]), failed=True)
    return 1


def train(job: RunJob) -> Failure | None:
    """Train the run to its record, or find that of another job; return why there is none.

    Raises:
        LockError: Another process trains the run, or uses this machine, for too long.
        OSError: The run's folder cannot be used.
    """
    limit_seconds = job.planned["limit_seconds"]
    with wait_for_turn(limit_seconds, job.report, in_slurm=job.site.slurm is not None) as earlier_job:
        inputs = input_hashes(job.definition, job.dataset)
        if has_result(job, inputs):
            job.report("another job has left its result")
            return None
        if earlier_job:
            # too little of this job's time may be left
            raise LockError(f"Slurm job {earlier_job} was training this run, and has left no result")
        files, setup = RankFiles(job.folder / ATTEMPT), set_up(job, inputs)
        for name in (RECORD, EPOCHS, RANKS, UTILIZATION, MODEL):
            (job.folder / name).unlink(missing_ok=True)
        files.begin(setup)
        has_time = setup.limit_seconds > 0
        ended = supervise(launch_of(job), files, job.report) if has_time else Ended(1, "limit")
        if not (job.folder / RECORD).exists():
            failure, cause = failure_of(files, ended, limit_seconds), root_cause(files.ranks())
            if failure.outcome != "failed" or cause is None or not cause.out_of_memory:
                return leave_failure(job, files, ended, failure)
            write_out_of_memory(files, failure)
        if isinstance(job.definition.settings, Settings):  # the files of a user's program stay
            shutil.rmtree(setup.output, ignore_errors=True)
        (job.folder / FAILURE).unlink(missing_ok=True)
        shutil.rmtree(files.folder, ignore_errors=True)
    return None


# ---- before the ranks


def has_result(job: RunJob, inputs: Mapping[str, str]) -> bool:
    """Whether another job has finished the run while this one waited: Snakemake deletes earlier records."""
    try:
        record = read_record(job.folder / RECORD, RunRecord)
    except RecordError:
        return False
    origin = record.provenance
    return record.definition == job.definition and (origin is None or origin.inputs == dict(inputs))


def set_up(job: RunJob, inputs: dict[str, str]) -> RankSetup:
    """Prepare the folder of a run; return what its ranks read."""
    run, last = job.definition, None
    earlier = earlier_failure(job.folder, run, inputs)
    with suppress(OSError, ValueError):  # none, or a damaged one
        last = RankFiles(job.folder / ATTEMPT).setup
    resumes = last is not None and (last.definition, last.inputs) == (run, inputs) and last.resumes
    if earlier is None and not resumes:
        (job.folder / OUTPUT).unlink(missing_ok=True)
    saved = prepare_to_train(job.folder, run, resumes=resumes)
    saved_seconds = sum(epoch["train_seconds"] + epoch["evaluation_seconds"] for epoch in saved)
    return RankSetup(
        launcher=run.launcher,
        inputs=inputs,
        started_at=utc_now(),
        failed_seconds=0.0 if earlier is None else earlier.seconds,
        definition=run,
        dataset=job.dataset,
        folder=job.folder,
        timeout_seconds=job.planned["timeout_seconds"],
        limit_seconds=limit_of_try(job.planned, job.attempt, earlier, saved_seconds),
        supervisor_host=socket.gethostname(),
        supervisor_pid=None if job.site.slurm else os.getpid(),
        network_interface=job.site.facts.network_interface,
        from_step=len(saved) * (steps_per_epoch(run) or 0),
        # a user's session inside a job is none of the study's jobs
        **(this_job() if job.site.slurm else {}),
    )


def launch_of(job: RunJob) -> Launch:
    """Return the command that starts a rank on each device.

    A container shows the ranks the working folder, the scripts, the folders of their files and the one that
    holds the run's files, where they also write. Each may be behind a link.
    """
    program = program_of(job.definition, dataset=job.dataset)
    dataset = [] if job.dataset is None else [job.dataset.resolve().parent]
    return build_launch(
        job.definition,
        job.site,
        (str(SCRIPTS / "program_rank.py"), str(job.folder / ATTEMPT)),
        [SCRIPTS, job.folder.resolve(), *dataset, *program_folders(program)],
        once_a_node=program.starts == "itself",
    )


# ---- after ranks that left no result


def write_out_of_memory(files: RankFiles, failure: Failure) -> None:
    """Write the record of a run with too little device memory: another start would end the same way."""
    setup = files.setup
    # its time is paid; the ranks left nothing on their devices and libraries
    hosts = list(dict.fromkeys(rank.host for rank in files.ranks()))
    record = RunRecord(
        definition=setup.definition,
        outcome="out-of-memory",
        reason=failure.reason,
        measurements=None,
        provenance=setup.provenance(ended_at=failure.ended_at, hosts=hosts),
    )
    write_json(setup.folder / RECORD, record)


def leave_failure(job: RunJob, files: RankFiles, ended: Ended, failure: Failure) -> Failure:
    """Write why there is no result; put a job whose time is nearly over back into Slurm's queue."""
    # another signal means that a user, or Slurm for another job, wants the run to end
    number = files.setup.slurm_job_id
    is_over = failure.outcome == "interrupted" and ended.stop_source == signal.SIGUSR1.name
    goes_back = is_over and number is not None and comes_further(job, files, failure.seconds)
    if is_over and number is not None and not goes_back:
        reason = (
            f"Slurm's signal before the end of the job's time came after {duration_text(ended.seconds)}, "
            "before the program had saved anything new. Raise the job's time (slurm.longest_walltime), or "
            "let it save more often."
        )
        failure = failure.model_copy(update={"outcome": "failed", "reason": reason, "permanent": True})
    try:
        write_json(job.folder / FAILURE, failure)
    except OSError as error:  # it may also have kept the ranks from leaving theirs
        problem = explain_os_error(job.folder, error)
        failure = failure.model_copy(update={"reason": f"{problem} {failure.reason}"})
    if goes_back:
        requeue_job(job, str(number))
    return failure


def comes_further(job: RunJob, files: RankFiles, seconds: float) -> bool:
    """Whether the next start of a job that goes back into the queue has less to do than this one had.

    What a user's program saves is unknown: it has the limit of the run, over all of its starts.
    """
    if isinstance(job.definition.settings, ProgramSettings):
        return files.setup.resumes and seconds < job.planned["limit_seconds"] and files.steps() > 0
    steps = len(saved_epochs(job.folder, job.definition)) * (steps_per_epoch(job.definition) or 0)
    return steps > files.setup.from_step


def requeue_job(job: RunJob, number: str) -> None:
    """Put the job back into Slurm's queue, and wait for Slurm to end it here."""
    # a job that is cancelled gets its signals one after the other, and must not be requeued
    time.sleep(SIGNAL_SPREAD_SECONDS)
    job.report(f"Slurm job {number} goes back into the queue, to resume")
    if refusal := requeue(number):
        job.report(f"it does not go back: {refusal}. The next start of the run resumes")
    else:
        time.sleep(REQUEUE_SECONDS)
