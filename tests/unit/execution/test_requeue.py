"""A job whose time is over goes back into the queue, unless it is being cancelled; a refusal is told."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from scalewise.execution import train_job
from scalewise.execution.messages import GracefulStop
from scalewise.execution.requeue import Requeue, requeue_after, requeue_job
from scalewise.execution.run import RunFailedError
from scalewise.execution.run_lock import LockTimeoutError
from scalewise.execution.slurm import requeue, seconds_left
from scalewise.execution.supervisor import ExitStatus
from scalewise.execution.watchdog import JOB_END

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def slurm_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins of squeue and scontrol, the latter writes down what it is told."""
    folder = tmp_path / "programs"
    folder.mkdir()
    answer(folder, "squeue", "echo RUNNING")
    answer(folder, "scontrol", f'echo "$@" >> {tmp_path}/asked')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def answer(folder: Path, program: str, script: str) -> None:
    (folder / program).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / program).chmod(0o755)


def test_a_running_job_is_put_back(slurm_programs: Path, tmp_path: Path) -> None:
    assert requeue(JOB) == ""
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "requeue 7\n"


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", ""])
def test_a_job_that_somebody_ends_stays_ended(slurm_programs: Path, tmp_path: Path, state: str) -> None:
    answer(slurm_programs, "squeue", f"echo {state}")
    assert requeue(JOB) == f"Slurm job 7 is {state or 'unknown to squeue'}"
    assert not (tmp_path / "asked").exists()


def test_a_controller_that_does_not_answer_squeue_may_still_take_it_back(slurm_programs: Path) -> None:
    answer(slurm_programs, "squeue", "exit 1")
    assert requeue(JOB) == ""


def test_outside_of_slurm_there_is_nothing_to_put_back(slurm_programs: Path, tmp_path: Path) -> None:
    assert requeue({}) == "this is no Slurm job"
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Requested operation is presently disabled' >&2; exit 1", "Requested operation is presently"),
        ("exit 3", "scontrol ended with 3"),
    ],
)
def test_why_a_job_was_not_put_back_stands_in_the_log_of_the_run(
    slurm_programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    answer(slurm_programs, "scontrol", script)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeue_job(tmp_path / "train.log", "study/d2.r1", saved=True)
    first, second = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    assert first.endswith("Slurm job 7 goes back into the queue, to resume")
    assert f"it does not: {why}" in second
    assert second.endswith("Another try resumes")


def test_without_a_checkpoint_of_its_end_a_run_does_not_say_that_it_goes_on_from_one(
    slurm_programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(slurm_programs, "scontrol", "exit 3")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeue_job(tmp_path / "train.log", "study/d2.r1", saved=False)
    first, second = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    assert first.endswith("goes back into the queue, to start again from the beginning")
    assert second.endswith("Another try starts again from the beginning")


@pytest.mark.parametrize(
    ("because", "asked", "requeue"),
    [
        pytest.param("SIGUSR1", False, Requeue.FROM_CHECKPOINT, id="Slurm told the ranks"),
        pytest.param("SIGTERM", False, Requeue.FROM_CHECKPOINT, id="Slurm preempts the ranks"),
        pytest.param(JOB_END, True, Requeue.FROM_CHECKPOINT, id="its end was seen coming"),
        pytest.param("SIGUSR1", True, Requeue.NO, id="this process was told, too"),
        pytest.param("SIGTERM", True, Requeue.NO, id="somebody ends it"),
        pytest.param("the time limit", True, Requeue.NO, id="its own limit"),
    ],
)
def test_only_a_run_that_the_end_of_its_job_ended_goes_back_into_the_queue(
    because: str, asked: bool, requeue: Requeue
) -> None:
    ended = ExitStatus(0, "interrupted", GracefulStop(step=9, saved=True, stop_source=because), asked)
    assert requeue_after(RunFailedError("", "", ended), in_slurm_job=True) is requeue
    assert requeue_after(RunFailedError("", "", ended), in_slurm_job=False) is Requeue.NO
    assert requeue_after(RunFailedError("", "", ended, given_up=True), in_slurm_job=True) is Requeue.NO


def test_a_run_whose_ranks_did_not_stop_together_does_not_go_back_into_the_queue() -> None:
    failed = RunFailedError("", "", ExitStatus(1, "interrupted", None, stop_requested=False))
    assert requeue_after(failed, in_slurm_job=True) is Requeue.NO
    assert requeue_after(RunFailedError("", ""), in_slurm_job=True) is Requeue.NO


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("0:09", 9.0),
        ("04:00", 240.0),
        ("1:02:03", 3723.0),
        ("2-01:00:05", 176_405.0),
        ("UNLIMITED", math.inf),
        ("INVALID", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_what_slurm_leaves_a_job_is_read_as_seconds(
    slurm_programs: Path, told: str, seconds: float | None
) -> None:
    answer(slurm_programs, "squeue", f'[ "$*" = "--noheader --jobs=7 --format=%L" ] && echo {told}')
    assert seconds_left(JOB) == seconds


def test_what_is_left_of_a_job_is_unknown_outside_of_slurm_and_while_it_does_not_answer(
    slurm_programs: Path,
) -> None:
    assert seconds_left({}) is None
    answer(slurm_programs, "squeue", "exit 1")
    assert seconds_left(JOB) is None


HOURS = 3600.0


@pytest.mark.parametrize(
    ("told", "waited", "least", "most"),
    [
        # a run of ten hours in jobs of one; what is kept is for the last checkpoint
        pytest.param("echo 30:00", 0.5 * HOURS, 1700, 1750, id="what Slurm leaves it"),
        pytest.param("exit 1", 0.5 * HOURS, 9.4 * HOURS, 9.5 * HOURS + 1, id="the limit less the wait"),
        pytest.param("echo UNLIMITED", 20 * HOURS, math.inf, math.inf, id="no end"),
    ],
)
def test_a_job_that_has_waited_trains_for_what_is_left_of_it(
    slurm_programs: Path, told: str, waited: float, least: float, most: float
) -> None:
    answer(slurm_programs, "squeue", told)
    now = time.monotonic()
    assert least <= train_job.end_of_job(JOB, 10 * HOURS, now - waited) - now <= most


def test_a_job_of_which_too_little_is_left_says_how_much_and_what_to_do(slurm_programs: Path) -> None:
    answer(slurm_programs, "squeue", "echo 2:00")
    with pytest.raises(LockTimeoutError) as busy:
        train_job.end_of_job(JOB, 10 * HOURS, time.monotonic() - 3000)
    assert str(busy.value) == (
        "another training of this run ended without a result after 3000 s of waiting, and 50 s of this job "
        "are left to train in, less than 60 s. Run snakemake again: a new job has all of its time."
    )
