"""Start the ranks of one run, watch them, and leave its records."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from scalewise.plan.config import Settings
from scalewise.plan.launch import torchrun
from scalewise.plan.topology import Shape
from scalewise.records import Definition, utc_now
from scalewise.training.attempt import Assignment, Attempt
from scalewise.training.exclusive import MachineBusyError, exclusive_machine
from scalewise.training.supervisor import Order, RunFailedError, supervise

MACHINE_WAIT_SECONDS = 24 * 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``train``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True, help="definition of the run, as JSON")
    parser.add_argument("--dataset", required=True, type=Path, help="the prepared file")
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-minutes", required=True, type=float, help="end the run then")
    parser.add_argument("summary", type=Path, help="summary.json to write, the others beside it")
    options = parser.parse_args(arguments)

    folder = options.summary.parent
    definition = resolved(Definition.model_validate_json(options.run))
    shape = Shape.parse(definition.shape)
    attempt = Attempt(folder / "attempt")
    rank_program = [str(Path(__file__).with_name("train_rank.py")), str(attempt.folder)]
    try:
        launch = torchrun(sys.executable, rank_program, shape, definition.settings["cpus_per_device"])
    except ValueError as error:
        print(f"scalewise: {definition.experiment}/{definition.run}: {error}", file=sys.stderr)
        return 1
    try:
        with exclusive_machine(MACHINE_WAIT_SECONDS, lambda text: print(text, file=sys.stderr)):
            # made here: what the run took begins when it holds the machine
            order = Order(
                assignment=Assignment(
                    definition=definition,
                    dataset=options.dataset,
                    folder=folder,
                    launcher=launch.name,
                    started_at=utc_now(),
                    supervisor_host=socket.gethostname(),
                    supervisor_pid=os.getpid(),
                ),
                attempt=attempt,
                launch=launch,
                world_size=shape.world_size,
                log=options.log,
                limit_seconds=options.limit_minutes * 60,
            )
            supervise(order)
    except (RunFailedError, MachineBusyError) as error:
        print(f"scalewise: {error}", file=sys.stderr)
        return 1
    return 0


def resolved(definition: Definition) -> Definition:
    """The definition with every setting written out: a run keeps what it really did."""
    settings = Settings.model_validate(definition.settings)
    return definition.model_copy(update={"settings": settings.model_dump()})


if __name__ == "__main__":
    sys.exit(main())
