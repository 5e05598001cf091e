"""The hello job: its ranks are started where a training's would be, and say what they found."""

from __future__ import annotations

import os
from pathlib import Path

from scalewise.execution.preflight_report import DATASETS, GREETINGS, Greetings, judge, sizes
from scalewise.execution.rank_command import command_for, muster_for
from scalewise.execution.rank_files import Attempt
from scalewise.execution.supervisor import Order, reason, watch
from scalewise.plan.config.shape import Shape
from scalewise.plan.jobs.launch import start_of
from scalewise.plan.jobs.preflight import ENVIRONMENT_VARIABLE, Lines, Preflight, bad, ok
from scalewise.records import write_json, write_text


def run_hello_job(log: Path, limit_seconds: float, timeout_seconds: int, output: Path) -> None:
    """Start the ranks of the study's largest shape, and write what they found.

    Args:
        log: Receives what the ranks print.
        limit_seconds: The ranks are ended after this long.
        timeout_seconds: A rank waits this long for another.
        output: Receives ``Lines``, also where the ranks ended without a result.
    """
    preflight = Preflight.model_validate_json(os.environ[ENVIRONMENT_VARIABLE])
    shape, start = Shape.parse(preflight.shape), start_of(os.environ)
    attempt = Attempt(output.parent / "attempt")
    visible = [Path(path).resolve().parent for path in preflight.datasets]
    launch = command_for(preflight, start, attempt, visible)
    attempt.begin(muster_for(preflight, start, timeout_seconds, "hello"))
    write_text(attempt.folder / DATASETS, "\n".join(preflight.datasets))
    order = Order(
        label="hello",
        attempt=attempt,
        launch=launch,
        world_size=shape.world_size,
        log=log,
        limit_seconds=limit_seconds,
        cure="Look for what is slow in the log: imports, the container, the network.",
    )
    ended = watch(order)
    greetings = attempt.folder / GREETINGS
    if ended.code == 0 and greetings.exists():
        met = Greetings.model_validate_json(greetings.read_text(encoding="utf-8"))
        lines = list(judge(met, preflight, sizes(preflight.datasets)))
    else:
        why = reason(order, ended, attempt.cause(shape.world_size))
        cure = f"The ranks' own words are in {log}."
        lines = [bad(f"the hello job over {shape} ended without a result: {why}", cure)]
    if start.container is not None and ended.code == 0:
        lines.append(ok(f"container {start.container.image}"))
    attempt.end()
    write_json(output, Lines(lines=lines))
