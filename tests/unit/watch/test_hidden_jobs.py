"""A job that Slurm does not show to Snakemake is reported, as Snakemake would wait for it for ever."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins
from tests.unit.watch.planted_status import Follower, point

from scalewise.watch.hidden_jobs import LOOK_SECONDS, LOOKS, PluginQueue
from scalewise.watch.study import WatchedStudy
from scalewise.watch.watcher import Watcher

SHOWS = "echo '40|RUNNING'; echo '41|PENDING'"
QUERY = ["squeue", "--format=%i|%T", "--states=all", "--noheader", "--name", "run"]
Squeue = Callable[[str], None]


@pytest.fixture
def squeue(programs: Path) -> Squeue:
    """Gives squeue a script, which answers only the plugin's own query."""

    def answer(script: str) -> None:
        wanted = shlex.quote(" ".join(QUERY[1:]))
        stand_ins(programs, {"squeue": f'[ "$*" = {wanted} ] || exit 3\n{script}'})

    answer(SHOWS)
    return answer


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_a_run_that_has_its_result_while_its_job_is_hidden_is_reported_once(
    squeue: Squeue, tmp_path: Path
) -> None:
    logger, terminal = logging.Logger("snakemake", logging.INFO), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: terminal.append(record.getMessage())  # type: ignore[method-assign]
    run, clock = Follower(tmp_path / "results", snakemake=logger), Clock()
    study = WatchedStudy(points=(point(2),), min_efficiency={"digits": None}, device_budget=4)
    runs, plugin = [("digits", "d2.r1")], PluginQueue(lambda: QUERY, clock)
    watcher = Watcher(study, {}, tmp_path, runs, logger, None, now=lambda: run.clock, plugin=plugin)
    logger.addHandler(watcher._log)

    def looks(times: int = LOOKS + 1) -> list[str]:
        terminal.clear()
        for _ in range(times):
            watcher._look()
            clock.seconds += LOOK_SECONDS
        return [line for line in terminal if "Slurm does not show" in line]

    logger.addHandler(handler)
    run.hand_over(slurm="41")
    run.starts()
    squeue("exit 1")
    # a run at work is followed by its own reports
    assert looks() == []
    run.summary()
    run.ends(60.0)
    squeue(SHOWS)
    assert looks() == []
    # Slurm forgets it before snakemake has looked
    squeue("echo '40|RUNNING'")
    (line,) = looks(3 * LOOKS)
    assert line.startswith("digits/d2.r1 has ended, but Slurm does not show its job 41: `squeue ")
    run.report("job_finished", job_id=7)
    assert looks() == []
