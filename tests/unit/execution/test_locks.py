"""A run has one writer at a time, and a measured training the machine to itself: real processes and files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins
from tests.unit.conftest import Process, StartPython, said

from scalewise.execution import lock as locks
from scalewise.execution.lock import (
    MACHINE_LOCK,
    LockError,
    is_training,
    lock_run,
    machine_lock,
    wait_for_earlier_job,
)

HOLD = """
import os, sys
from pathlib import Path
from scalewise.execution.lock import lock_run, machine_lock
path, user = Path(sys.argv[1]), int(sys.argv[2])
of_run = path.is_dir()
if user:
    os.setuid(user)
say = lambda text: print(text, flush=True)
with lock_run(path, 3600, say) if of_run else machine_lock(3600, say):
    print("holds", flush=True)
    sys.stdin.read()
"""

Hold = Callable[..., Process]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture(params=["of a run", "of the machine"])
def lock(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, or what trainings of this machine name as their lock."""
    monkeypatch.setenv(MACHINE_LOCK, str(folder))
    return folder if request.param == "of a run" else folder.with_name("machine")


@pytest.fixture
def hold(start_python: StartPython) -> Hold:
    """Starts a process that takes a lock, as a user, and keeps it until its stdin is closed."""
    return lambda path, user=0: start_python(HOLD, str(path), str(user))


def take(path: Path, report: Callable[[str], None], seconds: float = 0) -> AbstractContextManager[None]:
    return lock_run(path, seconds, report) if path.is_dir() else machine_lock(seconds, report)


def never_said(text: str) -> None:
    raise AssertionError(f"no process holds the lock, but: {text}")


def test_the_second_training_waits_names_the_first_and_starts_when_that_ends(hold: Hold, lock: Path) -> None:
    first = hold(lock)
    assert said(first) == "holds\n"
    second = hold(lock)
    waits = said(second)
    assert f"process {first.pid}" in waits
    assert ("is training this run" if lock.is_dir() else "waiting: another Scalewise run is using") in waits
    assert second.poll() is None
    with pytest.raises(LockError, match=rf"process {first.pid}.* Wait for it"), take(lock, print):
        raise AssertionError("two trainings at once")
    first.communicate(input="")
    assert said(second) == "holds\n"
    assert second.communicate(input="")[0] == ""
    assert second.returncode == 0


def test_a_training_that_was_killed_is_replaced_at_once(hold: Hold, lock: Path) -> None:
    """In a container without an init process, the dead stay in the table of processes."""
    for options in (os.WEXITED | os.WNOWAIT, os.WEXITED):
        first = hold(lock)
        assert said(first) == "holds\n"
        first.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, options)
        with take(lock, never_said):
            pass


def test_a_run_is_training_while_a_process_holds_it(folder: Path, hold: Hold) -> None:
    assert not is_training(folder)
    process = hold(folder)
    assert said(process) == "holds\n"
    assert is_training(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not is_training(folder)


def test_trainings_of_a_machine_take_turns_unless_they_name_another_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(MACHINE_LOCK, "one")
    with machine_lock(0, never_said):
        monkeypatch.setenv(MACHINE_LOCK, "another")
        with machine_lock(0, never_said):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_two_users_take_turns(hold: Hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MACHINE_LOCK, str(tmp_path))
    first = hold(tmp_path / "machine", 12345)
    assert said(first) == "holds\n"
    second = hold(tmp_path / "machine", 23456)
    assert f"another Scalewise run is using this machine (process {first.pid})" in said(second)
    first.communicate(input="")
    assert said(second) == "holds\n"


# --- jobs of Slurm ----------------------------------------------------------------------------------------

RULE = "rule_train_wildcards_e_d1.r1"
THIS = f"8|RUNNING|2026-11-29T13:00:00|None|{RULE}|/study"


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("other", "waits"),
    [
        pytest.param(f"9|RUNNING|2026-11-29T12:00:00|None|{RULE}|/study", True, id="began before"),
        pytest.param(f"7|COMPLETING|2026-11-29T13:00:00|None|{RULE}|/study", True, id="began at once"),
        pytest.param(f"7|RUNNING|2026-11-29T13:01:00|None|{RULE}|/study", False, id="began later"),
        pytest.param(f"7|PENDING|2026-11-29T12:00:00|None|{RULE}|/study", False, id="waits in the queue"),
        pytest.param(f"7|RUNNING|2026-11-29T12:00:00|None|{RULE}|/other|x", False, id="another study"),
        pytest.param(f"7|RUNNING|2026-11-29T12:00:00|None|{RULE}0|/study", False, id="another run"),
        pytest.param("", False, id="alone"),
    ],
)
def test_a_job_waits_for_one_that_trains_its_run_already(
    other: str, waits: bool, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    # the other one has ended when the queue is read again
    again = programs / "again"
    shows = f"echo '{THIS}'\n[ -e {again} ] || echo '{other}'\n: > {again}\n"
    stand_ins(programs, {"squeue": shows})
    monkeypatch.setattr(locks, "QUEUE_SECONDS", 0.01)
    notes: list[str] = []
    assert wait_for_earlier_job(10.0, notes.append) == (other.split("|", maxsplit=1)[0] if waits else "")
    assert len(notes) == waits


def test_a_job_waits_no_longer_than_its_limit_and_not_for_a_queue_that_does_not_answer(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    earlier = THIS.replace("8|", "7|", 1)
    stand_ins(programs, {"squeue": f"echo '{THIS}'; echo '{earlier}'\n"})
    with pytest.raises(LockError, match="Slurm job 7 is training this run"):
        wait_for_earlier_job(-1.0, print)
    stand_ins(programs, {"squeue": "exit 1\n"})
    assert wait_for_earlier_job(0.0, never_said) == ""
