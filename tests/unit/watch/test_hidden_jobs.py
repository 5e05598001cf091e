"""A job that Slurm does not show to Snakemake is reported, as Snakemake would wait for it for ever."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins
from tests.unit.watch.planted_status import Follower, point

from scalewise.watch.hidden_jobs import LOOK_SECONDS, LOOKS, PluginQueue, PreflightCheck
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


class Preflight:
    """A preflight whose log is followed."""

    def __init__(self) -> None:
        self.clock, self.said, self.given_up = Clock(), list[str](), 0
        self.check = PreflightCheck(PluginQueue(lambda: QUERY, self.clock), "hello", self.said.append)
        self.logger = logging.Logger("snakemake", logging.INFO)
        self.logger.addHandler(self.check)

    def send(self, slurm_id: str, rule: str = "hello", job: int = 1) -> None:
        self.logger.info("", extra={"event": "job_info", "jobid": job, "rule_name": rule, "wildcards": {}})
        self.logger.info(f"Job {job} has been submitted with SLURM jobid {slurm_id} (log: x.log).")

    def looks(self, times: int = LOOKS + 1) -> list[bool]:
        found = []
        for _ in range(times):
            found.append(self.check.look())
            self.clock.seconds += LOOK_SECONDS
        return found


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        pytest.param("echo '40|RUNNING'", "prints no line of it", id="other jobs"),
        pytest.param("", "prints no line of it", id="nothing"),
        pytest.param("echo unknown option --name >&2; exit 1", "exit status 1: unknown option", id="refused"),
    ],
)
def test_a_preflight_whose_job_is_hidden_is_not_ok_after_a_minute(
    squeue: Squeue, script: str, cause: str
) -> None:
    squeue(script)
    preflight = Preflight()
    preflight.send("41")
    assert preflight.looks() == [False, False, True, False]
    (line,) = preflight.said
    assert line.startswith("NOT OK ")
    assert "job 41" in line
    assert "squeue '--format=%i|%T' --states=all" in line
    assert cause in line
    assert "slurm-status-command" in line


def test_a_job_that_is_shown_once_and_a_squeue_that_fails_for_a_moment_are_ok(squeue: Squeue) -> None:
    preflight = Preflight()
    assert preflight.looks(2) == [False, False]
    # not the preflight's
    preflight.send("39", "measure", job=2)
    preflight.send("41")
    squeue("exit 1")
    assert preflight.looks(LOOKS - 1) == [False] * (LOOKS - 1)
    squeue(SHOWS)
    preflight.looks(1)
    squeue("exit 1")
    assert preflight.looks(2 * LOOKS) == [False] * (2 * LOOKS)
    assert preflight.said == []


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
    squeue(SHOWS)
    assert looks() == []
    # Slurm forgets it before snakemake has looked
    squeue("echo '40|RUNNING'")
    (line,) = looks(3 * LOOKS)
    assert line.startswith("digits/d2.r1 has ended, but Slurm does not show its job 41: `squeue ")
    run.report("job_finished", job_id=7)
    assert looks() == []
