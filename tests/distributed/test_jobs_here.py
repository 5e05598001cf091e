"""Jobs on one machine: the preflight's take turns; an answer's script trains."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.machine import needs_two_cores
from tests.paths import CLI
from tests.prepared_digits import place_digits_of_study
from tests.waiting import wait_until

from scalewise.execution.lock import machine_lock
from scalewise.plan.job_script import job_script
from scalewise.plan.plan_file import PLAN
from scalewise.plan.planned_study import make_plan, write_plan
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, MODEL

pytestmark = needs_two_cores

SITE = """\
accelerator: cpu
cpus_per_node: 2
devices_per_node: 2
partitions: {one: {}, two: {}}
"""
STUDY = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "devices": [2],
    "partitions": "all",
}


def preflight(folder: Path) -> subprocess.Popen[str]:
    """Start the preflight of two partitions of this machine."""
    (folder / "site.yaml").write_text(SITE, encoding="utf-8")
    plan = make_plan(load_study({"experiments": {"e": STUDY}}, (), folder / "site.yaml"))
    for job in plan["runs"]["e"].values():
        job["inputs"]["dataset"] = []
    command = [sys.executable, str(CLI), "preflight", "--output", str(folder / "results")]
    with (folder / "errors.txt").open("w") as errors:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, PLAN: str(write_plan(plan, folder))},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def test_the_preflight_of_a_machine_waits_for_its_training_and_starts_each_partitions_ranks(
    tmp_path: Path,
) -> None:
    with machine_lock(0, pytest.fail):
        job = preflight(tmp_path)
        wait_until(
            lambda: "waiting: another" in (tmp_path / "errors.txt").read_text(encoding="utf-8"),
            "the preflight does not wait",
        )
        started = list((tmp_path / "results").glob("hello*/ranks.log"))
    output, _ = job.communicate()

    assert started == []
    assert job.returncode == 0, output
    assert output.count("all-reduce over 2 ranks") == 2
    assert output.count("all-reduce inside a node, 2 devices: 26.2 MB in ") == 2
    assert "NOT OK" not in output


# --- the job script of an answer ------------------------------------------------------------------------

ONE_MACHINE = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}


def train(folder: Path, experiment: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the script of an experiment on two devices."""
    site = folder / "site.json"
    site.write_text(json.dumps(ONE_MACHINE))
    study = load_study({"experiments": {"e": experiment | {"devices": [2], "repeats": 1}}}, site_file=site)
    job, script = make_plan(study)["runs"]["e"]["d2.r1"], folder / "job.sh"
    script.write_text(job_script(job, study.site, (1, ""), Path(script.name), "e"))
    return subprocess.run(["bash", script], capture_output=True, text=True, timeout=600, check=False)


def test_the_job_script_of_an_answer_trains_without_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place_digits_of_study(tmp_path)
    settings = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "learning_rate": 0.05}
    # the study ended its runs after a few steps
    ended = train(tmp_path, settings | {"epochs": 2, "warmup_steps": 2, "steps": 5})

    assert ended.returncode == 0, ended.stdout + ended.stderr
    trained = tmp_path / "trained" / "e"
    assert len((trained / EPOCHS).read_text().splitlines()) == 1 + 2
    assert (trained / MODEL).exists()
    assert "epoch 2/2 " in ended.stdout

    again = subprocess.run(["bash", "job.sh"], capture_output=True, text=True, check=True)
    assert "after epoch 2\n" in again.stdout
