"""Whole runs through train.py: real ranks, real gloo, real signals, real records."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, FAILURE, RANKS, SUMMARY, Summary, read_failure, read_summary
from scalewise.training.datasets import prepare

pytestmark = [
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="starts two ranks at once: needs 2 CPU cores"
    ),
    pytest.mark.timeout(150),
]

TRAIN = Path(__file__).parents[2] / "workflow" / "scripts" / "train.py"
SETTINGS = {
    "model": "linear",
    "dataset": "digits",
    "global_batch_size": 250,
    "epochs": 3,
    "learning_rate": 0.05,
    "warmup_steps": 2,
    "devices": [1, 2],
    "repeats": 1,
}
ENDLESS: dict[str, Any] = {"epochs": 1_000_000}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Training:
    """A train.py that was started, and where it leaves its records."""

    process: subprocess.Popen[str]
    folder: Path

    @property
    def attempt(self) -> Path:
        return self.folder / "attempt"

    def end(self) -> tuple[int, str]:
        """Exit code and stderr, once it has ended."""
        _, stderr = self.process.communicate()
        return self.process.returncode, stderr

    def wait_for(self, name: str) -> Path:
        """A file of the attempt, once the ranks have written it."""
        path = self.attempt / name
        while not path.exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)
        return path

    def pid(self, rank: int) -> int:
        note = json.loads(self.wait_for(f"rank{rank}.started.json").read_text(encoding="utf-8"))
        return int(note["pid"])

    def processes(self) -> dict[int, str]:
        """Launcher and ranks that still run: the attempt's folder is their argument, or they left a note."""
        found = {}
        notes = [path.read_text(encoding="utf-8") for path in self.attempt.glob("rank*.started.json")]
        ranks = {int(json.loads(note)["pid"]) for note in notes if note}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes().decode().split("\0")
                    # the command of one that has died and still stands in the table is empty
                    if str(self.attempt) in command or (int(entry.name) in ranks and command != [""]):
                        found[int(entry.name)] = " ".join(command)
        return found

    def left_over(self) -> dict[int, str]:
        """What still runs once ranks that must look for themselves have had the time to."""
        deadline = time.monotonic() + 15
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.processes()


Start = Callable[..., Training]


def _starter(folder: Path) -> tuple[Start, list[Training]]:
    """Starts runs below a folder; its lock is apart from that of a user's training on this machine."""
    site = folder / "site.yaml"
    site.write_text("accelerator: cpu\ndevices_per_node: 2\ncpus_per_node: 2\n", encoding="utf-8")
    digits = folder / "digits.safetensors"
    prepare("digits", digits)
    locks = folder / "locks"
    locks.mkdir()
    started: list[Training] = []

    def start(
        name: str,
        devices: int,
        changed: Mapping[str, Any] | None = None,
        dataset: Path = digits,
        limit_seconds: float = 120,
        timeout_seconds: int = 60,
    ) -> Training:
        config = {"experiments": {name: SETTINGS | dict(changed or {})}}
        run = load_study(config, site_file=site).runs[name, f"d{devices}.r1"]
        run_folder = folder / name / run.name
        run_folder.mkdir(parents=True, exist_ok=True)
        options = ["--run", run.definition, "--dataset", str(dataset), "--log", str(run_folder / "train.log")]
        limit = ["--limit-seconds", str(limit_seconds), "--timeout-seconds", str(timeout_seconds)]
        process = subprocess.Popen(
            [sys.executable, str(TRAIN), *options, *limit, str(run_folder / SUMMARY)],
            env=os.environ | {"TMPDIR": str(locks), "SCALEWISE_COMMIT": COMMIT},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        training = Training(process, run_folder)
        started.append(training)
        return training

    return start, started


def _clean_up(started: list[Training]) -> None:
    """Nothing that a failed test has left may slow the next one."""
    for training in started:
        if training.process.poll() is None:
            training.process.kill()
            training.process.communicate()
        for pid in training.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    starter, started = _starter(tmp_path)
    yield starter
    _clean_up(started)


@dataclass(frozen=True)
class Finished:
    """A run that has ended in order."""

    folder: Path
    stderr: str
    summary: Summary
    epochs: pd.DataFrame
    ranks: pd.DataFrame

    @property
    def log(self) -> list[str]:
        return (self.folder / "train.log").read_text(encoding="utf-8").splitlines()


def _finish(training: Training) -> Finished:
    code, stderr = training.end()
    assert code == 0, stderr
    folder = training.folder
    return Finished(
        folder,
        stderr,
        read_summary(folder),
        pd.read_csv(folder / EPOCHS),
        pd.read_csv(folder / RANKS),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Finished]]:
    """A run of one rank, and one of two ranks that was started while the first was training."""
    starter, started = _starter(tmp_path_factory.mktemp("finished"))
    halved = {"schedule": "step", "schedule_gamma": 0.5}
    first = starter("study", 1, halved)
    first.wait_for("assignment.json")
    second = starter("study", 2, halved)
    (second.folder / FAILURE).write_text("why an earlier attempt failed", encoding="utf-8")
    yield {1: _finish(first), 2: _finish(second)}
    _clean_up(started)


