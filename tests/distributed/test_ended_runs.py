"""Runs that end before their time: what is left, what is said, and that nothing runs on."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cores import needs_two_cores
from tests.distributed.whole_runs import ENDLESS, Start, finish

from scalewise.builtin.data.preparation import prepare
from scalewise.execution.watchdog import SECOND_SIGNAL_AFTER_SECONDS
from scalewise.records import EPOCHS, RANKS, SUMMARY, UTILIZATION, read_failure

pytestmark = [needs_two_cores, pytest.mark.starts_ranks]

every_launcher = pytest.mark.parametrize("launcher", ["popen", "torchrun", "spawn"])

Figure = Callable[[str, object], None]


def seconds_since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"


def test_a_loss_that_is_no_longer_finite_is_a_result_with_a_reason(start: Start) -> None:
    run = finish(start("wild", 1, {"learning_rate": 1e38}))
    assert run.summary.outcome == "diverged"
    assert "the loss is no longer finite in epoch" in run.summary.reason
    assert "Lower learning_rate (1e+38)" in run.summary.reason
    measured = run.summary.measurements
    assert measured is not None
    assert measured.epochs_completed == len(run.epochs) >= 1
    assert not np.isfinite(run.epochs[["train_loss", "test_loss"]].iloc[-1]).all()
    assert len(run.ranks) == 1


def test_a_rank_that_raises_ends_the_run_with_its_traceback_and_no_stale_result(
    start: Start, tmp_path: Path
) -> None:
    prepared = tmp_path / "prepared.safetensors"
    prepare("digits", prepared)
    prepared.write_bytes(prepared.read_bytes()[:10_000])
    folder = tmp_path / "damaged" / "d2.r1"
    folder.mkdir(parents=True)
    for name in (SUMMARY, EPOCHS, RANKS, UTILIZATION):
        (folder / name).write_text("of an earlier run", encoding="utf-8")

    training = start("damaged", 2, dataset=prepared)
    code, stderr = training.end()

    assert code == 1
    assert training.folder == folder
    failure = read_failure(folder)
    assert failure is not None
    assert failure.outcome == "failed"
    host = socket.gethostname()
    assert failure.reason.startswith((f"rank 0 on {host}: DatasetError", f"rank 1 on {host}: DatasetError"))
    assert str(prepared) in failure.reason
    assert "damaged/d2.r1 failed" in stderr
    assert "Traceback (most recent call last)" in stderr
    assert "in load" in stderr
    assert not any((folder / name).exists() for name in (SUMMARY, EPOCHS, RANKS, UTILIZATION))
    assert failure.log_tail
    assert training.left_over() == {}


@pytest.mark.fault(1)
@every_launcher
def test_a_rank_killed_from_outside_is_named_and_the_others_end_with_it(
    start: Start, launcher: str, record_property: Figure
) -> None:
    training = start("killed", 2, ENDLESS | {"launcher": launcher})
    training.wait_for("progress.json")
    victim = training.pid(1)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    code, stderr = training.end()
    record_property("figure", f"{launcher}: ended after {seconds_since(began)}")
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    expected = f"rank 1 on {socket.gethostname()} (pid {victim}) ended without an error message. Slurm or"
    assert failure.reason.startswith(expected)
    assert expected in stderr
    assert training.left_over() == {}
    assert not (training.folder / SUMMARY).exists()


def test_a_run_over_its_limit_is_ended_and_told_what_to_change(start: Start) -> None:
    training = start("late", 2, ENDLESS, limit_seconds=3)
    code, stderr = training.end()
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "timed-out"
    assert failure.reason.startswith("stopped after 0.05 minutes")
    assert "Raise runtime_minutes" in failure.reason
    assert failure.reason in stderr
    assert training.left_over() == {}


def test_a_rank_that_hangs_does_not_outlive_its_run(start: Start) -> None:
    """It cannot hear SIGTERM, and its launcher is gone before it would resort to SIGKILL."""
    training = start("hung", 2, ENDLESS)
    training.wait_for("progress.json")
    os.kill(training.pid(1), signal.SIGSTOP)
    training.process.send_signal(signal.SIGTERM)
    training.wait_for("stop")
    # a second signal within this time counts as the same
    time.sleep(SECOND_SIGNAL_AFTER_SECONDS)
    training.process.send_signal(signal.SIGTERM)
    code, _ = training.end()
    assert code == 1
    assert training.left_over() == {}


@pytest.mark.fault(2)
@every_launcher
def test_ranks_wait_for_one_that_hangs_as_long_as_they_are_told_and_not_for_the_launcher(
    start: Start, launcher: str, record_property: Figure
) -> None:
    """The launchers would give the rank that hangs 30 seconds more."""
    training = start("waiting", 2, ENDLESS | {"launcher": launcher}, timeout_seconds=20)
    training.wait_for("progress.json")
    hung = training.pid(1)
    began = time.monotonic()
    os.kill(hung, signal.SIGSTOP)
    code, _ = training.end()
    record_property("figure", f"{launcher}: ended after {seconds_since(began)}, with a timeout of 20 s")
    complaint = json.loads((training.attempt / "rank0.json").read_text(encoding="utf-8"))
    assert "20000ms" in complaint["error"]["message"]
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.reason.startswith(
        f"rank 1 on {socket.gethostname()} (pid {hung}) ended without an error message"
    )
    assert "or the rank hung" in failure.reason
    assert training.left_over() == {}


@pytest.mark.fault(2)
def test_a_single_rank_that_hangs_is_ended_though_no_other_waits_for_it(
    start: Start, record_property: Figure
) -> None:
    training = start("alone", 1, ENDLESS, timeout_seconds=5)
    training.wait_for("progress.json")
    hung = training.pid(0)
    began = time.monotonic()
    os.kill(hung, signal.SIGSTOP)
    code, _ = training.end()
    record_property("figure", f"a single rank: ended after {seconds_since(began)}, silent for 30 s")
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.reason.startswith(
        f"rank 0 on {socket.gethostname()} (pid {hung}) ended without an error message"
    )
    assert training.left_over() == {}


@pytest.mark.fault(3)
def test_the_traceback_of_the_one_rank_that_raised_comes_first(start: Start, record_property: Figure) -> None:
    training = start("raising", 2, ENDLESS | {"model": "planted_raising_on_rank_1"})
    code, stderr = training.end()
    assert code == 1
    first, second = stderr.splitlines()[:2]
    said = f"rank 1 on {socket.gethostname()}: ValueError: a fault on purpose"
    assert first == f"scalewise: raising/d2.r1 failed: {said}"
    assert second == "Traceback (most recent call last):"
    assert 'raise ValueError("a fault on purpose")' in stderr
    assert "closed by peer" not in stderr
    assert training.left_over() == {}
    record_property("figure", f"first line: {first.removeprefix('scalewise: ')}")


ABSENT = """
import os, time
if os.environ.get("RANK") == "1":
    time.sleep(1000)
