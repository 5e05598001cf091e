"""Run the job that measures all-reduce over one shape, and write the result or why there is none."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from pathlib import Path

from scalewise.execution.machine_lock import MACHINE_WAIT_SECONDS, MachineBusyError, machine_lock
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.rank_processes import command_for, rank_setup_for
from scalewise.execution.run_log import say
from scalewise.execution.supervisor import ExitStatus, RankGroup, failure_reason, supervise
from scalewise.plan.jobs.all_reduce_jobs import RANKS_RESULT
from scalewise.plan.jobs.launch import RankLaunch, SiteLaunch
from scalewise.plan.plan_file import AllReduceJob
from scalewise.records import AllReduceMeasurement, utc_now, write_json


def run_all_reduce_job(planned: AllReduceJob, start: SiteLaunch, log: Path, output: Path) -> int:
    """Measure where a training would run; returns the exit code of the process.

    Args:
        planned: The job of one shape.
        start: The site's way to start programs.
        log: Receives what the ranks print.
        output: Receives ``AllReduceMeasurement``, also if nothing could be measured.
    """
    job, limits = RankLaunch.model_validate(planned["ranks"]), planned["limits"]
    # a folder of this job's own: one whose snakemake was killed may still measure for the same file
    mine = os.environ.get("SLURM_JOB_ID") if start.slurm else None
    rank_files = RankFiles(log.parent / f"{job.shape}.attempt-{mine or os.getpid()}")
    try:
        rank_group = RankGroup(
            label=f"all-reduce over {job.shape}",
            rank_files=rank_files,
            launch=command_for(job, start, rank_files),
            world_size=job.shape.world_size,
            log=log,
            limit_seconds=limits["limit_seconds"],
            fix="Look for what is slow in the log: imports, the container, the network.",
        )
        # trainings of a machine take turns, with this measurement, too
        machine = nullcontext() if start.slurm else machine_lock(MACHINE_WAIT_SECONDS, say)
        with machine:
            began = time.monotonic()
            rank_files.begin(rank_setup_for(job, start, limits["timeout_seconds"], "all-reduce"))
            ended = supervise(rank_group)
    except (MachineBusyError, OSError) as error:
        say(f"scalewise: the all-reduce over {job.shape}: {error}")
        return 1
    found = rank_files.folder / RANKS_RESULT
    if ended.code == 0 and found.exists():
        record = AllReduceMeasurement.model_validate_json(found.read_text(encoding="utf-8"))
        say(describe(record))
    elif was_interrupted(rank_group, ended):
        say(
            f"scalewise: the measurement of {rank_group.label} was interrupted; the same command "
            "measures again"
        )
        rank_files.end()
        return 1
    else:
        # the record has no room for them, and the log is named
        why = failure_reason(rank_group, ended, rank_files.root_cause(rank_group.world_size)).removesuffix(
            " Its output is below."
        )
        fix = f"The ranks' output is in {log}. To measure again, delete {output}."
        record = failed(job, f"{why} {fix}")
        say(
            f"scalewise: no {rank_group.label}, so no prediction from it: {record.error} The study continues."
        )
    seconds = round(time.monotonic() - began, 3)
    write_json(output, record.model_copy(update={"job_seconds": seconds}))
    rank_files.end()
    return 0


def was_interrupted(rank_group: RankGroup, ended: ExitStatus) -> bool:
    """Whether a signal ended the measurement; its ranks may have got it before this process did."""
    if ended.outcome != "failed":
        return ended.outcome == "interrupted"
    rank_files, ranks = rank_group.rank_files, rank_group.world_size
    words = rank_files.root_cause(ranks), rank_files.died_without_note(ranks), rank_files.never_started(ranks)
    return not any(words) and bool(rank_files.unresponsive(ranks))


def failed(job: RankLaunch, error: str) -> AllReduceMeasurement:
    """Return a measurement without figures: a study that trains well must not lose its report for this."""
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
