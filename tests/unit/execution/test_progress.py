"""Words between rank 0 and its supervisor go by files, and no file system ends or delays a training."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from tests.waiting import wait_until

from scalewise.execution import progress_reporter as messengers
from scalewise.execution.messages import Progress
from scalewise.execution.progress_reporter import ProgressReporter, say
from scalewise.execution.rank_files import RankFiles


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messengers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(messengers, "END_SECONDS", 60)


def wait_for_request(reporter: ProgressReporter) -> str:
    return wait_until(lambda: reporter.stop_request, "the request is not seen") or ""


def test_a_request_to_end_is_seen_and_progress_is_told(rank_files: RankFiles) -> None:
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


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with open(descriptor, "w", closefd=False) as full:
            monkeypatch.setattr(sys, "stdout", full)
            with pytest.raises(OSError, match="No space left on device"):
                print("epoch 1/9", flush=True)
            say("epoch 2/9")
            monkeypatch.undo()
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    finally:
        os.close(descriptor)


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
def test_progress_is_told_in_what_ends_the_training(
    progress: Progress, text: str, fraction: float | None
) -> None:
    assert (str(progress), progress.fraction) == (text, fraction)


def test_a_progress_that_an_older_version_told_is_read() -> None:
    assert str(Progress.model_validate_json('{"epoch": 1, "epochs": 2, "step": 7}')) == "epoch 1/2"