both_launchers = pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
both_sizes = pytest.mark.parametrize("devices", [1, 2])


@both_sizes
def test_a_run_leaves_its_records_and_nothing_else(finished: dict[int, Finished], devices: int) -> None:
    names = {path.name for path in finished[devices].folder.iterdir()}
    assert names == {SUMMARY, EPOCHS, RANKS, "train.log"}
    assert finished[devices].summary.outcome == "completed"
    assert finished[devices].summary.reason == ""


@both_sizes
def test_every_sample_is_trained_on_and_tested_once_over_all_ranks(
    finished: dict[int, Finished], devices: int
) -> None:
    ranks = finished[devices].ranks
    assert list(ranks["rank"]) == list(range(devices))
    assert ranks["train_samples"].sum() == 1437
    assert ranks["test_samples"].sum() == 360
    assert ranks["train_samples"].max() - ranks["train_samples"].min() <= 1


@both_sizes
def test_each_rank_has_the_threads_and_the_cpus_it_was_given(
    finished: dict[int, Finished], devices: int
) -> None:
    run = finished[devices]
    assert (run.ranks["threads"] == run.summary.definition.settings["cpus_per_device"]).all()
    cpus = [int(cpu) for cpu in run.ranks["cpu_affinity"]]
    assert len(set(cpus)) == devices
    assert set(cpus) <= os.sched_getaffinity(0)


@both_sizes
def test_memory_is_labelled_by_what_it_counts(finished: dict[int, Finished], devices: int) -> None:
    measured = finished[devices].summary.measurements
    assert measured is not None
    assert measured.peak_memory_kind == "process peak RSS"
    assert measured.peak_memory_bytes == finished[devices].ranks["peak_memory_bytes"].max()
    assert measured.peak_memory_bytes > 100e6


@both_sizes
def test_every_part_of_the_start_up_is_accounted_for(finished: dict[int, Finished], devices: int) -> None:
    measured = finished[devices].summary.measurements
    assert measured is not None
    for part, seconds in measured.startup.model_dump().items():
        assert seconds > 0, part
        assert seconds == finished[devices].ranks[part].max(), part


@both_sizes
def test_windows_hold_every_step_once_and_give_the_throughput(
    finished: dict[int, Finished], devices: int
) -> None:
    measured = finished[devices].summary.measurements
    assert measured is not None
    next_step = 0
    for window in measured.windows:
        assert window.first_step == next_step
        next_step += window.steps
    steps_per_epoch = 6
    assert next_step == 3 * steps_per_epoch
    assert sum(window.samples for window in measured.windows) == 3 * 1437
    assert [window.steps for window in measured.windows if window.warmup] == [2]
    timed = [window for window in measured.windows if not window.warmup]
    rate = sum(window.samples for window in timed) / sum(window.seconds for window in timed)
    assert measured.throughput_samples_per_second == pytest.approx(rate)
    assert measured.parameters == 64 * 10 + 10


