"""A slow link between nodes is named as what keeps a training from scaling, and only where there is one."""

from __future__ import annotations

import json

import pandas as pd
from tests.slurm.lab import Lab
from tests.slurm.study import ClusterStudy

from scalewise.analysis.bottlenecks.bottlenecks import find_bottlenecks

TABLES = ("--until", "compute_scaling")

EXPERIMENT = {"model": "planted_communicating", "devices": [2], "warmup_steps": 2, "epochs": 1}


def cause(study: ClusterStudy, experiment: str) -> tuple[str | None, list[str]]:
    """Of the study's only point, on two nodes."""
    folder = study.folder / "results" / experiment
    scaling, runs = pd.read_csv(folder / "scaling.csv"), pd.read_csv(folder / "runs.csv")
    (_, point), *others = scaling.iterrows()
    assert others == []
    assert (point["nodes"], point["devices"]) == (2, 2)
    causes = [limit.cause for _, limit in find_bottlenecks(scaling, runs) if limit]
    decision = json.loads((folder / "decision.json").read_text(encoding="utf-8"))
    return causes[0] if causes else None, [decision["slowdown"]["sentence"]]


def test_a_slow_link_is_named_and_a_fast_one_is_not(lab: Lab, study: ClusterStudy) -> None:
    lab.limit_network("50mbit")
    try:
        study.configure({"slow": EXPERIMENT}, devices_per_node=1)
        code, output = study.snakemake(*TABLES)
        assert code == 0, output
    finally:
        lab.unlimit_network()
    named, said = cause(study, "slow")
    assert named == "communication", said
    assert said[0].startswith("On 2 CPU processes, communication takes")

    study.configure({"fast": EXPERIMENT}, devices_per_node=1)
    code, output = study.snakemake(*TABLES)
    assert code == 0, output
    named, said = cause(study, "fast")
    assert named != "communication", said
