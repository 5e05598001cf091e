"""When ranks at work are ended, and whether they are asked to stop before, by a clock of the test's."""

from __future__ import annotations

import math
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import rank_setup

from scalewise.execution.messages import GracefulStop, Progress
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.requeue import Requeue, requeue_after
from scalewise.execution.run import RunFailedError
from scalewise.execution.supervisor import ExitStatus
from scalewise.execution.watchdog import (
    IMPORT_SECONDS,
    JOB_END,
    LEAST_SILENCE_SECONDS,
    STOP_SECONDS,
    Kept,
    Watchdog,
)
from scalewise.records import RECORD

TIMEOUT_SECONDS = 20
PATIENCE = 2 * TIMEOUT_SECONDS + IMPORT_SECONDS


class Watched:
    """Ranks of which one may say what happens to them."""

    def __init__(
        self,
        folder: Path,
        seconds: float = 1000,
        job_ends_at: float = math.inf,
        kept: Kept = Kept.BY_PROGRAM,
    ) -> None:
        self.rank_files = RankFiles(folder / "attempt")
        self.rank_files.begin(rank_setup(timeout_seconds=TIMEOUT_SECONDS))
        self.received: list[int] = []
        self.lines: list[str] = []
        self.now = 0.0
        self.is_alive = False
        self.job_ends_at = job_ends_at
        self.watchdog = Watchdog(
            *(self.rank_files, seconds, self.received, self.lines.append),
            job_ends_at=job_ends_at,
            kept=kept,
            clock=lambda: self.now,
        )

    def train(self) -> None:
        self.rank_files.started(0, "node-a")
        self.rank_files.progress(Progress(epoch=0, epochs=2, step=1))
        self.is_alive = True

    def beat(self) -> None:
        """Rank 0 gives a sign of life, by the clock; the folder may be gone."""
        with suppress(OSError):
            self.rank_files.heartbeat()
            os.utime(self.rank_files.folder / "rank0.json", (self.now, self.now))

    def is_over(self, now: float) -> bool:
        self.now = float(now)
        if self.is_alive:
            self.beat()
        return self.watchdog.should_terminate()

    def over_at(self, until: int) -> float | None:
        """When the ranks are to be ended, looked at second by second; None where not until then."""
        for now in range(int(self.now) + 1, until + 1):
            if self.is_over(now):
                return self.now
        return None


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_ranks_that_train_are_not_ended(watched: Watched) -> None:
    watched.train()
    assert not any(watched.is_over(float(now)) for now in range(900))
    assert watched.rank_files.stop_request() is None
    assert watched.watchdog.outcome(None) == "failed"
    assert not watched.watchdog.stop_requested


def test_a_signal_asks_ranks_that_train_to_stop_and_leaves_them_the_time(watched: Watched) -> None:
    says = "SIGINT: the program has 60 s to save; a second signal ends it at once"
    watched.train()
    watched.received.append(signal.SIGINT)
    assert not watched.is_over(10)
    assert watched.rank_files.stop_request() == "SIGINT"
    assert watched.lines[0].startswith(says)
    assert watched.over_at(200) == 10 + STOP_SECONDS
    assert watched.watchdog.outcome(None) == "interrupted"
    assert watched.watchdog.stop_requested


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [("SIGTERM", "interrupted"), ("the time limit", "timed-out")],
)
def test_a_program_that_starts_again_from_the_beginning_is_ended_at_once(
    tmp_path: Path, cause: str, outcome: str
) -> None:
    program = Watched(tmp_path, seconds=5 if cause == "the time limit" else 1000, kept=Kept.NOTHING)
    program.train()
    if cause.startswith("SIG"):
        program.received.append(signal.Signals[cause])
    assert program.is_over(10)
    assert program.lines == [f"{cause}: the program is ended; it starts again from the beginning next time"]
    assert program.watchdog.outcome(None) == outcome


def test_a_second_signal_ends_the_wait_unless_it_came_with_the_first(watched: Watched) -> None:
    watched.train()
    watched.received.append(signal.SIGINT)
    assert not watched.is_over(10)
    watched.received.append(signal.SIGTERM)
    assert not watched.is_over(11)
    assert not watched.is_over(20)
    watched.received.append(signal.SIGINT)
    assert watched.is_over(21)


def test_before_there_is_progress_and_after_there_is_a_result_nothing_is_waited_for(tmp_path: Path) -> None:
    starting = Watched(tmp_path / "starting")
    starting.received.append(signal.SIGTERM)
    assert starting.is_over(10)
    done = Watched(tmp_path / "done")
    done.train()
    (tmp_path / "done" / RECORD).write_text("{}", encoding="utf-8")
    done.received.append(signal.SIGTERM)
    assert done.is_over(10)
    for each in (starting, done):
        assert each.rank_files.stop_request() is None
        assert each.watchdog.outcome(None) == "interrupted"


def test_the_limit_requests_a_stop_like_a_signal_with_another_outcome(tmp_path: Path) -> None:
    watched = Watched(tmp_path, seconds=100)
    watched.train()
    assert not watched.is_over(100)
    assert not watched.is_over(101)
    assert watched.rank_files.stop_request() == "the time limit"
    stopped = GracefulStop(step=9, saved=True, stop_source="the time limit")
    assert watched.watchdog.outcome(stopped) == "timed-out"
    assert watched.watchdog.stop_requested


