"""What tests start gets the default signals, whoever starts the tests and whatever that one ignores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWS = "import signal as s; print([n for n in (s.SIGHUP, s.SIGINT) if s.getsignal(n) is s.SIG_IGN])"


def test_what_a_test_starts_ignores_no_signal() -> None:
    assert subprocess.check_output([sys.executable, "-c", SHOWS], text=True) == "[]\n"


@pytest.mark.parametrize("processes", [[], ["--numprocesses", "1"]], ids=["alone", "in streams"])
@pytest.mark.slow
def test_nor_does_it_where_the_tests_themselves_were_started_in_the_background(processes: list[str]) -> None:
    this = f"{__file__}::{test_what_a_test_starts_ignores_no_signal.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *processes, this]
    # as nohup and a script's background do
    deaf = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *command]
    done = subprocess.run(deaf, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
