"""Writes real checkpoints of 20 MB one after the other, until it is killed.

Started as checkpoint_writer.py FOLDER. For each line on stdin, the step to begin at, it starts a writer,
which prints its process id, and then each step that it has written. A writer that was killed is followed by
``gone``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from tests.small_runs import definition

from scalewise.builtin.checkpoints.storage import save
from scalewise.execution.checkpoint_files import CheckpointFolder

FILES = ("shared.pt", "rank0.pt", "rank1.pt")
ELEMENTS = 1_700_000


def checkpoints_in(folder: Path) -> CheckpointFolder:
    return CheckpointFolder(folder, definition(2, learning_rate=0.1), {"dataset": "1" * 64})


def state_at(step: int, name: str) -> dict[str, Any]:
    """What a checkpoint of a step holds, of which no two are alike."""
    generator = torch.Generator().manual_seed(1000 * step + FILES.index(name))
    return {"step": step, "weights": torch.rand(ELEMENTS, generator=generator)}


def write_from(folder: Path, step: int) -> None:
    """Write until killed."""
    checkpoints = checkpoints_in(folder)
    while True:
        part = checkpoints.begin(step)
        sums = {name: save(part / name, state_at(step, name)) for name in FILES}
        checkpoints.commit(part, step, 0.0, sums)
        print(step, flush=True)
        step += 1


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        # a copy of this process saves the import of torch, and is killed like any other
        pid = os.fork()
        if not pid:
            print(f"pid {os.getpid()}", flush=True)
            write_from(Path(sys.argv[1]), int(line))
        os.waitpid(pid, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    main()
