"""Measure all-reduce over one shape where a training would run; leave what was found, or why nothing was."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path

from scalewise.execution.machine_lock import MachineBusyError, exclusive_machine
from scalewise.execution.rank_files import Attempt
from scalewise.execution.supervisor import End, Order, muster_for, reason, watch
from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.all_reduce_jobs import FOUND, AllReduceJob, job_for
from scalewise.plan.jobs.launch import Programs, build_launch, start_of
from scalewise.records import Collectives, utc_now, write_json

MACHINE_WAIT_SECONDS = 24 * 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``measure_collectives``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", required=True, help="nodes x devices per node")
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-seconds", required=True, type=float, help="end them then")
    parser.add_argument("--timeout-seconds", required=True, type=int, help="that a rank waits for another")
    parser.add_argument("output", type=Path, help="file for the measurement")
    options = parser.parse_args(arguments)

    job = job_for(os.environ, options.shape)
    shape, start, scripts = Shape.parse(job.shape), start_of(os.environ), Path(__file__).parent
    # a folder of this job's own: one whose snakemake was killed may still measure for the same file
    mine = os.environ.get("SLURM_JOB_ID") if start.slurm else None
    attempt = Attempt(options.log.parent / f"{job.shape}.attempt-{mine or os.getpid()}")
    try:
        launch = build_launch(
            job.launcher,
            shape,
            job.cpus_per_device,
            start,
            Programs.of(scripts, "collective_rank.py", attempt.folder),
            sys.executable,
            visible=[scripts, options.log.parent.resolve()],
        )
        order = Order(
            label=f"all-reduce over {job.shape}",
            attempt=attempt,
            launch=launch,
            world_size=shape.world_size,
            log=options.log,
            limit_seconds=options.limit_seconds,
            cure="Look for what is slow in the log: imports, the container, the network.",
        )
        # trainings of a machine take turns, and this is measured beside none of them either
        machine = nullcontext() if start.slurm else exclusive_machine(MACHINE_WAIT_SECONDS, say)
        with machine:
            attempt.begin(
                muster_for(
                    job.shape,
                    job.accelerator,
                    job.cpus_per_device,
                    job.launcher,
                    job.rendezvous,
                    start,
                    options.timeout_seconds,
                )
            )
            ended = watch(order)
    except MachineBusyError as error:
        say(f"scalewise: {error}")
        return 1
    found = attempt.folder / FOUND
    if ended.code == 0 and found.exists():
        record = Collectives.model_validate_json(found.read_text(encoding="utf-8"))
        say(describe(record))
    elif was_interrupted(order, ended):
        say(f"scalewise: the measurement of {order.label} was interrupted; the same command measures again")
        attempt.end()
        return 1
    else:
        # the record has no room for them, and the log is named
        why = reason(order, ended, attempt.cause(shape.world_size)).removesuffix(" Its words stand below.")
        cure = f"The ranks' own words are in {options.log}; to measure again, delete {options.output}."
        record = failed(job, f"{why} {cure}")
        say(f"scalewise: no {order.label}, and no prediction from it: {record.error} The study goes on.")
    write_json(options.output, record)
    attempt.end()
    return 0


def was_interrupted(order: Order, ended: End) -> bool:
    """Whether a signal ended the measurement: its ranks may have seen it before this process did."""
    if ended.why != "failed":
        return ended.why == "interrupted"
    attempt, ranks = order.attempt, order.world_size
    words = attempt.cause(ranks), attempt.silent(ranks), attempt.missing(ranks)
    return not any(words) and bool(attempt.unanswering(ranks))


def failed(job: AllReduceJob, error: str) -> Collectives:
    """A measurement that is none: a study that trains well must not go without its report for this."""
    return Collectives(
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


def describe(record: Collectives) -> str:
    """What was found, in a line for the job's log."""
    first, last = record.reductions[0], record.reductions[-1]
    return (
        f"all-reduce over {record.shape} ({record.backend}): {first.bytes} bytes in "
        f"{min(first.seconds):.3g} s, {last.bytes} bytes in {min(last.seconds):.3g} s"
    )


def say(text: str) -> None:
    """To the job's log."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
