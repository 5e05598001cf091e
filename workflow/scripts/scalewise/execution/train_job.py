"""Run one training job: wait for the lock, start the ranks, write the result or the reason for failing."""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scalewise.config.catalog.program_files import program_files
from scalewise.execution.finished_results import finished_result, publish_again
from scalewise.execution.history import (
    HistoryWriter,
    in_training,
    load_history,
    would_fail_again,
)
from scalewise.execution.machine_lock import MACHINE_WAIT_SECONDS, MachineBusyError, machine_lock
from scalewise.execution.messages import PROGRAM_FOLDER, TrainSpec
from scalewise.execution.next_try import LEAST_SECONDS, hashes_of, limit_of_this_try
from scalewise.execution.os_errors import explain_os_error
from scalewise.execution.rank_files import ATTEMPT, RankFiles
from scalewise.execution.rank_processes import command_for, rank_setup_for
from scalewise.execution.requeue import Requeue, requeue_after, requeue_job
from scalewise.execution.run import RunFailedError, end_training, resume_or_begin
from scalewise.execution.run_lock import LockLostError, LockOwner, LockTimeoutError, RunLock, lock_run
from scalewise.execution.run_log import append_log, say, shorten_log, write_log_if_missing
from scalewise.execution.slurm import OtherJobs, other_jobs, restart_count, seconds_left
from scalewise.execution.supervisor import GRACE_SECONDS, STUDY_IS_SHOWN, RankGroup
from scalewise.execution.watchdog import STOP_SECONDS, Kept
from scalewise.plan.launch import Launch, RankLaunch, SiteLaunch
from scalewise.plan.plan_file import Limits, TrainJob
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.training_program import program_of
from scalewise.records import History, RecordError, RunRecord, Start, utc_now, write_text

JOB_END_SECONDS = STOP_SECONDS + GRACE_SECONDS
"""Time of a job that has waited, kept for the last checkpoint and the end of the ranks."""


@dataclass(frozen=True)
class TrainOptions:
    """One run from the plan, and the paths of its files.

    Args:
        definition: The run.
        dataset: The prepared file; None if a user's program trains.
        weights: The file to begin from; None for random weights.
        log: Receives what the ranks print.
        attempt: Snakemake's count of its tries at this run, from 1.
        summary: ``summary.json``, in the folder of all records.
    """

    definition: RunDefinition
    dataset: Path | None
    weights: Path | None
    log: Path
    limits: Limits
    attempt: int
    summary: Path

    @classmethod
    def of(cls, job: TrainJob, log: Path, summary: Path, attempt: int) -> TrainOptions:
        """Return the options of a job of the plan."""
        dataset, weights = (job["inputs"].get(name) for name in ("dataset", "weights"))
        return cls(
            definition=RunDefinition.model_validate_json(job["definition"]),
            dataset=Path(dataset) if isinstance(dataset, str) else None,
            weights=Path(weights) if isinstance(weights, str) else None,
            log=log,
            limits=Limits(**job["limits"]),
            attempt=attempt,
            summary=summary,
        )


def run_train_job(options: TrainOptions, site: SiteLaunch) -> int:
    """Train one run, unless another job has; returns the exit code of the process."""
    # Slurm sends SIGUSR1 before the time limit. The ranks handle it; the default would end this process
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    label = options.definition.label
    try:
        return train_or_reuse(options, label, site)
    except RunFailedError as error:
        if not os.environ.get(STUDY_IS_SHOWN):  # the process that shows the study reads the history
            say(f"scalewise: {error}")
        write_log_if_missing(options.log, str(error))
        if (requeued := requeue_after(error, site.slurm)) is not Requeue.NO:
            requeue_job(options.log, label, saved=requeued is Requeue.FROM_CHECKPOINT)
        # a job that goes back into the queue does not come here: Snakemake does not show its log
        shorten_log(options.log)
    except LockLostError as error:
        say(f"scalewise: {error}")  # the other process writes the log
    except (ValueError, MachineBusyError, LockTimeoutError) as error:
        say(f"scalewise: {error}")
        write_log_if_missing(options.log, str(error))
    except RecordError as error:
        say(f"scalewise: {label}: {error}")
        append_log(options.log, str(error))
    except OSError as error:
        text = explain_os_error(label, options.summary.parent, error)
        say(f"scalewise: {text}")
        append_log(options.log, text)
    except KeyboardInterrupt:
        text = f"{label} interrupted while no rank of it was at work; the same command trains it"
        say(f"scalewise: {text}")
        write_log_if_missing(options.log, text)
    return 1


