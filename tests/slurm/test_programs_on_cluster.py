"""A program of the user's own over nodes: by srun and torchrun, prepared on the head, a killed rank named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.slurm.study import TRAININGS, ClusterStudy

pytestmark = pytest.mark.starts_ranks

PROGRAM = Path(__file__).parents[1] / "distributed" / "own_program.py"
BATCH = ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"]
OWN = {
    "program": str(PROGRAM),
    "scaling": "weak",
    "batch_size_per_device": 32,
    "devices": ["2x2"],
    "steps": 30,
    "warmup_steps": 5,
}


def test_a_program_is_measured_over_nodes_under_srun_and_torchrun(study: ClusterStudy) -> None:
    (study.folder / "fetch.py").write_text("open('fetched', 'a').write('once\\n')\n")
    measured = {
        "arguments": BATCH,
        "sweep": {"launcher": ["srun", "torchrun"]},
        "prepare": ["fetch.py"],
    }
    # rank 3 of 4, on the second node
    killed = {"arguments": [*BATCH, "--fail", "kill", "--fail-at", "10"], "launcher": "srun"}
    study.configure({"own": OWN | measured, "killed": OWN | killed})
    code, output = study.snakemake("--resources", "device_budget=8", "--retries", "0", "-k", *TRAININGS)

    assert code == 1, output
    assert (study.folder / "fetched").read_text() == "once\n"
    for launcher in ("srun", "torchrun"):
        name = f"d2x2.launcher-{launcher}.r1"
        summary, ranks = study.summary("own", name), study.ranks("own", name)
        assert summary.measurements is not None
        program = summary.measurements.program
        assert program is not None
        assert (program.ended, program.samples_seen) == ("steps", 128)
        assert program.parallelism == ["DistributedDataParallel"]
        assert sum(w.steps for w in summary.measurements.windows if not w.warmup) <= 30
        assert summary.provenance is not None
        assert summary.provenance.launcher == launcher
        assert list(ranks["rank"]) == [0, 1, 2, 3]
        assert sorted(ranks.groupby("host")["local_rank"].apply(list)) == [[0, 1], [0, 1]]
    steps = {job.comment: job.steps for job in study.jobs().values()}
    tasks = {comment: step.tasks for comment, found in steps.items() for step in found if step.name == "0"}
    assert sorted(number for comment, number in tasks.items() if "own" in comment) == [2, 4]
    failure = study.failure("killed", "d2x2.r1")
    assert failure.reason.startswith("rank 3 on ")
    assert "was ended by SIGKILL" in failure.reason
    assert set(failure.reason.split()) & set(ranks["host"].astype(str) + ":")
