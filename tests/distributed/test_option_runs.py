"""Options whose effect a whole run shows: what it leaves, and what its loader's processes do."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from tests.cores import needs_two_cores
from tests.distributed.whole_runs import ENDLESS, Finished, Start, Training, clean_up, finish, starter
from tests.waiting import wait_until

from scalewise.builtin.data import datasets
from scalewise.builtin.data.loaders import channel_statistics
from scalewise.builtin.models.builders import build
from scalewise.records import MODEL, SUMMARY, read_failure

pytestmark = needs_two_cores

WORKERS = {"loader": "workers"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("options")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Iterator[dict[str, Finished]]:
    """Runs that save their model: whole on one rank of two CPUs, and in parts on two ranks."""
    begin, started = starter(folder)
    common = {"save_model": True, "model": "digits_cnn", "epochs": 2}
    yield {
        "ddp": finish(begin("ddp", 1, common | WORKERS | {"cpus_per_device": 2, "devices": [1]})),
        "fsdp": finish(begin("fsdp", 2, common | {"parallelism": "fsdp"})),
    }
    clean_up(started)


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_a_saved_model_has_the_accuracy_that_was_recorded(
    saved: dict[str, Finished], parallelism: str, folder: Path
) -> None:
    run = saved[parallelism]
    dataset = datasets.load(folder / "digits.safetensors")
    network = build("digits_cnn", dataset.test_images.shape[1:], dataset.classes).eval()
    network.load_state_dict(load_file(run.folder / MODEL))
    mean, std = channel_statistics(dataset.train_images)
    with torch.no_grad():
        predicted = network((dataset.test_images - mean) / std).argmax(1)
    accuracy = float((predicted == dataset.test_labels).double().mean())
    measured = run.summary.measurements
    assert measured is not None
    assert accuracy == pytest.approx(measured.final_accuracy, abs=1e-9)
    assert accuracy > 0.3


def test_a_rank_of_two_cpus_has_two_threads_and_both_cpus(saved: dict[str, Finished]) -> None:
    run = saved["ddp"]
    assert list(run.ranks["threads"]) == [2]
    assert len(run.ranks["cpu_affinity"].iloc[0].replace("-", ",").split(",")) == 2


def test_the_wait_for_the_loader_is_recorded_by_name(saved: dict[str, Finished]) -> None:
    for parallelism, loader in (("ddp", "workers"), ("fsdp", "resident")):
        run = saved[parallelism]
        measured = run.summary.measurements
        assert measured is not None
        assert measured.loader == loader
        assert (run.ranks["loader_wait_seconds"] > 0).all()
        timed = sum(window.seconds for window in measured.windows if not window.warmup)
        waited = run.ranks["loader_wait_seconds"].max()
        assert measured.loader_wait_fraction == pytest.approx(waited / timed, rel=1e-6)


def loader_processes(training: Training, rank: int) -> list[int]:
    """The processes of a rank's loader, once it trains."""
    training.wait_for("progress.json")
    return [child.pid for child in psutil.Process(training.pid(rank)).children()]


def reason(training: Training) -> str:
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    return failure.reason


@pytest.mark.fault(28)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_loader_process_that_dies_ends_the_run_in_the_name_of_its_rank(
    start: Start, how: signal.Signals
) -> None:
    training = start("died", 2, ENDLESS | WORKERS)
    (worker,) = loader_processes(training, 1)
    os.kill(worker, how)
    code, _ = training.end()
    assert code == 1
    # whichever the rank comes upon first: the end of the process, or its half of a batch
    expected = [
        f"DataLoader worker (pid {worker})",
        f"DataLoader worker (pid(s) {worker})",
        "the workers loader lost",
    ]
    said = reason(training).removeprefix(f"rank 1 on {socket.gethostname()}: RuntimeError: ")
    assert said.startswith(tuple(expected))
    assert json.loads((training.attempt / "rank1.json").read_text())["state"] == "failed"
    assert training.left_over() == {}
    assert not (training.folder / SUMMARY).exists()


def test_loader_processes_do_not_outlive_a_run_that_is_asked_to_end(start: Start) -> None:
    training = start("stopped", 2, ENDLESS | WORKERS)
    workers = [pid for rank in range(2) for pid in loader_processes(training, rank)]
    assert len(workers) == 2
    training.process.send_signal(signal.SIGTERM)
    training.end()
    assert training.left_over() == {}
    wait_until(lambda: not any(map(psutil.pid_exists, workers)), f"loader processes {workers} are left")
