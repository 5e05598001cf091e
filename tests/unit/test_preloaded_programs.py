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

pytestmark = pytest.mark.slow


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
    command: list[str | Path] = [preloaded_python, SCRIPTS / "cli.py", "nonsense"]

    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