@both_sizes
def test_the_loss_falls_and_the_epochs_agree_with_the_summary(
    finished: dict[int, Finished], devices: int
) -> None:
    epochs, measured = finished[devices].epochs, finished[devices].summary.measurements
    assert measured is not None
    assert list(epochs["epoch"]) == [1, 2, 3]
    assert epochs["train_loss"].is_monotonic_decreasing
    assert epochs["test_loss"].iloc[-1] < epochs["test_loss"].iloc[0]
    assert measured.final_accuracy == epochs["test_accuracy"].iloc[-1] > 0.8
    assert measured.best_accuracy == epochs["test_accuracy"].max()
    assert measured.epochs_completed == 3


@both_sizes
def test_an_epoch_is_recorded_with_the_learning_rate_it_used(
    finished: dict[int, Finished], devices: int
) -> None:
    assert finished[devices].epochs["learning_rate"].tolist() == pytest.approx([0.05, 0.025, 0.0125])


def test_one_device_and_two_devices_learn_the_same(finished: dict[int, Finished]) -> None:
    for column in ("train_loss", "test_loss"):
        difference = (finished[1].epochs[column] - finished[2].epochs[column]).abs().max()
        assert difference < 1e-4, column


@both_sizes
def test_a_run_says_where_its_numbers_come_from(finished: dict[int, Finished], devices: int) -> None:
    origin = finished[devices].summary.provenance
    assert origin is not None
    assert origin.commit == COMMIT
    assert {"scalewise", "python", "torch", "numpy"} <= origin.versions.keys()
    assert origin.hosts == [socket.gethostname()]
    assert origin.devices == ["CPU process"] * devices
    assert origin.launcher == "torchrun"
    assert origin.cpu_model
    assert origin.operating_system
    assert datetime.fromisoformat(origin.started_at) <= datetime.fromisoformat(origin.ended_at)


@both_sizes
def test_the_log_has_one_line_for_each_epoch(finished: dict[int, Finished], devices: int) -> None:
    lines = [line for line in finished[devices].log if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/3", "2/3", "3/3"]


def test_one_device_is_started_the_same_way_as_two(finished: dict[int, Finished]) -> None:
    commands = [
        finished[devices].log[0].split(maxsplit=1)[1].replace(str(finished[devices].folder), "FOLDER")
        for devices in (1, 2)
    ]
    assert commands[0].replace("--nproc-per-node=1", "--nproc-per-node=2") == commands[1]


def test_a_second_training_waits_for_the_first_and_says_so(finished: dict[int, Finished]) -> None:
    first, second = finished[1], finished[2]
    assert "waiting for another training" not in first.stderr
    assert second.stderr.count("waiting for another training on this machine to end") == 1
    assert first.summary.provenance is not None
    began = datetime.fromisoformat(second.log[0].split()[0])
    assert began >= datetime.fromisoformat(first.summary.provenance.ended_at)
    # the wait is not counted as the second run's own time
    assert second.summary.provenance is not None
    assert second.summary.provenance.started_at >= first.summary.provenance.ended_at


OTHER_WAYS = [("spawn", "tcp"), ("spawn", "file"), ("torchrun", "file")]


@pytest.fixture(scope="module", params=OTHER_WAYS, ids=lambda way: f"{way[0]} by {way[1]}")
def other_way(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Finished]]:
    """A run of two ranks that are started, or meet, in another way; its launcher."""
    launcher, rendezvous = request.param
    starter, started = _starter(tmp_path_factory.mktemp("other"))
    changed = {
        "schedule": "step",
        "schedule_gamma": 0.5,
        "launcher": launcher,
        "rendezvous": rendezvous,
    }
    yield launcher, _finish(starter("study", 2, changed))
    _clean_up(started)