"""


@pytest.mark.fault(9)
def test_a_peer_that_never_comes_is_counted_and_named(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Figure
) -> None:
    (tmp_path / "sitecustomize.py").write_text(ABSENT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    training = start("lonely", 2, ENDLESS | {"model": "linear"}, timeout_seconds=8)
    code, stderr = training.end()
    assert code == 1
    said = "1 of 2 ranks started; missing: 1."
    assert f"lonely/d2.r1 failed: {said}" in stderr
    record_property("figure", f"given up after the 8 s that were allowed: {said}")
    assert training.left_over() == {}


def test_ranks_do_not_outlive_a_launcher_that_is_killed(start: Start) -> None:
    training = start("orphaned", 2, ENDLESS | {"launcher": "torchrun"})
    training.wait_for("progress.json")
    launcher = next(
        pid for pid, command in training.processes().items() if "torch.distributed.run" in command
    )
    os.kill(launcher, signal.SIGKILL)
    code, _ = training.end()
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    assert training.left_over() == {}


@every_launcher
def test_ranks_do_not_outlive_a_train_py_that_is_killed(start: Start, launcher: str) -> None:
    training = start("headless", 2, ENDLESS | {"launcher": launcher})
    training.wait_for("progress.json")
    training.process.kill()
    training.end()
    assert training.left_over() == {}


@pytest.mark.parametrize("devices", [1, 2])
def test_a_training_is_kept_whatever_becomes_of_the_passes_after_it(start: Start, devices: int) -> None:
    # 3 epochs of 6 steps
    changed = {"model": "planted_out_of_memory_after_18_steps", "save_model": True}
    run = finish(start("kept", devices, changed))
    assert run.summary.outcome == "completed"
    assert run.summary.measurements is not None
    assert run.summary.measurements.epochs_completed == len(run.epochs) == 3
    assert run.summary.measurements.passes == []
    assert (run.folder / "model.safetensors").exists()
