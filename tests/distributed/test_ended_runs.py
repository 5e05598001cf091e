"""Runs that meet a fault: what is counted and left, who is named, and that nothing runs on."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from sklearn.datasets import load_digits
from tests.distributed.runs import ENDLESS, Runs, Started, prepare_digits
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record
from tests.startup.sitecustomize import SILENCE
from tests.waiting import wait_until

from scalewise.records import EPOCHS, MODEL, RANKS, SUMMARY, UTILIZATION

pytestmark = needs_two_cores

HERE = socket.gethostname()
WORKERS = {"loader": "workers"}


# --- ranks that are killed, that hang, or never come --------------------------------------------------


@pytest.mark.fault(1)
@pytest.mark.parametrize("launcher", ["popen", "torchrun"])
def test_a_rank_killed_from_outside_is_named_and_the_others_end_with_it(
    runs: Runs, launcher: str, record_property: Record
) -> None:
    training = runs.start("killed", 2, ENDLESS | {"launcher": launcher})
    training.wait_for("progress.json")
    victim = training.pid(1)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    failure, stderr = training.fail()
    record_property("figure", f"{launcher}: ended after {time.monotonic() - began:.1f} s")
    expected = f"rank 1 on {HERE} (pid {victim}) ended without an error message. Slurm or"
    assert failure.reason.startswith(expected)
    assert expected in stderr
    assert not (training.folder / SUMMARY).exists()


@pytest.mark.fault(2)
def test_ranks_wait_for_one_that_hangs_until_their_timeout_and_not_for_the_launcher(
    runs: Runs, record_property: Record
) -> None:
    """The launcher would give the rank that hangs 30 seconds more."""
    training = runs.start("waiting", 2, ENDLESS | {"launcher": "torchrun"}, timeout_seconds=8)
    training.wait_for("progress.json")
    hung = training.pid(1)
    began = time.monotonic()
    os.kill(hung, signal.SIGSTOP)
    failure, _ = training.fail()
    record_property("figure", f"ended after {time.monotonic() - began:.1f} s, with a timeout of 8 s")
    complaint = json.loads((training.attempt / "rank0.json").read_text(encoding="utf-8"))
    assert "8000ms" in complaint["error"]["message"]
    assert failure.reason.startswith(f"rank 1 on {HERE} (pid {hung}) did not answer the other ranks in time")
    assert failure.reason.endswith("Scalewise ended it.")


@pytest.mark.fault(2)
def test_a_single_rank_that_hangs_is_ended_though_no_other_waits_for_it(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    monkeypatch.setenv(SILENCE, "10")
    training = runs.start("alone", 1, ENDLESS, timeout_seconds=5)
    training.wait_for("progress.json")
    hung = training.pid(0)
    began = time.monotonic()
    os.kill(hung, signal.SIGSTOP)
    failure, _ = training.fail()
    record_property("figure", f"a single rank: ended after {time.monotonic() - began:.1f} s, silent for 10 s")
    assert failure.reason.startswith(f"rank 0 on {HERE} (pid {hung}) showed no sign of life, and Scalewise")


@pytest.mark.starts_ranks
def test_ranks_and_their_launcher_do_not_outlive_a_train_py_that_is_killed(runs: Runs) -> None:
    training = runs.start("headless", 2, ENDLESS | {"launcher": "torchrun"})
    training.wait_for("progress.json")
    training.process.kill()
    training.end()
    assert training.left_over() == {}


@pytest.mark.fault(7)
def test_a_run_starts_though_the_port_that_everybody_uses_is_taken(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a shell's own MASTER_PORT names it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("", 29500))
        holder.listen()
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", "29500")
        assert runs.complete("taken", 2).summary.outcome == "completed"


# --- errors and losses --------------------------------------------------------------------------------


@pytest.mark.fault(3)
def test_the_traceback_of_the_one_rank_that_raised_comes_first_and_no_stale_result_stays(
    runs: Runs, record_property: Record
) -> None:
    folder = runs.folder / "raising" / "d2.r1"
    folder.mkdir(parents=True)
    for name in (SUMMARY, EPOCHS, RANKS, UTILIZATION):
        (folder / name).write_text("of an earlier run", encoding="utf-8")

    failure, stderr = runs.start("raising", 2, ENDLESS | {"model": "planted_raising_on_rank_1"}).fail()

    first, second = stderr.splitlines()[:2]
    said = f"rank 1 on {HERE}: ValueError: a fault on purpose"
    assert first == f"scalewise: raising/d2.r1 failed: {said}"
    assert second == "Traceback (most recent call last):"
    assert 'raise ValueError("a fault on purpose")' in stderr
    assert "closed by peer" not in stderr
    assert failure.reason.startswith(said)
    assert failure.log_tail
    assert not any((folder / name).exists() for name in (SUMMARY, EPOCHS, RANKS, UTILIZATION))
    record_property("figure", f"first line: {first.removeprefix('scalewise: ')}")


def test_a_training_is_kept_if_the_pass_that_counts_its_operations_fails(runs: Runs) -> None:
    # 3 epochs of 6 steps
    run = runs.complete("kept", 2, {"model": "planted_out_of_memory_after_18_steps", "save_model": True})
    assert run.summary.outcome == "completed"
    assert run.measured.epochs_completed == len(run.epochs) == 3
    assert run.measured.step_flops == {}
    assert (run.folder / MODEL).exists()


def test_a_loss_that_is_no_longer_finite_is_a_result_with_a_reason(runs: Runs) -> None:
    run = runs.complete("wild", 1, {"learning_rate": 1e38})
    assert run.summary.outcome == "diverged"
    assert "the loss is no longer finite in epoch" in run.summary.reason
    assert "Lower learning_rate (1e+38)" in run.summary.reason
    assert run.measured.epochs_completed == len(run.epochs) >= 1
    assert len(run.ranks) == 1


# --- data that the ranks do not divide ----------------------------------------------------------------


@pytest.mark.fault(5)
def test_1797_samples_over_4_ranks_make_equal_steps_and_each_is_tested_once(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    prepared = tmp_path / "prepared.safetensors"
    digits = load_digits().images
    prepare_digits(prepared, digits, digits)
    monkeypatch.setenv("COUNTED_IN", str(tmp_path))
    changed = {"model": "planted_counting", "devices": [4], "epochs": 2, "global_batch_size": 248}
    run = runs.complete("uneven", 4, changed, dataset=prepared)

    assert list(run.ranks["rank"]) == [0, 1, 2, 3]
    assert run.ranks["test_samples"].tolist() == [450, 449, 449, 449]
    assert run.ranks["train_samples"].sum() == 1797
    steps, tested = [], 0
    for rank in range(4):
        with (tmp_path / f"seen{rank}.csv").open(encoding="utf-8") as file:
            seen = [(phase, int(samples)) for phase, samples in csv.reader(file)]
        # a pass after the training counts its operations
        phases = [phase for phase, _ in seen]
        training = seen[phases.index("train") : len(phases) - phases[::-1].index("test")]
        steps.append(sum(phase == "train" for phase, _ in training))
        tested += sum(samples for phase, samples in training if phase == "test")
    assert steps == [2 * 8] * 4
    assert tested == 2 * 1797
    record_property("figure", f"{steps[0]} steps on each of 4 ranks, {tested // 2:,} samples tested")


# --- processes of loaders -----------------------------------------------------------------------------


def loader_processes(training: Started, said: str) -> dict[int, list[int]]:
    """The processes of each rank's loader, once the log says something and they are at work."""
    training.wait_for_line(said)
    ranks = [psutil.Process(training.pid(rank)) for rank in range(2)]
    training.wait_until(lambda: all(rank.children() for rank in ranks), "a rank has no loader process")
    return {rank.pid: [child.pid for child in rank.children()] for rank in ranks}