def test_however_ranks_are_started_and_meet_they_leave_the_same_records(
    other_way: tuple[str, Finished], finished: dict[int, Finished]
) -> None:
    run, usual = other_way[1], finished[2]
    assert {path.name for path in run.folder.iterdir()} == {path.name for path in usual.folder.iterdir()}
    assert list(run.epochs.columns) == list(usual.epochs.columns)
    assert list(run.ranks.columns) == list(usual.ranks.columns)
    for column in ("epoch", "train_loss", "test_loss", "test_accuracy", "learning_rate"):
        assert run.epochs[column].tolist() == pytest.approx(usual.epochs[column].tolist(), rel=1e-6)
    for column in ("rank", "local_rank", "host", "device", "threads", "train_samples", "test_samples"):
        assert run.ranks[column].tolist() == usual.ranks[column].tolist()
    assert len(set(run.ranks["cpu_affinity"])) == 2
    measured, expected = run.summary.measurements, usual.summary.measurements
    assert measured is not None
    assert expected is not None
    assert [(w.first_step, w.steps, w.samples) for w in measured.windows] == [
        (w.first_step, w.steps, w.samples) for w in expected.windows
    ]


def test_a_run_says_what_started_its_ranks(other_way: tuple[str, Finished]) -> None:
    launcher, run = other_way
    assert run.summary.definition.launcher == launcher
    assert run.summary.provenance is not None
    assert run.summary.provenance.launcher.split()[0] == launcher
    assert run.summary.provenance.other_jobs is None
    assert ("torch.distributed.run" in run.log[0]) == (launcher == "torchrun")


def test_of_two_trainings_of_one_run_the_second_adopts_what_the_first_has_left(start: Start) -> None:
    first = start("twice", 2)
    first.wait_for("assignment.json")
    # held back until the second has come, however slow the machine is; its ranks go on
    first.process.send_signal(signal.SIGSTOP)
    second = start("twice", 2)
    assert second.process.stderr is not None
    word = second.process.stderr.readline()
    assert f"twice/d2.r1: process {first.process.pid} on {socket.gethostname()} is training this run" in word
    first.process.send_signal(signal.SIGCONT)

    trained = _finish(first)
    before = (trained.folder / SUMMARY).stat().st_mtime_ns
    code, stderr = second.end()

    assert code == 0, stderr
    assert "twice/d2.r1: the other training has left its result" in stderr
    assert (trained.folder / SUMMARY).stat().st_mtime_ns == before
    assert len([line for line in trained.log if line.startswith("epoch ")]) == 3
    assert {path.name for path in trained.folder.iterdir()} == {SUMMARY, EPOCHS, RANKS, "train.log"}


def test_a_training_that_finds_the_other_without_a_result_trains(start: Start) -> None:
    first = start("again", 2)
    first.wait_for("assignment.json")
    first.process.send_signal(signal.SIGSTOP)
    second = start("again", 2)
    assert second.process.stderr is not None
    assert "is training this run" in second.process.stderr.readline()
    first.process.send_signal(signal.SIGTERM)
    first.process.send_signal(signal.SIGCONT)

    code, stderr = first.end()
    assert code == 1
    assert "again/d2.r1 interrupted" in stderr
    assert _finish(second).summary.outcome == "completed"


