"""Jobs on one machine: the preflight's take turns and name missing GPUs; an answer's script trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.machine import needs_two_cores
from tests.paths import CLI
from tests.prepared_digits import place_digits_of_study
from tests.waiting import wait_until

from scalewise.execution.lock import machine_lock
from scalewise.plan.job_script import TimeLimit, job_script
from scalewise.plan.launch import SiteLaunch
from scalewise.plan.make_plan import make_plan, write_plan
from scalewise.plan.plan_file import PLAN
from scalewise.plan.study import load_study
from scalewise.records import EPOCHS, MODEL
from scalewise.site.preflight import Findings

pytestmark = needs_two_cores

STUDY = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "devices": [1],
    "partitions": "all",
}
SITE = "accelerator: {}\ncpus_per_node: 1\npartitions: {}\ndefault_partition: one\n"

Start = Callable[[str], "subprocess.Popen[str]"]


def hello_jobs(folder: Path, accelerator: str, partitions: str) -> Start:
    """Return a function that starts the hello job of a partition, by its name."""
    (folder / "site.yaml").write_text(SITE.format(accelerator, partitions), encoding="utf-8")
    study = load_study({"experiments": {"e": STUDY}}, (), folder / "site.yaml")
    plan = make_plan(study)
    for site in plan["sites"].values():
        site["preflight"]["datasets"] = []
    environment = {**os.environ, PLAN: str(write_plan(plan, folder))}

    def start(partition: str) -> subprocess.Popen[str]:
        files = ["--log", f"{folder / partition}.log", "--output", f"{folder}/hello@{partition}.json"]
        command = [sys.executable, str(CLI), "hello", *files]
        output = (folder / f"{partition}.said").open("w", encoding="utf-8")
        with output:
            return subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
            )

    return start


def waits(said: Path) -> bool:
    """Whether a job has printed that it waits for another."""
    return "waiting: another" in said.read_text(encoding="utf-8")


def findings(folder: Path, partition: str) -> Findings:
    return Findings.model_validate_json((folder / f"hello@{partition}.json").read_text(encoding="utf-8"))


def test_hello_jobs_of_a_machine_wait_for_its_training_and_for_each_other(tmp_path: Path) -> None:
    names = ("one", "two")
    start = hello_jobs(tmp_path, "cpu", "{one: {devices_per_node: 1}, two: {devices_per_node: 1}}")

    with machine_lock(0, pytest.fail):
        jobs = [start(name) for name in names]
        for name in names:
            said = tmp_path / f"{name}.said"
            wait_until(
                partial(waits, said),
                f"the hello job of {name} does not wait",
            )
        started = [name for name in names if (tmp_path / f"{name}.log").exists()]
    codes = [job.wait() for job in jobs]

    assert started == []
    assert codes == [0, 0]
    for name in names:
        assert not findings(tmp_path, name).bad
        assert "all-reduce over 1 ranks" in str(findings(tmp_path, name))


@pytest.mark.skipif(torch.cuda.device_count() > 97, reason="this machine has a GPU 97")
def test_visible_devices_that_the_machine_does_not_have_are_named_with_the_fix(tmp_path: Path) -> None:
    start = hello_jobs(tmp_path, "cuda", "{one: {devices_per_node: 1}, two: {visible_devices: [97]}}")

    assert start("two").wait() == 0

    (found,) = (each for each in findings(tmp_path, "two").findings if each.state == "bad")
    assert "CUDA_VISIBLE_DEVICES=97" in str(found)
    assert "fix the driver or visible_devices" in str(found)


# --- the job script of an answer ------------------------------------------------------------------------

ONE_MACHINE = {"accelerator": "cpu", "devices_per_node": 2, "cpus_per_node": 2}


def train(folder: Path, experiment: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the script of an experiment on two devices."""
    site = folder / "site.json"
    site.write_text(json.dumps(ONE_MACHINE))
    study = load_study({"experiments": {"e": experiment | {"devices": [2], "repeats": 1}}}, site_file=site)
    plan, run = make_plan(study), study.runs["e", "d2.r1"]
    script = folder / "job.sh"
    launch = SiteLaunch.model_validate(plan["sites"][""]["launch"])
    script.write_text(
        job_script(run, plan["runs"]["e"]["d2.r1"], launch, TimeLimit(1, ""), Path(script.name), "e")
    )
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
