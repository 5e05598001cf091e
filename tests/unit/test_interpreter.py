"""A process that ends quickly loses nothing of what it was to do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.paths import SCRIPTS

PROGRAM = """
import atexit, sys
from scalewise.interpreter import quick_exit
atexit.register(lambda: print('registered'))
print('printed', end=' ')
print('error', file=sys.stderr, end='')
quick_exit(int(sys.argv[1]))
print('never')
"""


@pytest.mark.parametrize("code", [0, 3])
def test_a_quick_end_writes_what_was_printed_and_does_what_was_registered(code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)],
        env={"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "printed registered\n", "error")
