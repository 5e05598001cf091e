"""A run has one writer at a time, and a measured training the machine to itself: real processes and files."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.stand_ins import stand_ins
from tests.unit.conftest import Process, StartPython, said
from tests.waiting import LIMIT_SECONDS, wait_until

from scalewise.execution import lock as run_lock
from scalewise.execution.lock import (
    LOST_SECONDS,
    LockError,
    Owner,
    lock_run,
    machine_lock,
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
with lock_run(path, 3600, say) if of_run else machine_lock(3600, say, str(path)):
    print("holds", flush=True)
    sys.stdin.read()
"""

# Enters and leaves many times, on a file system whose every answer comes late: a race shows at once.
# A second one inside would find the marker of the first.
CONTEND = """
import os, random, sys, time
from pathlib import Path
from scalewise.execution import lock as run_lock
from scalewise.execution.lock import lock_run

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

Hold = Callable[..., Process]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture(params=["of a run", "of the machine"])
def lock(request: pytest.FixtureRequest, folder: Path) -> Path:
    """The folder of a run, or the file that a machine's trainings lock."""
    return folder if request.param == "of a run" else folder.with_name("training.lock")


@pytest.fixture
def hold(start_python: StartPython) -> Hold:
    """Starts a process that takes a lock, as a user, and keeps it until its stdin is closed."""
    return lambda path, user=0: start_python(HOLD, str(path), str(user))


def take(path: Path, report: Callable[[str], None], seconds: float = 0) -> AbstractContextManager[object]:
    return lock_run(path, seconds, report) if path.is_dir() else machine_lock(seconds, report, str(path))


class Clock:
    """Time that passes during a sleep, and what happens meanwhile."""

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


def owner(**changed: Any) -> Owner:
    """A holder of whom nothing can be found out from here."""
    values = {"token": "other", "host": "node-far-away", "pid": 1, "job": None, "restart": 0}
    return Owner.this_process().model_copy(update=values | changed)


def me(**changed: Any) -> Owner:
    """This process, in another place of Slurm's."""
    return Owner.this_process().model_copy(update=changed)


def never_told(text: str) -> None:
    raise AssertionError(f"no process holds the run, but: {text}")


def note(folder: Path) -> Path:
    """What the holder of a run has written."""
    (path,) = (path for path in folder.rglob("*") if path.is_file())
    return path


def leave(folder: Path, other: Owner) -> Path:
    """A run that another holds who has given no sign of life since."""
    aside = folder.with_name("aside")
    with lock_run(folder, 0, never_told, other):
        shutil.copytree(folder, aside)
    shutil.copytree(aside, folder, dirs_exist_ok=True)
    return note(folder)


def test_a_free_run_is_taken_at_once_and_left_as_it_was(folder: Path) -> None:
    with lock_run(folder, 0, never_told) as waited:
        assert not waited
        assert json.loads(note(folder).read_text(encoding="utf-8"))["pid"] == os.getpid()
    assert list(folder.iterdir()) == []


def test_the_second_training_waits_names_the_first_and_starts_when_that_ends(hold: Hold, lock: Path) -> None:
    first = hold(lock)
    assert said(first) == "holds\n"
    second = hold(lock)
    waits = said(second)
    assert f"process {first.pid}" in waits
    assert ("is training this run; " if lock.is_dir() else "waiting: another Scalewise run is using") in waits
    assert second.poll() is None
    first.communicate(input="")
    assert said(second) == "holds\n"
    assert second.communicate(input="")[0] == ""
    assert second.returncode == 0
    assert not lock.is_dir() or list(lock.iterdir()) == []


def test_a_training_that_was_killed_is_replaced_at_once(hold: Hold, lock: Path) -> None:
    """In a container without an init process, the dead stay in the table of processes."""
    for options in (os.WEXITED | os.WNOWAIT, os.WEXITED):
        first = hold(lock)
        assert said(first) == "holds\n"
        first.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, first.pid, options)
        with take(lock, never_told):
            pass


def test_a_training_that_raises_gives_its_lock_back(lock: Path) -> None:
    with pytest.raises(KeyError), take(lock, never_told):
        raise KeyError("in the training")
    with take(lock, never_told):
        pass


def test_another_process_with_the_number_of_a_dead_training_does_not_hold_its_run(
    hold: Hold, start_python: StartPython, folder: Path
) -> None:
    """After a restart of the machine, process ids are assigned again."""
    first = hold(folder)
    assert said(first) == "holds\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    stranger = start_python("import sys; sys.stdin.read()")
    path = note(folder)
    left = json.loads(path.read_text(encoding="utf-8")) | {"pid": stranger.pid}
    path.write_text(json.dumps(left), encoding="utf-8")
    with lock_run(folder, 0, never_told):
        pass


EARLIER = {"job": "4711", "restart": 0}
AGAIN = {"job": "4711", "restart": 1}