def none_exists(pids: list[int]) -> bool:
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.fault(28)
def test_a_loader_process_that_dies_ends_the_run_in_the_name_of_its_rank(runs: Runs) -> None:
    training = runs.start("died", 2, ENDLESS | WORKERS)
    training.wait_for("progress.json")
    (worker,) = loader_processes(training, "train epoch 1/")[training.pid(1)]
    os.kill(worker, signal.SIGKILL)
    failure, _ = training.fail()
    # whichever the rank comes upon first: the end of the process, or its half of a batch
    expected = [
        f"DataLoader worker (pid {worker})",
        f"DataLoader worker (pid(s) {worker})",
        "the workers loader lost",
    ]
    said = failure.reason.removeprefix(f"rank 1 on {HERE}: RuntimeError: ")
    assert said.startswith(tuple(expected))
    assert json.loads((training.attempt / "rank1.json").read_text())["state"] == "failed"
    assert not (training.folder / SUMMARY).exists()


@pytest.mark.fault(28)
def test_signals_to_a_rank_and_its_loader_end_in_checkpoints_that_are_gone_on_from(
    runs: Runs, record_property: Record
) -> None:
    """Schedulers signal a task with all its children."""
    steps, said = [0], "epoch 1/"
    for how in (signal.SIGUSR1, signal.SIGTERM):
        training = runs.start("signalled", 2, ENDLESS | WORKERS)
        processes = loader_processes(training, said)
        rank, workers = list(processes.items())[1]
        assert len(workers) == 1
        for pid in (*workers, rank):
            os.kill(pid, how)
        step = training.stopped_at("interrupted", f"ended by {how.name}")
        assert "DataLoader" not in (training.folder / "train.log").read_text(encoding="utf-8")
        # the other rank's, too: none outlives a run that ends as requested
        left = [pid for pids in processes.values() for pid in pids]
        wait_until(partial(none_exists, left), f"of {left} some are left")
        steps.append(step)
        # until its first step, a signal ends a rank at once
        said = rf"(?s)resumed at step {step} from .*\ntrain epoch "
    assert steps == sorted(set(steps))
    record_property("figure", "after SIGUSR1 and SIGTERM 0 steps lost")
