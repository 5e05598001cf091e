"""Words between rank 0 and its supervisor go by files, and no file system ends or delays a training."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from scalewise.execution import progress_reporter as messengers
from scalewise.execution.messages import Progress
from scalewise.execution.progress_reporter import Messenger, say
from scalewise.execution.rank_files import Attempt


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(messengers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(messengers, "END_SECONDS", 60)
    (tmp_path / "attempt").mkdir()
    return Attempt(tmp_path / "attempt")


def wait_for_request(messenger: Messenger) -> str:
    looked = threading.Event()
    while messenger.stop_request is None:
        looked.wait(0.01)
    return messenger.stop_request


def test_a_request_to_end_is_seen_and_progress_is_told(attempt: Attempt) -> None:
    with Messenger(attempt) as messenger:
        assert messenger.stop_request is None
        messenger.progress = Progress(epoch=1, epochs=9, step=10)
        attempt.request_stop("the time limit")
        assert wait_for_request(messenger) == "the time limit"
        messenger.progress = Progress(epoch=2, epochs=9, step=20)
    assert attempt.read_progress() == Progress(epoch=2, epochs=9, step=20)


def test_a_folder_that_is_away_for_a_while_ends_nothing(attempt: Attempt) -> None:
    aside = attempt.folder.with_name("aside")
    attempt.folder.rename(aside)
    with Messenger(attempt) as messenger:
        messenger.progress = Progress(epoch=1, epochs=9, step=10)
        threading.Event().wait(0.1)
        assert messenger.stop_request is None
        aside.rename(attempt.folder)
        attempt.request_stop("SIGUSR1")
        assert wait_for_request(messenger) == "SIGUSR1"
    assert attempt.read_progress() == Progress(epoch=1, epochs=9, step=10)


def test_a_folder_that_is_gone_at_the_end_keeps_no_rank_from_its_end(attempt: Attempt) -> None:
    with Messenger(attempt) as messenger:
        messenger.progress = Progress(epoch=1, epochs=9, step=10)
        attempt.folder.rename(attempt.folder.with_name("aside"))
    assert not attempt.folder.exists()


def test_a_rank_without_a_supervisor_says_nothing() -> None:
    with Messenger(None) as messenger:
        messenger.progress = Progress(epoch=1, epochs=9, step=10)
        assert "messenger" not in {thread.name for thread in threading.enumerate()}
    assert messenger.stop_request is None


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