def fake_squeue(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins(folder, {"squeue": script})
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("other", "mine", "squeue", "silence", "note_of_wait"),
    [
        pytest.param(
            EARLIER,
            AGAIN,
            None,
            LOST_SECONDS,
            "Slurm job 4711 on node-far-away",
            id="an earlier start of the job on another node",
        ),
        pytest.param({}, {}, None, 60, "process 1 on node-far-away", id="a process on an unknown host"),
        *(
            pytest.param(EARLIER, {"job": "4712"}, answer, 60, "Slurm job 4711", id=answer)
            for answer in (
                "echo 'Unable to contact slurm controller' >&2; exit 1",
                # a node does not answer, and its processes may live
                "echo NODE_FAIL",
            )
        ),
        *(
            pytest.param(EARLIER, {"job": "4712"}, answer, 0, None, id=answer)
            for answer in (
                *("echo COMPLETED", "exit 0"),
                "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
            )
        ),
    ],
)
def test_a_holder_that_has_ended_or_is_silent_for_long_is_replaced(
    other: dict[str, Any],
    mine: dict[str, Any],
    squeue: str | None,
    silence: float,
    note_of_wait: str | None,
    folder: Path,
    clock: Clock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if squeue is not None:
        monkeypatch.setattr(run_lock, "POLL_SECONDS", 20.0)  # asked less often, for a faster test
        fake_squeue(tmp_path / "bin", squeue, monkeypatch)
    leave(folder, owner(**other))
    notes: list[str] = []
    with lock_run(folder, 3600, notes.append, me(**mine), silence_seconds=60) as waited:
        assert waited == bool(silence)
    assert silence <= clock.now - 1000 <= 2 * silence
    assert len(notes) == bool(silence)
    assert note_of_wait is None or note_of_wait in notes[0]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"\0" * 80], ids=["deleted", "zeros"])
def test_a_holders_file_that_is_deleted_or_damaged_takes_no_run_from_it(
    folder: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "HEARTBEAT_SECONDS", 0.01)
    with lock_run(folder, 0, never_told):
        path = note(folder)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
            os.utime(path, (1, 1))
            # who waits for it must not find it silent
            wait_until(lambda: path.stat().st_mtime != 1, "the holder gives no sign of life")


def test_a_wait_that_is_too_short_ends_with_whom_and_what_to_do(folder: Path, clock: Clock) -> None:
    path = leave(folder, owner(job="4711"))
    mine = me(job="4711")
    notes: list[str] = []
    with (
        pytest.raises(LockError) as busy,
        lock_run(folder, 30, notes.append, mine),
    ):
        raise AssertionError("two trainings at once")
    assert str(busy.value).startswith(
        "Slurm job 4711 on node-far-away has been training this run for more than 30 s."
    )
    assert "end it and run snakemake again" in str(busy.value)
    assert len(notes) == 1
    assert note(folder) == path


@pytest.mark.parametrize("content", [b'{"token": "abc", "ho', b"\xff\xfe\x80"], ids=["cut off", "no text"])
def test_a_damaged_holder_file_does_not_block_a_run_for_long(
    content: bytes, folder: Path, clock: Clock
) -> None:
    leave(folder, owner()).write_bytes(content)
    with lock_run(folder, 3600, lambda text: None):
        pass
    assert list(folder.iterdir()) == []


def contend(start: StartPython, folder: Path, processes: int, rounds: int, ending: str) -> tuple[int, str]:
    """Turns taken, and what the contenders said, when all begin at once."""
    contenders = [start(CONTEND, str(folder), str(rounds), ending) for _ in range(processes)]
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
def test_never_two_hold_a_run_at_once_however_many_want_it(start_python: StartPython, folder: Path) -> None:
    assert contend(start_python, folder, processes=4, rounds=10, ending="in order") == (4 * 10, "")
    assert {path.name for path in folder.iterdir()} == {"turns"}


@pytest.mark.slow
def test_of_many_who_find_a_dead_holder_one_at_a_time_takes_its_place(
    start_python: StartPython, folder: Path
) -> None:
    """Every one of them dies with the run in its hands."""
    assert contend(start_python, folder, processes=5, rounds=1, ending="dying") == (5, "")


def test_users_of_a_machine_take_turns_unless_they_name_another_lock(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = tmp_path / "training.lock"
    monkeypatch.setenv("SCALEWISE_MACHINE_LOCK", str(lock))
    notes: list[str] = []
    with machine_lock(0, never_told):
        too_short = rf"process {os.getpid()} .* for more than 1 s\. Wait for it to end"
        with pytest.raises(LockError, match=too_short), take(lock, notes.append, 0.7):
            raise AssertionError("two trainings at once")
        with take(tmp_path / "another.lock", never_told):
            pass
    assert len(notes) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_two_users_take_turns(hold: Hold, tmp_path: Path) -> None:
    first = hold(tmp_path / "training.lock", 12345)
    assert said(first) == "holds\n"
    second = hold(tmp_path / "training.lock", 23456)
    assert f"another Scalewise run is using this machine (process {first.pid})" in said(second)
    first.communicate(input="")
    assert said(second) == "holds\n"
