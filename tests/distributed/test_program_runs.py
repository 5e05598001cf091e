"""Runs of a program of the user's own: what they leave, how they end, and who is named where they fail."""

from __future__ import annotations

import os
import re
import signal
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.distributed.whole_runs import Finished, Start, Training, finish

from scalewise import records
from scalewise.execution.watchdog import STOP_SECONDS
from scalewise.records import Measurements, ProgramMeasurements, read_failure

pytestmark = [needs_two_cores, pytest.mark.starts_ranks]

PROGRAM = Path(__file__).parent / "own_program.py"
BATCH = ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"]
SETTINGS: dict[str, Any] = {
    "program": str(PROGRAM),
    "arguments": BATCH,
    "scaling": "weak",
    "batch_size_per_device": 32,
    "devices": [1, 2],
    "steps": 40,
    "warmup_steps": 5,
    "repeats": 1,
}


def failure_of(training: Training) -> records.Start:
    code, stderr = training.end()
    assert code == 1, stderr
    failure = read_failure(training.folder)
    assert failure is not None
    assert training.left_over() == {}
    return failure


def found(run: Finished) -> tuple[Measurements, ProgramMeasurements]:
    measured = run.summary.measurements
    assert measured is not None
    assert measured.program is not None
    return measured, measured.program


@pytest.mark.parametrize("launcher", ["popen", "torchrun"])
def test_a_program_is_measured_as_it_is_and_ended_after_its_steps(start: Start, launcher: str) -> None:
    training = start("own", 2, {"launcher": launcher, "arguments": [*BATCH, "--swallow"]}, settings=SETTINGS)
    run = finish(training)

    measured, program = found(run)
    assert program.ended == "steps"
    assert program.samples_from == "loader"
    assert program.samples_seen == 64
    assert program.parallelism == ["DistributedDataParallel"]
    kept = [window for window in measured.windows if not window.warmup]
    # 64 steps a pass over the data: none of the 40 begins one
    assert sum(window.steps for window in kept) == 40
    assert kept[0].first_step == 5
    assert sum(window.samples for window in kept) == 40 * 64
    assert measured.parameters == 64 * 256 + 256 + 256 * 4 + 4
    assert program.gradient_bytes == 4 * measured.parameters
    assert measured.communication_fraction is not None
    assert measured.startup.process_group_seconds is None
    assert {"test accuracy", "parts of the start-up"} <= set(program.unknown)
    assert str(PROGRAM.relative_to(Path.cwd())) in program.imported_files
    assert run.ranks["rank"].tolist() == [0, 1]
    assert (run.ranks["train_samples"] == 45 * 32).all()
    assert run.summary.provenance is not None
    assert set(run.summary.provenance.inputs) == {"program"}
    assert any("swallowed" in line for line in run.log)
    assert training.left_over() == {}


def test_a_program_that_starts_its_own_ranks_is_measured_alike(start: Start) -> None:
    own = {"starts": "itself", "arguments": [*BATCH, "--spawn", "{devices}"]}
    training = start("spawning", 2, own, settings=SETTINGS)
    run = finish(training)

    _, program = found(run)
    assert program.samples_seen == 64
    assert program.ended == "steps"
    assert run.ranks["rank"].tolist() == [0, 1]
    assert training.left_over() == {}


def test_hugging_faces_trainer_is_measured_as_it_is(start: Start) -> None:
    """Its evaluation after each tenth step is left out, and its ranks share the batches of one loader."""
    own = {"program": str(PROGRAM.with_name("trainer_program.py")), "batch_size_per_device": 8}
    run = finish(start("trainer", 2, own, settings=SETTINGS))

    measured, program = found(run)
    assert (program.ended, program.samples_from, program.samples_seen) == ("steps", "loader", 16)
    assert program.parallelism == ["DistributedDataParallel"]
    assert run.ranks["rank"].tolist() == [0, 1]
    # after steps 10, 20, 30 and 40 of 45
    assert measured.excluded_steps["evaluation"] == 4
    kept = [window for window in measured.windows if not window.warmup]
    assert (sum(window.steps for window in kept), sum(window.samples for window in kept)) == (36, 36 * 16)
    # each tenth, of rank 0; the script prints the mean over ranks
    printed = [float(loss) for line in run.log for loss in re.findall(r"'loss': '([0-9.]+)'", line)]
    assert len(program.losses) == 5
    assert all(loss is not None and abs(loss - printed[step]) < 0.1 for step, loss in program.losses)


