"""The jobs of one study never run on a node at the same time, by Slurm's accounting."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from tests.slurm.lab import Lab
from tests.slurm.records import Job
from tests.slurm.study import ClusterStudy

STUDY: dict[str, dict[str, Any]] = {
    "a": {"devices": [1, 2, 4], "repeats": 2},
    "b": {"devices": [1, "2x2"], "repeats": 2},
}
"""Runs on parts of nodes of two experiments, and on whole nodes."""

NO_GPUS = {"exclusive": False, "gpu_type": "none"}


def jobs_at_the_same_time(lab: Lab, jobs: list[Job]) -> list[str]:
    """Pairs of jobs that share a node for a second or more."""
    nodes = {job.job_id: set(lab.ask("scontrol", "show", "hostnames", job.node_list).split()) for job in jobs}
    return [
        f"{one.comment} and {other.comment}"
        for one, other in combinations(jobs, 2)
        if nodes[one.job_id] & nodes[other.job_id] and one.start < other.end and other.start < one.end
    ]


@pytest.mark.parametrize(
    ("slurm", "of_one"),
    [
        pytest.param({}, 4, id="whole nodes by default"),
        pytest.param(NO_GPUS, 0, id="CPUs one at a time"),
    ],
)
def test_no_two_jobs_of_a_study_share_a_node(study: ClusterStudy, slurm: dict[str, Any], of_one: int) -> None:
    if slurm == NO_GPUS:
        del study.site["slurm"]["gpu_type"]
    study.configure(STUDY, prelude=[study.notes_gpus], slurm=slurm)
    # more than the profile's devices: nothing but the study keeps its jobs apart
    code, output = study.snakemake("--jobs", "100", "--resources", "device_budget=1000", "--", "all")
    assert code == 0, output

    mine = study.submitted()
    for job in mine:
        study.lab.accounting(job)
    jobs = [job for job in study.lab.jobs() if job.job_id in mine]
    assert sum("rule_train" in job.comment for job in jobs) == 10
    assert {job.state for job in jobs} == {"COMPLETED"}
    assert jobs_at_the_same_time(study.lab, jobs) == []

    # a run uses the devices that were planned, whatever its job holds
    given = study.jobs()["rule_train_wildcards_a_d1.r1"]
    assert given.gpus == of_one
    (ranks,) = (step for step in given.steps if step.name == "0")
    assert (ranks.tasks, ranks.gpus) == (1, min(of_one, 1))
    for run in ("d1.r1", "d2.r1", "d4.r1"):
        gpus = study.gpus("a", run)
        assert len(gpus) == int(run[1])
        assert {len(shown) for shown in gpus} == {int(run[1])} if of_one else gpus == [[""]] * int(run[1])
    for experiment, runs in (("a", ("d1.r1", "d2.r2", "d4.r1")), ("b", ("d1.r2", "d2x2.r1"))):
        for run in runs:
            origin = study.summary(experiment, run).provenance
            assert origin is not None
            assert (origin.other_jobs, origin.study_jobs) == (0, 0)
