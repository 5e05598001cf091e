"""What the probe of a training leaves alone in processes that the training forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.paths import SCRIPTS
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.slow

SCRIPT = """
import multiprocessing, os, sys, time, weakref
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scalewise.measure import hooks
from scalewise.measure.probe_spec import ProbeSpec
from scalewise.measure.measured_process import MeasuredProcess

folder = Path(sys.argv[1])
log = os.open(folder / "freed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def freed(kind, write=os.write, getpid=os.getpid, log=log):  # at the interpreter's end a module has no names
    write(log, f"{kind} {getpid()}\\n".encode())


class Event:
    # stands in for torch.cuda.Event, whose destructor calls CUDA
    def __init__(self, **_options):
        self.at = 0.0

    def record(self, _stream):
        self.at = time.perf_counter()

    def query(self):
        return True

    def elapsed_time(self, later):
        return 1e3 * (later.at - self.at)

    def __del__(self, freed=freed):
        freed("event")


def train(epochs, workers=0):
    data = TensorDataset(torch.randn(48, 6), torch.randn(48, 3))
    loader = DataLoader(data, 8, num_workers=workers, persistent_workers=False)
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            process.skipped.add_flags([flag := torch.zeros(1)])
            weakref.finalize(flag, freed, "flag").atexit = False


process = MeasuredProcess(ProbeSpec(folder), time.perf_counter())
process.begin()
hooks.install(process, lambda *_: None)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
of_a_gpu = torch.cuda.Event, torch.cuda.current_stream, torch.cuda.is_current_stream_capturing
torch.cuda.Event, torch.cuda.current_stream = Event, lambda _device: None
torch.cuda.is_current_stream_capturing = lambda: False
process.place, process.steps.device = {"host": "n1"}, torch.device("cuda", 0)

train(epochs=2, workers=2)
assert process.steps.done == 12
train(epochs=20)  # so many that the parent frees some
for loss in process.losses._kept.values():
    weakref.finalize(loss, freed, "loss").atexit = False

child = os.fork()
if not child:
    sys.exit()  # by the interpreter, which frees all that it has
print(os.waitpid(child, 0)[1])

trains = multiprocessing.get_context("fork").Process(target=train, args=(1,))
trains.start()
trains.join()
print(trains.exitcode)
print(trains.pid)
print(os.getpid(), flush=True)
os._exit(0)
"""


def test_what_a_training_has_measured_is_freed_in_no_process_that_it_forks(tmp_path: Path) -> None:
    """A CUDA event that is freed in a worker of a DataLoader ends it by SIGABRT, and with it the training."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    exited, trained, trained_pid, pid = map(int, done.stdout.split())
    assert (exited, trained) == (0, 0)

    freed = Counter(line.rpartition(" ")[::2] for line in (tmp_path / "freed").read_text().splitlines())
    assert {by for _, by in freed} == {str(pid)}
    assert freed["event", str(pid)] > 100, "the stand-ins of CUDA events are not what the probe frees"
    # a process that trains is measured by itself
    record = json.loads((tmp_path / f"0.{trained_pid}.record.json").read_text())
    assert (record["ended"], record["samples"]) == ("itself", [8] * 6)
    assert all(seconds > 0 for seconds in record["seconds"][1:])
