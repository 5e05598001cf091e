"""What a site leaves to ``auto`` is looked up on the machine that plans."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalewise.plan.config.site import Site, SiteFile, resolve_site

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"
PINNED = """\
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from scalewise.plan.config.site import SiteFile, resolve_site
print(resolve_site(SiteFile()).cpus_per_node)
"""


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_gpu")
def test_a_machine_without_a_gpu_counts_the_cpus_this_process_may_use() -> None:
    cpus = len(os.sched_getaffinity(0))

    assert resolve_site(SiteFile()) == Site("cpu", cpus, cpus, 1, SiteFile())


def test_a_process_held_to_one_cpu_plans_for_one() -> None:
    pinned = subprocess.run(
        [sys.executable, "-c", PINNED],
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert pinned.stdout == "1\n"


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
def test_the_gpus_that_cuda_would_see_are_counted(
    visible: str, accelerator: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    site = resolve_site(SiteFile(cpus_per_node=8))

    assert (site.accelerator, site.devices_per_node) == (accelerator, devices)


def test_without_that_variable_the_device_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    present = [path for path in Path("/dev").iterdir() if re.fullmatch("nvidia[0-9]+", path.name)]

    site = resolve_site(SiteFile(cpus_per_node=8))

    several = len(present) > 1
    assert site.accelerator == ("cuda" if several else "cpu")
    assert site.devices_per_node == (len(present) if several else 8)
    assert site.unused_gpus == (0 if several else len(present))


@pytest.mark.usefixtures("no_gpu")
def test_stated_facts_are_kept_where_the_planning_machine_differs() -> None:
    facts = SiteFile(accelerator="cuda", devices_per_node=8, cpus_per_node=96, max_nodes=4)

    assert resolve_site(facts) == Site("cuda", 8, 96, 4, facts)


@pytest.mark.usefixtures("no_gpu")
def test_a_cpu_site_has_as_many_devices_as_it_states_cpus() -> None:
    facts = SiteFile(accelerator="cpu", cpus_per_node=6)

    assert resolve_site(facts) == Site("cpu", 6, 6, 1, facts)
