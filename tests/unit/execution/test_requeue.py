"""Jobs whose time is over and jobs that are preempted go back into the queue; a refusal is reported."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins

from scalewise.execution import train_job
from scalewise.execution.messages import GracefulStop
from scalewise.execution.requeue import Requeue, requeue_after, requeue_job
from scalewise.execution.run import RunFailedError
from scalewise.execution.run_lock import LockTimeoutError
from scalewise.execution.slurm import REQUEUE_ATTEMPTS, PreemptionWatch, requeue, seconds_left
from scalewise.execution.supervisor import ExitStatus
from scalewise.execution.watchdog import JOB_END

JOB = {"SLURM_JOB_ID": "7"}


@pytest.fixture
def answer(programs: Path, tmp_path: Path) -> Callable[[str, str], None]:
    """Gives a stand-in of squeue or scontrol another script; scontrol writes down its arguments first."""

    def answer(program: str, script: str) -> None:
        noted = f"echo \"$@\" >> '{tmp_path}/asked'\n" if program == "scontrol" else ""
        stand_ins(programs, {program: noted + script})

    answer("squeue", "echo RUNNING")
    answer("scontrol", "exit 0")
    return answer


@pytest.fixture
def asked(tmp_path: Path) -> Callable[[], list[str]]:
    file = tmp_path / "asked"
    return lambda: file.read_text(encoding="utf-8").splitlines() if file.exists() else []


Answer = Callable[[str, str], None]
Asked = Callable[[], list[str]]


@pytest.mark.parametrize(
    ("environ", "squeue", "refusal"),
    [
        pytest.param(JOB, "echo RUNNING", "", id="running"),
        pytest.param(JOB, "exit 1", "", id="the controller does not answer"),
        pytest.param(JOB, "echo CANCELLED", "Slurm job 7 is CANCELLED", id="cancelled"),
        pytest.param(JOB, "echo", "Slurm job 7 is unknown to squeue", id="unknown"),
        pytest.param({}, "echo RUNNING", "this is no Slurm job", id="outside of Slurm"),
    ],
)
def test_a_running_job_is_put_back_and_one_that_somebody_ends_stays_ended(
    environ: dict[str, str], squeue: str, refusal: str, answer: Answer, asked: Asked
) -> None:
    answer("squeue", squeue)
    assert requeue(environ) == refusal
    assert asked() == ([] if refusal else ["requeue 7"])


@pytest.mark.parametrize(
    ("script", "saved", "first", "second"),
    [
        (
            "echo 'is disabled' >&2; exit 1",
            True,
            "to resume",
            "it does not go back: is disabled. The next start of the run resumes",
        ),
        (
            "exit 3",
            False,
            "to start again",
            "scontrol ended with 3. The next start of the run starts again",
        ),
    ],
)
def test_why_a_job_was_not_put_back_stands_in_the_log_of_the_run(
    script: str,
    saved: bool,
    first: str,
    second: str,
    answer: Answer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer("scontrol", script)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    requeue_job(tmp_path / "train.log", "study/d2.r1", saved=saved)
    before, after = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    assert before.endswith(f"Slurm job 7 goes back into the queue, {first}")
    assert second in after


@pytest.mark.parametrize(
    ("because", "asked", "requeue"),
    [
        pytest.param("SIGUSR1", False, Requeue.FROM_CHECKPOINT, id="Slurm signaled the ranks"),
        pytest.param("SIGTERM", False, Requeue.FROM_CHECKPOINT, id="Slurm preempts the ranks"),
        pytest.param(JOB_END, True, Requeue.FROM_CHECKPOINT, id="its end was seen coming"),
        pytest.param("SIGUSR1", True, Requeue.NO, id="Slurm signaled this process, too"),
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
    apart = ExitStatus(1, "interrupted", None, stop_requested=False)
    assert requeue_after(RunFailedError("", "", apart), in_slurm_job=True) is Requeue.NO


@pytest.mark.parametrize(
    ("reply", "seconds"),
    [
        ("echo 0:09", 9.0),
        ("echo 04:00", 240.0),
        ("echo 2-01:00:05", 176_405.0),
        ("echo UNLIMITED", math.inf),
        ("echo INVALID", None),
        ("exit 1", None),
    ],
)
def test_what_slurm_leaves_a_job_is_read_as_seconds(
    answer: Answer, reply: str, seconds: float | None
) -> None:
    answer("squeue", f'[ "$*" = "--noheader --jobs=7 --format=%L" ] && {reply}')
    assert seconds_left(JOB) == seconds
    assert seconds_left({}) is None


HOURS = 3600.0


@pytest.mark.parametrize(
    ("reply", "waited", "least", "most"),
    [
        # a run of ten hours in jobs of one; what is kept is for the last checkpoint
        pytest.param("echo 30:00", 0.5 * HOURS, 1700, 1750, id="what Slurm leaves it"),
        pytest.param("exit 1", 0.5 * HOURS, 9.4 * HOURS, 9.5 * HOURS + 1, id="the limit less the wait"),
        pytest.param("echo UNLIMITED", 20 * HOURS, math.inf, math.inf, id="no end"),
    ],
)
def test_a_job_that_has_waited_trains_for_what_is_left_of_it(
    answer: Answer, reply: str, waited: float, least: float, most: float
) -> None:
    answer("squeue", reply)
    now = time.monotonic()
    assert least <= train_job.end_of_job(JOB, 10 * HOURS, now - waited) - now <= most


def test_a_job_of_which_too_little_is_left_says_how_much_and_what_to_do(answer: Answer) -> None:
    answer("squeue", "echo 2:00")
    with pytest.raises(LockTimeoutError) as busy:
        train_job.end_of_job(JOB, 10 * HOURS, time.monotonic() - 3000)
    assert str(busy.value) == (
        "another training of this run ended without a result after 3000 s of waiting, and 50 s of this job "
        "are left to train in, less than 60 s. Run snakemake again: a new job has all of its time."
    )


class Queue:
    """A watch of preempted jobs, and what became of them."""

    def __init__(self, answer: Answer, asked: Asked) -> None:
        self._answer, self.asked = answer, asked
        self.said: list[str] = []
        self.watch = PreemptionWatch("run-id", self.said.append)

    def shows(self, *jobs: str, name: str = "run-id", times: int = 0) -> None:
        """What squeue shows of jobs with a name from now on, and how often the watch looks at it."""
        lines = "".join(f"echo {job}\n" for job in jobs)
        expected = f"--user={os.getuid()} --states=PREEMPTED,NODE_FAIL --name={name}"
        self._answer("squeue", f'[ "$2 $3 $4" = "{expected}" ] || exit 0\n{lines}')
        for _ in range(times):
            self.watch.look()

    def refuses(self, job: str = "*") -> None:
        refusal = "echo 'Job is pending execution for job 7' >&2; exit 1"
        self._answer("scontrol", f'case "$2" in {job}) {refusal} ;; esac')


@pytest.fixture
def queue(answer: Answer, asked: Asked) -> Queue:
    return Queue(answer, asked)


def test_a_job_seen_preempted_twice_goes_back_into_the_queue_each_time(queue: Queue) -> None:
    queue.shows("7", "8", times=1)
    assert queue.asked() == []
    queue.shows("7", "8", times=1)
    assert queue.asked() == ["requeue 7", "requeue 8"]
    assert queue.said[0] == (
        "Slurm job 7 was preempted or lost its node and had ended; it is back in the queue."
    )
    queue.shows(times=1)
    queue.shows("7", times=2)
    assert queue.asked() == ["requeue 7", "requeue 8", "requeue 7"]


def test_jobs_that_slurm_requeues_by_itself_or_that_are_not_of_this_snakemake_are_not_requeued(
    queue: Queue,
) -> None:
    for _ in range(3):
        queue.shows("7", times=1)
        queue.shows(times=1)
    queue.shows("9", name="train.sh", times=REQUEUE_ATTEMPTS + 2)

    assert queue.asked() == []
    assert queue.said == []


def test_a_job_that_slurm_does_not_take_back_is_reported_once_and_the_others_are_requeued(
    queue: Queue,
) -> None:
    queue.refuses("7")
    queue.shows("7", times=REQUEUE_ATTEMPTS)
    assert queue.said == []
    queue.shows("7", "8", times=4)

    assert queue.asked().count("requeue 8") == 2
    refused, *others = queue.said
    assert "Slurm does not take it back (Job is pending execution for job 7)" in refused
    assert "Ctrl-C" in refused
    assert all(line.startswith("Slurm job 8 ") for line in others)


def test_a_refusal_that_passes_and_a_squeue_that_fails_end_nothing(
    queue: Queue, answer: Answer, programs: Path
) -> None:
    queue.refuses()
    queue.shows("7", times=REQUEUE_ATTEMPTS)
    answer("scontrol", "exit 0")
    queue.watch.look()
    (programs / "squeue").unlink()
    queue.watch.look()

    assert len(queue.said) == 1
