"""The shipped study's training over nodes, from the configuration to the report and the job script."""

import html
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
from tests.slurm.lab import Lab
from tests.slurm.records import Job
from tests.slurm.study import ENDLESS, LIMIT_SECONDS, TRAININGS, ClusterStudy

from scalewise.records import EPOCHS, MODEL

SHAPES = {"d1": (1, 1), "d2": (1, 2), "d4": (1, 4), "d2x4": (2, 4)}


@pytest.fixture(scope="module")
def digits(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterStudy]:
    """The digits over 1x1, 1x2, 1x4 and 2x4 devices, reported, in all as a user would have it."""
    study = ClusterStudy(lab, tmp_path_factory.mktemp("digits"), prepared=False, prompt=False)
    experiment = {
        "model": "digits_cnn",
        "optimizer": "sgd",
        "learning_rate": 0.2,
        "schedule": "onecycle",
        "epochs": 8,
        "devices": [1, 2, 4, "2x4"],
        "target": {"accuracy": 0.9},
        "proposal": {"centre": "ncar"},
    }
    prelude, slurm = [study.notes_gpus], {"longest_walltime": "01:00:00"}
    study.configure({"digits": experiment}, prelude=prelude, slurm=slurm)
    # on free nodes a run may begin before the first look at the queue
    others = lab.run(
        *("sbatch", "--parsable", "--exclusive", "--nodes=4", "--time=20", "--output=/dev/null"),
        "--wrap=sleep infinity",
    ).stdout.strip()
    snakemake = study.start()
    comments = [f"rule_train_wildcards_digits_{run}.r1" for run in SHAPES]
    pending = ("squeue", "--noheader", "--states=PENDING", "--format=%k")
    study.wait_until(lambda: set(comments) <= set(lab.ask(*pending).split()), "not all runs are queued")
    (study.folder / "queued.txt").write_text(study.call("status.py"))
    # so that the last job, too, waits for longer than Slurm's times are rounded
    time.sleep(3)
    lab.run("scancel", others)
    output, _ = snakemake.communicate(timeout=LIMIT_SECONDS)
    assert snakemake.returncode == 0, output
    (study.folder / "output.txt").write_text(output)
    yield study
    study.end()


def test_study_ends_in_a_report_with_an_answer(digits: ClusterStudy) -> None:
    report = (digits.folder / "results" / "report.html").read_text()
    answer = json.loads((digits.folder / "results" / "digits" / "answer.json").read_text())
    assert answer["devices"] in {1, 2, 4, 8}
    verdict = answer["verdict"]
    assert re.match(rf"Use {answer['devices']} CPU process(es)?\b", verdict)
    assert verdict in html.unescape(report)
    assert f"\ndigits: {verdict}" in (digits.folder / "output.txt").read_text()
    for run in SHAPES:
        summary = digits.summary("digits", f"{run}.r1")
        assert summary.outcome == "completed"
        assert summary.measurements is not None
        assert summary.measurements.final_accuracy is not None
        assert summary.measurements.final_accuracy > 0.9


def test_the_status_shows_what_waits_and_why_then_what_is_done_and_what_slurm_counts(
    digits: ClusterStudy,
) -> None:
    queued, done = (digits.folder / "queued.txt").read_text(), digits.call("status.py")
    for run in SHAPES:
        assert re.search(rf"^  {run}: 0 of 1 done; 1 waiting \((Resources|Priority)\)$", queued, re.MULTILINE)
        assert re.search(rf"^  {run}: 1 of 1 done, [\d.,]+ samples/s$", done, re.MULTILINE)
    counted = re.search(
        r"^Slurm counts ([\d.]+) (GPU|CPU)-hours for (\d+) jobs of the last 90 days\.$", done, re.MULTILINE
    )
    assert counted is not None, done
    assert int(counted[3]) == len(digits.jobs()) == len(SHAPES)


