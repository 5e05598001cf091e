"""A study on a real terminal: watched to its end, made narrower on the way, or left by Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from tests.paths import ROOT, SNAKEFILE
from tests.prepared_digits import place_digits_of_study
from tests.terminal_screen import TerminalScreen
from tests.workflow.workplace import SITE

from scalewise.watch.study import StudySession

LIMIT_SECONDS = 300

STUDY = """\
experiments:
  digits:
    dataset: digits
    model: linear
    epochs: EPOCHS
    warmup_steps: 2
    devices: [1]
    repeats: 2
    global_batch_size: 256
    learning_rate: 0.05
"""


class Terminal:
    """A terminal with a person before it, in which Snakemake runs."""

    def __init__(self, file: int, pid: int, screen: TerminalScreen) -> None:
        self.file, self.pid, self.screen = file, pid, screen
        self.code: int | None = None

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns, rows)
        fcntl.ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, reached: Callable[[], bool]) -> None:
        """Look at the screen until it shows something, or Snakemake has ended."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not reached():
            assert time.monotonic() < deadline, self.screen.text
            ready, _, _ = select.select([self.file], [], [], 1)
            try:
                text = os.read(self.file, 1 << 16) if ready else b"\0"
            except OSError:  # the other side is closed
                text = b""
            if not text:
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return
            self.screen.write(text.decode(errors="replace").replace("\0", ""))

    @property
    def table(self) -> list[str]:
        """The lines below the rule."""
        rules = [row for row, line in enumerate(self.screen.lines) if line.startswith("-----")]
        return self.screen.lines[rules[-1] + 1 :] if rules else []


@contextmanager
def snakemake_in_a_terminal(folder: Path, python: Path, epochs: int) -> Iterator[Terminal]:
    """Snakemake with the local profile, for the length of a with statement."""
    place_digits_of_study(folder)
    (folder / "study.yaml").write_text(STUDY.replace("EPOCHS", str(epochs)))
    (folder / "site.yaml").write_text(f"{SITE}python: {python}\n")
    command = [str(Path(sys.executable).with_name("snakemake")), "-s", str(SNAKEFILE)]
    command += ["--profile", str(ROOT / "profiles" / "local")]
    command += ["--configfile", "study.yaml", "--config", "site=site.yaml"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = os.environ | {"PATH": path, "TERM": "xterm", "SCALEWISE_MACHINE_LOCK": str(folder / "lock")}
    pid, file = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(command[0], command, environ)
    terminal = Terminal(file, pid, TerminalScreen(100, 30))
    terminal.resize(100, 30)
    try:
        yield terminal
    finally:
        with suppress(psutil.Error):
            started = psutil.Process(pid)
            for process in [*started.children(recursive=True), started]:
                process.kill()
        os.close(file)


def test_a_study_is_watched_to_its_end_and_its_decision_stands_below_the_last_state(
    tmp_path: Path, preloaded_python: Path
) -> None:
    with snakemake_in_a_terminal(tmp_path, preloaded_python, epochs=60) as terminal:
        terminal.read_until(lambda: any("run 1 starting" in line for line in terminal.table))
        assert terminal.table[0].split() == ["devices", "runs", "done", "now"]
        terminal.resize(70, 20)
        terminal.read_until(lambda: False)

    assert terminal.code == 0, terminal.screen.text
    assert terminal.screen.scrolls_whole
    text = terminal.screen.text
    assert "Select jobs" not in text
    last_state, decision = text.rsplit("2 of 2 runs done,", 1)
    header, row = last_state.splitlines()[-2:]
    assert header.split()[:2] == ["devices", "runs"]
    assert re.match(r" +1  2 of 2 .* done$", row)
    assert max(len(header), len(row)) < 70
    assert "digits: " in decision
    assert "Report: results/report.html" in decision


def test_ctrl_c_ends_a_study_and_restores_the_terminal(tmp_path: Path, preloaded_python: Path) -> None:
    with snakemake_in_a_terminal(tmp_path, preloaded_python, epochs=1_000_000) as terminal:
        terminal.read_until(lambda: any("run 1: epoch" in line for line in terminal.table))
        os.write(terminal.file, b"\x03")
        terminal.read_until(lambda: False)

    assert terminal.code not in {0, None}
    assert terminal.screen.scrolls_whole
    assert "interrupted, 1 not made" in terminal.screen.text
    assert "Terminating processes on user request" in terminal.screen.text
    record = StudySession.read(tmp_path)
    assert record is not None
    assert record.ended
