"""The processes of the workers loader leave signals to their rank, and end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from tests.small_runs import definition_of, rank_setup

from scalewise.builtin import rank
from scalewise.builtin.data import datasets
from scalewise.builtin.data.worker_loader import LONGEST_TMPDIR
from scalewise.execution.messages import TrainSpec
from scalewise.execution.rank_files import RankFiles
from scalewise.execution.signals import Signals
from scalewise.plan.config.settings import Settings
from scalewise.ranks.distributed.identity import Identity
from scalewise.records import utc_now

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

LOAD = """\
import os, signal, subprocess, sys
import numpy, psutil, torch
from scalewise.builtin.data.loaders import Preprocessing
from scalewise.builtin.data.sampling import SeededBatches
from scalewise.builtin.data.worker_loader import WorkerLoader

signal.signal(signal.SIGUSR1, lambda *_: print("the rank noticed", flush=True))
images = torch.zeros(100, 1, 8, 8, dtype=torch.uint8).share_memory_()
plain = Preprocessing(torch.zeros(1), torch.ones(1))
labels, planned = torch.zeros(100, dtype=torch.int64), SeededBatches(seed=0)
loader = WorkerLoader(images, labels, plain, planned, torch.device("cpu"), workers=2, timeout_seconds=20)
processes = psutil.Process().children()  # before any other thread has begun
print(len(processes), "processes", flush=True)
planned.plan(numpy.arange(100).reshape(10, 10), epoch=0)
arriving = iter(loader)
batches = [next(arriving), next(arriving)]  # one of each process
pids = [str(process.pid) for process in processes]
for name in ("USR1", "TERM"):
    subprocess.run(["kill", f"-{name}", *pids], check=True)
os.kill(os.getpid(), signal.SIGUSR1)
batches += arriving if sys.argv[1] == "all" else [next(arriving)]
print(len(batches), "batches,", sum(each.is_running() for each in processes), "processes", flush=True)
"""
"""Keeps the loader until Python ends, as a training does whose objects refer to each other."""


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name, whatever the test is called."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def folder_of_length(place: Path, characters: int) -> Path:
    folder = place / ("x" * (characters - len(f"{place}/")))
    folder.mkdir()
    return folder


def load(how_many: str, tmpdir: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOAD, how_many],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS), "TMPDIR": str(tmpdir)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.slow
def test_a_tmpdir_whose_name_leaves_none_for_sockets_is_refused_with_the_cure(short: Path) -> None:
    refused = load("some", folder_of_length(short, LONGEST_TMPDIR + 1))
    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert last.startswith(f"RuntimeError: TMPDIR is {short}/xxx")
    assert "76 characters" in last
    assert "Set a shorter one" in last


@pytest.mark.fault(28)
@pytest.mark.parametrize(("how_many", "batches"), [("some", 3), ("all", 10)])
@pytest.mark.slow
def test_a_rank_with_loader_processes_ends_whether_its_epoch_is_done_or_not(
    short: Path, how_many: str, batches: int
) -> None:
    """In a TMPDIR of the longest name that leaves its sockets one."""
    done = load(how_many, folder_of_length(short, LONGEST_TMPDIR))
    assert done.returncode == 0, done.stderr
    said = ["2 processes", "the rank noticed", f"{batches} batches, 2 processes"]
    assert done.stdout.splitlines() == said
    assert done.stderr == ""


def test_loaders_are_built_before_the_process_group_begins_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(dataset="digits", model="linear", global_batch_size=8, loader="workers")
    files = RankFiles(tmp_path)
    spec = TrainSpec(
        definition=definition_of(settings),
        dataset=tmp_path / "digits",
        folder=tmp_path,
        started_at=utc_now(),
    )
    files.begin(rank_setup(shape="1x1", training=spec))
    begun: list[str] = []
    place = Identity(0, 0, 1, 1, "node-a", None, 0), "0", torch.device("cpu")

    @contextmanager
    def process_group(*_given: object) -> Iterator[None]:
        begun.append("process group")
        yield

    monkeypatch.setattr(rank, "initialize_rank", lambda *_given: place)
    monkeypatch.setattr(datasets, "load", lambda _path: None)
    monkeypatch.setattr(rank, "build_loaders", lambda *_given: begun.append("loaders"))
    monkeypatch.setattr(rank, "process_group", process_group)
    monkeypatch.setattr(rank, "train_and_record", lambda *_given: begun.append("training"))
    before = signal.getsignal(signal.SIGUSR1)
    try:
        rank.run_rank(files, time.monotonic(), Signals())
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert begun == ["loaders", "process group", "training"]
