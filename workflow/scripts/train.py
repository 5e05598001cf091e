"""Start the ranks of one run, watch them, and leave its records."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from scalewise.plan.launch import Programs, build_launch, start_of
from scalewise.plan.model_catalog import own_model_file
from scalewise.plan.settings import Settings
from scalewise.plan.topology import Shape
from scalewise.records import Definition, utc_now, write_text
from scalewise.training.supervision.attempt import Assignment, Attempt
from scalewise.training.supervision.exclusive import MachineBusyError, exclusive_machine
from scalewise.training.supervision.execution import RunFailedError, execute, has_result, would_end_alike
from scalewise.training.supervision.ownership import Holder, RunBusyError, owned_run
from scalewise.training.supervision.slurm_job import other_jobs, restart_count
from scalewise.training.supervision.supervisor import Order, muster_for

MACHINE_WAIT_SECONDS = 24 * 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="definition of the run, as JSON")
    parser.add_argument("--dataset", required=True, type=Path, help="the prepared file")
    parser.add_argument("--weights", nargs="?", type=Path, help="to begin from; empty for random ones")
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-seconds", required=True, type=float, help="end the run then")
    parser.add_argument("--timeout-seconds", required=True, type=int, help="that a rank waits for another")
    parser.add_argument("--attempt", default=1, type=int, help="which try of snakemake's at this run")
    parser.add_argument("summary", type=Path, help="summary.json to write, the others beside it")
    options = parser.parse_args(arguments)

    folder = options.summary.parent
    definition = resolved(Definition.model_validate_json(options.run))
    label = f"{definition.experiment}/{definition.run}"
    shape = Shape.parse(definition.shape)
    start = start_of(os.environ)
    began = time.monotonic()
    if start.slurm:
        # for the ranks too, which inherit it
        os.environ["SLURM_RESTART_COUNT"] = restart_count(os.environ)
    attempt = Attempt(folder / "attempt")
    scripts = Path(__file__).parent
    own_model = own_model_file(definition.settings["model"])
    read = [path for path in (options.dataset, options.weights, own_model) if path is not None]
    try:
        launch = build_launch(
            definition.launcher,
            shape,
            definition.settings["cpus_per_device"],
            start,
            Programs.of(scripts, "train_rank.py", attempt.folder),
            sys.executable,
            visible=[scripts, *(path.resolve().parent for path in read)],
        )
        wait_seconds = options.limit_seconds if start.slurm else MACHINE_WAIT_SECONDS
        # a cluster has its own way to give a node to one job; here all trainings of a machine take turns
        machine = nullcontext() if start.slurm else exclusive_machine(MACHINE_WAIT_SECONDS, say)
        me = Holder.me(in_job=start.slurm)
        with owned_run(folder, wait_seconds, lambda text: say(f"{label}: {text}"), me) as waited, machine:
            if waited and has_result(folder, definition):
                say(f"{label}: the other training has left its result")
                return 0
            limit = time_left(options.limit_seconds, time.monotonic() - began if start.slurm else 0.0)
            if options.attempt > 1 and (failure := would_end_alike(folder, definition, limit)):
                # snakemake has removed the log for this try
                lines = [*failure.log_tail, f"not tried again: {failure.reason}"]
                write_text(options.log, "\n".join(lines) + "\n")
                say(f"scalewise: {label} is not tried again: {failure.reason}")
                return 1
            # made here: what the run took begins when it holds the machine
            order = Order(label, attempt, launch, shape.world_size, options.log, limit)
            assignment = Assignment(
                definition=definition,
                dataset=options.dataset,
                folder=folder,
                started_at=utc_now(),
                weights=options.weights,
                other_jobs=other_jobs(os.environ) if start.slurm else None,
            )
            meeting = muster_for(
                definition.shape,
                definition.accelerator,
                definition.settings["cpus_per_device"],
                definition.launcher,
                definition.settings["rendezvous"],
                start,
                options.timeout_seconds,
            )
            execute(order, meeting, assignment)
    except (ValueError, RunFailedError, MachineBusyError, RunBusyError) as error:
        say(f"scalewise: {error}")
        if not options.log.exists():
            write_text(options.log, f"{error}\n")
        return 1
    return 0


def time_left(limit_seconds: float, waited_seconds: float) -> float:
    """What remains of a job's time after waiting for another that trained the run.

    Raises:
        RunBusyError: too little; another try has all of it.
    """
    left = limit_seconds - waited_seconds
    if left < limit_seconds / 2:
        raise RunBusyError(
            f"another training of this run ended without a result after {waited_seconds:.0f} s of waiting, "
            f"and too little is left of {limit_seconds:.0f} s. Run snakemake again."
        )
    return left


def say(text: str) -> None:
    """To the job's log."""
    print(text, file=sys.stderr, flush=True)


def resolved(definition: Definition) -> Definition:
    """The definition with every setting written out: a run keeps what it really did."""
    settings = Settings.model_validate(definition.settings)
    return definition.model_copy(update={"settings": settings.model_dump()})


if __name__ == "__main__":
    sys.exit(main())
