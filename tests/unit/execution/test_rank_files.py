"""Ranks and their supervisor exchange files of one attempt; no file system ends or delays a training."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from scalewise.execution.progress_reporter import ProgressReporter
from tests import small_runs
from tests.waiting import wait_until

from scalewise.execution import progress_reporter as messengers
from scalewise.execution.messages import Progress, RankSetup
from scalewise.execution.rank_files import RankFiles

HOST = "node-a"


@pytest.fixture
def rank_setup() -> RankSetup:
    own = {"supervisor_host": HOST, "supervisor_pid": os.getpid()}
    return small_runs.rank_setup(network_interface="eth0", **own)


def test_an_attempt_forgets_the_one_before_it(rank_files: RankFiles, rank_setup: RankSetup) -> None:
    rank_files.started(0, HOST)
    rank_files.failed(0, HOST, RuntimeError("of yesterday"), out_of_memory=False)
    rank_files.progress(Progress(epoch=3, epochs=9))
    rank_files.publish_endpoint("10.0.0.1", 41234)
    rank_files.begin(rank_setup)
    assert rank_files.root_cause(1) is None
    assert rank_files.never_started(1) == [0]
    assert rank_files.read_progress() is None
    with pytest.raises(TimeoutError):
        rank_files.wait_for_endpoint(0)


def test_progress_is_the_last_report_with_the_step_and_the_time_of_the_first(
    rank_files: RankFiles, rank_setup: RankSetup
) -> None:
    for epoch in (1, 2):
        rank_files.progress(Progress(epoch=epoch, epochs=5, step=10 * epoch))
    progress = rank_files.read_progress()
    assert progress is not None
    assert (progress.epoch, progress.first_step) == (2, 10)
    assert 0 < progress.first_reported_at <= progress.reported_at

    rank_files.begin(rank_setup)
    rank_files.progress(Progress(epoch=4, epochs=5, step=40))
    resumed = rank_files.read_progress()
    assert resumed is not None
    assert resumed.first_step == 40


def test_a_rank_of_an_attempt_whose_folder_another_has_leaves_no_word_in_it(
    tmp_path: Path, rank_setup: RankSetup
) -> None:
    """A node whose file system stalled may come back after its run was begun elsewhere."""
    first, second = (RankFiles(tmp_path / "attempt", token) for token in ("first", "second"))
    first.begin(rank_setup)
    stale = RankFiles.join(first.folder)
    stale.started(0, HOST)
    second.begin(rank_setup)
    assert not stale.is_current
    before = sorted(path.name for path in second.folder.iterdir())
    words: list[Callable[[], None]] = [
        lambda: stale.failed(0, HOST, RuntimeError("peers are gone"), out_of_memory=False),
        lambda: stale.finished(0),
        lambda: stale.terminated(0),
        lambda: stale.progress(Progress(epoch=1, epochs=2)),
        lambda: stale.request_stop("SIGUSR1"),
        stale.heartbeat,
    ]
    for write in words:
        with pytest.raises(OSError, match="another attempt has it by now"):
            write()
    stale.end()
    assert sorted(path.name for path in second.folder.iterdir()) == before
    assert RankFiles.join(second.folder).is_current


def test_the_next_attempt_takes_the_folder_from_any_earlier_one(
    tmp_path: Path, rank_setup: RankSetup
) -> None:
    first, second = (RankFiles(tmp_path / "attempt", token) for token in ("first", "second"))
    first.begin(rank_setup)
    second.clear()
    assert not first.folder.exists()
    # a user may have deleted it as well
    assert first.is_current


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_heartbeats_are_sent_while_the_program_is_not_stopped_though_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([False, True, False])
    sent = 0

    def is_stopped() -> bool:
        answer = next(answers, None)
        if answer is None:
            raise SystemExit  # it ends the thread
        return answer

    def fail(_files: RankFiles) -> None:
        nonlocal sent
        sent += 1
        raise OSError

    monkeypatch.setattr("scalewise.execution.rank_files.RANK_HEARTBEAT_SECONDS", 0.0)
    monkeypatch.setattr(RankFiles, "heartbeat", fail)
    RankFiles(tmp_path).start_heartbeats(is_stopped)
    for thread in threading.enumerate():
        if thread.name == "heartbeat":
            thread.join(60)
    assert sent == 2


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messengers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(messengers, "END_SECONDS", 60)


def wait_for_request(reporter: ProgressReporter) -> str:
    return wait_until(lambda: reporter.stop_request, "the request is not seen") or ""


def test_a_request_to_end_is_read_and_progress_is_written(rank_files: RankFiles) -> None:
    with ProgressReporter(rank_files) as reporter:
        assert reporter.stop_request is None
        reporter.progress = Progress(epoch=1, epochs=9, step=10)
        rank_files.request_stop("the time limit")
        assert wait_for_request(reporter) == "the time limit"
        reporter.progress = Progress(epoch=2, epochs=9, step=20)
    progress = rank_files.read_progress()
    assert progress is not None
    assert (progress.epoch, progress.step) == (2, 20)


def test_a_folder_that_is_away_for_a_while_ends_nothing(rank_files: RankFiles) -> None:
    aside = rank_files.folder.with_name("aside")
    rank_files.folder.rename(aside)
    with ProgressReporter(rank_files) as reporter:
        reporter.progress = Progress(epoch=1, epochs=9, step=10)
        threading.Event().wait(0.1)
        assert reporter.stop_request is None
        aside.rename(rank_files.folder)
        rank_files.request_stop("SIGUSR1")
        assert wait_for_request(reporter) == "SIGUSR1"
    progress = rank_files.read_progress()
    assert progress is not None
    assert (progress.epoch, progress.step) == (1, 10)


def test_a_folder_that_is_gone_at_the_end_keeps_no_rank_from_its_end(rank_files: RankFiles) -> None:
    with ProgressReporter(rank_files) as reporter:
        reporter.progress = Progress(epoch=1, epochs=9, step=10)
        rank_files.folder.rename(rank_files.folder.with_name("aside"))
    assert not rank_files.folder.exists()


def test_a_rank_without_a_supervisor_says_nothing() -> None:
    with ProgressReporter(None) as reporter:
        reporter.progress = Progress(epoch=1, epochs=9, step=10)
        assert "messenger" not in {thread.name for thread in threading.enumerate()}
    assert reporter.stop_request is None


def test_lines_come_in_their_order_and_the_training_waits_for_none(
    rank_files: RankFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, printed = threading.Event(), []

    def slowly(text: str) -> None:
        if threading.current_thread().name == "messenger":
            disk.wait()
        printed.append(text)

    monkeypatch.setattr(messengers, "say", slowly)
    reporter = ProgressReporter(rank_files)
    reporter.say("resumed")
    assert printed == ["resumed"]
    with reporter:
        for line in ("step 50", "step 100", "epoch 1"):
            reporter.say(line)
        assert printed == ["resumed"]
        disk.set()
    reporter.say("summary")
    assert printed == ["resumed", "step 50", "step 100", "epoch 1", "summary"]


@pytest.mark.parametrize(
    ("progress", "text", "fraction"),
    [
        pytest.param(Progress(epoch=3, epochs=4, step=30), "epoch 3/4", None, id="epochs of unknown length"),
        pytest.param(
            Progress(epoch=1, epochs=4, step=19, steps_per_epoch=10), "epoch 1/4", 0.475, id="within an epoch"
        ),
        pytest.param(Progress(epoch=3, epochs=4, step=30, steps=40), "step 30/40", 0.75, id="steps"),
        pytest.param(Progress(epoch=0, epochs=0, step=30), "step 30", None, id="a program to its own end"),
        pytest.param(Progress(epoch=0, epochs=0, step=30, steps=120), "step 30/120", 0.25, id="a program"),
    ],
)
def test_progress_is_in_the_unit_that_ends_the_training(
    progress: Progress, text: str, fraction: float | None
) -> None:
    assert (str(progress), progress.fraction) == (text, fraction)