@pytest.mark.parametrize("run", SHAPES)
def test_allocation_is_exactly_what_the_experiment_says(digits: ClusterStudy, run: str) -> None:
    nodes, per_node = SHAPES[run]
    job = digits.jobs()[f"rule_train_wildcards_digits_{run}.r1"]
    assert (job.state, job.account, job.partition) == ("COMPLETED", "lab", "main")
    # a run on a part of a node holds all of it, and its ranks get what the plan says
    held = (4, 16) if per_node < 4 else (nodes * per_node, nodes * per_node)
    assert (job.nodes, job.gpus, job.cpus) == (nodes, *held)
    assert job.memory_mb == 32_000 * nodes * per_node // 4
    (ranks,) = (step for step in job.steps if step.name == "0")
    assert (ranks.nodes, ranks.tasks, ranks.gpus) == (nodes, nodes * per_node, nodes * per_node)


@pytest.mark.parametrize("run", SHAPES)
def test_every_rank_is_where_the_plan_put_it(digits: ClusterStudy, run: str) -> None:
    nodes, per_node = SHAPES[run]
    ranks = digits.ranks("digits", f"{run}.r1")
    assert list(ranks["rank"]) == list(range(nodes * per_node))
    assert ranks["host"].nunique() == nodes
    gpus = digits.gpus("digits", f"{run}.r1")
    for _, on_host in ranks.groupby("host"):
        assert list(on_host["local_rank"]) == list(range(per_node))
        # each rank sees all GPUs that the run has on its node
        (shown,) = {tuple(gpus[rank]) for rank in on_host["rank"]}
        assert len(set(shown)) == per_node
    # and its program, a CPU process, none
    assert ranks["visible_devices"].isna().all()
    assert set(ranks["threads"]) == {1}


@pytest.mark.fault(27)
def test_ranks_of_a_node_have_cpus_of_their_own(digits: ClusterStudy) -> None:
    affinities = list(digits.ranks("digits", "d2.r1")["cpu_affinity"])
    assert len(set(affinities)) == 2
    assert all(affinity.isdecimal() for affinity in affinities)  # one CPU each: cpus_per_device is 1


def test_runs_have_the_job_and_the_wait_that_slurm_recorded(digits: ClusterStudy) -> None:
    folder = digits.folder / "results" / "digits"
    runs = pd.read_csv(folder / "runs.csv").set_index("slurm_job_id")
    waits = pd.read_csv(folder / "scaling.csv").set_index("devices")["queue_minutes"]
    fields = ["--noheader", "--parsable2", "--allocations", "--format=JobID,Eligible,Start"]
    recorded = digits.lab.run("sacct", *fields, f"--jobs={','.join(digits.submitted())}").stdout.split()
    assert len(recorded) == len(waits) == len(SHAPES)
    for line in recorded:
        job, eligible, start = line.split("|")
        seconds = (datetime.fromisoformat(start) - datetime.fromisoformat(eligible)).total_seconds()
        # a run for each device count; another job had all nodes
        assert waits[int(runs["devices"][int(job)])] == round(seconds / 60, 1)
        assert seconds > 0


def test_nothing_but_trainings_went_to_the_cluster_and_nothing_is_left(digits: ClusterStudy) -> None:
    assert set(digits.jobs("")) == {f"rule_train_wildcards_digits_{run}.r1" for run in SHAPES}
    assert digits.processes() == []
    code, output = digits.snakemake()
    assert code == 0
    assert "Nothing to be done" in output


def test_the_job_script_of_the_answer_is_submitted_as_it_is_and_trains_without_the_study(
    digits: ClusterStudy,
) -> None:
    printed = digits.folder / "job.out"
    script = digits.folder / "results" / "digits" / "proposal" / "job.sh"
    # from another folder than the study's
    submitted = digits.lab.run("sbatch", "--parsable", f"--output={printed}", script)
    job = digits.lab.accounting(submitted.stdout.strip(), limit=LIMIT_SECONDS)
    assert job.state == "COMPLETED", printed.read_text()
    answer = json.loads((digits.folder / "results" / "digits" / "answer.json").read_text())
    assert [step.tasks for step in job.steps if step.name == "0"] == [answer["devices"]]

    trained = digits.folder / "trained" / "digits"
    assert (trained / MODEL).exists()
    (run,) = (name for name, (nodes, per_node) in SHAPES.items() if nodes * per_node == answer["devices"])
    again, before = (
        pd.read_csv(folder / EPOCHS)["train_loss"].to_numpy()
        for folder in (trained, digits.run("digits", f"{run}.r1"))
    )
    assert len(again) == 8
    assert again == pytest.approx(before, rel=1e-4)


