"""SIGKILL while a checkpoint is written: those before are whole, and what is half written does not count."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.distributed.checkpoint_writer import FILES, checkpoints_in, state_at
from tests.reliability.thoroughness import times
from tests.waiting import LIMIT_SECONDS, ended_output, wait_until

from scalewise.builtin.checkpoints.storage import load
from scalewise.execution.checkpoint_files import Checkpoint, CheckpointError

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("checkpoint_writer.py")


@dataclass
class Writer:
    """checkpoint_writer.py at work, and a file with all that it has printed."""

    process: subprocess.Popen[str]
    output: Path
    read: int = 0

    def begin(self, step: int) -> None:
        """Have it write from a step on."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()

    def line(self, missing: str) -> str:
        """The next line that it prints."""
        found = wait_until(self._lines, missing, ended=lambda: ended_output(self.process))[0]
        self.read += 1
        return found

    def _lines(self) -> list[str]:
        """Return the whole lines that were not read yet."""
        return self.output.read_text(encoding="utf-8").split("\n")[self.read : -1]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    output = tmp_path / "output.txt"
    with output.open("w", encoding="utf-8") as stdout:
        process = subprocess.Popen(
            [sys.executable, str(WRITER), str(tmp_path / "checkpoints")],
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'workflow' / 'scripts'}"},
            stdin=subprocess.PIPE,
            stdout=stdout,
            text=True,
        )
    yield Writer(process, output)
    process.communicate(timeout=LIMIT_SECONDS)


def half_written_files(folder: Path) -> set[tuple[str, int, int]]:
    """The files of checkpoints without a name yet, each with its inode and time of change."""
    found = set()
    for path in folder.glob(".step-*/*"):
        with suppress(FileNotFoundError):
            status = path.stat()
            found.add((str(path), status.st_ino, status.st_ctime_ns))
    return found


def new_file(folder: Path, left: set[tuple[str, int, int]]) -> bool:
    """Whether a checkpoint is being written; what killed writers have left stays as it is."""
    return bool(half_written_files(folder) - left)


def newest_whole(folder: Path) -> Checkpoint:
    """What a training would go on from."""
    for checkpoint in checkpoints_in(folder).valid([]):
        try:
            for name in FILES:
                checkpoint.check(name)
        except CheckpointError:
            continue
        return checkpoint
    raise AssertionError(f"no whole checkpoint among {sorted(folder.iterdir())}")


@pytest.mark.fault(18)
@pytest.mark.timeout(times(quick=1200, thorough=2400))
def test_a_kill_at_any_moment_of_a_checkpoint_costs_that_one_alone(
    writer: Writer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder, moments = tmp_path / "checkpoints", random.Random(18)
    kills, half_written, step = times(quick=6, thorough=50), 0, 0
    for kill in range(kills):
        left = half_written_files(folder)
        writer.begin(step + 1)
        _, pid = writer.line("no writer begins").split()
        if not step:
            # without a first one there is nothing to go on from
            step = int(writer.line("the first checkpoint is missing"))
        if kill % 2:
            # in the middle of a checkpoint
            begun = partial(new_file, folder, left)
            wait_until(begun, "no checkpoint begins", longest_pause_seconds=0.001)
        else:
            time.sleep(moments.uniform(0.0, 0.4))
        os.kill(int(pid), signal.SIGKILL)
        written = list(iter(lambda: writer.line("the writer has not ended"), "gone"))
        step = max(step, *map(int, written)) if written else step

        found = newest_whole(folder)
        # one may have got its name before the writer could say so
        assert found.manifest.step in {step, step + 1}
        step = found.manifest.step
        for name in FILES:
            assert load(found.check(name), torch.device("cpu"))["weights"].equal(
                state_at(step, name)["weights"]
            )
        half_written += any(folder.glob(".step-*"))
        assert all(path.name.startswith((".gone-", ".step-", "step-")) for path in folder.iterdir())
    # kills between two checkpoints would show nothing
    assert half_written
    record_property("figure", f"{kills} of {kills} resumed, {half_written} with a half-written one beside it")
