"""Programs of users on a cluster: over nodes, in rounds, on two partitions, and by the job script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.slurm.lab import Lab
from tests.slurm.study import LIMIT_SECONDS, ClusterStudy

from scalewise.records import RECORD

PROGRAM = Path(__file__).parents[1] / "distributed" / "own_program.py"
BATCH = ["--batch-size", "{batch_size_per_device}", "--out", "{folder}"]
OWN: dict[str, Any] = {
    "program": str(PROGRAM),
    "scaling": "weak",
    "batch_size_per_device": 32,
    "devices": ["2x2"],
    "steps": 30,
    "warmup_steps": 5,
}
# one point: which count is chosen must not depend on what else the machine does
ANSWERED: dict[str, Any] = {
    "program": str(PROGRAM),
    "arguments": [*BATCH, "--epochs", "2", "--slow"],
    "scaling": "weak",
    "batch_size_per_device": 64,
    "warmup_steps": 2,
    "count_flops": True,
    "devices": ["2x2"],
    "proposal": {"centre": "ncar"},
}


def test_a_program_is_measured_over_nodes_and_its_job_script_trains_without_the_study(
    study: ClusterStudy,
) -> None:
    (study.folder / "fetch.py").write_text("open('fetched', 'a').write('once\\n')\n")
    measured = {
        "arguments": BATCH,
        "sweep": {"launcher": ["srun", "torchrun"]},
        "prepare": ["fetch.py"],
    }
    # rank 3 of 4, on the second node
    killed = {"arguments": [*BATCH, "--fail", "kill", "--fail-at", "10"], "launcher": "srun"}
    study.configure({"own": OWN | measured, "killed": OWN | killed, "answered": ANSWERED}, prelude=["true"])
    names = [f"d2x2.launcher-{launcher}.r1" for launcher in ("srun", "torchrun")]
    runs = [("killed", "d2x2.r1"), *(("own", name) for name in names)]
    script = "results/answered/proposal/job.sh"
    wanted = [script, *(f"results/{experiment}/runs/{run}/{RECORD}" for experiment, run in runs)]
    code, output = study.snakemake("--resources", "device_budget=8", "--retries", "0", "--", *wanted)

    assert code == 1, output
    assert (study.folder / "fetched").read_text() == "once\n"
    for launcher, name in zip(("srun", "torchrun"), names, strict=True):
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

    # by hand: forward and for the weights; a layer's input has gradients, too
    measurements = study.summary("answered", "d2x2.r1").measurements
    assert measurements is not None
    assert measurements.step_flops == {"fp32": 4 * 64 * 2 * (2 * 64 * 256 + 3 * 256 * 4)}
    # from another folder than the study's
    printed = study.folder / "answered.out"
    submitted = study.lab.run("sbatch", "--parsable", f"--output={printed}", study.folder / script)
    job = study.lab.accounting(submitted.stdout.strip(), limit=LIMIT_SECONDS)
    assert job.state == "COMPLETED", printed.read_text()
    assert [step.tasks for step in job.steps if step.name == "0"] == [4]
    assert "epoch=1 val_loss=0.500" in printed.read_text()
    assert (study.folder / "trained" / "answered" / "last.pt").exists()


PLANTED = Path(__file__).parents[1] / "planted_speeds.py"
CHOSEN_EFFICIENCIES = ("1=1", "2=0.96", "4=0.7")


def test_what_rounds_ask_for_becomes_jobs_and_the_report_has_the_planted_answer(study: ClusterStudy) -> None:
    study.configure(
        {
            "chosen": {
                "program": str(PLANTED),
                "arguments": ["{folder}", "{batch_size_per_device}", *CHOSEN_EFFICIENCIES],
                "scaling": "weak",
                "batch_size_per_device": 4,
                "devices": {"up_to": 4},
                "steps": 15,
                "warmup_steps": 5,
                "repeats": 2,
                "decision": {"min_efficiency": 0.85},
            },
        },
        devices_per_node=2,
        # a job of another run on its nodes would set a run apart
        slurm={"exclusive": True},
    )
    code, output = study.snakemake()
    assert code == 0, output
    jobs = study.jobs()

    trained = {name.removeprefix("rule_train_wildcards_") for name in jobs if "rule_train" in name}

    answer = json.loads((study.folder / "results" / "chosen" / "answer.json").read_text())
    assert answer["devices"] == 2, answer
    chosen = {name for name in trained if "chosen" in name}
    assert {"chosen_d1.r1", "chosen_d1.r2", "chosen_d2.r1", "chosen_d2.r2"} <= chosen
    assert len(chosen) < 6
    assert (study.folder / "results" / "report.html").exists()


EFFICIENCIES = {1: 1.0, 2: 0.8}
SLOWER = 0.5
"""Speed of the old nodes over that of the new ones."""
PRICES = {"new": 3.0, "old": 1.0}
PLANT = f'case "$(hostname)" in *3|*4) export PLANTED_SPEED={SLOWER};; esac'
"""The speed follows the node: a job on wrong ones would give another answer."""


@dataclass(frozen=True)
class Compared:
    """The study, what it printed, and the partition of each of its jobs."""

    study: ClusterStudy
    output: str
    partitions: dict[str, str]

    @property
    def folder(self) -> Path:
        return self.study.folder

    def rows(self, table: str, partition: str) -> pd.DataFrame:
        """Return the rows of a partition in a table of the experiment, by devices."""
        rows = pd.read_csv(self.folder / "results" / "planted" / table)
        return rows[rows["partition"] == partition].set_index("devices")

    @property
    def answer(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "results" / "planted" / "answer.json").read_text()))


@pytest.fixture(scope="module")
def nodes_of(lab: Lab) -> Iterator[dict[str, list[str]]]:
    """Two partitions of two nodes each, for this module."""
    nodes = {"new": lab.names[:2], "old": lab.names[2:]}
    for name, of_it in nodes.items():
        made = lab.run("scontrol", "create", f"PartitionName={name}", f"Nodes={','.join(of_it)}")
        assert made.returncode == 0, made.stderr
    yield nodes
    for name in nodes:
        lab.run("scontrol", "delete", f"PartitionName={name}")


@pytest.fixture(scope="module")
def compared(
    lab: Lab,
    nodes_of: dict[str, list[str]],
    tmp_path_factory: pytest.TempPathFactory,
    preloaded_python: Path,
) -> Iterator[Compared]:
    study = ClusterStudy(lab, tmp_path_factory.mktemp("partitions"), python=preloaded_python)
    study.configure(
        {
            "planted": {
                "program": str(PLANTED),
                "arguments": [
                    *("{folder}", "{batch_size_per_device}"),
                    *(f"{devices}={value}" for devices, value in EFFICIENCIES.items()),
                ],
                "scaling": "weak",
                "batch_size_per_device": 4,
                "devices": list(EFFICIENCIES),
                "partitions": "all",
                "steps": 15,
                "warmup_steps": 5,
                "repeats": 2,
            }
        },
        devices_per_node=1,
        prelude=[PLANT],
        default_partition="new",
        partitions={
            "new": {"partition": "new", "max_nodes": 2, "price_per_device_hour": PRICES["new"]},
            "old": {"partition": "old", "max_nodes": 1, "price_per_device_hour": PRICES["old"]},
        },
    )
    code, output = study.snakemake()
    assert code == 0, output
    jobs = study.jobs()
    partitions = {
        name.removeprefix("rule_train_wildcards_"): job.partition
        for name, job in jobs.items()
        if "rule_train" in name
    }
    yield Compared(study, output, partitions)
    study.end()


def test_each_job_runs_on_the_nodes_of_its_partition(
    compared: Compared, nodes_of: dict[str, list[str]]
) -> None:
    assert len(compared.partitions) == 6
    for name, partition in compared.partitions.items():
        assert name.startswith(f"planted@{partition}_"), name
    for partition, nodes in nodes_of.items():
        hosts = compared.rows("runs.csv", partition)["hosts"]
        assert {host for each in hosts for host in str(each).split(", ")} <= set(nodes)


def test_a_count_that_one_partition_cannot_have_is_left_out_there_with_a_warning(compared: Compared) -> None:
    assert list(compared.rows("scaling.csv", "new").index) == [1, 2]
    assert list(compared.rows("scaling.csv", "old").index) == [1]
    warning = "Partition old is measured without 2 devices: "
    assert warning in compared.output
    assert any(sentence.startswith(warning) for sentence, _ in compared.answer["cautions"])


def test_the_planted_speeds_are_found_again_on_each_partition(
    compared: Compared,
) -> None:
    new, old = (compared.rows("scaling.csv", name) for name in ("new", "old"))
    for devices, efficiency in EFFICIENCIES.items():
        assert float(new["parallel_efficiency"][devices]) == pytest.approx(efficiency, rel=0.01)
    speeds = old["throughput_samples_per_second"] / new["throughput_samples_per_second"]
    assert speeds[1] == pytest.approx(SLOWER, rel=0.01)


def test_the_candidates_name_the_fastest_and_the_cheapest_by_the_planted_truth(compared: Compared) -> None:
    # relative to one new node: 2 new ones take 1 / 1.6 of its time at 3.75 / 3 of its cost, an old one twice
    # its time at 2 / 3 of its cost
    answer = compared.answer
    assert (answer["partition"], answer["devices"]) == ("new", 2)
    best = {row["verdict"]: row["label"] for row in answer["candidates"] if "best for" in row["verdict"]}
    (fastest,) = (label for verdict, label in best.items() if "best for time" in verdict)
    (cheapest,) = (label for verdict, label in best.items() if "best for cost" in verdict)
    assert (fastest, cheapest) == ("2 CPU processes on new", "1 CPU process on old")
    assert answer["verdict"] in (compared.folder / "results" / "report.html").read_text()


def test_the_preflight_starts_the_ranks_of_each_partition_on_its_nodes(
    compared: Compared, nodes_of: dict[str, list[str]]
) -> None:
    code, output = compared.study.snakemake("preflight")

    assert code == 0, output
    assert "All is ok: the study can start." in output
    for partition, nodes in nodes_of.items():
        text = (compared.folder / "results" / "preflight" / f"hello@{partition}.report.json").read_text()
        assert nodes[0] in text
        other = next(each for name, each in nodes_of.items() if name != partition)
        assert not any(node in text for node in other)
