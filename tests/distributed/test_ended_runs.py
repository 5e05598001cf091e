"""Runs that meet a fault: what is counted and left, who is named, and that nothing runs on."""

from __future__ import annotations

import csv
import json
import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from tests.distributed.runs import ENDLESS, Runs, Started
from tests.machine import needs_two_cores
from tests.marked_outcomes import Record
from tests.startup.sitecustomize import SILENCE

from scalewise.records import EPOCHS, RANKS, RECORD, UTILIZATION
from scalewise.training.prepare import prepare

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
    training.wait_for_step()
    victim = training.pid(1)
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    failure, stderr = training.fail()
    record_property("figure", f"{launcher}: ended after {time.monotonic() - began:.1f} s")
    expected = f"rank 1 on {HERE}: train.py was ended by SIGKILL"
    assert failure.reason.startswith(expected)
    assert expected in stderr
    assert not (training.folder / RECORD).exists()


@pytest.mark.fault(2)
@pytest.mark.starts_ranks
def test_ranks_wait_for_one_that_hangs_until_their_timeout_and_not_for_the_launcher(
    runs: Runs, record_property: Record
) -> None:
    """The launcher would give the rank that hangs 30 seconds more."""
    training = runs.start("waiting", 2, ENDLESS | {"launcher": "torchrun"}, timeout_seconds=8)
    training.wait_for_step()
    hung = training.pid(1)
    began = time.monotonic()
    os.kill(hung, signal.SIGSTOP)
    failure, _ = training.fail()
    record_property("figure", f"ended after {time.monotonic() - began:.1f} s, with a timeout of 8 s")
    assert failure.reason.startswith(f"rank 1 on {HERE}: stopped by a signal for 8 s (SIGSTOP)")