def train_or_reuse(options: TrainOptions, label: str, site: SiteLaunch) -> int:
    """Train the run, or reuse the result of another job.

    Raises:
        RunFailedError: There is no result.
        ValueError: The ranks cannot be started on this site.
        LockTimeoutError: Another process trains the run for too long.
        LockLostError: Another process trains the run by now.
        MachineBusyError: Another training uses this machine for too long.
        RecordError: The ranks' record cannot be read.
        OSError: The run's folder cannot be used.
    """
    definition, folder = options.definition, options.summary.parent
    began = time.monotonic()
    if site.slurm:
        # the ranks inherit it
        os.environ["SLURM_RESTART_COUNT"] = restart_count(os.environ)
    owner = LockOwner.this_process(in_job=site.slurm)
    rank_files = RankFiles(folder / ATTEMPT, owner.token)
    program = program_of(definition, dataset=options.dataset)
    launch = launch_of(definition, options.dataset, options.weights, site, rank_files)
    wait_seconds = options.limits.limit_seconds if site.slurm else MACHINE_WAIT_SECONDS
    # Slurm assigns devices to jobs; without it, all trainings of a machine take turns
    machine = (
        nullcontext() if site.slurm else machine_lock(MACHINE_WAIT_SECONDS, partial(report_wait, folder))
    )
    with lock_run(folder, wait_seconds, lambda text: say(f"{label}: {text}"), owner) as lock, machine:
        inputs = hashes_of(definition, options.dataset, options.weights)
        earlier = load_history(folder, definition, inputs, rank_files)
        commit = os.environ.get("SCALEWISE_COMMIT") or None
        if (record := finished_result(folder, definition, inputs, commit)) is not None:
            keep_result(options, label, record, earlier, lock)
            return 0
        job_ends_at = math.inf
        if site.slurm and lock.waited:
            # in a job that has not waited, the run's limit or Slurm's signal comes first
            job_ends_at = end_of_job(os.environ, options.limits.limit_seconds, began)
        if options.attempt > 1 and (failure := would_fail_again(earlier, options.limits.limit_seconds)):
            # snakemake has removed the log for this try
            lines = [*failure.log_tail, f"not tried again: {failure.reason}"]
            write_text(options.log, "\n".join(lines) + "\n")
            say(f"scalewise: {label} is not tried again: {failure.reason}")
            return 1
        limit_seconds = limit_of_this_try(options.limits, options.attempt, earlier)
        rank_group = RankGroup(
            label=label,
            rank_files=rank_files,
            launch=launch,
            world_size=definition.shape.world_size,
            log=options.log,
            limit_seconds=limit_seconds,
            job_ends_at=job_ends_at,
            lock=lock,
            kept=Kept.BY_PROGRAM if program.resumes else Kept.NOTHING,
        )
        is_users = definition.settings is program
        if is_users:
            rank_group = replace(rank_group, fix="Raise runtime_minutes, or measure fewer steps.")
        # the checkpoints of a training that has ended, or of another definition, are not resumed from; the
        # files of a user's program are its own
        keep = program.resumes and (is_users or bool(in_training(earlier)))
        prepare_program_folder(folder / PROGRAM_FOLDER, keep=keep)
        others = other_jobs(os.environ) if site.slurm else OtherJobs()
        spec = TrainSpec(
            definition=definition,
            dataset=options.dataset,
            folder=folder,
            started_at=utc_now(),
            weights=options.weights,
            other_jobs=others.all,
            study_jobs=others.of_study,
            input_hashes=inputs,
        )
        rank_setup = rank_setup_for(RankLaunch.for_run(definition), site, options.limits.timeout_seconds)
        start_now = Start(
            started_at=spec.started_at,
            host=owner.host,
            limit_seconds=limit_seconds,
            attempt=options.attempt,
            slurm_job_id=owner.job,
            restart_count=owner.restart,
        )
        history = HistoryWriter(folder, earlier, start_now)
        resume_or_begin(rank_group, rank_setup, spec, history, options.limits.keep_checkpoints)
    return 0


