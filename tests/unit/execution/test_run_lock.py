"""A run has one writer at a time, on one machine or many: real processes and the real file."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.unit.conftest import Process, StartPython, said
from tests.waiting import LIMIT_SECONDS, wait_until

from scalewise.execution import run_lock
from scalewise.execution.run_lock import (
    HEARTBEAT_SECONDS,
    LOST_SECONDS,
    LockOwner,
    LockTimeoutError,
    lock_run,
)

HOLD = """
import sys
from pathlib import Path
from scalewise.execution.run_lock import lock_run
with lock_run(Path(sys.argv[1]), 3600, lambda text: print(text, flush=True)) as hold:
    print("holds", hold.waited, flush=True)
    sys.stdin.read()
"""

# Enters and leaves many times, on a file system whose every answer comes late: a race shows at once.
# A second one inside would find the marker of the first.
CONTEND = """
import os, random, sys, time
from pathlib import Path
from scalewise.execution import run_lock
from scalewise.execution.run_lock import lock_run

def late(call):
    def wrapped(*arguments, **options):
        time.sleep(random.random() * 0.004)
        try:
            return call(*arguments, **options)
        finally:
            time.sleep(random.random() * 0.004)
    return wrapped

for name in ("link", "mkdir", "rename", "replace", "rmdir", "stat", "unlink"):
    setattr(os, name, late(getattr(os, name)))
run_lock.POLL_SECONDS = 0.001
folder, rounds, ending = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
for round in range(rounds):
    with lock_run(folder, 3600, lambda text: None):
        inside = folder / "inside"
        try:
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            print("two at once", flush=True)
            continue
        with (folder / "turns").open("a") as turns:
            turns.write("x")
        inside.unlink()
        if ending == "dying":
            os._exit(0)
"""

Start = Callable[..., Process]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def start(folder: Path, start_python: StartPython) -> Start:
    """Starts a Python program on the folder."""
    return lambda program, *arguments, **further: start_python(program, str(folder), *arguments, **further)


class Clock:
    """Time that passes while somebody sleeps, and what happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.now = 1000.0
        self.slept = 0
        self._meanwhile = meanwhile

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        assert self.slept < 10_000, "it waits for ever"
        self._meanwhile()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run_lock, "time", clock)
    return clock


def owner(**changed: Any) -> LockOwner:
    """A holder of whom nothing can be found out from here."""
    values = {"token": "other", "host": "node-far-away", "pid": 1, "job": None, "restart": 0}
    return LockOwner.this_process().model_copy(update=values | changed)


def me(**changed: Any) -> LockOwner:
    """This process, in another place of Slurm's."""
    return LockOwner.this_process().model_copy(update=changed)


def never_told(text: str) -> None:
    raise AssertionError(f"nobody holds the run, but: {text}")


def note(folder: Path) -> Path:
    """What the holder of a run has written."""
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def leave(folder: Path, other: LockOwner) -> Path:
    """A run that another holds who has given no sign of life since."""
    aside = folder.with_name("aside")
    with lock_run(folder, 0, never_told, other):
        shutil.copytree(folder, aside)
    shutil.copytree(aside, folder, dirs_exist_ok=True)
    return note(folder)


def test_a_free_run_is_taken_at_once_and_left_as_it_was(folder: Path) -> None:
    with lock_run(folder, 0, never_told) as hold:
        assert not hold.waited
        assert json.loads(note(folder).read_text(encoding="utf-8"))["pid"] == os.getpid()
    assert list(folder.iterdir()) == []


def test_the_second_waits_is_told_of_whom_and_gets_the_run_when_the_first_ends(
    start: Start, folder: Path
) -> None:
    first = start(HOLD)
    assert said(first) == "holds False\n"
    second = start(HOLD)
    assert said(second).startswith(f"process {first.pid} on {os.uname().nodename} is training this run; ")
    assert second.poll() is None
    first.communicate(input="")
    assert said(second) == "holds True\n"
    assert second.communicate(input="")[0] == ""
    assert second.returncode == 0
    assert list(folder.iterdir()) == []


def test_a_training_that_was_killed_on_this_host_is_replaced_at_once(start: Start, folder: Path) -> None:
    first = start(HOLD)
    assert said(first) == "holds False\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    with lock_run(folder, 0, never_told) as hold:
        assert not hold.waited
    assert list(folder.iterdir()) == []


def test_a_killed_training_that_nobody_has_buried_is_replaced_too(start: Start, folder: Path) -> None:
    """In a container without an init process, the dead stay in the table of processes."""
    first = start(HOLD)
    assert said(first) == "holds False\n"
    first.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{first.pid}").exists()
    with lock_run(folder, 0, never_told):
        pass


def test_another_process_with_the_number_of_a_dead_training_does_not_hold_its_run(
    start: Start, folder: Path
) -> None:
    """After a restart of the machine, numbers are given anew."""
    first = start(HOLD)
    assert said(first) == "holds False\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    stranger = start("import sys; sys.stdin.read()")
    path = note(folder)
    left = json.loads(path.read_text(encoding="utf-8")) | {"pid": stranger.pid}
    path.write_text(json.dumps(left), encoding="utf-8")
    with lock_run(folder, 0, never_told):
        pass


