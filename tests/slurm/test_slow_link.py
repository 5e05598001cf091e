"""A slow link is named as what slows a training."""

from __future__ import annotations

import json

from tests.slurm.lab import Lab
from tests.slurm.study import ClusterStudy

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
