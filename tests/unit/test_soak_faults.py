"""The faults of a soak: what a seed makes of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from statistics import mean

from benchmarks.soak_faults import DECK, KINDS, SHORTEST_SECONDS, RankProcess, schedule, two_writers


def test_one_seed_gives_one_schedule_and_another_seed_another() -> None:
    first = list(islice(schedule(1, 15), 100))
    assert first == list(islice(schedule(1, 15), 100))
    assert first != list(islice(schedule(2, 15), 100))


def test_every_kind_of_fault_comes_up_in_each_round() -> None:
    kinds = [fault.kind for fault in islice(schedule(7, 15), 3 * len(DECK))]
    for start in range(0, len(kinds), len(DECK)):
        assert set(kinds[start : start + len(DECK)]) == set(KINDS)
    assert kinds[: len(DECK)] != kinds[len(DECK) : 2 * len(DECK)]


def test_faults_come_at_random_moments_around_the_mean() -> None:
    pauses = [fault.after_seconds for fault in islice(schedule(3, 15), 2000)]
    assert min(pauses) >= SHORTEST_SECONDS
    assert 14 < mean(pauses) < 16
    # far from evenly spaced
    assert max(pauses) > 45


def test_whom_a_fault_hits_differs_between_faults() -> None:
    faults = list(islice(schedule(3, 15), 100))
    assert len({fault.seed for fault in faults}) == len(faults)


def test_two_jobs_that_train_one_run_at_a_time_are_named_and_two_runs_of_one_name_are_not() -> None:
    def rank(job: str, study: str = "a", name: str = "d2.r1") -> RankProcess:
        return RankProcess(1, "node1", f"results/e/runs/{name}", Path(study), job)

    assert two_writers([rank("7"), rank("7"), rank("8", name="d1.r1"), rank("9", study="b")]) == []
    assert two_writers([rank("7"), rank("8")]) == [
        "a/results/e/runs/d2.r1: trained by jobs 7 and 8 at a time"
    ]
    # Slurm starts a job anew when its last start has ended
    assert len(two_writers([rank("7"), rank("7+1")])) == 1
