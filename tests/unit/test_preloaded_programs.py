"""The small program of the tests that has a server fork what it would start: it ends as its fork does."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.preloading import PLANTED, SCRIPTS
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.starts_ranks]


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


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_the_program_reaches_its_fork_and_comes_back_as_its_end(
    waiting: subprocess.Popen[str], tmp_path: Path, number: signal.Signals
) -> None:
    waiting.send_signal(number)

    assert waiting.wait(60) == -number
    wait_until(lambda: forks(tmp_path) == [], "the fork is left")


def test_a_fork_that_is_killed_ends_its_program_alike(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    (fork,) = set(forks(tmp_path)) - {waiting.pid}
    os.kill(fork, signal.SIGKILL)

    assert waiting.wait(60) == -signal.SIGKILL


def test_a_program_that_is_killed_takes_its_fork_with_it(
    waiting: subprocess.Popen[str], tmp_path: Path
) -> None:
    waiting.kill()
    waiting.wait(60)

    wait_until(lambda: forks(tmp_path) == [], "the fork is left")


def test_a_fork_that_is_killed_comes_back_as_killed(waiting: subprocess.Popen[str], tmp_path: Path) -> None:
    (fork,) = set(forks(tmp_path)) - {waiting.pid}
    os.kill(fork, signal.SIGKILL)

    assert waiting.wait(60) == -signal.SIGKILL


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


def test_an_exit_code_comes_back(preloaded_python: Path) -> None:
    ended = subprocess.run(
        [preloaded_python, SCRIPTS / "cli.py", "nonsense"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert "invalid choice: 'nonsense'" in ended.stderr
