"""Each wait of a test has an end and names what it waited for; what tests start gets the default signals."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.paths import ROOT
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


SHOWS = "import signal as s; print([n for n in (s.SIGHUP, s.SIGINT) if s.getsignal(n) is s.SIG_IGN])"


def test_what_a_test_starts_ignores_no_signal() -> None:
    assert subprocess.check_output([sys.executable, "-c", SHOWS], text=True) == "[]\n"


@pytest.mark.slow
def test_nor_does_it_where_the_tests_themselves_were_started_in_the_background() -> None:
    """By a process of xdist, which starts as its tests would without one."""
    this = f"{__file__}::{test_what_a_test_starts_ignores_no_signal.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "1", this]
    # as nohup and a script's background do
    deaf = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *command]
    done = subprocess.run(deaf, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
