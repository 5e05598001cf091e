"""A process that imports without collecting and ends quickly loses nothing of what it was to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.paths import SCRIPTS

IMPORTS = """
import atexit, gc, sys
from scalewise.interpreter import imports_uncollected, quick_exit
with imports_uncollected():
    import json
    assert not gc.isenabled()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Return what a new Python process has printed, through a pipe, which is not written line by line."""
    return subprocess.run(
        [sys.executable, "-c", IMPORTS + program],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_after_the_imports_garbage_is_collected_again_and_the_modules_are_left_out() -> None:
    done = run("print(gc.isenabled(), gc.get_freeze_count() > 0)")

    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


@pytest.mark.parametrize("code", [0, 3])
def test_a_quick_end_writes_what_was_printed_and_does_what_was_registered(code: int) -> None:
    done = run(
        "atexit.register(lambda: print('registered'))\n"
        f"print('printed', end=' ')\nprint('told', file=sys.stderr, end='')\nquick_exit({code})\n"
        "print('never')"
    )

    assert (done.returncode, done.stdout, done.stderr) == (code, "printed registered\n", "told")
