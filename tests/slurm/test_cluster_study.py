"""The shipped study's training over nodes, from the configuration to the report."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime

import pandas as pd
import pytest
from tests.slurm.lab import Lab
from tests.slurm.study import ENDLESS, LIMIT_SECONDS, ROOT, TRAININGS, ClusterStudy

SHAPES = {"d1": (1, 1), "d2": (1, 2), "d4": (1, 4), "d2x4": (2, 4)}

JOBSTATS = {"nodes": {"n1": {"gpu_utilization": {"0": 90, "1": 70}, "gpu_used_memory": {"0": 1, "1": 2048}}}}
"""A summary as a site's jobstats writes it for each job, here while the job runs."""


@pytest.fixture(scope="module")
def digits(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterStudy]:
    """The digits over 1x1, 1x2, 1x4 and 2x4 devices, reported, in all as a user would have it."""
    study = ClusterStudy(lab, tmp_path_factory.mktemp("digits"), prepared=False, prompt=False)
    experiment = {
        "model": "digits_cnn",
        "optimizer": "sgd",
        "learning_rate": 0.2,
        "schedule": "onecycle",
        "epochs": 4,
        "devices": [1, 2, 4, "2x4"],
        "target": {"accuracy": 0.9},
    }
    comment = "JS1:" + base64.b64encode(gzip.compress(json.dumps(JOBSTATS).encode())).decode()
    study.configure(
        {"digits": experiment},
        prelude=[f"scontrol update job $SLURM_JOB_ID AdminComment={comment}"],
        slurm={"longest_walltime": "01:00:00"},
    )
    # on free nodes a run may begin before the first look at the queue
    others = lab.run(
        *("sbatch", "--parsable", "--exclusive", "--nodes=4", "--time=20", "--output=/dev/null"),
        "--wrap=sleep infinity",
    ).stdout.strip()
    snakemake = study.start()
    assert snakemake.stdout is not None
    output, queued = "", set()
    with snakemake.stdout as lines:
        for line in lines:
            output += line
            if told := re.search(r"digits, (.*): 0 of 1 runs done; 1 in the queue", line):
                queued.add(told[1])
            if len(queued) == len(SHAPES):
                break
        # so that the last job, too, waits for longer than Slurm's times are rounded
        time.sleep(3)
        lab.run("scancel", others)
        output += lines.read()
    assert snakemake.wait(timeout=LIMIT_SECONDS) == 0, output
    (study.folder / "output.txt").write_text(output)
    (study.folder / "others.txt").write_text(others)
    yield study
    study.end()


def test_study_ends_in_a_report_with_a_decision(digits: ClusterStudy) -> None:
    report = (digits.folder / "results" / "report.html").read_text()
    decision = json.loads((digits.folder / "results" / "digits" / "decision.json").read_text())
    assert decision["devices"] in {1, 2, 4, 8}
    verdict = decision["card"]["verdict"]
    assert re.match(rf"Use {decision['devices']} CPU process(es)?\b", verdict)
    assert verdict in html.unescape(report)
    assert f"\ndigits: {verdict}" in (digits.folder / "output.txt").read_text()
    for run in SHAPES:
        summary = digits.summary("digits", f"{run}.r1")
        assert summary.outcome == "completed"
        assert summary.measurements is not None
        assert summary.measurements.final_accuracy is not None
        assert summary.measurements.final_accuracy > 0.9


