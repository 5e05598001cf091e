"""The tools of the tests: waits, the signals of what tests start, and the program that a server forks."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.paths import ROOT
from tests.preloading import PLANTED, SCRIPTS
from tests.waiting import ended_output, wait_until


def test_what_has_happened_is_returned() -> None:
    looks = iter([None, [], [7]])
    assert wait_until(lambda: next(looks), "no number", longest_pause_seconds=0) == [7]


def test_a_wait_ends_after_its_limit_and_names_what_is_missing() -> None:
    with pytest.raises(TimeoutError, match=r"^After 0\.01 s no checkpoint$"):
        wait_until(lambda: False, "no checkpoint", 0.01)
    with pytest.raises(TimeoutError, match=r"^After 0 s seen: 3$"):
        wait_until(lambda: False, lambda: f"seen: {3}", 0)


def test_a_wait_ends_with_the_process_and_shows_its_output() -> None:
    code = "import sys; print('one'); sys.exit('two')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        expected = "no checkpoint, and the process has ended:\nexit code 1\none\n\ntwo\n"
        with pytest.raises(AssertionError) as caught:
            wait_until(lambda: False, "no checkpoint", ended=lambda: ended_output(process))
    assert str(caught.value) == expected


def test_what_a_process_does_last_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        assert wait_until(lambda: process.returncode == 0, "no end", ended=lambda: ended_output(process))


SHOWS = "import signal as s; print([n for n in (s.SIGHUP, s.SIGINT) if s.getsignal(n) is s.SIG_IGN])"


def test_what_a_test_starts_ignores_no_signal() -> None:
    assert subprocess.check_output([sys.executable, "-c", SHOWS], text=True) == "[]\n"


@pytest.mark.slow
def test_nor_does_it_where_the_tests_themselves_were_started_in_the_background() -> None:
    """By a process of xdist, which starts as its tests would without one."""
    this = f"{__file__}::{test_what_a_test_starts_ignores_no_signal.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--numprocesses", "1", this]
    # as nohup and a script's background do
    deaf = ["sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh", *command]
    done = subprocess.run(deaf, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# --- a server forks what a small program would start: the program ends as its fork does ------------------


def forks(folder: Path) -> list[int]:
    """Process numbers of forks whose command line names a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if str(folder) in line and str(PLANTED) in line:
            found.append(int(path.parent.name))
    return found


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def waiting(preloaded_python: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A program that waits for another rank, in a fork."""
    (tmp_path / "sitecustomize.py").touch()
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = os.environ | ranks | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
    command: list[str | Path] = [preloaded_python, PLANTED, tmp_path, "4", "2=1"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    # itself, and its fork
    wait_until(lambda: len(forks(tmp_path)) == 2, "there is no fork")
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_fork"),
    [(signal.SIGUSR1, False), (signal.SIGTERM, False), (signal.SIGKILL, False), (signal.SIGKILL, True)],
)
def test_the_program_and_its_fork_end_alike_by_a_signal_to_either(
    waiting: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, to_fork: bool
) -> None:
    (fork,) = set(forks(tmp_path)) - {waiting.pid}
    os.kill(fork if to_fork else waiting.pid, number)

    assert waiting.wait(60) == -number
    wait_until(lambda: forks(tmp_path) == [], "the fork is left")


@pytest.mark.slow
def test_a_copy_of_the_checkout_runs_its_own_modules(preloaded_python: Path, tmp_path: Path) -> None:
    copy = tmp_path / "workflow" / "scripts"
    shutil.copytree(SCRIPTS, copy, ignore=shutil.ignore_patterns("*.pyc.*"))
    with (copy / "scalewise" / "plan" / "plan_file.py").open("a", encoding="utf-8") as module:
        module.write("\nprint('the copy is at work')\n")
    for scripts, at_work in ((copy, True), (SCRIPTS, False)):
        ended = subprocess.run(
            [preloaded_python, scripts / "cli.py", "--help"], capture_output=True, text=True, check=True
        )
        assert ("the copy is at work" in ended.stdout) == at_work


@pytest.mark.slow
def test_an_exit_code_comes_back(preloaded_python: Path) -> None:
    command: list[str | Path] = [preloaded_python, SCRIPTS / "cli.py", "nonsense"]

    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
