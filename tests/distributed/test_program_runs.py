"""Runs of a program of the user's own: what they leave, how they end, and who is named where they fail."""

import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.runs import Finished, Runs
from tests.machine import needs_two_cores

from scalewise.records import Measurements, ProgramMeasurements

pytestmark = needs_two_cores

PROGRAM = Path(__file__).parent / "own_program.py"
BATCH = ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"]
UNENDED: dict[str, Any] = {
    "program": str(PROGRAM),
    "arguments": BATCH,
    "scaling": "weak",
    "batch_size_per_device": 32,
    "devices": [1, 2],
    "warmup_steps": 5,
    "repeats": 1,
}
SETTINGS = UNENDED | {"steps": 40}


def found(run: Finished) -> tuple[Measurements, ProgramMeasurements]:
    program = run.measured.program
    assert program is not None
    return run.measured, program


@pytest.mark.starts_ranks
def test_a_program_is_measured_as_it_is_and_ended_after_its_steps(runs: Runs) -> None:
    training = runs.start("own", 2, {"arguments": [*BATCH, "--swallow"]}, settings=SETTINGS)
    run = training.finish()

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
    assert {"test accuracy", "parts of the start-up"} <= set(program.unknown)
    assert str(PROGRAM.relative_to(Path.cwd())) in program.imported_files
    assert run.ranks["rank"].tolist() == [0, 1]
    assert (run.ranks["train_samples"] == 45 * 32).all()
    assert run.summary.provenance is not None
    assert set(run.summary.provenance.inputs) == {"program"}
    assert any("swallowed" in line for line in run.log)
    assert training.left_over() == {}


def test_hugging_faces_trainer_is_measured_as_it_is(runs: Runs) -> None:
    """Its evaluation after each tenth step is left out, and its ranks share the batches of one loader."""
    own = {"program": str(PROGRAM.with_name("trainer_program.py")), "batch_size_per_device": 8}
    run = runs.complete("trainer", 2, own, settings=SETTINGS)

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


def test_a_script_that_needs_a_terminal_fails_with_a_fix_that_works_and_its_metric_is_read(
    runs: Runs,
) -> None:
    own: dict[str, Any] = {
        "arguments": [*BATCH, "--width", "--epochs", "4"],
        "devices": [1],
        "metric": {"pattern": r"val_loss=([0-9.]+)", "at_most": 0.4},
    }
    failure, _ = runs.start("width", 1, own, settings=UNENDED).fail()
    said = "ValueError: not enough values to unpack (expected 2, got 0). It asks the terminal"
    assert said in failure.reason

    content = re.findall(r"`([^`]*)`", failure.reason.partition("lines ")[2])[:2]
    (runs.folder / "stty").write_text("\n".join(content) + "\n")
    (runs.folder / "stty").chmod(0o755)
    fix = re.search(r"`environment: \{PATH: (.*)\}`", failure.reason)
    assert fix is not None
    own["environment"] = {"PATH": fix[1].replace("/that/folder", str(runs.folder))}
    run = runs.complete("width", 1, own, settings=UNENDED)

    assert "=" * 80 in run.log
    measured, program = found(run)
    assert program.ended == "itself"
    # 128 steps an epoch
    read = [(reading.step, reading.value) for reading in program.metric]
    assert read == [(128, 1.0), (256, 0.5), (384, 0.333), (512, 0.25)]
    assert program.seconds_to_metric == program.metric[2].seconds
    first = measured.first_step_seconds
    assert first is not None
    assert program.seconds_to_metric < measured.train_seconds + first
    assert program.metric[0].seconds < program.metric[1].seconds


def test_a_run_that_is_not_as_planned_ends_with_both_numbers(runs: Runs) -> None:
    arguments = ["--batch-size", "{global_batch_size}", "--out", "{folder}"]
    own = {"arguments": arguments, "steps": 100_000}
    failure, _ = runs.start("other", 2, own, settings=SETTINGS).fail()

    assert "128 samples a step" in failure.reason
    assert "64 were planned" in failure.reason
    assert failure.permanent


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--join"],
            ["rank 1 has no more batches after its 6", "torch's Join", "DistributedSampler"],
            id="Join",
        ),
        pytest.param(
            ["--epochs", "1"],
            ["rank 1 of", "came to its own end after 6 steps, and rank 0, after 6", "DistributedSampler"],
            id="its own end",
        ),
    ],
)
def test_ranks_that_make_different_numbers_of_steps_are_named_with_them(
    runs: Runs, arguments: list[str], words: list[str]
) -> None:
    own = {"arguments": [*BATCH, "--batches-of-others", "6", *arguments]}
    failure, _ = runs.start("uneven", 2, own, settings=SETTINGS).fail()

    assert [word for word in words if word not in failure.reason] == []
    assert "SIGKILL" not in failure.reason