def test_a_training_that_raises_gives_the_run_back(folder: Path) -> None:
    with pytest.raises(KeyError), lock_run(folder, 0, never_told):
        raise KeyError("in the training")
    assert list(folder.iterdir()) == []


EARLIER = {"job": "4711", "restart": 0}
AGAIN = {"job": "4711", "restart": 1}


def test_a_job_that_slurm_starts_anew_replaces_an_earlier_start_on_another_node_that_is_silent(
    folder: Path, clock: Clock
) -> None:
    leave(folder, owner(**EARLIER))
    notes: list[str] = []
    with lock_run(folder, 600, notes.append, me(**AGAIN)) as hold:
        assert hold.waited
    assert LOST_SECONDS < clock.now - 1000 < LOST_SECONDS + 5
    assert notes == [
        "an earlier start of Slurm job 4711 on node-far-away may still be at work; waiting for it to end, or "
        "to give no sign of life for 15 s"
    ]
    assert list(folder.iterdir()) == []


def test_an_earlier_start_of_the_same_job_that_lives_on_keeps_its_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node stopped answering Slurm, which has started the job elsewhere; its processes go on."""
    path = leave(folder, owner(**EARLIER))

    def beat() -> None:
        if time.slept % (HEARTBEAT_SECONDS / run_lock.POLL_SECONDS) == 0:
            os.utime(path, (time.now, time.now))

    time = Clock(beat)
    monkeypatch.setattr(run_lock, "time", time)
    with pytest.raises(LockTimeoutError), lock_run(folder, 600, lambda text: None, me(**AGAIN)):
        raise AssertionError("two trainings at once")
    assert json.loads(path.read_text(encoding="utf-8"))["token"] == "other"


def test_an_earlier_start_of_the_same_job_on_this_node_is_replaced_when_its_process_has_gone(
    start: Start, folder: Path, clock: Clock
) -> None:
    stranger = start("import sys; sys.stdin.read()")
    here = {"host": LockOwner.this_process().host, "pid": stranger.pid, **EARLIER}
    leave(folder, owner(**here, start_ticks=run_lock._start_ticks(stranger.pid)))
    with pytest.raises(LockTimeoutError), lock_run(folder, 60, lambda text: None, me(**AGAIN)):
        raise AssertionError("two trainings at once")
    stranger.kill()
    stranger.wait()
    slept = clock.slept
    with lock_run(folder, 0, never_told, me(**AGAIN)) as hold:
        assert not hold.waited
    assert clock.slept == slept


def test_a_start_that_leaves_in_order_is_not_waited_for_by_the_next(folder: Path, clock: Clock) -> None:
    with lock_run(folder, 0, never_told, me(**EARLIER)):
        pass
    with lock_run(folder, 0, never_told, me(**AGAIN)):
        pass
    assert clock.slept == 0


def test_a_restarted_job_does_not_take_a_run_from_a_training_outside_slurm(
    folder: Path, clock: Clock
) -> None:
    leave(folder, owner(host=LockOwner.this_process().host, pid=os.getpid()))
    mine = me(job="4711", restart=1)
    with pytest.raises(LockTimeoutError), lock_run(folder, 3, lambda text: None, mine):
        raise AssertionError("two trainings at once")


def test_a_holder_on_an_unknown_host_that_falls_silent_is_replaced(folder: Path, clock: Clock) -> None:
    leave(folder, owner())
    notes: list[str] = []
    with lock_run(folder, 3600, notes.append, silence_seconds=60) as hold:
        assert hold.waited
        assert 60 < clock.now - 1000 < 70
    assert len(notes) == 1
    assert "process 1 on node-far-away" in notes[0]
    assert list(folder.iterdir()) == []


def test_a_holder_on_an_unknown_host_that_gives_signs_of_life_keeps_its_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = leave(folder, owner())

    def beat() -> None:
        if time.slept % 20 == 0:  # every ten seconds
            os.utime(path, (time.now, time.now))

    time = Clock(beat)
    monkeypatch.setattr(run_lock, "time", time)
    with (
        pytest.raises(LockTimeoutError, match="more than 600 s"),
        lock_run(folder, 600, lambda text: None, silence_seconds=60),
    ):
        raise AssertionError("two trainings at once")
    assert json.loads(path.read_text(encoding="utf-8"))["token"] == "other"


def test_a_training_gives_signs_of_life(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.01)
    with lock_run(folder, 0, never_told):
        path = note(folder)
        os.utime(path, (1, 1))
        wait_until(lambda: path.stat().st_mtime != 1, "the holder gives no sign of life")


def test_a_holder_that_was_replaced_while_it_could_not_say_that_it_lives_knows_it_and_touches_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, or its file system stalled, for so long that another has taken the run."""
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.01)
    with lock_run(folder, 0, never_told) as hold:
        path = note(folder)
        path.unlink()
        path = path.with_name("other")
        path.write_text(owner(**AGAIN).model_dump_json(), encoding="utf-8")
        os.utime(path, (1, 1))
        wait_until(lambda: hold.taken_by is not None, "the holder does not see that it was replaced")
        assert str(hold.taken_by) == "Slurm job 4711 on node-far-away"
        for _ in range(3):
            hold.heartbeat()
    assert path.stat().st_mtime == 1
    assert json.loads(path.read_text(encoding="utf-8"))["token"] == "other"


