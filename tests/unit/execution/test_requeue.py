"""Jobs whose time is over and jobs that are preempted go back into the queue; a refusal is reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins

from scalewise.execution.slurm import REQUEUE_ATTEMPTS, look_for_preempted, requeue

FOLDER = Path("/a folder|of a study")


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
    ("squeue", "refusal"),
    [
        pytest.param("echo RUNNING", "", id="running"),
        pytest.param("exit 1", "", id="the controller does not answer"),
        pytest.param("echo CANCELLED", "Slurm job 7 is CANCELLED", id="cancelled"),
        pytest.param("echo", "Slurm job 7 is unknown to squeue", id="unknown"),
    ],
)
def test_a_running_job_is_put_back_and_one_that_somebody_ends_stays_ended(
    squeue: str, refusal: str, answer: Answer, asked: Asked
) -> None:
    answer("squeue", squeue)
    assert requeue("7") == refusal
    assert asked() == ([] if refusal else ["requeue 7"])


class Queue:
    """A watch of preempted jobs, and what became of them."""

    def __init__(self, answer: Answer, asked: Asked) -> None:
        self._answer, self.asked = answer, asked
        self.said: list[str] = []
        self._looks: dict[str, int] = {}

    def look(self) -> None:
        """Look at the queue once."""
        self._looks = look_for_preempted(FOLDER, self._looks, self.said.append)

    def shows(
        self, *jobs: str, comment: str = "rule_train_wildcards_a_d1.r1", folder: Path = FOLDER, times: int = 0
    ) -> None:
        """Have squeue show jobs with a comment from now on, and the watch look at it so often."""
        lines = "".join(f"echo '{job}|PREEMPTED|N/A|None|{comment}|{folder}'\n" for job in jobs)
        expected = "--me --states=PREEMPTED,NODE_FAIL"
        self._answer("squeue", f'[ "$2 $3" = "{expected}" ] || exit 0\n{lines}')
        for _ in range(times):
            self.look()

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


def test_jobs_that_slurm_requeues_by_itself_or_that_are_not_of_this_study_are_not_requeued(
    queue: Queue,
) -> None:
    for _ in range(3):
        queue.shows("7", times=1)
        queue.shows(times=1)
    queue.shows("9", comment="mine", times=REQUEUE_ATTEMPTS + 2)
    queue.shows("9", folder=Path("/elsewhere"), times=REQUEUE_ATTEMPTS + 2)

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
    queue.look()
    (programs / "squeue").unlink()
    queue.look()

    assert len(queue.said) == 1