def test_ctrl_c_ends_a_program_that_does_not_resume_and_the_next_start_finds_an_emptied_folder(
    runs: Runs,
) -> None:
    """A program that ignores SIGTERM."""
    own = {"arguments": [*BATCH, "--slow", "--stubborn"], "steps": 100_000}
    training = runs.start("stopped", 2, own, settings=SETTINGS)
    training.wait_for_step()
    os.kill(training.process.pid, signal.SIGINT)
    failure, stderr = training.fail("interrupted")
    assert failure.reason.startswith("ended by SIGINT. ")
    assert "from the beginning" in failure.reason
    assert "SIGINT: the ranks are ended" in stderr
    assert "checkpoint" not in stderr

    (training.folder / "program" / "of-the-first-start").write_text("")
    run = runs.complete("stopped", 2, settings=SETTINGS)
    assert not (run.folder / "program" / "of-the-first-start").exists()
    assert run.summary.outcome == "completed"


def test_a_program_that_resumes_is_measured_from_where_it_was(runs: Runs) -> None:
    """After it was killed, and after Ctrl-C, which reaches it as the signal ahead of a job's end."""
    own = {"arguments": [*BATCH, "--save-at", "SIGTERM", "SIGUSR1"], "resumes": True, "steps": 200}
    killed = runs.start("resumes", 2, own, settings=SETTINGS)
    killed.wait_for_step()
    killed.wait_until((killed.folder / "program" / "state.pt").exists, "the program saves nothing")
    killed.process.kill()
    killed.end()
    assert killed.left_over() == {}
    killed.forget()

    stopped = runs.start("resumes", 2, own, settings=SETTINGS)
    stopped.wait_for_step()
    stopped.process.send_signal(signal.SIGINT)
    failure, _ = stopped.fail("interrupted")
    assert re.match(r"ended by SIGINT\..*resumes", failure.reason)
    stopped.forget()

    run = runs.complete("resumes", 2, own, settings=SETTINGS)
    assert "saved at SIGUSR1" in run.log
    steps = [int(line.split()[-1]) for line in run.log if line.startswith("resumed at step")][::2]
    assert steps == sorted(set(steps))
    assert len(steps) == 2
    _, program = found(run)
    assert (program.ended, program.samples_seen) == ("steps", 64)
    assert run.ranks["train_samples"].tolist() == [205 * 32] * 2


# the rank looks which signals its child handles: that must be the program, and not what has it forked
@pytest.mark.starts_ranks
def test_at_the_end_of_a_jobs_time_torchruns_program_gets_the_signal_that_it_handles(runs: Runs) -> None:
    own = {"arguments": [*BATCH, "--save-at", "SIGTERM"], "resumes": True, "launcher": "torchrun"}
    training = runs.start("warned", 2, own | {"steps": 100_000}, settings=SETTINGS)
    training.wait_for_step()
    training.process.send_signal(signal.SIGUSR1)
    failure, _ = training.fail("interrupted")
    assert re.match(r"ended by SIGUSR1\..*resumes", failure.reason)
    assert "saved at SIGTERM" in Finished(training.folder).log


MEETS = """\
import os, sys, time
import torch, torch.distributed as dist

rank = int(os.environ["RANK"])
if sys.argv[1] == "address":
    # as many tutorials do; each rank here stands for a node of its own
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(12355 + rank)
dist.init_process_group("gloo")
if rank == 0:
    dist.barrier()
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("what", "launcher", "says"),
    [
        pytest.param(
            "address",
            "popen",
            r"Rank 1 on {here} waited in \S+init_process_group at localhost:12356\. The program sets",
            id="address",
        ),
        pytest.param(
            "barrier",
            "torchrun",
            r"Rank 0 on {here} waited in torch\.distributed\.barrier\. Rank 1 on {here} passed",
            id="barrier",
        ),
    ],
)
def test_a_program_that_makes_no_step_until_its_limit_names_who_waited_for_whom(
    what: str, launcher: str, says: str, runs: Runs, tmp_path: Path
) -> None:
    script = tmp_path / "meets.py"
    script.write_text(MEETS, encoding="utf-8")
    own = {"program": str(script), "arguments": [what], "launcher": launcher}
    expected = says.format(here=re.escape(socket.gethostname()))
    # a busy machine may not bring both ranks to their places in the first of these times
    for limit in (20, 80, 320):
        failure, _ = runs.start(what, 2, own, settings=SETTINGS, limit_seconds=limit).fail("timed-out")
        if re.search(expected, failure.reason):
            break
    assert re.search(expected, failure.reason)
    assert "runtime_minutes" not in failure.reason
    assert not failure.permanent
