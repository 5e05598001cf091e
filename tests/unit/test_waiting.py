"""Each wait of a test has an end, and a message that names what it waited for."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.waiting import ended_output, wait_until


def test_what_has_happened_is_returned() -> None:
    looks = iter([None, [], [7]])
    assert wait_until(lambda: next(looks), "no number", longest_pause_seconds=0) == [7]


def test_a_wait_ends_after_its_limit_and_names_what_is_missing() -> None:
    with pytest.raises(TimeoutError, match=r"^After 0\.01 s no checkpoint$"):
        wait_until(lambda: False, "no checkpoint", 0.01)
    with pytest.raises(TimeoutError, match=r"^After 0 s seen: 3$"):
        wait_until(lambda: False, lambda: f"seen: {3}", 0)


def test_a_wait_ends_with_the_process_and_shows_its_output() -> None:
    code = "import sys; print('one'); sys.exit('two')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        expected = "no checkpoint, and the process has ended:\nexit code 1\none\n\ntwo\n"
        with pytest.raises(AssertionError) as caught:
            wait_until(lambda: False, "no checkpoint", ended=lambda: ended_output(process))
    assert str(caught.value) == expected


def test_what_a_process_does_last_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert wait_until(lambda: process.returncode == 0, "no end", ended=lambda: ended_output(process))
