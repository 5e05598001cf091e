"""A measured training has the machine to itself: real processes, the kernel's own lock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.conftest import StartPython

from scalewise.execution.machine_lock import MachineBusyError, lock_path, machine_lock

HOLDER = """
import os, sys
from pathlib import Path
from scalewise.execution.machine_lock import machine_lock
if sys.argv[2:]:
    os.umask(0o077)
    os.setuid(int(sys.argv[2]))
with machine_lock(3600, lambda text: print(text, flush=True), Path(sys.argv[1])):
    print("holds", flush=True)
    sys.stdin.read()
"""

Process = subprocess.Popen[str]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "training.lock"


@pytest.fixture
def hold(lock: Path, start_python: StartPython) -> Callable[..., Process]:
    """Starts a process that wants the machine, and keeps it until its stdin is closed."""
    return lambda *user: start_python(HOLDER, str(lock), *map(str, user))


def said(process: Process) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_second_training_waits_is_told_once_and_then_has_its_turn(
    hold: Callable[[], Process], lock: Path
) -> None:
    first = hold()
    assert said(first) == "holds\n"
    second = hold()
    assert said(second) == f"waiting: another Scalewise run is using this machine (lock file {lock})\n"
    assert second.poll() is None
    first.communicate(input="")
    assert said(second) == "holds\n"
    assert second.communicate(input="")[0] == ""
    assert second.returncode == 0


def test_a_wait_that_is_too_short_ends_with_what_to_do(hold: Callable[[], Process], lock: Path) -> None:
    assert said(hold()) == "holds\n"
    notes: list[str] = []
    with (
        pytest.raises(MachineBusyError, match=r"training\.lock for more than 1 s\. Find it with `fuser`"),
        machine_lock(0.7, notes.append, lock),
    ):
        raise AssertionError("two trainings at once")
    assert len(notes) == 1


def test_a_training_that_was_killed_does_not_keep_the_machine(
    hold: Callable[[], Process], lock: Path
) -> None:
    owner = hold()
    assert said(owner) == "holds\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    notes: list[str] = []
    with machine_lock(0, notes.append, lock):
        assert notes == []


def test_a_training_that_raises_gives_the_machine_back(lock: Path) -> None:
    with pytest.raises(KeyError), machine_lock(0, print, lock):
        raise KeyError("in the training")
    notes: list[str] = []
    with machine_lock(0, notes.append, lock):
        assert notes == []


def test_whoever_comes_first_lets_other_users_wait_for_the_same_lock(lock: Path) -> None:
    """A private umask must not shut the others out."""
    before = os.umask(0o077)
    try:
        with machine_lock(0, print, lock):
            pass
    finally:
        os.umask(before)
    assert lock.stat().st_mode & 0o044 == 0o044


def test_all_shells_and_users_of_a_machine_take_turns_by_one_file() -> None:
    mine = lock_path({})
    assert mine.name == "scalewise-training.lock"
    assert mine.parent.stat().st_mode & 0o002
    assert lock_path({"TMPDIR": "/scratch/me", "USER": "another"}) == mine
    assert lock_path({"SCALEWISE_MACHINE_LOCK": "/scratch/lock"}) == Path("/scratch/lock")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_two_users_take_turns_by_a_file_of_a_sticky_folder_that_one_of_them_has_made(
    hold: Callable[..., Process], lock: Path
) -> None:
    for folder in lock.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(0o755)
    lock.parent.chmod(0o1777)
    first = hold(12345)
    assert said(first) == "holds\n"
    second = hold(23456)
    assert said(second).startswith("waiting: another Scalewise run")
    first.communicate(input="")
    assert said(second) == "holds\n"
    assert lock.stat().st_uid == 12345


def test_a_lock_that_cannot_be_made_names_the_file_and_how_to_choose_another(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "lock"
    with (
        pytest.raises(FileNotFoundError, match="SCALEWISE_MACHINE_LOCK names") as refused,
        machine_lock(0, print, path),
    ):
        raise AssertionError("no lock")
    assert refused.value.filename == str(path)
