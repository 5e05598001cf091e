"""A measured training has the machine to itself: real processes, the kernel's own names."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.conftest import Process, StartPython, said

from scalewise.execution.machine_lock import MachineBusyError, machine_lock

HOLDER = """
import os, sys
from scalewise.execution.machine_lock import machine_lock
if sys.argv[2:]:
    os.setuid(int(sys.argv[2]))
with machine_lock(3600, lambda text: print(text, flush=True), sys.argv[1]):
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path) -> str:
    return str(tmp_path / "training.lock")


@pytest.fixture
def hold(lock: str, start_python: StartPython) -> Callable[..., Process]:
    """Starts a process that wants the machine, and keeps it until its stdin is closed."""
    return lambda *user: start_python(HOLDER, lock, *map(str, user))


def test_the_second_training_waits_names_the_first_once_and_then_has_its_turn(
    hold: Callable[[], Process],
) -> None:
    first = hold()
    assert said(first) == "holds\n"
    second = hold()
    assert said(second) == f"waiting: another Scalewise run is using this machine (process {first.pid})\n"
    assert second.poll() is None
    first.communicate(input="")
    assert said(second) == "holds\n"
    assert second.communicate(input="")[0] == ""
    assert second.returncode == 0


def test_a_wait_that_is_too_short_ends_with_what_to_do(hold: Callable[[], Process], lock: str) -> None:
    owner = hold()
    assert said(owner) == "holds\n"
    notes: list[str] = []
    with (
        pytest.raises(
            MachineBusyError, match=rf"process {owner.pid} .* for more than 1 s\. Wait for it to end"
        ),
        machine_lock(0.7, notes.append, lock),
    ):
        raise AssertionError("two trainings at once")
    assert len(notes) == 1


def test_a_training_that_was_killed_does_not_keep_the_machine(hold: Callable[[], Process], lock: str) -> None:
    owner = hold()
    assert said(owner) == "holds\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    notes: list[str] = []
    with machine_lock(0, notes.append, lock):
        assert notes == []


def test_a_training_that_raises_gives_the_machine_back(lock: str) -> None:
    with pytest.raises(KeyError), machine_lock(0, print, lock):
        raise KeyError("in the training")
    notes: list[str] = []
    with machine_lock(0, notes.append, lock):
        assert notes == []


def test_all_users_of_a_machine_take_turns_unless_they_name_another_lock(
    monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setenv("SCALEWISE_MACHINE_LOCK", lock)
    with machine_lock(0, print):
        with pytest.raises(MachineBusyError), machine_lock(0, lambda text: None, lock):
            raise AssertionError("two trainings at once")
        with machine_lock(0, print, f"{lock}-2"):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_two_users_take_turns(hold: Callable[..., Process]) -> None:
    first = hold(12345)
    assert said(first) == "holds\n"
    second = hold(23456)
    assert said(second) == f"waiting: another Scalewise run is using this machine (process {first.pid})\n"
    first.communicate(input="")
    assert said(second) == "holds\n"
