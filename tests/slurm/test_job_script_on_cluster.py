"""The job script of an answer is submitted as it is, and trains without the study."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.slurm.study import LIMIT_SECONDS, ClusterStudy

from scalewise.records import EPOCHS, RECORD, RunRecord, read_record

pytestmark = pytest.mark.starts_ranks

PROGRAM = Path(__file__).parents[1] / "distributed" / "own_program.py"
OWN = {
    "program": str(PROGRAM),
    "arguments": ["--batch-size", "{batch_size_per_device}", "--epochs", "2", "--slow", "--out", "{folder}"],
    "scaling": "weak",
    "batch_size_per_device": 64,
    "warmup_steps": 2,
    "count_flops": True,
}


def test_the_answers_of_a_program_and_of_the_built_in_training_are_submitted_and_train(
    study: ClusterStudy,
) -> None:
    # sleeping ranks: four are four times as fast, wherever they share a CPU
    sleeping = OWN | {"devices": [1, "2x2"], "decision": {"min_efficiency": 0.1}}
    study.configure({"own": sleeping, "digits": {"devices": [1, 2]}}, prelude=["true"])
    scripts = [f"results/{name}/proposal/job.sh" for name in ("own", "digits")]
    code, output = study.snakemake(*scripts, "--resources", "device_budget=8")
    assert code == 0, output

    for name in ("own", "digits"):
        script = f"results/{name}/proposal/job.sh"
        # from another folder than the study's
        said = study.folder / f"{name}.out"
        submitted = study.lab.run("sbatch", "--parsable", f"--output={said}", study.folder / script)
        job = study.lab.accounting(submitted.stdout.strip(), limit=LIMIT_SECONDS)
        assert job.state == "COMPLETED", said.read_text()
        decision = json.loads((study.folder / "results" / name / "decision.json").read_text())
        assert [step.tasks for step in job.steps if step.name == "0"] == [decision["devices"]]
        assert name != "own" or decision["devices"] == 4

    trained = study.folder / "trained"
    assert "epoch=1 val_loss=0.500" in (study.folder / "own.out").read_text()
    assert (trained / "own" / "last.pt").exists()
    record = read_record(trained / "digits" / RECORD, RunRecord)
    assert record.outcome == "completed"
    folders = (trained / "digits", study.run("digits", f"d{decision['devices']}.r1"))
    again, before = (list(pd.read_csv(folder / EPOCHS)["train_loss"]) for folder in folders)
    assert again == before

    # by hand: 2 x 64 x 10 forward and for the weights; in the program a layer's input has gradients, too
    counted = {"digits": 240 * 2 * (2 * 64 * 10), "own": 4 * 64 * 2 * (2 * 64 * 256 + 3 * 256 * 4)}
    for (name, flops), run in zip(counted.items(), ("d2.r1", "d2x2.r1"), strict=True):
        measured = study.summary(name, run).measurements
        assert measured is not None
        assert measured.step_flops == {"fp32": flops}, measured.step_flops_note
