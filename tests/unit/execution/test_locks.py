"""A measured training has the machine to itself, and a run one job of Slurm, which may be put back."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.paths import SCRIPTS
from tests.stand_ins import stand_ins

from scalewise.execution import lock as locks
from scalewise.execution.lock import MACHINE_LOCK, LockError, machine_lock, wait_for_earlier_job
from scalewise.execution.slurm import REQUEUE_ATTEMPTS, look_for_preempted, requeue

HOLD = """
import os, sys
from scalewise.execution.lock import machine_lock
if user := int(sys.argv[1]):
    os.setuid(user)
with machine_lock(3600, lambda text: print(text, flush=True)):
    print("holds", flush=True)
    sys.stdin.read()
"""

Process = subprocess.Popen[str]
Hold = Callable[..., Process]


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """Starts a process that takes a lock, as a user, and keeps it until its stdin is closed."""
    monkeypatch.setenv(MACHINE_LOCK, str(tmp_path))
    started: list[Process] = []

    def start(user: int = 0) -> Process:
        command, environment = (
            [sys.executable, "-c", HOLD, str(user)],
            os.environ | {"PYTHONPATH": str(SCRIPTS)},
        )
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: Process) -> str:
    """Return the next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline()


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
    with pytest.raises(LockError, match=rf"process {first.pid}.* Wait for it"), machine_lock(0, print):
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


# --- jobs that go back into the queue ------------------------------------------------------------------


FOLDER = Path("/a folder|of a study")


class Queue:
    """A queue of Slurm, and what becomes of its preempted jobs."""

    def __init__(self, programs: Path) -> None:
        self._programs, self._log = programs, programs / "sent"
        self._looks: dict[str, int] = {}
        self.said: list[str] = []
        self.scontrol("exit 0")

    def squeue(self, script: str) -> None:
        stand_ins(self._programs, {"squeue": script})

    def scontrol(self, script: str) -> None:
        stand_ins(self._programs, {"scontrol": f"echo \"$@\" >> '{self._log}'\n{script}"})

    @property
    def sent(self) -> list[str]:
        """Commands that scontrol has received."""
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []

    def look(self, *jobs: str, comment: str = RULE, folder: Path = FOLDER, times: int = 1) -> None:
        """Look so often at a queue that has these preempted jobs."""
        lines = "".join(f"echo '{job}|PREEMPTED|N/A|None|{comment}|{folder}'\n" for job in jobs)
        self.squeue(f'[ "$2 $3" = "--me --states=PREEMPTED,NODE_FAIL" ] || exit 1\n{lines}')
        for _ in range(times):
            self._looks = look_for_preempted(FOLDER, self._looks, self.said.append)


@pytest.fixture
def queue(programs: Path) -> Queue:
    return Queue(programs)


@pytest.mark.parametrize(
    ("squeue", "refusal"),
    [
        pytest.param("echo RUNNING", "", id="running"),
        pytest.param("exit 1", "", id="the controller does not answer"),
        pytest.param("echo CANCELLED", "Slurm job 7 is CANCELLED", id="cancelled"),
        pytest.param("echo", "Slurm job 7 is unknown to squeue", id="unknown"),
    ],
)
def test_a_running_job_is_put_back_and_one_that_somebody_ends_stays_ended(
    squeue: str, refusal: str, queue: Queue
) -> None:
    queue.squeue(squeue)
    assert requeue("7") == refusal
    assert queue.sent == ([] if refusal else ["requeue 7"])


def test_a_job_that_stays_preempted_goes_back_into_the_queue_each_time(queue: Queue) -> None:
    queue.look("7", "8")
    assert queue.sent == []
    queue.look("7", "8")
    assert queue.sent == ["requeue 7", "requeue 8"]
    assert "Slurm job 7 was preempted or lost its node and had ended" in queue.said[0]
    queue.look()
    queue.look("7", times=2)
    assert queue.sent == ["requeue 7", "requeue 8", "requeue 7"]


def test_jobs_that_slurm_requeues_by_itself_or_that_are_not_of_this_study_are_left_to_others(
    queue: Queue,
) -> None:
    for _ in range(3):
        queue.look("7")
        queue.look()
    queue.look("9", comment="mine", times=REQUEUE_ATTEMPTS + 2)
    queue.look("9", folder=Path("/elsewhere"), times=REQUEUE_ATTEMPTS + 2)
    assert (queue.sent, queue.said) == ([], [])


def test_a_job_that_slurm_does_not_take_back_is_reported_once(queue: Queue) -> None:
    queue.scontrol("echo 'Job is pending execution for job 7' >&2; exit 1")
    queue.look("7", times=REQUEUE_ATTEMPTS)
    assert queue.said == []
    queue.look("7", times=4)
    (refused,) = queue.said
    assert "Slurm does not take it back (Job is pending execution for job 7)" in refused
    assert "Ctrl-C" in refused
    queue.scontrol("exit 0")
    queue.look("7")
    assert len(queue.said) == 2
