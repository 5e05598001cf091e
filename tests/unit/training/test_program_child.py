"""The process of a user's program, as it is started."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from tests.waiting import wait_until

from scalewise.ranks.program.child import LONGEST_LINE, Child

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def _ignored_and_blocked() -> Iterator[None]:
    """The signals as a rank may find or leave them: of a study in the background, of a launcher."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in HEEDED}
    signal.pthread_sigmask(signal.SIG_BLOCK, HEEDED)
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEEDED)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_ignored_and_blocked")
def test_a_program_inherits_no_ignored_and_no_blocked_signal() -> None:
    """Scripts that save at a signal rely on that, and one without handlers must end."""
    child = Child(["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"], os.environ)
    wait_until(lambda: child.wait(1) is not None, "the program has not ended")
    child.end()
    masks = {line.split(":")[0]: int(line.split(":")[1], 16) for line in child.tail}
    assert masks.keys() == {"SigBlk", "SigIgn"}
    assert [n.name for n in HEEDED for mask in masks.values() if mask >> (n - 1) & 1] == []


def test_a_handler_of_the_program_is_seen() -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, print); print('ready', flush=True); signal.pause()"
    child = Child([sys.executable, "-c", code], os.environ)
    wait_until(lambda: child.wait(0.05) is None and child.tail, "the program prints nothing")
    assert child.handles(signal.SIGUSR1)
    assert not child.handles(signal.SIGTERM)
    child.end()
    assert not child.handles(signal.SIGUSR1)


def test_a_line_without_end_is_kept_from_its_begin_where_an_error_has_its_name() -> None:
    child = Child([sys.executable, "-c", "print('ValueError: ' + 'x' * 1_000_000)"], os.environ)
    wait_until(lambda: child.wait(1) is not None, "the program has not ended")
    child.end()
    assert child.last_error().startswith("ValueError: xxx")
    assert [len(line) for line in child.tail] == [LONGEST_LINE]
