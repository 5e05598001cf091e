"""Facts of a site: which are looked up, which reach downloads and decisions, and what sending jobs needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake_executor_plugin_slurm.validation import get_forbidden_slurm_options
from tests.paths import SCRIPTS
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import built_in, site_of

from scalewise.config.site import Site, SiteFile, resolve_site
from scalewise.config.slurm import MANAGED_BY_SBATCH, RESOURCES_OF_OPTIONS
from scalewise.plan.planned_study import Study
from scalewise.site.commands import ignore_variables

PINNED = """\
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from scalewise.config.site import SiteFile, resolve_site
print(resolve_site(SiteFile()).cpus_per_node)
"""


def test_a_process_held_to_one_cpu_plans_for_one() -> None:
    environ = os.environ | {"PYTHONPATH": str(SCRIPTS)}
    assert subprocess.check_output([sys.executable, "-c", PINNED], env=environ, text=True) == "1\n"


@pytest.mark.parametrize(
    ("visible", "accelerator", "devices"),
    [
        pytest.param("0", "cpu", 8, id="one has nothing to scale to"),
        pytest.param("0,1,3", "cuda", 3, id="three"),
        pytest.param("GPU-8932f937-d72c,MIG-GPU-8932f937/1/2", "cuda", 2, id="by UUID"),
        pytest.param("", "cpu", 8, id="none"),
        pytest.param("-1", "cpu", 8, id="hidden"),
        pytest.param("0,1,-1,2", "cuda", 2, id="CUDA stops at the first that is invalid"),
        pytest.param("NoDevFiles", "cpu", 8, id="Slurm, for a job without a GPU"),
    ],
)
def test_the_gpus_that_cuda_would_see_are_counted_unless_the_site_states_its_devices(
    visible: str, accelerator: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    site = resolve_site(SiteFile(cpus_per_node=8))
    assert (site.accelerator, site.devices_per_node, site.max_nodes) == (accelerator, devices, 1)
    stated = SiteFile(accelerator="cuda", devices_per_node=6, cpus_per_node=96, max_nodes=4)
    assert resolve_site(stated) == Site(
        accelerator="cuda", devices_per_node=6, cpus_per_node=96, max_nodes=4, facts=stated
    )


def test_without_that_variable_the_device_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    present = [path for path in Path("/dev").iterdir() if re.fullmatch("nvidia[0-9]+", path.name)]

    site = resolve_site(SiteFile(cpus_per_node=8))

    several = len(present) > 1
    assert site.accelerator == ("cuda" if several else "cpu")
    assert site.devices_per_node == (len(present) if several else 8)


def test_everything_that_the_executor_plugin_forbids_is_refused_beforehand() -> None:
    forbidden = {
        option
        for pattern in get_forbidden_slurm_options()
        for option in re.findall("--([a-z][a-z-]*)", pattern)
    }
    assert len(forbidden) > 15
    assert forbidden <= {*MANAGED_BY_SBATCH, *RESOURCES_OF_OPTIONS}


@pytest.mark.refuses("slurm: managed flag")
def test_no_option_that_follows_from_the_run_can_be_given_twice(refuse: Refuse) -> None:
    options = [written for name in sorted(MANAGED_BY_SBATCH) for written in (f"--{name}", f"--{name}=1")]
    lines = refuse(built_in(), site_of("cluster", slurm=[f"extra: {options}"]))

    assert len(lines) == len(options)
    for number, (line, option) in enumerate(zip(lines, options, strict=True)):
        assert f"site.yaml:6: slurm.extra[{number}] is '{option}'" in line


def on_cluster(load: Load, *slurm: str) -> Study:
    return load(built_in("devices: [1, 2, 4, 8]"), site_of("cluster", slurm=["account: mine", *slurm]))


def test_a_bill_changes_the_decision_and_no_run(load: Load) -> None:
    whole, shared = {"1": 4, "2": 4}, on_cluster(load)
    for lines, paid, held in (
        ((), None, whole),
        (("exclusive: true",), whole, whole),
        (("exclusive: false",), None, None),
    ):
        billed = on_cluster(load, *lines)
        terms = json.loads(billed.parts[0].definition)
        assert (terms.get("billed_devices"), terms.get("held_devices")) == (paid, held)
        assert billed.runs == shared.runs


def test_defaults_of_slurms_commands_are_ignored_if_they_hide_jobs_or_change_requests() -> None:
    kept = ["SQUEUE_ALL", "SQUEUE_FEDERATION", "SCONTROL_ALL", "SCANCEL_CTLD", "SLURM_CLUSTERS", "SLURM_CONF"]
    chosen = [
        "SBATCH_ACCOUNT",
        "SBATCH_PARTITION",
        "SBATCH_QOS",
        "SBATCH_CLUSTERS",
        "PATH",
        "MY_SQUEUE_USERS",
    ]
    of_squeue = ("ACCOUNT", "LICENSES", "NAMES", "PARTITION", "QOS", "STATES", "USERS")
    hiding = [f"SQUEUE_{name}" for name in of_squeue]
    hiding += ["SINFO_PARTITION", "SACCT_LOCAL", "SCANCEL_PARTITION", "SCANCEL_STATE", "SCANCEL_INTERACTIVE"]
    changing = [
        *("SBATCH_ARRAY_INX", "SBATCH_EXCLUSIVE", "SBATCH_GPUS_PER_NODE"),
        *("SBATCH_THREAD_SPEC", "SBATCH_TRES_PER_TASK", "SBATCH_WAIT"),
    ]
    environ = dict.fromkeys((*kept, *chosen, *hiding, *changing), "1")

    assert ignore_variables(environ) == changing
    assert environ.keys() == {*kept, *chosen}
