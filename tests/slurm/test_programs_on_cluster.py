"""Programs of users on a cluster: over nodes, and in rounds."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from tests.slurm.study import ClusterStudy

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


def test_a_program_is_measured_over_nodes(study: ClusterStudy) -> None:
    (study.folder / "fetch.py").write_text("open('fetched', 'a').write('once\\n')\n")
    measured = {"arguments": BATCH, "sweep": {"launcher": ["srun", "torchrun"]}, "prepare": ["fetch.py"]}
    study.configure({"own": OWN | measured}, prelude=["true"])
    names = [f"d2x2.launcher-{launcher}.r1" for launcher in ("srun", "torchrun")]
    wanted = [f"results/own/runs/{name}/{RECORD}" for name in names]
    code, output = study.snakemake("--resources", "device_budget=8", "--retries", "0", "--", *wanted)

    assert code == 0, output
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
    tasks = [step.tasks for job in study.jobs().values() for step in job.steps if step.name == "0"]
    assert sorted(tasks) == [2, 4]


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
            }
        },
        devices_per_node=2,
        # a job of another run on its nodes would set a run apart
        slurm={"exclusive": True},
    )
    code, output = study.snakemake()
    assert code == 0, output
    trained = {name.removeprefix("rule_train_wildcards_chosen_") for name in study.jobs()}
    answer = json.loads((study.folder / "results" / "chosen" / "answer.json").read_text())
    assert answer["devices"] == 2, answer
    rounds = sorted((study.folder / "results" / "chosen" / "repeats").glob("round*.json"))
    asked = [json.loads(path.read_text())["requested"] for path in rounds]
    assert asked[0]["d4"] == 0, asked
    assert trained == {f"{point}.r{n + 1}" for point, runs in asked[-1].items() for n in range(runs)}
    assert {"d1.r1", "d1.r2", "d2.r1", "d2.r2", "d4.r1"} <= trained
    # four devices miss by far: they get a second run only in place of one that other processes disturbed
    runs = pd.read_csv(study.folder / "results" / "chosen" / "runs.csv", index_col="run")
    assert ("d4.r2" in trained) == runs["disturbance"].notna()["d4.r1"]
    assert (study.folder / "results" / "report.html").exists()
