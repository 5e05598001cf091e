"""A link of known speed: its all-reduce measured by short jobs, and it named as what slows a training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from statistics import median
from typing import Any

import pandas as pd
import pytest
from tests.slurm.lab import Lab
from tests.slurm.study import LIMIT_SECONDS, ClusterStudy

from scalewise.analysis.causes import find_causes
from scalewise.plan.plan_file import MEASUREMENT_RETRIES
from scalewise.records import AllReduce, AllReduceMeasurement

ONE_DEVICE_A_NODE: dict[str, Any] = {"devices_per_node": 1, "max_nodes": 2}
"""Facts of a site whose runs take two nodes: one measurement."""
PREDICTED = {"predict": True, "devices": [1, 2], "project": {"devices": [4, 16]}}


@pytest.fixture
def link(lab: Lab) -> Iterator[float]:
    """Bytes per second between nodes that are joined at 100 Mbit/s."""
    lab.limit_network("100mbit")
    yield 100e6 / 8
    lab.unlimit_network()


def measured(study: ClusterStudy) -> dict[str, AllReduceMeasurement]:
    """What was measured, by shape."""
    found = sorted((study.folder / "resources" / "collectives").rglob("*.json"))
    return {path.stem: AllReduceMeasurement.model_validate_json(path.read_text()) for path in found}


def bus_bandwidth(smaller: AllReduce, larger: AllReduce) -> float:
    """Bytes per second over two ranks, from what the larger message takes more."""
    return (larger.bytes - smaller.bytes) / (median(larger.seconds) - median(smaller.seconds))


def test_a_slow_link_is_seen_before_any_large_job_runs_on_it(study: ClusterStudy, link: float) -> None:
    study.configure({"e": PREDICTED}, **ONE_DEVICE_A_NODE)
    code, output = study.snakemake("predict")
    assert code == 0, output

    jobs = study.jobs("rule_")
    assert sum("rule_measure_all_reduce" in comment for comment in jobs) == 1
    assert [comment for comment in jobs if "rule_train" in comment] == ["rule_train_wildcards_e_d1.r1"]
    (job,) = [job for comment, job in jobs.items() if "rule_measure_all_reduce" in comment]
    assert (job.nodes, job.state) == (2, "COMPLETED")
    (record,) = measured(study).values()
    assert (str(record.shape), record.backend, record.launcher, record.error) == ("2x1", "gloo", "srun", "")
    assert len(set(record.hosts)) == 2
    by_size = {reduction.bytes: reduction for reduction in record.reductions}
    # a 64 MiB message would take more than 5 s, and is left out
    assert max(by_size) == 16 * 2**20
    assert all(len(reduction.seconds) >= 5 for reduction in by_size.values())
    bandwidth = bus_bandwidth(by_size[2**20], by_size[16 * 2**20])
    print(f"{bandwidth * 8 / 1e6:.1f} Mbit/s of {link * 8 / 1e6:.0f}")
    # what is sent in idle time is saved up by the limit, so that small messages may go faster; no rate is
    # asserted but the one that the link cannot exceed for long
    assert bandwidth < 1.3 * link
    facts = json.loads((study.folder / "results" / "e" / "prediction.json").read_text())
    assert facts["refused"] == {}
    assert "4 devices (4x1)" in output.rsplit("device-hours spent", 1)[1]

    code, output = study.snakemake("predict")
    assert code == 0, output
    assert set(study.jobs("rule_")) == set(jobs)


def test_a_measurement_that_cannot_be_made_lets_the_study_go_on(study: ClusterStudy) -> None:
    fails = 'case "$*" in *rank.py*measure_all_reduce*) exit 3;; esac'
    study.configure({"e": PREDICTED | {"project": {"devices": [4]}}}, prelude=[fails], **ONE_DEVICE_A_NODE)
    code, output = study.snakemake("predict")
    assert code == 0, output

    facts = json.loads((study.folder / "results" / "e" / "prediction.json").read_text())
    # of two tasks that fail, srun ends one (143), unless both have ended by then (1)
    said = r"no rank started, and the launcher exited with code (1|143)\. The ranks' output is in"
    assert re.search(said, json.dumps(facts))
    measuring = [job for job in study.lab.jobs() if "rule_measure_all_reduce" in job.comment]
    states = [job.state for job in measuring if job.job_id in study.submitted()]
    # the last one leaves the reason, with which the study ends, and which is not kept for another one
    assert sorted(states) == ["COMPLETED", *["FAILED"] * MEASUREMENT_RETRIES]
    assert measured(study) == {}


def test_a_cancelled_measurement_leaves_no_record_and_is_made_again(study: ClusterStudy) -> None:
    study.configure({"e": PREDICTED}, prelude=["sleep 8"], **ONE_DEVICE_A_NODE)
    process = study.start("predict", "--retries", "1")
    folder = study.folder / "logs" / "measure_all_reduce"
    study.wait_until(lambda: bool(list(folder.glob("*/2x1.attempt-*/rank_setup.json"))), "no measurement")
    (attempt,) = folder.glob("*/2x1.attempt-*")
    study.lab.run("scancel", attempt.name.rsplit("-", 1)[1])
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, output

    (record,) = measured(study).values()
    assert (str(record.shape), record.error) == ("2x1", "")
    measuring = [job for job in study.lab.jobs() if "rule_measure_all_reduce" in job.comment]
    mine = [job.state for job in measuring if job.job_id in study.submitted()]
    assert len(mine) == 2
    assert "COMPLETED" in mine


SLOW_NODES = """
case "$*" in *results/slow/*)
tc qdisc replace dev eth0 root tbf rate 50mbit burst 256k latency 50ms;;
esac
"""


def test_a_slow_link_is_named_and_a_fast_one_is_not(lab: Lab, study: ClusterStudy) -> None:
    experiment = {"model": "planted_communicating", "devices": [2], "warmup_steps": 2, "epochs": 1}
    study.configure(
        {"slow": experiment, "fast": experiment},
        devices_per_node=1,
        prelude=[SLOW_NODES.strip().replace("\n", " ")],
        # two nodes for each run, whose links are of one speed
        slurm={"exclusive": True},
    )
    try:
        code, output = study.snakemake("--until", "compute_scaling")
    finally:
        lab.unlimit_network()
    assert code == 0, output
    named, sentence = cause(study, "slow")
    assert named == "communication", sentence
    assert sentence.startswith("On 2 CPU processes, communication takes")
    named, sentence = cause(study, "fast")
    assert named != "communication", sentence


def cause(study: ClusterStudy, experiment: str) -> tuple[str | None, str]:
    """Of the experiment's only point, on two nodes, and the sentence about it."""
    folder = study.folder / "results" / experiment
    scaling, runs = pd.read_csv(folder / "scaling.csv"), pd.read_csv(folder / "runs.csv")
    (_, point), *others = scaling.iterrows()
    assert others == []
    assert (point["nodes"], point["devices"]) == (2, 2)
    causes = [cause.part for cause in find_causes(runs, scaling)]
    decision = json.loads((folder / "decision.json").read_text(encoding="utf-8"))
    return causes[0] if causes else None, decision["slowdown"]["sentence"]
