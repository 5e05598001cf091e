"""What becomes of jobs that are preempted."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.stand_ins import stand_ins

from scalewise.execution.slurm import REQUEUE_ATTEMPTS, PreemptionWatch


class Queue:
    """Preempted jobs, and what became of them."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.folder = folder
        self._jobs = programs / "jobs"
        self._requeued = programs / "requeued"
        self.said: list[str] = []
        self.given_up = 0
        self.preempted()
        stand_ins(
            programs,
            {
                "squeue": f'[ "$2 $3" = "--user={os.getuid()} --states=PREEMPTED,NODE_FAIL" ] || exit 1\n'
                f"while read -r line; do echo \"$line\"; done < '{self._jobs}'",
            },
        )
        self._programs = programs
        self.scontrol_takes_back()

    def preempted(self, *jobs: str, folder: Path | None = None) -> None:
        """What squeue shows from now on."""
        lines = [f"{job}|{folder or self.folder}\n" for job in jobs]
        self._jobs.write_text("".join(lines), encoding="utf-8")

    def scontrol_takes_back(self) -> None:
        stand_ins(self._programs, {"scontrol": f"echo \"$*\" >> '{self._requeued}'"})

    def scontrol_refuses(self) -> None:
        refusal = "echo 'Job is pending execution for job 7' >&2; exit 1"
        stand_ins(self._programs, {"scontrol": f"echo \"$*\" >> '{self._requeued}'\n{refusal}"})

    @property
    def asked(self) -> list[str]:
        """The arguments of each scontrol."""
        return self._requeued.read_text(encoding="utf-8").splitlines() if self._requeued.exists() else []

    def _give_up(self) -> None:
        self.given_up += 1

    def watch(self) -> PreemptionWatch:
        """A watch that begins now."""
        return PreemptionWatch(self.folder, self.said.append, self._give_up)


@pytest.fixture
def queue(programs: Path, tmp_path: Path) -> Queue:
    return Queue(programs, tmp_path / "study")


def look(watch: PreemptionWatch, times: int) -> None:
    for _ in range(times):
        watch.look()


def test_a_job_seen_preempted_twice_goes_back_into_the_queue(queue: Queue) -> None:
    watch = queue.watch()
    queue.preempted("7")
    watch.look()
    assert queue.asked == []
    watch.look()

    assert queue.asked == ["requeue 7"]
    assert queue.said == [
        "Slurm job 7 was preempted or lost its node and had ended; it is back in the queue."
    ]


def test_a_job_that_slurm_requeues_by_itself_is_left_to_it(queue: Queue) -> None:
    watch = queue.watch()
    for _ in range(3):
        queue.preempted("7")
        watch.look()
        queue.preempted()
        watch.look()

    assert queue.asked == []


def test_a_job_that_is_preempted_again_goes_back_again(queue: Queue) -> None:
    watch = queue.watch()
    queue.preempted("7", "8")
    look(watch, 2)
    queue.preempted()
    watch.look()
    queue.preempted("7")
    look(watch, 2)

    assert queue.asked == ["requeue 7", "requeue 8", "requeue 7"]
    assert queue.given_up == 0


def test_jobs_of_other_folders_are_left_alone(queue: Queue, tmp_path: Path) -> None:
    watch = queue.watch()
    queue.preempted("7", folder=tmp_path / "other")
    look(watch, 3)

    assert queue.asked == []


def test_jobs_that_were_preempted_before_are_left_alone(queue: Queue) -> None:
    queue.preempted("6")
    watch = queue.watch()
    queue.preempted("6", "7")
    look(watch, 2)

    assert queue.asked == ["requeue 7"]


def test_a_job_that_slurm_does_not_take_back_ends_the_study_with_the_reason(queue: Queue) -> None:
    watch = queue.watch()
    queue.preempted("7")
    queue.scontrol_refuses()
    look(watch, REQUEUE_ATTEMPTS)
    assert queue.given_up == 0
    watch.look()

    assert queue.asked == ["requeue 7"] * REQUEUE_ATTEMPTS
    assert queue.given_up == 1
    assert queue.said == [
        "Slurm job 7 was preempted or lost its node, and Slurm does not take it back "
        "(Job is pending execution for job 7). Ending. The same command makes what is missing."
    ]


def test_a_refusal_that_passes_ends_nothing(queue: Queue) -> None:
    watch = queue.watch()
    queue.preempted("7")
    queue.scontrol_refuses()
    look(watch, REQUEUE_ATTEMPTS)
    queue.scontrol_takes_back()
    watch.look()

    assert queue.given_up == 0
    assert len(queue.said) == 1


def test_a_squeue_that_fails_shows_nothing_and_ends_nothing(queue: Queue, programs: Path) -> None:
    watch = queue.watch()
    (programs / "squeue").unlink()
    look(watch, 3)

    assert queue.asked == []


def test_it_watches_by_itself_until_it_gives_up(queue: Queue) -> None:
    given_up = threading.Event()
    watch = PreemptionWatch(queue.folder, queue.said.append, given_up.set, poll_seconds=0.01)
    queue.scontrol_refuses()
    queue.preempted("7")
    watch.start()

    assert given_up.wait(60)
    assert len(queue.said) == 1