def test_the_time_to_a_metric_is_read_from_what_rank_0_prints(start: Start) -> None:
    own = {
        "arguments": [*BATCH, "--epochs", "4"],
        "steps": None,
        "metric": {"pattern": r"val_loss=([0-9.]+)", "at_most": 0.4},
    }
    settings = {key: value for key, value in SETTINGS.items() if key != "steps"}
    run = finish(start("metric", 1, {k: v for k, v in own.items() if v is not None}, settings=settings))

    measured, program = found(run)
    assert program.ended == "itself"
    # 128 steps an epoch
    assert [(reading.step, reading.value) for reading in program.metric] == [
        (128, 1.0),
        (256, 0.5),
        (384, 0.333),
        (512, 0.25),
    ]
    assert program.seconds_to_metric == program.metric[2].seconds
    first = measured.startup.first_step_seconds
    assert first is not None
    assert program.seconds_to_metric < measured.train_seconds + first
    assert program.metric[0].seconds < program.metric[1].seconds


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--batch-size", "{global_batch_size}", "--out", "{folder}"],
            [
                "128 samples a step",
                "64 were planned",
                "{batch_size_per_device} instead of {global_batch_size}",
            ],
            id="a batch of one device for that of all",
        ),
        pytest.param([*BATCH, "--apart"], ["holds other weights", "train apart"], id="a forgotten exchange"),
        pytest.param(
            [*BATCH, "--same"],
            ["all 2 ranks", "train on the same batches", "`same_batches: true`"],
            id="a forgotten sampler",
        ),
    ],
)
def test_a_run_that_is_not_as_planned_ends_with_both_numbers(
    start: Start, arguments: list[str], words: list[str]
) -> None:
    failure = failure_of(start("other", 2, {"arguments": arguments, "steps": 100_000}, settings=SETTINGS))

    assert failure.outcome == "failed"
    assert [word for word in words if word not in failure.reason] == []
    assert failure.permanent


