"""A measured training has the machine to itself, and a run one job of Slurm: real processes and files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins
from tests.unit.conftest import Process, StartPython, said

from scalewise.execution import lock as locks
from scalewise.execution.lock import MACHINE_LOCK, LockError, machine_lock, wait_for_earlier_job

HOLD = """
import os, sys
from scalewise.execution.lock import machine_lock
if user := int(sys.argv[1]):
    os.setuid(user)
with machine_lock(3600, lambda text: print(text, flush=True)):
    print("holds", flush=True)
    sys.stdin.read()
"""

Hold = Callable[..., Process]


@pytest.fixture
def hold(start_python: StartPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    """Starts a process that takes a lock, as a user, and keeps it until its stdin is closed."""
    monkeypatch.setenv(MACHINE_LOCK, str(tmp_path))
    return lambda user=0: start_python(HOLD, str(user))


def never_said(text: str) -> None:
    raise AssertionError(f"no process holds the lock, but: {text}")


@pytest.mark.parametrize("users", [(0, 0), (12345, 23456)], ids=["one user", "two users"])
def test_the_second_training_waits_names_the_first_and_starts_when_that_ends(
    users: tuple[int, int], hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(users) and os.geteuid():
        pytest.skip("only root can become two other users")
    first = hold(users[0])
    assert said(first) == "holds\n"
    second = hold(users[1])
    assert f"waiting: another Scalewise run is using this machine (process {first.pid})" in said(second)
    assert second.poll() is None
    with (
        pytest.raises(LockError, match=rf"process {first.pid}.* Wait for it"),
        machine_lock(0, print),
    ):
        raise AssertionError("two trainings at once")
    first.communicate(input="")
    assert said(second) == "holds\n"
    monkeypatch.setenv(MACHINE_LOCK, "another")
    with machine_lock(0, never_said):
        assert second.communicate(input="")[0] == ""
    assert second.returncode == 0


def test_a_training_that_was_killed_is_replaced_at_once(hold: Hold) -> None:
    """In a container without an init process, the dead stay in the table of processes."""
    for options in (os.WEXITED | os.WNOWAIT, os.WEXITED):
        first = hold()
        assert said(first) == "holds\n"
        first.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, options)
        with machine_lock(0, never_said):
            pass


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
