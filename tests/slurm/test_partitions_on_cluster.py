"""One study over two partitions with other nodes, one of them slower, from the command to the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.slurm.lab import Lab
from tests.slurm.study import ClusterStudy

PLANTED = Path(__file__).parents[1] / "planted_speeds.py"
EFFICIENCIES = {1: 1.0, 2: 0.8, 4: 0.6}
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

    def hosts(self, experiment: str) -> set[str]:
        runs = pd.read_csv(self.folder / "results" / experiment / "runs.csv")
        return {host for hosts in runs["hosts"] for host in str(hosts).split(", ")}

    def scaling(self, experiment: str) -> pd.DataFrame:
        table = pd.read_csv(self.folder / "results" / experiment / "scaling.csv")
        return table.set_index("devices")

    @property
    def card(self) -> dict[str, Any]:
        answer = json.loads((self.folder / "results" / "planted" / "partitions.json").read_text())
        return dict(answer["card"])


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
    lab: Lab, nodes_of: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Compared]:
    study = ClusterStudy(lab, tmp_path_factory.mktemp("partitions"))
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
        devices_per_node=2,
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
    assert len(compared.partitions) == 10
    for name, partition in compared.partitions.items():
        assert name.startswith(f"planted@{partition}_"), name
    for partition, nodes in nodes_of.items():
        assert compared.hosts(f"planted@{partition}") <= set(nodes)


def test_a_count_that_one_partition_cannot_have_is_left_out_there_with_a_warning(compared: Compared) -> None:
    assert list(compared.scaling("planted@new").index) == [1, 2, 4]
    assert list(compared.scaling("planted@old").index) == [1, 2]
    reason = "a run may take 1 node of 2 devices here: not measured on partition old."
    assert reason in compared.output
    assert reason in compared.card["not_compared"][-1]


def test_each_partition_has_its_own_baseline_and_the_planted_speeds_are_found_again(
    compared: Compared,
) -> None:
    new, old = (compared.scaling(f"planted@{name}") for name in ("new", "old"))
    for table in (new, old):
        for devices in table.index:
            efficiency = float(table["parallel_efficiency"][devices])
            assert efficiency == pytest.approx(EFFICIENCIES[devices], rel=0.01)
    speeds = old["throughput_samples_per_second"] / new["throughput_samples_per_second"]
    assert speeds[[1, 2]].tolist() == pytest.approx([SLOWER, SLOWER], rel=0.01)


def test_the_card_has_the_fastest_and_the_cheapest_by_the_planted_truth(compared: Compared) -> None:
    seconds = {("new", n): 1 / (n * value) for n, value in EFFICIENCIES.items()}
    seconds |= {("old", n): 1 / (SLOWER * n * EFFICIENCIES[n]) for n in (1, 2)}
    fastest = min(seconds, key=seconds.__getitem__)
    cheapest = min(seconds, key=lambda place: seconds[place] * place[1] * PRICES[place[0]])
    places = {row["aim"]: row["place"] for row in compared.card["rows"]}

    assert (fastest, cheapest) == (("new", 4), ("old", 1))
    assert places["time"].endswith("on new")
    assert places["time"].startswith("4 ")
    assert places["cost"].endswith("on old")
    assert places["cost"].startswith("1 ")
    page = (compared.folder / "results" / "planted" / "report.html").read_text()
    assert compared.card["verdict"].split(":")[0] in page
    assert compared.card["verdict"].split(":")[0] in (compared.folder / "results" / "report.html").read_text()


def test_the_preflight_starts_the_ranks_of_each_partition_on_its_nodes(
    compared: Compared, nodes_of: dict[str, list[str]]
) -> None:
    code, output = compared.study.snakemake("preflight")

    assert code == 0, output
    assert "All is ok: the study can start." in output
    for partition, nodes in nodes_of.items():
        text = (compared.folder / "results" / "preflight" / f"hello@{partition}.json").read_text()
        assert nodes[0] in text
        other = next(each for name, each in nodes_of.items() if name != partition)
        assert not any(node in text for node in other)
