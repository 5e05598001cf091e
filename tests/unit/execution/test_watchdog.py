"""When ranks at work are ended, and whether their program may save before, by a clock of the test's."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from tests.small_runs import definition, rank_setup

from scalewise.config.program import ProgramSettings
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.watchdog import (
    GROUP_SECONDS,
    NO_STEP_SECONDS,
    PROBE_SECONDS,
    STOP_SECONDS,
    Cause,
    Watchdog,
)
from scalewise.records import RECORD


class Watched:
    """Ranks to which the test does what happens to them."""

    def __init__(self, folder: Path, limit_seconds: float = 100_000, resumes: bool = True) -> None:
        self.files = RankFiles(folder / "attempt")
        program = ProgramSettings(program=__file__, resumes=resumes)
        run = definition(2).model_copy(update={"settings": program})
        self.files.begin(rank_setup(folder, run, limit_seconds=limit_seconds))
        self.received: list[int] = []
        self.lines: list[str] = []
        self.now = 0.0
        self.watchdog = Watchdog(self.files, self.received, self.lines.append, lambda: self.now)

    def train(self, step: int = 1) -> None:
        self.files.probe.mkdir(exist_ok=True)
        (self.files.probe / "0.1.steps").write_text(str(step))

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
    assert watched.files.stop_request() == ""


@pytest.mark.parametrize("source", ["SIGINT", "SIGUSR1", "the time limit"])
def test_a_program_that_resumes_is_requested_to_save_and_has_a_minute(tmp_path: Path, source: str) -> None:
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


def test_a_signal_right_after_the_first_step_leaves_time_to_save_it(watched: Watched) -> None:
    assert watched.cause(1.0) is None
    watched.train()
    watched.received.append(signal.SIGINT)
    assert watched.cause(1.1) is None
    assert watched.files.stop_request() == "SIGINT"


@pytest.mark.parametrize("reason", ["it does not resume", "it has made no step", "it has a result"])
def test_ranks_with_nothing_to_save_are_ended_at_once(tmp_path: Path, reason: str) -> None:
    watched = Watched(tmp_path, resumes=reason != "it does not resume")
    if reason != "it has made no step":
        watched.train()
    if reason == "it has a result":
        (tmp_path / RECORD).write_text("{}")
    watched.received.append(signal.SIGTERM)
    assert watched.cause(3) == "signal"
    assert watched.files.stop_request() == ""


@pytest.mark.fault(2)
@pytest.mark.parametrize("stopping", [False, True])
def test_peers_of_a_rank_that_failed_have_three_seconds(watched: Watched, stopping: bool) -> None:
    watched.train()
    watched.received += [signal.SIGTERM] if stopping else []
    assert watched.ended(10)[0] is None
    watched.files.mark(0, "failed", host="node-a", error="timed out")
    assert watched.ended(30) == ("signal" if stopping else "error", 14)


@pytest.mark.fault(2, 9)
@pytest.mark.parametrize("trained", [False, True])
def test_ranks_without_a_step_for_long_are_ended(watched: Watched, trained: bool) -> None:
    assert watched.ended(100)[0] is None
    if trained:
        watched.train()
        assert watched.ended(200)[0] is None
        watched.train()  # reported again, without a new step
    cause, at = watched.ended(10_000)
    seen_after = at - NO_STEP_SECONDS - (100 if trained else 0)
    assert cause == "no step"
    assert 0 <= seen_after <= PROBE_SECONDS
    assert watched.watchdog.silent_seconds == NO_STEP_SECONDS


@pytest.mark.fault(2)
@pytest.mark.parametrize("comes", [False, True])
def test_ranks_that_wait_for_one_that_does_not_come_are_ended(watched: Watched, comes: bool) -> None:
    watched.files.probe.mkdir()
    note = {"rank": 0, "where": "init_process_group", "address": "node1:29500"}
    (watched.files.probe / "0.1.wait").write_text(json.dumps(note))
    assert watched.ended(GROUP_SECONDS)[0] is None
    if comes:
        watched.train()
    cause, at = watched.ended(10_000)
    assert cause == ("no step" if comes else "not in group")
    assert at <= GROUP_SECONDS + 2 * PROBE_SECONDS + (NO_STEP_SECONDS if comes else 0)


def test_a_folder_that_a_user_deletes_does_not_keep_ranks_from_being_ended(watched: Watched) -> None:
    watched.train()
    assert watched.ended(20)[0] is None
    shutil.rmtree(watched.files.folder)
    assert watched.ended(900)[0] is None
    watched.received.append(signal.SIGTERM)
    assert watched.ended(1000) == ("signal", 901)
