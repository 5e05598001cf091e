"""Jobs whose time is over and jobs that are preempted go back into the queue; a refusal is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stand_ins import stand_ins

from scalewise.execution.slurm import REQUEUE_ATTEMPTS, look_for_preempted, requeue

FOLDER = Path("/a folder|of a study")
RULE = "rule_train_wildcards_a_d1.r1"


class Queue:
    """A queue of Slurm, and what becomes of its preempted jobs."""

    def __init__(self, programs: Path) -> None:
        self._programs, self._log = programs, programs / "sent"
        self._looks: dict[str, int] = {}
        self.said: list[str] = []
        self.scontrol("exit 0")

    def squeue(self, script: str) -> None:
        stand_ins(self._programs, {"squeue": script})

    def scontrol(self, script: str) -> None:
        stand_ins(self._programs, {"scontrol": f"echo \"$@\" >> '{self._log}'\n{script}"})

    @property
    def sent(self) -> list[str]:
        """Commands that scontrol has received."""
        return self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else []

    def look(self, *jobs: str, comment: str = RULE, folder: Path = FOLDER, times: int = 1) -> None:
        """Look so often at a queue that has these preempted jobs."""
        lines = "".join(f"echo '{job}|PREEMPTED|N/A|None|{comment}|{folder}'\n" for job in jobs)
        self.squeue(f'[ "$2 $3" = "--me --states=PREEMPTED,NODE_FAIL" ] || exit 1\n{lines}')
        for _ in range(times):
            self._looks = look_for_preempted(FOLDER, self._looks, self.said.append)


@pytest.fixture
def queue(programs: Path) -> Queue:
    return Queue(programs)


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
    squeue: str, refusal: str, queue: Queue
) -> None:
    queue.squeue(squeue)
    assert requeue("7") == refusal
    assert queue.sent == ([] if refusal else ["requeue 7"])


def test_a_job_that_stays_preempted_goes_back_into_the_queue_each_time(queue: Queue) -> None:
    queue.look("7", "8")
    assert queue.sent == []
    queue.look("7", "8")
    assert queue.sent == ["requeue 7", "requeue 8"]
    assert "Slurm job 7 was preempted or lost its node and had ended" in queue.said[0]
    queue.look()
    queue.look("7", times=2)
    assert queue.sent == ["requeue 7", "requeue 8", "requeue 7"]


def test_jobs_that_slurm_requeues_by_itself_or_that_are_not_of_this_study_are_left_to_others(
    queue: Queue,
) -> None:
    for _ in range(3):
        queue.look("7")
        queue.look()
    queue.look("9", comment="mine", times=REQUEUE_ATTEMPTS + 2)
    queue.look("9", folder=Path("/elsewhere"), times=REQUEUE_ATTEMPTS + 2)
    assert (queue.sent, queue.said) == ([], [])


def test_a_job_that_slurm_does_not_take_back_is_reported_once(queue: Queue) -> None:
    queue.scontrol("echo 'Job is pending execution for job 7' >&2; exit 1")
    queue.look("7", times=REQUEUE_ATTEMPTS)
    assert queue.said == []
    queue.look("7", times=4)
    (refused,) = queue.said
    assert "Slurm does not take it back (Job is pending execution for job 7)" in refused
    assert "Ctrl-C" in refused
    queue.scontrol("exit 0")
    queue.look("7")
    assert len(queue.said) == 2