@pytest.mark.parametrize(("package", "name"), [("deepspeed", "DeepSpeed"), ("megatron", "Megatron")])
def test_a_training_whose_ranks_are_no_replicas_is_refused(start: Start, package: str, name: str) -> None:
    """Runs where the package is installed: both may need a compiler, DeepSpeed whenever it starts on CPUs."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    own = {
        "program": str(PROGRAM.with_name(f"{package}_program.py")),
        "arguments": ["--batch-size", "{batch_size_per_device}"],
        "environment": {"DS_ACCELERATOR": "cpu"},
    }
    failure = failure_of(start("refused", 2, own, settings=SETTINGS))
    assert f"uses {name}, in which ranks share samples or hold parts" in failure.reason
    assert failure.permanent


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "ended with code 1: ValueError: no more samples in shard 7"),
        ("kill", "was ended by SIGKILL, as the system's out-of-memory killer does"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_reason(start: Start, how: str, words: str) -> None:
    own = {"arguments": [*BATCH, "--fail", how, "--fail-at", "20"], "steps": 100_000}
    failure = failure_of(start(f"fails-{how}", 2, own, settings=SETTINGS))

    assert failure.reason.startswith(f"rank 1 on {socket.gethostname()}: ")
    assert words in failure.reason
    assert not failure.permanent
    assert ("Traceback (most recent call last)" in failure.traceback) == (how == "raise")


def test_a_script_that_needs_a_terminal_fails_with_a_fix_that_works(start: Start, tmp_path: Path) -> None:
    own = {"arguments": [*BATCH, "--width"], "devices": [1]}
    failure = failure_of(start("width", 1, own, settings=SETTINGS))
    assert (
        "ValueError: not enough values to unpack (expected 2, got 0). It asks the terminal" in failure.reason
    )

    stub = tmp_path / "stty"
    content, folder = re.findall(r"`([^`]*)`", failure.reason.partition("lines ")[2])[:2], str(tmp_path)
    stub.write_text("\n".join(content) + "\n")
    stub.chmod(0o755)
    fix = re.search(r"`environment: \{PATH: (.*)\}`", failure.reason)
    assert fix is not None
    environment = {"PATH": fix[1].replace("/that/folder", folder)}
    run = finish(start("width", 1, own | {"environment": environment}, settings=SETTINGS))
    assert "=" * 80 in run.log


@pytest.mark.parametrize(
    ("launcher", "further"),
    [
        pytest.param("popen", [], id="popen"),
        pytest.param("torchrun", [], id="torchrun"),
        pytest.param("popen", ["--stubborn"], id="a program that ignores SIGTERM"),
    ],
)
def test_ctrl_c_ends_a_program_that_does_not_resume_and_the_next_start_finds_an_emptied_folder(
    start: Start, launcher: str, further: list[str]
) -> None:
    own = {"launcher": launcher, "arguments": [*BATCH, "--slow", *further], "steps": 100_000}
    training = start("stopped", 2, own, settings=SETTINGS)
    training.wait_for("progress.json")
    os.kill(training.process.pid, signal.SIGINT)
    # less than a program has that may save
    _, stderr = training.process.communicate(timeout=STOP_SECONDS - 10)
    assert training.left_over() == {}

    failure = read_failure(training.folder)
    assert failure is not None
    assert failure.outcome == "interrupted"
    assert failure.reason == "ended by SIGINT. The program starts again from the beginning next time."
    assert "SIGINT: the program is ended; it starts again from the beginning next time" in stderr
    assert "checkpoint" not in stderr

    (training.folder / "program" / "of-the-first-start").write_text("")
    run = finish(start("stopped", 2, {"arguments": BATCH}, settings=SETTINGS))
    assert not (run.folder / "program" / "of-the-first-start").exists()
    assert run.summary.outcome == "completed"


@pytest.mark.parametrize(
    ("number", "save_at", "launcher"),
    [
        pytest.param(signal.SIGKILL, "10 steps", "popen", id="killed"),
        pytest.param(signal.SIGINT, "SIGTERM", "popen", id="Ctrl-C"),
        pytest.param(signal.SIGUSR1, "SIGUSR1", "popen", id="the end of a job's time"),
        pytest.param(signal.SIGUSR1, "SIGTERM", "torchrun", id="the end of a job's time, by torchrun"),
    ],
)
def test_a_program_that_resumes_is_measured_from_where_it_was(
    start: Start, number: signal.Signals, save_at: str, launcher: str
) -> None:
    own = {
        "program": str(PROGRAM.with_name("resuming_program.py")),
        "arguments": [*BATCH, "--save-at", save_at],
        "resumes": True,
        "launcher": launcher,
    }
    training = start("resumes", 2, own | {"steps": 100_000}, settings=SETTINGS)
    training.wait_for("progress.json")
    if number == signal.SIGKILL:
        training.wait_until((training.folder / "program" / "state.pt").exists, "the program saves nothing")
    training.process.send_signal(number)
    training.end()
    assert training.left_over() == {}
    if number != signal.SIGKILL:
        failure = read_failure(training.folder)
        assert failure is not None
        assert failure.outcome == "interrupted"
        kept = "The program resumes next time from what it has saved."
        assert failure.reason == f"ended by {number.name}. {kept}"

    run = finish(start("resumes", 2, own, settings=SETTINGS))
    (resumed,) = [line for line in run.log if line.startswith("resumed at step")][:1]
    assert int(resumed.split()[-1]) > 0
    _, program = found(run)
    assert (program.ended, program.samples_seen) == ("steps", 64)
    assert run.ranks["train_samples"].tolist() == [45 * 32, 45 * 32]