@pytest.mark.parametrize(
    "devices", ["1 CPU process", "2 CPU processes", "4 CPU processes", "8 CPU processes"]
)
def test_each_point_is_told_from_the_queue_to_its_figure(digits: ClusterStudy, devices: str) -> None:
    output = (digits.folder / "output.txt").read_text()
    told = [line[9:] for line in output.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    mine = [line.partition(": ")[2] for line in told if line.startswith(f"digits, {devices}: ")]

    assert re.match(r"0 of 1 runs done; 1 in the queue", mine[0])
    assert re.match(r"0 of 1 runs done; run 1(: epoch| starting)", mine[-2])
    assert re.match(r"1 of 1 runs done, [\d.,]+ samples/s$", mine[-1])
    assert re.match(r"4 of 4 runs done, [\d.,]+ device-hours spent$", told[-1])
    assert "Select jobs" not in output


@pytest.mark.parametrize("run", SHAPES)
def test_allocation_is_exactly_what_the_experiment_says(digits: ClusterStudy, run: str) -> None:
    nodes, per_node = SHAPES[run]
    job = digits.jobs()[f"rule_train_wildcards_digits_{run}.r1"]
    assert (job.state, job.account, job.partition) == ("COMPLETED", "lab", "main")
    assert (job.nodes, job.gpus, job.cpus) == (nodes, nodes * per_node, nodes * per_node)
    assert job.memory_mb == 32_000 * nodes * per_node // 4
    (ranks,) = (step for step in job.steps if step.name == "0")
    assert (ranks.nodes, ranks.tasks, ranks.gpus) == (nodes, nodes * per_node, nodes * per_node)


@pytest.mark.parametrize("run", SHAPES)
def test_every_rank_is_where_the_plan_put_it(digits: ClusterStudy, run: str) -> None:
    nodes, per_node = SHAPES[run]
    ranks = digits.ranks("digits", f"{run}.r1")
    assert list(ranks["rank"]) == list(range(nodes * per_node))
    assert ranks["host"].nunique() == nodes
    for _, on_host in ranks.groupby("host"):
        assert list(on_host["local_rank"]) == list(range(per_node))
        (visible,) = set(on_host["visible_devices"])
        assert len(visible.split(",")) == per_node
    assert set(ranks["threads"]) == {1}


@pytest.mark.fault(27)
def test_ranks_of_a_node_have_cpus_of_their_own(digits: ClusterStudy) -> None:
    affinities = list(digits.ranks("digits", "d2.r1")["cpu_affinity"])
    assert len(set(affinities)) == 2
    assert all(affinity.isdecimal() for affinity in affinities)  # one CPU each: cpus_per_device is 1


def test_records_name_the_job_and_its_nodes(digits: ClusterStudy) -> None:
    provenance = digits.summary("digits", "d2x4.r1").provenance
    assert provenance is not None
    assert provenance.slurm_job_id in digits.submitted()
    assert len(provenance.hosts) == 2
    assert provenance.launcher == "srun"
    assert provenance.other_jobs is not None


def test_what_the_sites_jobstats_measured_is_read_from_accounting(digits: ClusterStudy) -> None:
    table = pd.read_csv(digits.folder / "results" / "digits" / "jobstats.csv", dtype=str)
    assert {f"{run}.r1" for run in SHAPES} == set(table["run"])
    assert set(table["slurm_job_id"]) == digits.submitted()
    figures = ["gpus", "gpu_utilization", "lowest_gpu_utilization", "gpu_memory_bytes"]
    assert table[figures].astype(float).drop_duplicates().to_numpy().tolist() == [[2, 0.8, 0.7, 2048]]
    assert "What jobstats measured" in (digits.folder / "results" / "digits" / "report.html").read_text()


def test_each_job_has_the_wait_that_slurm_recorded(digits: ClusterStudy) -> None:
    folder = digits.folder / "results" / "digits"
    waits = pd.read_csv(folder / "queue_waits.csv").set_index("run")
    jobs = ",".join(digits.submitted())
    fields = ["--noheader", "--parsable2", "--allocations", "--format=JobID,Partition,NNodes,Eligible,Start"]
    recorded = digits.lab.run("sacct", *fields, f"--jobs={jobs}").stdout.split()
    others = (digits.folder / "others.txt").read_text()
    ended = digits.lab.run("sacct", *fields[:3], "--format=End", f"--jobs={others}").stdout.strip()

    assert set(waits.index) == {f"{run}.r1" for run in SHAPES}
    for line in recorded:
        job, partition, nodes, eligible, start = line.split("|")
        (row,) = [row for _, row in waits.iterrows() if str(row["slurm_job_id"]) == job]
        seconds = (datetime.fromisoformat(start) - datetime.fromisoformat(eligible)).total_seconds()
        assert (row["partition"], row["nodes"], row["wait_seconds"]) == (partition, int(nodes), seconds)
        # another job had all nodes
        assert (
            seconds >= (datetime.fromisoformat(ended) - datetime.fromisoformat(eligible)).total_seconds() > 0
        )
    assert "Waits in the queue" in (folder / "report.html").read_text()


def test_only_trainings_go_to_the_cluster(digits: ClusterStudy) -> None:
    assert set(digits.jobs("")) == {f"rule_train_wildcards_digits_{run}.r1" for run in SHAPES}


def test_nothing_is_left_to_do_or_on_the_nodes(digits: ClusterStudy) -> None:
    assert digits.processes() == []
    code, output = digits.snakemake()
    assert code == 0
    assert "Nothing to be done" in output


def status(study: ClusterStudy) -> str:
    """What another process is told, on a host that is not the head."""
    command = [sys.executable, str(ROOT / "workflow" / "scripts" / "status.py"), str(study.folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.fault(14)
@pytest.mark.starts_ranks
def test_study_goes_on_after_ctrl_c(lab: Lab, study: ClusterStudy) -> None:
    study.configure({"study": {"devices": [1, 2], **ENDLESS}})
    process = study.start()
    study.wait_training("study", "d1.r1")
    # the watcher may have looked just before
    study.wait_until(
        lambda: "run 1: epoch" in status(study), "another process does not learn of the training"
    )
    assert status(study).startswith("Running since ")
    process.send_signal(2)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    lab.wait_until_queue_is_empty()
    study.seconds_until_nothing_runs()

    study.configure({"study": {"devices": [1, 2]}})
    code, output = study.snakemake(*TRAININGS)
    assert code == 0, output
    assert study.summary("study", "d2.r1").outcome == "completed"