@pytest.mark.parametrize("content", [None, b"", b"\0" * 80], ids=["deleted", "empty", "zeros"])
def test_a_holders_file_that_is_deleted_or_damaged_takes_no_run_from_it(
    folder: Path, content: bytes | None
) -> None:
    with lock_run(folder, 0, never_told) as hold:
        path = note(folder)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
            os.utime(path, (1, 1))
        hold.heartbeat()
        assert hold.taken_by is None
        # who waits for it must not find it silent
        assert content is None or path.stat().st_mtime != 1


def test_a_wait_that_is_too_short_ends_with_whom_and_what_to_do(folder: Path, clock: Clock) -> None:
    path = leave(folder, owner(job="4711"))
    mine = me(job="4711")
    notes: list[str] = []
    with (
        pytest.raises(LockTimeoutError) as busy,
        lock_run(folder, 30, notes.append, mine),
    ):
        raise AssertionError("two trainings at once")
    assert str(busy.value).startswith(
        "Slurm job 4711 on node-far-away has been training this run for more than 30 s."
    )
    assert "end it and run snakemake again" in str(busy.value)
    assert len(notes) == 1
    assert note(folder) == path


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"token": "abc", "ho', id="cut off"),
        pytest.param(b"\0" * 80, id="zeros, after a crash"),
        pytest.param(b"\xff\xfe\x80", id="no text"),
    ],
)
def test_a_damaged_holder_file_keeps_nobody_out_for_long(content: bytes, folder: Path, clock: Clock) -> None:
    leave(folder, owner()).write_bytes(content)
    with lock_run(folder, 3600, lambda text: None):
        pass
    assert list(folder.iterdir()) == []


def fake_squeue(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("echo COMPLETED", id="completed"),
        pytest.param("echo TIMEOUT", id="timed out"),
        pytest.param("echo DEADLINE", id="past its deadline"),
        pytest.param("exit 0", id="unknown and no error"),
        pytest.param("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", id="forgotten"),
    ],
)
def test_another_job_that_slurm_says_has_ended_is_replaced_at_once(
    answer: str, folder: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path / "bin", answer, monkeypatch)
    leave(folder, owner(job="4711"))
    with lock_run(folder, 0, never_told, me(job="4712")):
        pass
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "PENDING"])
def test_another_job_that_slurm_says_is_there_keeps_its_run_however_silent(
    state: str, folder: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 50.0)  # asked less often, for a faster test
    fake_squeue(tmp_path / "bin", f"echo {state}", monkeypatch)
    leave(folder, owner(job="4711"))
    mine = me(job="4712")
    with pytest.raises(LockTimeoutError), lock_run(folder, 600, lambda text: None, mine, silence_seconds=60):
        raise AssertionError("two trainings at once")


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param("echo 'Unable to contact slurm controller' >&2; exit 1", id="the controller is away"),
        pytest.param("echo NODE_FAIL", id="a node does not answer, and its processes may live"),
    ],
)
def test_where_slurm_cannot_say_silence_decides(
    answer: str, folder: Path, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "POLL_SECONDS", 20.0)
    fake_squeue(tmp_path / "bin", answer, monkeypatch)
    leave(folder, owner(job="4711"))
    with lock_run(folder, 3600, lambda text: None, me(job="4712"), silence_seconds=60):
        assert 60 < clock.now - 1000 < 120
    assert list(folder.iterdir()) == []


def contend(start: Start, folder: Path, processes: int, rounds: int, ending: str) -> tuple[int, str]:
    """Turns taken, and what the contenders said, when all begin at once."""
    contenders = [start(CONTEND, str(rounds), ending) for _ in range(processes)]
    for contender in contenders:
        assert said(contender) == "ready\n"
    for contender in contenders:
        assert contender.stdin is not None
        contender.stdin.write("\n")
        contender.stdin.flush()
    # all at once: one that is not awaited stays in the table of processes when it has died
    with ThreadPoolExecutor(processes) as pool:
        words = "".join(pool.map(lambda each: each.communicate(timeout=LIMIT_SECONDS)[0], contenders))
    return len((folder / "turns").read_text(encoding="utf-8")), words


@pytest.mark.slow
def test_never_two_hold_a_run_at_once_however_many_want_it(start: Start, folder: Path) -> None:
    turns, words = contend(start, folder, processes=8, rounds=20, ending="in order")
    assert words == ""
    assert turns == 8 * 20
    assert {path.name for path in folder.iterdir()} == {"turns"}


@pytest.mark.slow
def test_of_many_who_find_a_dead_holder_one_at_a_time_takes_its_place(start: Start, folder: Path) -> None:
    """Every one of them dies with the run in its hands, for 5 times in all."""
    for _ in range(5):
        turns, words = contend(start, folder, processes=8, rounds=1, ending="dying")
        assert words == ""
        assert turns == 8
        (folder / "turns").unlink()
