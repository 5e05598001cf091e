"""SIGKILL while a checkpoint is written: those before are whole, and what is half written does not count."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.distributed.checkpoint_writer import FILES, checkpoints_in, state_at
from tests.reliability.thoroughness import times

from scalewise.execution.checkpoint_files import Checkpoint, CheckpointError
from scalewise.training.checkpoints.storage import load

ROOT = Path(__file__).parents[2]
WRITER = Path(__file__).with_name("checkpoint_writer.py")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(WRITER), str(tmp_path / "checkpoints")],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'workflow' / 'scripts'}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


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
    writer: subprocess.Popen[str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder, moments = tmp_path / "checkpoints", random.Random(18)
    kills, half_written, step = times(quick=6, thorough=50), 0, 0
    assert writer.stdin is not None
    assert writer.stdout is not None
    for _ in range(kills):
        writer.stdin.write(f"{step + 1}\n")
        writer.stdin.flush()
        _, pid = writer.stdout.readline().split()
        if not step:
            # without a first one there is nothing to go on from
            step = int(writer.stdout.readline())
        time.sleep(moments.uniform(0.0, 0.4))
        os.kill(int(pid), signal.SIGKILL)
        written = list(iter(writer.stdout.readline, "gone\n"))
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