def test_the_walltimes_signal_is_handed_on_once_there_is_progress_and_is_no_end_by_itself(
    watched: Watched,
) -> None:
    watched.received.append(signal.SIGUSR1)
    assert not watched.is_over(10)
    assert watched.rank_files.stop_request() is None
    watched.train()
    assert not watched.is_over(12)
    assert watched.rank_files.stop_request() == "SIGUSR1"
    assert not watched.is_over(13 + 2 * STOP_SECONDS)
    assert not watched.watchdog.stop_requested
    assert watched.watchdog.outcome(GracefulStop(step=9, saved=True, stop_source="SIGUSR1")) == "interrupted"


@pytest.mark.fault(2)
@pytest.mark.parametrize("number", [None, signal.SIGTERM])
def test_from_the_first_complaint_on_the_launcher_has_three_seconds(
    watched: Watched, number: signal.Signals | None
) -> None:
    # also while the ranks were to write a checkpoint
    watched.train()
    watched.received += [number] if number else []
    assert not watched.is_over(10)
    watched.rank_files.failed(0, "node-a", RuntimeError("timed out"), out_of_memory=False)
    assert not watched.is_over(11)
    assert not watched.is_over(13.9)
    assert watched.is_over(14)
    assert watched.watchdog.rank_failed
    assert watched.watchdog.outcome(None) == ("interrupted" if number else "failed")


@pytest.mark.fault(9)
def test_a_launcher_that_starts_no_rank_is_not_waited_for_for_ever(watched: Watched) -> None:
    assert not watched.is_over(PATIENCE - 1)
    assert watched.is_over(PATIENCE)
    assert watched.watchdog.unstarted_seconds == PATIENCE
    assert watched.watchdog.outcome(None) == "failed"


def test_ranks_that_have_started_may_take_as_long_as_they_like(watched: Watched) -> None:
    watched.rank_files.started(1, "node-a")
    assert not watched.is_over(PATIENCE + 500)
    assert watched.watchdog.unstarted_seconds is None


@pytest.mark.fault(2)
def test_a_rank_that_gives_no_sign_of_life_is_ended_though_no_other_waits_for_it(watched: Watched) -> None:
    train_until(watched, 99)
    assert watched.over_at(500) == 98 + LEAST_SILENCE_SECONDS + 1
    assert watched.watchdog.outcome(None) == "failed"


def train_until(watched: Watched, end: int) -> None:
    """Ranks that train until then, and give no sign of life from then on."""
    watched.train()
    assert not any(map(watched.is_over, range(0, end, 2)))
    watched.is_alive = False


def test_a_file_system_that_stalls_is_no_silence_of_a_rank_that_it_stalls_too(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_until(watched, 20)
    listed = os.scandir

    def stalled(path: Path) -> Any:
        watched.now += 300
        return listed(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", stalled)
        assert not watched.is_over(20)
    assert watched.now >= 320
    # its next word is later than the next look
    assert watched.over_at(323) is None
    watched.beat()
    assert watched.over_at(352) is None
    assert watched.over_at(500) == 324 + LEAST_SILENCE_SECONDS + 1


@pytest.mark.parametrize("beats", [True, False])
def test_a_job_that_was_suspended_continues_until_its_rank_is_silent(tmp_path: Path, beats: bool) -> None:
    watched = Watched(tmp_path, seconds=10_000)
    train_until(watched, 20)
    assert not watched.is_over(3600)
    assert watched.over_at(3601) is None
    if beats:
        watched.beat()
    assert watched.over_at(3630) is None
    seen_alive = 3602 if beats else 3600
    assert watched.over_at(4000) == seen_alive + LEAST_SILENCE_SECONDS + 1


@pytest.mark.fault(9)
def test_a_launcher_has_all_of_its_time_to_start_a_rank_although_its_job_was_suspended(
    watched: Watched,
) -> None:
    assert not watched.is_over(10)
    assert not watched.is_over(310)
    assert watched.over_at(1000) == PATIENCE + 300
    assert watched.watchdog.unstarted_seconds == PATIENCE


def test_a_folder_that_a_user_deletes_ends_no_ranks_that_train(watched: Watched) -> None:
    train_until(watched, 20)
    watched.rank_files.end()
    assert watched.over_at(900) is None
    # and who ends them is obeyed, though nothing can be asked of them
    watched.received.append(signal.SIGTERM)
    assert watched.over_at(999) == 901 + STOP_SECONDS


def test_the_end_of_a_job_requests_a_stop_before_the_runs_limit_with_another_outcome(tmp_path: Path) -> None:
    watched = Watched(tmp_path, seconds=1000, job_ends_at=50)
    watched.train()
    assert watched.over_at(50) is None
    assert watched.rank_files.stop_request() is None
    assert not watched.is_over(51)
    assert watched.rank_files.stop_request() == JOB_END == watched.watchdog.stop_source
    stopped = GracefulStop(step=9, saved=True, stop_source=JOB_END)
    assert watched.watchdog.outcome(stopped) == "interrupted"
    ended = ExitStatus(0, "interrupted", stopped, stop_requested=watched.watchdog.stop_requested)
    assert requeue_after(RunFailedError("", "", ended), in_slurm_job=True) is Requeue.FROM_CHECKPOINT
