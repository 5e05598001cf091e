"""Facts of a site: which are looked up, which reach downloads and decisions, and what sending jobs needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snakemake_executor_plugin_slurm.validation import get_forbidden_slurm_options
from tests.paths import SCRIPTS
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import built_in, site_of

import scalewise.config.site as site_model
from scalewise.config.catalog.datasets import MIRROR_VARIABLE
from scalewise.config.site import Site, SiteFile, resolve_site
from scalewise.config.slurm import MANAGED_BY_SBATCH
from scalewise.plan.make_plan import site_environment
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import job_resources
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
    assert resolve_site(stated) == Site("cuda", 6, 96, 4, stated)


def test_without_that_variable_the_device_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    present = [path for path in Path("/dev").iterdir() if re.fullmatch("nvidia[0-9]+", path.name)]

    site = resolve_site(SiteFile(cpus_per_node=8))

    several = len(present) > 1
    assert site.accelerator == ("cuda" if several else "cpu")
    assert site.devices_per_node == (len(present) if several else 8)
    assert site.unused_gpus == (0 if several else len(present))


@pytest.mark.parametrize(
    ("installed", "chosen", "said"),
    [
        pytest.param(
            2,
            [0, 2],
            "is [0, 2], but this machine has 2 GPUs, numbered from 0. Use 0 to 1.",
            id="one too many",
        ),
        pytest.param(
            1, [1], "is [1], but this machine has 1 GPU, numbered from 0. Use 0.", id="counted from 1"
        ),
        pytest.param(2, [1, 0], "", id="all"),
        # a login node, or a system that shows its GPUs in another way: the preflight finds out
        pytest.param(0, [5], "", id="no device files"),
    ],
)
def test_visible_devices_are_compared_with_the_machines_device_files(
    installed: int,
    chosen: list[int],
    said: str,
    refuse: Refuse,
    load: Load,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = tmp_path / "dev"
    files.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(installed))):
        (files / name).touch()
    monkeypatch.setattr(site_model, "DEVICE_FILES", files)
    site = f"accelerator: cuda\ncpus_per_node: 8\nvisible_devices: {chosen}\n"

    if said:
        (line,) = refuse(built_in("devices: [1]"), site)
        assert line.endswith(f"site.yaml:3: visible_devices {said}")
    else:
        assert load(built_in("devices: [1]"), site).site.devices_per_node == len(chosen)


def test_everything_that_the_executor_plugin_forbids_is_refused_beforehand() -> None:
    forbidden = {
        option
        for pattern in get_forbidden_slurm_options()
        for option in re.findall("--([a-z][a-z-]*)", pattern)
    }
    assert len(forbidden) > 15
    assert forbidden <= MANAGED_BY_SBATCH


@pytest.mark.refuses("slurm: managed flag")
def test_no_option_that_follows_from_the_run_can_be_given_twice(refuse: Refuse) -> None:
    options = [written for name in sorted(MANAGED_BY_SBATCH) for written in (f"--{name}", f"--{name}=1")]
    lines = refuse(built_in(), site_of("cluster", slurm=[f"extra: {options}"]))

    assert len(lines) == len(options)
    for number, (line, option) in enumerate(zip(lines, options, strict=True)):
        assert f"site.yaml:6: slurm.extra[{number}] is '{option}'" in line


def variables(**keys: Any) -> dict[str, str]:
    return site_environment(resolve_site(SiteFile(cpus_per_node=2, accelerator="cpu", **keys)))


@pytest.mark.parametrize("place", ["/datasets/public", "near/by", "https://mirror.example/data"])
def test_the_mirror_reaches_what_downloads(place: str) -> None:
    found = variables(data_mirror=place)

    assert found == {MIRROR_VARIABLE: place}
    assert variables() == {}


def on_cluster(load: Load, *slurm: str) -> Study:
    return load(built_in("devices: [1, 2, 4, 8]"), site_of("cluster", slurm=["account: mine", *slurm]))


def definition(study: Study) -> dict[str, Any]:
    return dict(json.loads(study.experiments["digits"].analysis_definition))


@pytest.mark.parametrize(
    ("queue", "minutes"),
    [
        pytest.param("{8: 60, 1: 5}", {"1": 5, "2": 60, "4": 60, "8": 60}, id="the next larger one"),
        pytest.param("{2: 7.5}", {"1": 7.5, "2": 7.5, "4": 7.5, "8": 7.5}, id="beyond the largest"),
    ],
)
def test_each_device_count_waits_as_long_as_the_next_larger_one_that_is_named(
    queue: str, minutes: dict[str, float], load: Load
) -> None:
    assert definition(on_cluster(load, f"queue_minutes: {queue}"))["queue_minutes"] == minutes


def test_each_partition_of_a_site_file_states_its_own_waits(load: Load) -> None:
    waits = "a100: {queue_minutes: {1: 5, 8: 60}, "
    site = (
        site_of("partitions")
        .replace("a100: {", waits, 1)
        .replace("slurm: {}", "slurm: {queue_minutes: {1: 2}}")
    )
    study = load(built_in("devices: [1, 2]\n    partitions: all"), site)

    found = {
        name: json.loads(each.analysis_definition)["queue_minutes"]
        for name, each in study.experiments.items()
    }
    assert found == {"digits@a100": {"1": 5, "2": 60}, "digits@h200": {"1": 2, "2": 2}}


def test_a_queue_and_a_bill_change_the_decision_and_no_run(load: Load) -> None:
    without, short, long = (
        on_cluster(load, *lines) for lines in ([], ["queue_minutes: {8: 5}"], ["queue_minutes: {8: 50}"])
    )
    assert "queue_minutes" not in definition(without)
    assert len({study.experiments["digits"].analysis_definition for study in (without, short, long)}) == 3
    whole = {"1": 4, "2": 4}
    for lines, paid, held in (
        ((), None, whole),
        (("exclusive: true",), whole, whole),
        (("exclusive: false", "partial_nodes: billed-whole"), whole, whole),
        (("exclusive: false",), None, None),
    ):
        billed = on_cluster(load, *lines)
        terms = definition(billed)
        assert (terms.get("billed_devices"), terms.get("held_devices")) == (paid, held)
        assert billed.runs == without.runs
    assert without.runs == short.runs == long.runs
    assert without.allocations == short.allocations == long.allocations


def test_runs_that_fit_the_test_partition_are_sent_there_and_defined_as_before(load: Load) -> None:
    tests = "test_partition: {name: gputest, longest_walltime: '02:00:00', max_nodes: 1, max_devices: 2}"
    before, used, whole = (
        on_cluster(load, "partition: gpu", "qos: high", tests, *lines)
        for lines in (
            ("exclusive: false", "use_test_partition: false"),
            ("exclusive: false", "use_test_partition: true"),
            ("use_test_partition: true",),
        )
    )

    def places(study: Study) -> dict[int, tuple[object, object]]:
        return {
            run.shape.world_size: (resources.get("slurm_partition"), resources.get("qos"))
            for key, run in study.runs.items()
            for resources in [job_resources(study.allocations[key], study.site)]
        }

    test, usual = ("gputest", None), ("gpu", "high")
    assert places(used) == {1: test, 2: test, 4: usual, 8: usual}
    # a whole node has more devices than a test may take
    assert places(whole) == {1: usual, 2: usual, 4: usual, 8: usual}
    assert used.runs == before.runs
    assert definition(used) == definition(before)


MACHINE = Site("cpu", 2, 2, 1)
CLUSTER = Site("cuda", 4, 64, 4, SiteFile.model_validate({"slurm": {}}))
PROFILES = SCRIPTS.parents[1] / "profiles"
SENDING = ("sbatch", "squeue", "scancel")


def test_defaults_of_slurms_commands_are_ignored_if_they_hide_jobs_or_change_requests() -> None:
    kept = ("SQUEUE_ALL", "SQUEUE_FEDERATION", "SCONTROL_ALL", "SCANCEL_CTLD", "SLURM_CLUSTERS", "SLURM_CONF")
    chosen = (
        "SBATCH_ACCOUNT",
        "SBATCH_PARTITION",
        "SBATCH_QOS",
        "SBATCH_CLUSTERS",
        "PATH",
        "MY_SQUEUE_USERS",
    )
    hiding = (
        *(
            f"SQUEUE_{name}"
            for name in ("ACCOUNT", "LICENSES", "NAMES", "PARTITION", "QOS", "STATES", "USERS")
        ),
        *("SINFO_PARTITION", "SACCT_LOCAL", "SCANCEL_PARTITION", "SCANCEL_STATE", "SCANCEL_INTERACTIVE"),
    )
    changing = ("SBATCH_ARRAY_INX", "SBATCH_EXCLUSIVE", "SBATCH_GPUS_PER_NODE", "SBATCH_WAIT")
    environ = dict.fromkeys((*kept, *chosen, *hiding, *changing), "1")

    assert ignore_variables(environ) == list(changing)
    assert environ.keys() == {*kept, *chosen}
