"""A link of known speed: measured by the preflight, and named as what slows a training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pandas as pd
import pytest
from tests.slurm.lab import Lab
from tests.slurm.study import ClusterStudy

from scalewise.analysis.causes import find_causes


@pytest.fixture
def link(lab: Lab) -> Iterator[float]:
    """Bytes per second between nodes that are joined at 100 Mbit/s."""
    lab.limit_network("100mbit")
    yield 100e6 / 8
    lab.unlimit_network()


def test_a_slow_link_is_seen_in_the_preflight(study: ClusterStudy, link: float) -> None:
    study.configure({"e": {"devices": [1, 2]}}, devices_per_node=1, max_nodes=2)
    code, output = study.snakemake("preflight")
    assert code == 0, output

    found = re.findall(
        r"all-reduce across nodes, 2 devices: 26.2 MB in ([0-9.,]+) ms, ([0-9.]+) GB/s", output
    )
    ((milliseconds, rate),) = found
    assert float(rate) == pytest.approx(26.2 / float(milliseconds.replace(",", "")), rel=0.02)
    # what is sent in idle time is saved up by the limit: it goes faster than the link at first
    assert float(rate) < 1.3 * link / 1e9


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
    (found, *_) = [*find_causes(runs, scaling, noun="CPU process"), None]
    answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    assert found is None or answer["limit"].startswith(found.sentence)
    return None if found is None else found.part, answer["limit"]