@pytest.mark.fault(2)
def test_a_single_rank_that_hangs_is_ended_though_no_other_waits_for_it(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    monkeypatch.setenv(SILENCE, "20")
    script = tmp_path / "hangs.py"
    script.write_text("import time\nprint('reading a lock', flush=True)\ntime.sleep(10_000)\n")
    own = {"program": str(script), "scaling": "weak", "batch_size_per_device": 8}
    own |= {"devices": [1], "repeats": 1}
    training = runs.start("alone", 1, settings=own, timeout_seconds=5)
    began = time.monotonic()
    failure, _ = training.fail()
    record_property("figure", f"a single rank: ended after {time.monotonic() - began:.1f} s, silent for 20 s")
    assert failure.reason.startswith("no step for 2")
    assert "The last line of its output: reading a lock" in failure.reason


LEAVES = """\
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)", *sys.argv], start_new_session=True)
time.sleep(1000)
"""


@pytest.mark.fault(1, 15)
@pytest.mark.starts_ranks
@pytest.mark.parametrize("launcher", ["popen", "torchrun"])
@pytest.mark.parametrize("killed", ["the job", "a rank"])
def test_nothing_that_a_program_has_started_outlives_a_rank_or_a_job_that_is_killed(
    killed: str, launcher: str, runs: Runs, tmp_path: Path
) -> None:
    """The program ignores SIGTERM, and has started a process in a session of its own."""
    script = tmp_path / "leaves.py"
    script.write_text(LEAVES, encoding="utf-8")
    own = {"program": str(script), "arguments": ["{folder}"], "scaling": "weak", "batch_size_per_device": 8}
    own |= {"devices": [1, 2], "repeats": 1, "launcher": launcher}
    training = runs.start("leaving", 2, settings=own)

    def left() -> int:
        return sum("sleep(1000)" in command for command in training.processes().values())

    training.wait_until(lambda: left() == 2, "the programs have started nothing")
    if killed == "a rank":
        os.kill(training.pid(1), signal.SIGKILL)
        assert "rank 1 on" in training.fail()[0].reason
    else:
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
    for name in (RECORD, EPOCHS, RANKS, UTILIZATION):
        (folder / name).write_text("of an earlier run", encoding="utf-8")

    failure, stderr = runs.start("raising", 2, ENDLESS | {"model": "planted_raising_on_rank_1"}).fail()

    first, second = stderr.splitlines()[:2]
    said = f"rank 1 on {HERE}: train.py ended with code 1: ValueError: a fault on purpose"
    assert first == f"scalewise: raising/d2.r1 failed: {said}"
    assert second.endswith("Traceback (most recent call last):")
    assert 'raise ValueError("a fault on purpose")' in stderr
    assert "closed by peer" not in stderr
    assert failure.reason.startswith(said)
    assert failure.output
    assert not any((folder / name).exists() for name in (RECORD, EPOCHS, RANKS, UTILIZATION))
    record_property("figure", f"first line: {first.removeprefix('scalewise: ')}")


# --- data that the ranks do not divide ----------------------------------------------------------------


@pytest.mark.fault(5)
def test_1797_samples_over_4_ranks_make_equal_steps_and_each_counts_once_in_the_accuracy(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    prepared = tmp_path / "prepared.safetensors"
    prepare("synthetic-1x8x8-10classes-1797samples", prepared)
    monkeypatch.setenv("COUNTED_IN", str(tmp_path))
    changed = {"model": "planted_counting", "devices": [4], "epochs": 2, "global_batch_size": 248}
    run = runs.complete("uneven", 4, changed, dataset=prepared)

    assert list(run.ranks["rank"]) == [0, 1, 2, 3]
    assert run.ranks["train_samples"].tolist() == [2 * 7 * 248 // 4] * 4
    steps, tested = [], []
    for rank in range(4):
        with (tmp_path / f"seen{rank}.csv").open(encoding="utf-8") as file:
            seen = [(phase, int(samples)) for phase, samples in csv.reader(file)]
        steps.append(sum(phase == "train" for phase, _ in seen))
        tested.append(sum(samples for phase, samples in seen if phase == "test"))
    assert steps == [2 * 7] * 4
    # 179 samples and one that is not counted
    assert tested == [2 * 45] * 4
    predicted = run.epochs["test_accuracy"] * 179
    assert predicted.tolist() == pytest.approx(predicted.round().tolist())
    record_property("figure", f"{steps[0]} steps on each of 4 ranks, 179 samples tested")


# --- processes of loaders -----------------------------------------------------------------------------


def loader_processes(training: Started) -> dict[int, list[int]]:
    """The processes of each rank's loader, once they are at work."""
    ranks = [psutil.Process(training.pid(rank)) for rank in range(2)]
    training.wait_until(lambda: all(rank.children() for rank in ranks), "a rank has no loader process")
    return {rank.pid: [child.pid for child in rank.children()] for rank in ranks}


@pytest.mark.fault(28)
@pytest.mark.starts_ranks
def test_a_loader_process_that_dies_ends_the_run_in_the_name_of_its_rank(runs: Runs) -> None:
    training = runs.start("died", 2, ENDLESS | WORKERS)
    training.wait_for_step()
    (worker,) = loader_processes(training)[training.pid(1)]
    os.kill(worker, signal.SIGKILL)
    failure, _ = training.fail()
    # whichever the rank meets first: the end of the process, its half of a batch, or the closed socket
    # by which a worker hands over a tensor; torch's handler of SIGCHLD may raise while Python prints that
    # traceback, which then ends without its error
    error = failure.reason.removeprefix(f"rank 1 on {HERE}: train.py ended with code 1: ")
    assert error.startswith(
        (
            f"RuntimeError: DataLoader worker (pid {worker})",
            f"RuntimeError: DataLoader worker (pid(s) {worker})",
            "ConnectionResetError: ",
            "EOFError",
            "[rank1]: ",
        )
    )
    assert json.loads((training.attempt / "rank1.json").read_text())["state"] == "failed"
    assert not (training.folder / RECORD).exists()