def test_a_loss_that_is_no_longer_finite_is_a_result_with_a_reason(start: Start) -> None:
    run = _finish(start("wild", 1, {"learning_rate": 1e38}))
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
    own, prepared = tmp_path / "mine.safetensors", tmp_path / "prepared.safetensors"
    labels = np.arange(600, dtype=np.int64) % 10
    images = np.zeros((600, 1, 8, 8), dtype=np.uint8)
    save_file(
        {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}, own
    )
    prepare(str(own), prepared)
    prepared.write_bytes(prepared.read_bytes()[:10_000])
    folder = tmp_path / "damaged" / "d2.r1"
    folder.mkdir(parents=True)
    for name in (SUMMARY, EPOCHS, RANKS):
        (folder / name).write_text("of an earlier run", encoding="utf-8")

    training = start("damaged", 2, {"dataset": str(own)}, dataset=prepared)
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
    assert not any((folder / name).exists() for name in (SUMMARY, EPOCHS, RANKS))
    assert failure.log_tail
    assert training.processes() == {}


@both_launchers
def test_a_rank_killed_from_outside_is_named_and_the_others_end_with_it(start: Start, launcher: str) -> None:
    training = start("killed", 2, ENDLESS | {"launcher": launcher})
    training.wait_for("progress.json")
    victim = training.pid(1)
    os.kill(victim, signal.SIGKILL)
    code, stderr = training.end()
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    expected = f"rank 1 on {socket.gethostname()} (pid {victim}) left no word: killed from outside"
    assert failure.reason.startswith(expected)
    assert expected in stderr
    assert training.processes() == {}
    assert not (training.folder / SUMMARY).exists()


@both_launchers
def test_a_run_that_is_asked_to_end_takes_its_ranks_along(start: Start, launcher: str) -> None:
    training = start("stopped", 2, ENDLESS | {"launcher": launcher})
    training.wait_for("progress.json")
    assert len(training.processes()) >= 3
    training.process.send_signal(signal.SIGTERM)
    code, stderr = training.end()
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "interrupted"
    assert "stopped/d2.r1 interrupted" in stderr
    assert training.processes() == {}


def test_a_run_over_its_limit_is_ended_and_told_what_to_change(start: Start) -> None:
    training = start("late", 2, ENDLESS, limit_seconds=3)
    code, stderr = training.end()
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "timed-out"
    assert "not done after 0.05 minutes. Raise runtime_minutes" in failure.reason
    assert failure.reason in stderr
    assert training.processes() == {}


def test_a_rank_that_hangs_does_not_outlive_its_run(start: Start) -> None:
    """It cannot hear SIGTERM, and its launcher is gone before it would resort to SIGKILL."""
    training = start("hung", 2, ENDLESS)
    training.wait_for("progress.json")
    os.kill(training.pid(1), signal.SIGSTOP)
    training.process.send_signal(signal.SIGTERM)
    code, _ = training.end()
    assert code == 1
    assert training.left_over() == {}


@both_launchers
def test_ranks_wait_for_one_that_hangs_as_long_as_they_are_told(start: Start, launcher: str) -> None:
    training = start("waiting", 2, ENDLESS | {"launcher": launcher}, timeout_seconds=5)
    training.wait_for("progress.json")
    hung = training.pid(1)
    os.kill(hung, signal.SIGSTOP)
    complaint = json.loads(training.wait_for("rank0.failed.json").read_text(encoding="utf-8"))
    # launchers give it 30 seconds more, and kill it then
    os.kill(hung, signal.SIGKILL)
    code, _ = training.end()
    assert "5000ms" in complaint["message"]
    assert code == 1
    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "failed"
    assert failure.reason.startswith(f"rank 1 on {socket.gethostname()} (pid {hung}) left no word")
    assert "or hung" in failure.reason
    assert training.left_over() == {}


def test_ranks_do_not_outlive_a_launcher_that_is_killed(start: Start) -> None:
    training = start("orphaned", 2, ENDLESS)
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


@both_launchers
def test_ranks_do_not_outlive_a_train_py_that_is_killed(start: Start, launcher: str) -> None:
    training = start("headless", 2, ENDLESS | {"launcher": launcher})
    training.wait_for("progress.json")
    training.process.kill()
    training.end()
    assert training.left_over() == {}
