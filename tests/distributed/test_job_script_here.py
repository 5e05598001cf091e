"""The job script of an answer trains on one machine, without the study."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cores import needs_two_cores
from tests.planted_records import leave_result, run_record
from tests.prepared_digits import place_digits_of_study

from scalewise.plan.jobs.job_script import TimeLimit, job_script
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, RECORD, RunRecord, read_record

pytestmark = [needs_two_cores, pytest.mark.starts_ranks]

SITE = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}


def train(folder: Path, experiment: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the script of an experiment on two devices."""
    site = folder / "site.json"
    site.write_text(json.dumps(SITE))
    study = load_study({"experiments": {"e": experiment | {"devices": [2], "repeats": 1}}}, site_file=site)
    plan, run = make_plan(study), study.runs["e", "d2.r1"]
    of_study = Path("results/e/runs/d2.r1")
    leave_result(folder / of_study, run_record(run))
    script = folder / "job.sh"
    launch = SiteLaunch.model_validate(plan["sites"][""]["launch"])
    script.write_text(
        job_script(
            run, plan["runs"]["e"]["d2.r1"], launch, TimeLimit(1, ""), of_study, Path(script.name), "e"
        )
    )
    return subprocess.run(["bash", script], capture_output=True, text=True, timeout=600, check=False)


def test_the_built_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place_digits_of_study(tmp_path)
    settings = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "learning_rate": 0.05}
    ended = train(tmp_path, settings | {"epochs": 2, "warmup_steps": 2})

    assert ended.returncode == 0, ended.stdout + ended.stderr
    trained = tmp_path / "trained" / "e"
    assert len((trained / EPOCHS).read_text().splitlines()) == 1 + 2
    record = read_record(trained / RECORD, RunRecord)
    assert record.outcome == "completed"
    assert record.measurements is not None
    # 2 x 64 x 10 operations a sample, forward and for the weights
    assert record.measurements.step_flops == {"fp32": 240 * 2 * (2 * 64 * 10)}

    again = subprocess.run(["bash", "job.sh"], capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "Name another folder." in again.stderr


def test_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = Path(__file__).parent / "own_program.py"
    arguments = ["--batch-size", "{batch_size_per_device}", "--epochs", "2", "--out", "{folder}"]
    ended = train(
        tmp_path,
        {"program": str(program), "arguments": arguments, "scaling": "weak", "batch_size_per_device": 64},
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "epoch=1 val_loss=0.500" in ended.stdout
    assert (tmp_path / "trained" / "e" / "last.pt").exists()
