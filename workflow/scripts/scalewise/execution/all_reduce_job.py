"""Run the job that measures all-reduce over one shape, and write the result or why there is none."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

from scalewise.execution.failure_reason import failure_reason
from scalewise.execution.machine_lock import MACHINE_WAIT_SECONDS, MachineBusyError, machine_lock
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import command_for, rank_setup_for
from scalewise.execution.run_log import say
from scalewise.execution.supervisor import ExitStatus, RankGroup, supervise
from scalewise.plan.jobs.all_reduce_jobs import RANKS_RESULT
from scalewise.plan.jobs.launch import RankLaunch, SiteLaunch
from scalewise.plan.plan_file import MEASUREMENT_RETRIES, AllReduceJob
from scalewise.records import AllReduceMeasurement, utc_now, write_json


def run_all_reduce_job(planned: AllReduceJob, site: SiteLaunch, log: Path, output: Path, attempt: int) -> int:
    """Measure all-reduce on the devices of a training; returns the exit code of the process.

    Args:
        planned: The job of one shape.
        site: The commands and the container by which programs start on the site.
        log: Receives what the ranks print.
        output: Receives ``AllReduceMeasurement``, at the last attempt also if nothing could be measured.
        attempt: Number of Snakemake's try, from 1.
    """
    job, limits = RankLaunch.model_validate(planned["ranks"]), planned["limits"]
    # one folder per job: another job, whose snakemake was killed, may still measure the same shape
    slurm_job_id = os.environ.get("SLURM_JOB_ID") if site.slurm else None
    rank_files = RankFiles(log.parent / f"{job.shape}.attempt-{slurm_job_id or os.getpid()}")
    try:
        rank_group = RankGroup(
            label=f"all-reduce over {job.shape}",
            rank_files=rank_files,
            launch=command_for(job, site, rank_files),
            world_size=job.shape.world_size,
            log=log,
            limit_seconds=limits["limit_seconds"],
            fix="Look for what is slow in the log: imports, the container, the network.",
        )
        # trainings and measurements of a machine take turns
        machine = nullcontext() if site.slurm else machine_lock(MACHINE_WAIT_SECONDS, say)
        with machine:
            began = time.monotonic()
            rank_files.begin(rank_setup_for(job, site, limits["timeout_seconds"], "all-reduce"))
            ended = supervise(rank_group)
    except (MachineBusyError, OSError) as error:
        say(f"scalewise: the all-reduce over {job.shape}: {error}")
        return 1
    result = rank_files.folder / RANKS_RESULT
    if ended.code == 0 and result.exists():
        record = AllReduceMeasurement.model_validate_json(result.read_text(encoding="utf-8"))
        say(describe(record))
    elif was_interrupted(rank_group, ended):
        say(
            f"scalewise: the measurement of {rank_group.label} was interrupted; the same command "
            "measures again"
        )
        rank_files.end()
        return 1
    else:
        # the record names the log, and does not contain the output
        why = failure_reason(rank_group, ended, rank_files.root_cause(rank_group.world_size)).removesuffix(
            " Its output is below."
        )
        record = failed_measurement(job, f"{why} The ranks' output is in {log}.")
        if attempt <= MEASUREMENT_RETRIES:
            say(f"scalewise: no {rank_group.label}: {record.error} Snakemake tries again.")
            rank_files.end()
            return 1
        say(
            f"scalewise: no {rank_group.label}, so no prediction from it: {record.error} The study "
            "continues, and a later one measures again."
        )
    seconds = round(time.monotonic() - began, 3)
    write_json(output, record.model_copy(update={"job_seconds": seconds}))
    rank_files.end()
    return 0


def was_interrupted(rank_group: RankGroup, ended: ExitStatus) -> bool:
    """Whether a signal ended the measurement; its ranks may have received it before this process."""
    if ended.outcome != "failed":
        return ended.outcome == "interrupted"
    rank_files, ranks = rank_group.rank_files, rank_group.world_size
    others = (
        rank_files.root_cause(ranks),
        rank_files.died_without_note(ranks),
        rank_files.never_started(ranks),
    )
    return not any(others) and bool(rank_files.unresponsive(ranks))


def failed_measurement(job: RankLaunch, error: str) -> AllReduceMeasurement:
    """Return a measurement without figures: a failed one must not prevent the report of the study."""
    return AllReduceMeasurement(
        shape=job.shape,
        backend="nccl" if job.accelerator == "cuda" else "gloo",
        launcher=job.launcher,
        hosts=[],
        devices=[],
        versions={},
        measured_at=utc_now(),
        reductions=[],
        error=error,
    )


def describe(record: AllReduceMeasurement) -> str:
    """Return a measurement as one line of the job's log."""
    first, last = record.reductions[0], record.reductions[-1]
    return (
        f"all-reduce over {record.shape} ({record.backend}): {first.bytes} bytes in "
        f"{min(first.seconds):.3g} s, {last.bytes} bytes in {min(last.seconds):.3g} s"
    )
