"""Whole runs through train.py: real ranks, real gloo, real records."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import datetime

import pytest
import torch
from safetensors.torch import load_file
from tests.distributed.runs import COMMIT, Finished, Runs
from tests.machine import needs_two_cores
from tests.planted_records import leave_failure
from tests.small_runs import definition

from scalewise.execution.rank_files import RANK_SETUP
from scalewise.records import EPOCHS, MODEL, RANKS, RECORD, STARTUP, UTILIZATION
from scalewise.training.data import channel_statistics, read
from scalewise.training.models import build

pytestmark = needs_two_cores

LEFT = {RECORD, EPOCHS, RANKS, UTILIZATION, "train.log"}


def names_in(run: Finished) -> set[str]:
    return {path.name for path in run.folder.iterdir()}


@pytest.fixture(scope="module")
def finished(shared_runs: Runs) -> dict[int, Finished]:
    """A run of one rank, and one of two ranks that was started while the first was training."""
    stepped = {"schedule": "step"}
    # with ranks that load torch, as for users
    runs = replace(shared_runs, python=None)
    first = runs.start("study", 1, stepped)
    first.wait_for(RANK_SETUP)
    second = runs.start("study", 2, stepped)
    leave_failure(second.folder, definition(2), "failed", "why an earlier start failed")
    return {1: first.finish(), 2: second.finish()}


@pytest.fixture(params=[1, 2])
def run(finished: dict[int, Finished], request: pytest.FixtureRequest) -> Finished:
    """Each of the two."""
    return finished[request.param]


def test_a_run_leaves_its_records_and_nothing_else(run: Finished) -> None:
    assert names_in(run) == LEFT
    assert run.summary.outcome == "completed"
    assert run.summary.reason == ""


@pytest.mark.fault(5)
def test_every_rank_trains_on_an_equal_share_of_whole_batches(run: Finished) -> None:
    devices = run.summary.definition.shape.world_size
    assert list(run.ranks["rank"]) == list(range(devices))
    # 3 epochs of the 5 whole batches
    assert run.ranks["train_samples"].tolist() == [3 * 5 * 250 // devices] * devices


def test_each_rank_has_the_threads_and_the_cpus_it_was_given(run: Finished) -> None:
    assert (run.ranks["threads"] == run.summary.definition.settings.cpus_per_device).all()
    cpus = [int(cpu) for cpu in run.ranks["cpu_affinity"]]
    assert len(set(cpus)) == len(cpus)
    assert set(cpus) <= os.sched_getaffinity(0)


def test_every_part_of_the_start_up_is_accounted_for(run: Finished) -> None:
    for part in STARTUP:
        seconds = getattr(run.measured, part)
        assert seconds > 0, part
        assert seconds == run.ranks[part].max(), part


def test_windows_hold_every_step_once_and_give_the_throughput(run: Finished) -> None:
    measured = run.measured
    ends = [window.first_step + window.steps for window in measured.windows]
    # when the first step began is unknown
    assert [window.first_step for window in measured.windows] == [1, *ends[:-1]]
    assert ends[-1] == 3 * 5
    assert sum(window.samples for window in measured.windows) == (3 * 5 - 1) * 250
    # the warm-up, and the first step of each further epoch
    assert [(w.first_step, w.steps) for w in measured.windows if w.warmup] == [(1, 1), (5, 1), (10, 1)]
    assert measured.excluded_steps["the begin of a data-loader iteration"] == 2
    timed = [window for window in measured.windows if not window.warmup]
    rate = sum(window.samples for window in timed) / sum(window.seconds for window in timed)
    assert measured.throughput_samples_per_second == pytest.approx(rate)
    assert measured.parameters == 64 * 10 + 10


def test_the_loss_falls_and_the_epochs_agree_with_the_summary_and_their_rates(run: Finished) -> None:
    epochs, measured = run.epochs, run.measured
    assert list(epochs["epoch"]) == [1, 2, 3]
    assert epochs["train_loss"].is_monotonic_decreasing
    assert epochs["test_loss"].iloc[-1] < epochs["test_loss"].iloc[0]
    assert measured.final_accuracy == epochs["test_accuracy"].iloc[-1] > 0.8
    assert measured.best_accuracy == epochs["test_accuracy"].max()
    assert measured.epochs_completed == 3
    assert epochs["learning_rate"].tolist() == pytest.approx([0.05, 0.035, 0.0245])


def test_a_run_says_where_its_numbers_come_from(run: Finished) -> None:
    devices = run.summary.definition.shape.world_size
    origin = run.summary.provenance
    assert origin is not None
    assert origin.commit == COMMIT
    assert origin.hosts == [socket.gethostname()]
    assert origin.devices == ["CPU process"] * devices
    assert origin.launcher == "popen"
    (everywhere,) = origin.environments
    assert everywhere.hosts == origin.hosts
    assert {"scalewise", "python", "torch", "numpy"} <= everywhere.versions.keys()
    assert everywhere.cpu_model
    assert everywhere.operating_system
    assert origin.gpu_limits == [None] * devices
    assert datetime.fromisoformat(origin.started_at) <= datetime.fromisoformat(origin.ended_at)


def test_a_second_training_waits_for_the_first_and_says_so(finished: dict[int, Finished]) -> None:
    first, second = finished[1], finished[2]
    assert "waiting: another Scalewise run" not in first.stderr
    assert second.stderr.count("waiting: another Scalewise run is using this machine") == 1
    assert first.summary.provenance is not None
    began = datetime.fromisoformat(second.log[0].split()[0])
    assert began >= datetime.fromisoformat(first.summary.provenance.ended_at)
    # the wait is not counted as the second run's own time
    assert second.summary.provenance is not None
    assert second.summary.provenance.started_at >= first.summary.provenance.ended_at


def test_a_training_that_steps_end_is_completed_without_an_evaluation_and_measured_over_these_steps(
    runs: Runs,
) -> None:
    """In the middle of its second epoch of 5 steps."""
    run = runs.complete("steps", 2, {"steps": 7})
    assert (run.summary.outcome, run.summary.reason) == ("completed", "")
    assert names_in(run) == LEFT
    measured = run.measured
    assert len(run.epochs) == measured.epochs_completed == 0
    assert (measured.final_accuracy, measured.best_accuracy) == (None, None)
    assert measured.evaluation_seconds == 0.0
    assert [(w.first_step, w.steps, w.samples, w.warmup) for w in measured.windows] == [
        (1, 1, 250, True),
        (2, 3, 750, False),
        (5, 1, 250, True),
        (6, 3, 750, False),
    ]
    timed = sum(window.seconds for window in measured.windows if not window.warmup)
    assert measured.throughput_samples_per_second == pytest.approx(1500 / timed)


@pytest.mark.parametrize(("launcher", "rendezvous"), [("torchrun", "tcp"), ("spawn", "file")])
def test_however_ranks_are_started_and_meet_they_leave_the_same_records(
    runs: Runs, finished: dict[int, Finished], launcher: str, rendezvous: str
) -> None:
    changed = {"schedule": "step", "launcher": launcher, "rendezvous": rendezvous}
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        run, usual = runs.complete("study", 2, changed), finished[2]
    finally:
        other.kill()
        other.wait()
    assert names_in(run) == names_in(usual)
    assert list(run.epochs.columns) == list(usual.epochs.columns)
    assert list(run.ranks.columns) == list(usual.ranks.columns)
    for column in ("epoch", "train_loss", "test_loss", "test_accuracy", "learning_rate"):
        assert run.epochs[column].tolist() == pytest.approx(usual.epochs[column].tolist(), rel=1e-6)
    for column in ("rank", "local_rank", "host", "device", "threads", "train_samples"):
        assert run.ranks[column].tolist() == usual.ranks[column].tolist()
    # one process starts all ranks that train.py spawns
    assert len(set(run.ranks["cpu_affinity"])) == (1 if launcher == "spawn" else 2)
    windows, expected = (
        [(w.first_step, w.steps, w.samples) for w in r.measured.windows] for r in (run, usual)
    )
    assert windows == expected
    # what started its ranks, and what else kept the machine busy
    assert run.summary.definition.launcher == launcher
    assert run.summary.provenance is not None
    assert run.summary.provenance.launcher.split()[0] == launcher
    assert run.summary.provenance.other_jobs is None
    assert ("torch.distributed.run" in run.log[0]) == (launcher == "torchrun")
    assert run.measured.other_cpu_fraction is not None
    assert 0 < run.measured.other_cpu_fraction < 1


# --- options that a whole run shows -------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(shared_runs: Runs) -> dict[str, Finished]:
    """Runs that save their model: whole on one rank of two CPUs, and in parts on two ranks."""
    common = {"save_model": True, "model": "digits_cnn", "epochs": 4}
    workers = {"loader": "workers", "cpus_per_device": 2, "devices": [1]}
    return {
        "ddp": shared_runs.complete("ddp", 1, common | workers),
        "fsdp": shared_runs.complete("fsdp", 2, common | {"parallelism": "fsdp"}),
    }


@pytest.mark.parametrize("parallelism", ["ddp", "fsdp"])
def test_a_saved_model_has_the_accuracy_that_was_recorded(
    saved: dict[str, Finished], parallelism: str, shared_runs: Runs
) -> None:
    run = saved[parallelism]
    dataset = read(shared_runs.dataset)
    images = dataset["test_images"]
    network = build("digits_cnn", images.shape[1:], 10).eval()
    network.load_state_dict(load_file(run.folder / MODEL))
    mean, std = channel_statistics(dataset["train_images"])
    with torch.no_grad():
        predicted = network((images - mean) / std).argmax(1)
    accuracy = float((predicted == dataset["test_labels"]).double().mean())
    assert accuracy == pytest.approx(run.measured.final_accuracy, abs=1e-9)
    assert accuracy > 0.3
    # two CPUs for each of its ranks
    cpus_per_device = 2 if parallelism == "ddp" else 1
    assert set(run.ranks["threads"]) == {cpus_per_device}
    assert {len(str(cpus).replace("-", ",").split(",")) for cpus in run.ranks["cpu_affinity"]} == {
        cpus_per_device
    }
