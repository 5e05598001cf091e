"""The preflight's job on one machine with partitions: it takes turns, and names GPUs that are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.cores import needs_two_cores
from tests.waiting import wait_until

from scalewise.execution.machine_lock import machine_lock
from scalewise.plan.jobs.make_plan import make_plan, write_plan
from scalewise.plan.jobs.preflight import Findings
from scalewise.plan.plan_file import PLAN
from scalewise.plan.study import load_study

pytestmark = needs_two_cores

CLI = Path(__file__).parents[2] / "workflow" / "scripts" / "cli.py"
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
