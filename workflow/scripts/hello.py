"""Start the hello job's ranks where a training would start, and leave what they found."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from scalewise.execution.preflight_report import DATASETS, GREETINGS, Greetings, judge, sizes
from scalewise.execution.rank_files import Attempt
from scalewise.execution.supervisor import Order, muster_for, reason, watch
from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.launch import Programs, build_launch, start_of
from scalewise.plan.jobs.preflight import ENVIRONMENT_VARIABLE, Lines, Preflight, bad, ok
from scalewise.records import write_json, write_text


def main(arguments: list[str] | None = None) -> int:
    """Entry of the rule ``hello``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", required=True, type=Path, help="receives what the ranks print")
    parser.add_argument("--limit-seconds", required=True, type=float, help="end them then")
    parser.add_argument("--timeout-seconds", required=True, type=int, help="that a rank waits for another")
    parser.add_argument("output", type=Path, help="file for what was found")
    options = parser.parse_args(arguments)

    preflight = Preflight.model_validate_json(os.environ[ENVIRONMENT_VARIABLE])
    shape, start, scripts = Shape.parse(preflight.shape), start_of(os.environ), Path(__file__).parent
    attempt = Attempt(options.output.parent / "attempt")
    launch = build_launch(
        preflight.launcher,
        shape,
        preflight.cpus_per_device,
        start,
        Programs.of(scripts, "hello_rank.py", attempt.folder),
        sys.executable,
        visible=[scripts, *(Path(path).resolve().parent for path in preflight.datasets)],
    )
    attempt.begin(
        muster_for(
            preflight.shape,
            preflight.accelerator,
            preflight.cpus_per_device,
            preflight.launcher,
            preflight.rendezvous,
            start,
            options.timeout_seconds,
        )
    )
    write_text(attempt.folder / DATASETS, "\n".join(preflight.datasets))
    order = Order(
        label="hello",
        attempt=attempt,
        launch=launch,
        world_size=shape.world_size,
        log=options.log,
        limit_seconds=options.limit_seconds,
        cure="Look for what is slow in the log: imports, the container, the network.",
    )
    ended = watch(order)
    greetings = attempt.folder / GREETINGS
    if ended.code == 0 and greetings.exists():
        met = Greetings.model_validate_json(greetings.read_text(encoding="utf-8"))
        lines = list(judge(met, preflight, sizes(preflight.datasets)))
    else:
        cause = attempt.cause(shape.world_size)
        why = reason(order, ended, cause)
        cure = f"The ranks' own words are in {options.log}."
        lines = [bad(f"the hello job over {shape} ended without a result: {why}", cure)]
    if start.container is not None and ended.code == 0:
        lines.append(ok(f"container {start.container.image}"))
    attempt.end()
    write_json(options.output, Lines(lines=lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