def report_wait(folder: Path, message: str) -> None:
    """State that the run waits for another training on this machine."""
    say(message)
    RankFiles(folder / ATTEMPT).waits("another training on this machine")


def keep_result(
    options: TrainOptions, label: str, record: RunRecord, earlier: History, lock: RunLock
) -> None:
    """Publish the result of an earlier job to Snakemake.

    Raises:
        OSError: The run's folder cannot be used.
        RecordError: The result cannot be read.
    """
    folder = options.summary.parent
    if lock.waited and options.summary.exists():
        say(f"{label}: the other training has left its result")
        return
    rank_files = RankFiles(folder / ATTEMPT)
    if record.provenance is not None and earlier.starts and earlier.starts[-1].outcome == "killed":
        # only the supervisor was killed: the ranks had written the record
        end = {"outcome": record.outcome, "reason": record.reason, "ended_at": record.provenance.ended_at}
        HistoryWriter(folder, earlier, earlier.starts[-1]).end(rank_files, no_progress=False, **end)
    rank_files.clear()
    publish_again(folder, options.log)
    text = "the result was there before snakemake saw this run end; it is kept"
    say(f"{label}: {text}")
    append_log(options.log, text)
    end_training(folder / PROGRAM_FOLDER, options.definition, options.limits.keep_checkpoints)


def launch_of(
    definition: RunDefinition,
    dataset: Path | None,
    weights: Path | None,
    site: SiteLaunch,
    rank_files: RankFiles,
) -> Launch:
    """Return the command that starts the ranks of a run; a container shows them the folders that they read.

    Raises:
        ValueError: The ranks cannot be started on this site.
    """
    program = program_of(definition, dataset=dataset)
    files = [path for path in (dataset, weights) if path is not None]
    if definition.settings is program:  # train.py lies next to the program of a rank
        files += [*program_files(program), *map(Path, program.files), *map(Path, program.inputs)]
    visible = [path.resolve().parent for path in files]
    if program.working_directory is not None:
        visible.append(Path(program.working_directory).absolute())
    return command_for(RankLaunch.for_run(definition), site, rank_files, visible, program)


def prepare_program_folder(folder: Path, keep: bool) -> None:
    """Create the folder that a program writes to; empty it unless the program resumes from its files.

    Raises:
        OSError: It cannot be created or emptied.
    """
    if not keep and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def end_of_job(environ: Mapping[str, str], limit_seconds: float, began: float) -> float:
    """Return the monotonic time at which ranks must have stopped, in a job that has waited to train.

    The wait does not change the run's limit, which counts the training of all jobs.

    Args:
        environ: The environment of the job, which names it.
        limit_seconds: The run's limit; also the length of the job if Slurm does not answer.
        began: The start of the job, by the monotonic clock.

    Raises:
        LockTimeoutError: Too little is left of the job; a new job has all of its time.
    """
    now = time.monotonic()
    job_seconds = seconds_left(environ)
    left = job_seconds - JOB_END_SECONDS if job_seconds is not None else began + limit_seconds - now
    if left < LEAST_SECONDS:
        raise LockTimeoutError(
            f"another training of this run ended without a result after {now - began:.0f} s of waiting, and "
            f"{max(left, 0):.0f} s of this job are left to train in, less than {LEAST_SECONDS:.0f} s. Run "
            "snakemake again: a new job has all of its time."
        )
    return now + left
