"""A launcher of its own: it sets PYTHONPATH for its two processes, as if nobody else could need it.

python spawning.py FOLDER
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

# as transformers and accelerate do, before they import it
assert importlib.util.find_spec("torch") is not None

# ruff: noqa: E402  it asks before it imports
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
    raise AssertionError("nobody ended it")


if __name__ == "__main__":
    print("sitecustomize", Path(str(sys.modules["sitecustomize"].__file__)).parent.name)
    print("path", *sys.path)
    os.environ["PYTHONPATH"] = "/elsewhere"
    given = {**os.environ, "PYTHONPATH": "/given"}
    told = [sys.executable, "-c", "import os; print('child', os.environ['PYTHONPATH'])"]
    subprocess.run(told, env=given, check=True)
    sys.stdout.flush()
    spawn(train, (sys.argv[1],), nprocs=2)
    (Path(sys.argv[1]) / "parent").write_text("goes on")
