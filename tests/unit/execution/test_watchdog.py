"""When ranks at work are ended, and whether their program may save before, by a clock of the test's."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import rank_setup

from scalewise.execution.rank_files import BARRIER, GROUP, PROBE, Progress, RankFiles, RankWait
from scalewise.execution.watchdog import (
    GROUP_SECONDS,
    IMPORT_SECONDS,
    NO_STEP_SECONDS,
    STOP_SECONDS,
    Cause,
    RankGroup,
    Watchdog,
)
from scalewise.plan.launch import Launch
from scalewise.records import RECORD

TIMEOUT_SECONDS = 20
PATIENCE = 2 * TIMEOUT_SECONDS + IMPORT_SECONDS


class Watched:
    """Ranks to which the test does what happens to them."""

    def __init__(self, folder: Path, limit_seconds: float = 100_000, resumes: bool = True) -> None:
        self.files = RankFiles(folder / "attempt")
        self.files.begin(rank_setup(timeout_seconds=TIMEOUT_SECONDS))
        self.received: list[int] = []
        self.lines: list[str] = []
        self.now = 0.0
        launch = Launch("srun", ("srun",), {})
        group = RankGroup(self.files, launch, 2, folder / "log", limit_seconds, resumes=resumes)
        self.watchdog = Watchdog(group, self.received, self.lines.append, clock=lambda: self.now)

    def train(self, step: int = 1) -> None:
        self.files.started(0, "node-a")
        self.files.progress(Progress(epoch=0, epochs=2, step=step))

    def wait_in(self, *places: str) -> None:
        """Note where each rank is, as the probe does."""
        (self.files.folder / PROBE).mkdir(exist_ok=True)
        for rank, where in enumerate(places):
            wait = RankWait(rank=rank, host="node-a", address="node-a:1", where=where)
            (self.files.folder / PROBE / f"{rank}.1.wait").write_text(wait.model_dump_json())

    def cause(self, now: float) -> Cause | None:
        self.now = now
        return self.watchdog.cause()

    def ended(self, until: float) -> tuple[Cause | None, float]:
        """Why and when the ranks are to be ended, looked at second by second."""
        while self.now < until:
            if cause := self.cause(self.now + 1):
                return cause, self.now
        return None, until


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_ranks_that_make_steps_are_not_ended(watched: Watched) -> None:
    for step in range(8):
        watched.train(step)
        assert watched.ended((step + 1) * 0.9 * NO_STEP_SECONDS)[0] is None
    assert watched.files.stop_request() is None


@pytest.mark.parametrize("source", ["SIGINT", "SIGUSR1", "the time limit"])
def test_a_program_that_resumes_is_asked_to_save_and_has_a_minute(tmp_path: Path, source: str) -> None:
    cause: Cause = "signal" if source.startswith("SIG") else "limit"
    watched = Watched(tmp_path, limit_seconds=9 if cause == "limit" else 1000)
    watched.train()
    watched.ended(9)
    if cause == "signal":
        watched.received.append(signal.Signals[source])
    assert watched.ended(200) == (cause, 10 + STOP_SECONDS)
    assert watched.files.stop_request() == source
    assert watched.watchdog.requested == cause
    assert "has 60 s to save" in watched.lines[0]


@pytest.mark.parametrize("reason", ["it does not resume", "it has made no step", "it has a result"])
def test_ranks_with_nothing_to_save_are_ended_at_once(tmp_path: Path, reason: str) -> None:
    watched = Watched(tmp_path, resumes=reason != "it does not resume")
    if reason != "it has made no step":
        watched.train()
    if reason == "it has a result":
        (tmp_path / RECORD).write_text("{}")
    watched.received.append(signal.SIGTERM)
    assert watched.cause(3) == "signal"
    assert watched.files.stop_request() is None


def test_a_second_signal_ends_the_wait_unless_it_came_with_the_first(watched: Watched) -> None:
    watched.train()
    watched.received.append(signal.SIGINT)
    assert watched.ended(10)[0] is None
    watched.received.append(signal.SIGTERM)
    assert watched.ended(20) == ("signal", 11)
    together = Watched(watched.files.folder)
    together.train()
    together.received.append(signal.SIGINT)
    assert together.cause(1) is None
    together.received.append(signal.SIGTERM)
    assert together.ended(200) == ("signal", 1 + STOP_SECONDS)


def test_processes_next_to_one_that_failed_have_three_seconds(watched: Watched) -> None:
    watched.now = 1.0
    assert watched.watchdog.cause(has_failed=True) is None
    assert watched.ended(30) == ("error", 4)


@pytest.mark.fault(2)
@pytest.mark.parametrize("stopping", [False, True])
def test_peers_of_a_rank_that_failed_have_three_seconds(watched: Watched, stopping: bool) -> None:
    watched.train()
    watched.received += [signal.SIGTERM] if stopping else []
    assert watched.ended(10)[0] is None
    watched.files.failed(0, "node-a", "timed out")
    assert watched.ended(30) == ("signal" if stopping else "error", 14)


@pytest.mark.fault(9)
def test_a_launcher_that_starts_no_rank_is_ended(watched: Watched) -> None:
    assert watched.ended(10_000) == ("not in group", PATIENCE)
    assert watched.watchdog.seconds == PATIENCE


@pytest.mark.fault(9)
def test_ranks_that_wait_in_the_group_for_one_that_does_not_come_are_ended(watched: Watched) -> None:
    watched.files.started(1, "node-a")
    assert watched.ended(PATIENCE + 500)[0] is None
    watched.wait_in(GROUP)
    cause, at = watched.ended(10_000)
    assert (cause, watched.watchdog.seconds) == ("not in group", GROUP_SECONDS)
    assert GROUP_SECONDS <= at - PATIENCE - 500 <= GROUP_SECONDS + 20


def test_ranks_that_came_into_the_group_may_take_their_time_to_the_first_step(watched: Watched) -> None:
    watched.files.started(1, "node-a")
    watched.wait_in(GROUP, BARRIER)
    assert watched.ended(100)[0] is None
    watched.wait_in("", BARRIER)
    assert watched.ended(10_000)[0] is None


@pytest.mark.fault(2)
def test_ranks_without_a_step_for_long_are_ended(watched: Watched) -> None:
    watched.train()
    assert watched.ended(100)[0] is None
    watched.train()  # reported again, without a new step
    cause, at = watched.ended(10_000)
    assert (cause, watched.watchdog.seconds) == ("no step", NO_STEP_SECONDS)
    assert at - NO_STEP_SECONDS <= 5
    assert watched.watchdog.silent_seconds == NO_STEP_SECONDS


def test_a_job_that_was_suspended_or_whose_file_system_stalled_keeps_its_limits(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.train()
    assert watched.ended(20)[0] is None
    assert watched.cause(20 + 10 * NO_STEP_SECONDS) is None, "suspended"
    listed = os.scandir

    def stalled(path: Path) -> Any:
        watched.now += 10 * NO_STEP_SECONDS
        return listed(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", stalled)
        assert watched.cause(watched.now + 2) is None
    assert watched.ended(watched.now + NO_STEP_SECONDS - 60)[0] is None
    assert watched.ended(watched.now + 100)[0] == "no step"


def test_a_folder_that_a_user_deletes_does_not_keep_ranks_from_being_ended(watched: Watched) -> None:
    watched.train()
    assert watched.ended(20)[0] is None
    shutil.rmtree(watched.files.folder)
    assert watched.ended(900)[0] is None
    watched.received.append(signal.SIGTERM)
    assert watched.ended(1000) == ("signal", 901 + STOP_SECONDS)