@pytest.mark.fault(14)
@pytest.mark.starts_ranks
def test_ctrl_c_ends_the_jobs_of_a_study_and_its_folder_can_train_again(
    lab: Lab, study: ClusterStudy
) -> None:
    study.configure({"study": {"devices": [1, 2], **ENDLESS}})
    process = study.start()
    study.wait_training("study", "d1.r1")
    study.wait_until(
        lambda: "1 running (epoch" in study.call("status.py"), "the status does not show the training"
    )
    process.send_signal(2)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    lab.wait_until_queue_is_empty()
    study.seconds_until_nothing_runs()

    study.configure({"study": {"devices": [1, 2]}})
    code, output = study.snakemake(*TRAININGS)
    assert code == 0, output
    assert study.summary("study", "d2.r1").outcome == "completed"


@pytest.mark.contract
def test_a_report_that_is_made_while_jobs_wait_leaves_them_what_they_need(study: ClusterStudy) -> None:
    """Slurm fails a job whose log folder is gone."""
    study.configure({"digits": {"devices": [1, "2x4"], "repeats": 2}})
    lab = study.lab
    # one node is left, on which the runs of one device find room
    others = lab.run(
        *("sbatch", "--parsable", "--exclusive", "--nodes=3", "--time=20", "--output=/dev/null"),
        "--wrap=sleep infinity",
    ).stdout.strip()
    snakemake = study.start()
    small, large = ([f"{shape}.r{repeat}" for repeat in (1, 2)] for shape in ("d1", "d2x4"))
    for run in small:
        study.wait_for(study.run("digits", run) / "record.json")
    study.wait_until(lambda: len(lab.queue()) == 3, "not all jobs of two nodes are queued")
    jobs = [study.job("digits", run) for run in large]
    states = [lab.ask("squeue", "--noheader", "--format=%T", f"--jobs={job}").strip() for job in jobs]
    assert states == ["PENDING", "PENDING"]
    logs = [study.folder / "logs" / "slurm" / "rule_train" / f"digits_{run}" for run in large]
    assert [list(folder.iterdir()) for folder in logs] == [[], []]

    printed = study.call("cli.py", "report")
    assert printed.splitlines()[-1] == "Report on the finished runs: results/report.html"
    table = pd.read_csv(study.folder / "results" / "partial" / "digits" / "runs.csv").set_index("run")
    assert dict(table["outcome"]) == dict.fromkeys(small, "completed") | dict.fromkeys(large, "not run yet")
    assert "Partial report." in (study.folder / "results" / "report.html").read_text()
    assert [folder for folder in logs if not folder.is_dir()] == []
    assert sorted(lab.queue()) == sorted([others, *jobs])

    lab.run("scancel", others)
    output, _ = snakemake.communicate(timeout=LIMIT_SECONDS)
    assert snakemake.returncode == 0, output
    # each at its first try
    assert {study.jobs_of("digits", run)[0].state for run in large} == {"COMPLETED"}
    assert [study.jobs_of("digits", run)[0].job_id for run in large] == jobs
    assert "Partial report." not in (study.folder / "results" / "report.html").read_text()
    final = pd.read_csv(study.folder / "results" / "digits" / "runs.csv").set_index("run")
    assert dict(final["outcome"]) == dict.fromkeys([*small, *large], "completed")


# --- the jobs of one study never run on a node at the same time, by Slurm's accounting -----------------


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
    [pytest.param({}, 4, id="whole nodes by default"), pytest.param(NO_GPUS, 0, id="CPUs one at a time")],
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


# --- a slow link is named as what slows a training -----------------------------------------------------


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
        code, output = study.snakemake("--until", "analyze")
    finally:
        lab.unlimit_network()
    assert code == 0, output
    limits = {}
    for name in ("slow", "fast"):
        answer = study.folder / "results" / name / "answer.json"
        limits[name] = json.loads(answer.read_text(encoding="utf-8"))["limit"]
    assert limits["slow"].startswith("On 2 CPU processes, communication takes")
    assert "communication takes" not in limits["fast"]
