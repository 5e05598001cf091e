"""Rounds on a cluster, in one command: device counts that the answer needs, and repeats of wide points."""

from __future__ import annotations

import json
from pathlib import Path

from tests.slurm.study import ClusterStudy

from scalewise.plan.runs.rounds import read_round, round_file

PLANTED = Path(__file__).parents[1] / "planted_speeds.py"
EFFICIENCIES = ("1=1", "2=0.96", "4=0.92", "6=0.7", "8=0.6")


def test_what_rounds_ask_for_becomes_jobs_and_the_report_has_the_planted_answer(study: ClusterStudy) -> None:
    study.configure(
        {
            # two rates are never equal to a millionth
            "wide": {"devices": [2], "repeats": {"min": 2, "max": 3, "until_interval": 1e-6}},
            "chosen": {
                "program": str(PLANTED),
                "arguments": ["{folder}", "{batch_size_per_device}", *EFFICIENCIES],
                "scaling": "weak",
                "batch_size_per_device": 4,
                "devices": {"up_to": 8},
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
    assert {name for name in trained if "wide" in name} == {"wide_d2.r1", "wide_d2.r2", "wide_d2.r3"}
    (first,) = read_round(round_file(study.folder / "results" / "wide", 1)).points
    (second,) = read_round(round_file(study.folder / "results" / "wide", 2)).points
    # other tests load this machine: a run that they disturb is measured again, for that reason
    assert first.completed == 2
    assert first.verdict in {"too wide", "disturbed"}
    assert (second.completed, second.verdict) == (3, "most repeats")

    decision = json.loads((study.folder / "results" / "chosen" / "decision.json").read_text())
    assert decision["devices"] == 4, decision
    chosen = {name for name in trained if "chosen" in name}
    assert {"chosen_d1.r1", "chosen_d1.r2", "chosen_d4.r1", "chosen_d4.r2"} <= chosen
    assert len(chosen) == decision["choice"]["runs"] <= decision["choice"]["full_grid_runs"] == 10
    assert (study.folder / "results" / "report.html").exists()
