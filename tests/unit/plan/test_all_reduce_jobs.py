"""Before any large job: which all-reduces are measured, under what name, and what the plan then expects."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.plan.conftest import Load
from tests.unit.plan.refusals import site_of

from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Site, SiteFile, resolve_site
from scalewise.plan.jobs.all_reduce_jobs import (
    AllReducePlan,
    has_steps_to_project_from,
    site_id,
)
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.planned_study import Study

STRONG = "  strong: {dataset: digits, model: linear, global_batch_size: 192, repeats: 2, devices: %s}\n"


def shapes_of(names: Iterable[str]) -> list[str]:
    """The shapes of measurements by their names, ``machine-1a2b3c4d/2x4``."""
    return sorted(name.rpartition("/")[2] for name in names)


def study_of(devices: str, more: str = "") -> str:
    entry = STRONG % devices
    return "experiments:\n" + entry.replace("}\n", f"{more}}}\n")


def on_cluster(
    load: Load, text: str, max_nodes: int = 16, slurm: str = "{account: a, partition: gpu}"
) -> Study:
    """A study on a cluster of nodes with four GPUs."""
    lines = ("memory_gb_per_node: 240", f"max_nodes: {max_nodes}", f"slurm: {slurm}")
    return load(text, site_of("cluster", *lines))


@pytest.mark.parametrize(
    ("devices", "more", "shapes"),
    [
        pytest.param("[1, 2, 4]", "", ["1x2", "1x4"], id="one node"),
        pytest.param("[1, 4, 8]", "", ["1x4", "2x4"], id="two nodes"),
        pytest.param("[1, 16]", "", ["4x4"], id="four nodes by themselves"),
        pytest.param("[1, 32]", "", ["1x4", "2x4", "4x4"], id="eight nodes from one, two and four"),
        pytest.param('[1, "3x2"]', "", ["3x2"], id="three nodes by themselves"),
        pytest.param('[1, "6x2"]', "", ["1x2", "2x2", "4x2"], id="parts of nodes from parts of nodes"),
        pytest.param(
            "[1]", ", project: {devices: [2, 64]}", ["1x2", "1x4", "2x4", "4x4"], id="projected alone"
        ),
        pytest.param("[1]", "", [], id="nothing to exchange"),
        pytest.param("[2, 4]", "", [], id="no 1-device run to start from"),
        pytest.param("[1, 4]", ", predict: false", [], id="not wanted"),
        pytest.param("[1, 4]", ", parallelism: fsdp", [], id="exchanges that are not modelled"),
    ],
)
def test_shapes_of_up_to_four_nodes_are_measured_and_no_larger_ones(
    load: Load, devices: str, more: str, shapes: list[str]
) -> None:
    plan = AllReducePlan.of(on_cluster(load, study_of(devices, more)))

    assert shapes_of(plan.jobs) == shapes_of(plan.needed.get("strong", [])) == shapes


@pytest.mark.parametrize(
    ("max_nodes", "shapes"),
    [
        (1, ["1x4"]),
        (2, ["1x4", "2x4"]),
        (3, ["1x4", "2x4", "3x4"]),
        (4, ["1x4", "2x4", "4x4"]),
    ],
)
def test_as_many_nodes_are_measured_as_a_run_may_take_up_to_four(
    load: Load, max_nodes: int, shapes: list[str]
) -> None:
    study = on_cluster(load, study_of("[1]", ", project: {devices: [64]}"), max_nodes)

    assert shapes_of(AllReducePlan.of(study).jobs) == shapes


def test_a_machine_without_a_scheduler_measures_no_other_node(load: Load) -> None:
    text = study_of("[1, 2]", ", project: {devices: [64]}")

    assert shapes_of(AllReducePlan.of(load(text)).jobs) == ["1x2", "1x4"]


@pytest.mark.parametrize(
    ("devices", "more", "expected"),
    [
        ("[1, 8]", ", project: {devices: [64]}", True),
        ("[1, 8, 16]", "", False),
        ("[1, 4]", ", project: {devices: [64]}", False),
        ('[1, "2x2"]', ", project: {devices: [64]}", False),
        ("[1, 8, 16]", ", predict: false", False),
    ],
)
def test_a_study_projects_from_its_own_steps_where_it_has_some_on_several_nodes_and_fewer(
    load: Load, devices: str, more: str, expected: bool
) -> None:
    study = on_cluster(load, study_of(devices, more))

    assert has_steps_to_project_from(study.experiments["strong"]) is expected


def test_a_measurement_is_one_short_job_of_the_shape_that_it_measures(load: Load) -> None:
    study = on_cluster(load, study_of("[1, 4, 8]", ", cpus_per_device: 8, runtime_minutes: 300"))
    plan = make_plan(study, "profiles/sites/here.yaml")

    jobs, site = plan["all_reduces"], site_id(study.site, "profiles/sites/here.yaml")
    asked = {shape: jobs[f"{site}/{shape}"]["resources"] for shape in ("1x4", "2x4")}
    assert [asked[shape]["nodes"] for shape in asked] == [1, 2]
    assert [asked[shape]["device_budget"] for shape in asked] == [4, 8]
    for values in asked.values():
        assert (values["gres"], values["cpus_per_task"], values["mem_mb"]) == ("gpu:4", 8, 240000)
        assert values["runtime"] == 7
        assert values["slurm_extra"] == "--ntasks-per-node=4"
        assert (values["slurm_account"], values["slurm_partition"]) == ("a", "gpu")
    assert {job["threads"] for job in jobs.values()} == {32}
    assert {job["limits"]["limit_seconds"] for job in jobs.values()} == {300}
    files = [f"resources/collectives/{site}/{shape}.json" for shape in asked]
    assert plan["experiments"]["strong"]["all_reduces"] == files


@pytest.mark.parametrize(
    ("walltime", "minutes", "limit_seconds"),
    [("00:01:00", 1, 30), ("00:02:00", 2, 60), ("00:04:00", 4, 180), ("08:00:00", 7, 300)],
)
def test_a_measurement_fits_into_the_longest_job_of_the_site(
    load: Load, walltime: str, minutes: int, limit_seconds: int
) -> None:
    slurm = f'{{account: a, longest_walltime: "{walltime}", signal_seconds: 0}}'
    study = on_cluster(load, study_of("[1, 4]", ", runtime_minutes: 1"), slurm=slurm)

    allocation = AllReducePlan.of(study).jobs[f"{site_id(study.site)}/1x4"].allocation

    assert (allocation.minutes, allocation.limits.limit_seconds) == (minutes, limit_seconds)


def test_a_shape_that_no_run_has_is_started_as_the_largest_run_but_within_a_nodes_cpus(load: Load) -> None:
    text = study_of("[1]", ", cpus_per_device: 40, launcher: spawn, project: {devices: [8]}")
    study = on_cluster(load, text)

    job = AllReducePlan.of(study).jobs[f"{site_id(study.site)}/2x4"].ranks

    assert (job.shape, job.launcher, job.cpus_per_device, job.accelerator) == (
        Shape(2, 4),
        "spawn",
        16,
        "cuda",
    )


def test_the_first_experiment_with_a_shape_says_how_its_ranks_start(load: Load) -> None:
    two = study_of("[1, 2]", ", launcher: spawn, rendezvous: file")
    study = load(two + (STRONG % "[1, 2, 4]").replace("strong", "more"))

    jobs = AllReducePlan.of(study).jobs.items()
    ranks = {name.rpartition("/")[2]: job.ranks for name, job in jobs}

    assert (ranks["1x2"].launcher, ranks["1x2"].rendezvous) == ("spawn", "file")
    assert (ranks["1x4"].launcher, ranks["1x4"].rendezvous) == ("popen", "tcp")


TORCH: dict[str, Any] = {"image": "/torch.sif"}
"""A container."""


def cluster(**facts: Any) -> Site:
    slurm: dict[str, Any] = {"account": "a", "partition": "gpu"}
    site: dict[str, Any] = {"accelerator": "cuda", "devices_per_node": 4, "cpus_per_node": 64}
    return resolve_site(SiteFile.model_validate(site | {"slurm": slurm | facts.pop("slurm", {})} | facts))


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"devices_per_node": 8}, id="devices"),
        pytest.param({"network_interface": "ib0"}, id="network"),
        pytest.param({"python": "/other/python"}, id="interpreter"),
        pytest.param({"prelude": ["export NCCL_IB_DISABLE=1"]}, id="prelude"),
        pytest.param({"container": TORCH}, id="container"),
        pytest.param({"container": TORCH | {"arguments": ["--overlay=/nccl.ext3:ro"]}}, id="overlay"),
        pytest.param({"container": TORCH | {"prelude": ["source /ext3/env.sh"]}}, id="prelude inside"),
        pytest.param({"slurm": {"partition": "other"}}, id="partition"),
        pytest.param({"slurm": {"constraint": "a100"}}, id="constraint"),
        pytest.param({"slurm": {"gpu_type": "a100"}}, id="GPU type"),
        pytest.param({"slurm": {"extra": ["--switches=1"]}}, id="placement"),
    ],
)
def test_a_fact_that_the_network_depends_on_makes_another_measurement(facts: dict[str, Any]) -> None:
    before = {"container": TORCH} if facts.get("container", TORCH) != TORCH else {}

    assert site_id(cluster(**facts)) != site_id(cluster(**before))


def test_what_the_network_does_not_depend_on_keeps_the_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    before = site_id(cluster())
    monkeypatch.setattr("platform.node", lambda: "another-login-node")

    other = cluster(memory_gb_per_node=100, slurm={"account": "b", "mail_user": "me@example.org"})

    assert site_id(other) == before


def test_measurements_of_one_machine_are_not_taken_for_those_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = resolve_site(SiteFile(accelerator="cpu", devices_per_node=2, cpus_per_node=2))
    names = set()
    for host, processor in (("one", "a"), ("other", "a"), ("one", "b")):
        monkeypatch.setattr("platform.node", lambda host=host: host)
        monkeypatch.setattr(
            "scalewise.plan.jobs.all_reduce_jobs.cpu_model", lambda processor=processor: processor
        )
        names.add(site_id(machine))

    assert len(names) == 3
    assert all(host not in name for name in names for host in ("one-", "other"))


@pytest.mark.parametrize(
    ("file", "word"),
    [
        ("profiles/sites/princeton-della.yaml", "princeton-della"),
        ("profiles/slurm/site.yaml", "slurm"),
        ("site.yaml", "site"),
        ("/home/my user/ödd site$.yaml", "dd-site"),
        (None, "machine"),
    ],
)
def test_measurements_lie_in_a_folder_that_names_the_site(file: str | None, word: str) -> None:
    name, digest = site_id(cluster(), file).rsplit("-", 1)

    assert (name, len(digest)) == (word, 8)


def test_a_prediction_starts_from_the_first_repeats_on_one_device_alone(load: Load) -> None:
    more = ", project: {devices: [4, 8]}"
    text = study_of("[1, 2, 4]", more).replace("repeats: 2", "repeats: {min: 2, max: 5, until_interval: 0.1}")
    planned = load(text).experiments["strong"]

    assert planned.prediction_runs == ["d1.r1", "d1.r2"]
    definition = json.loads(planned.prediction_definition)
    assert definition["name"] == "strong"
    assert definition["shapes"] == {"1": "1x1", "2": "1x2", "4": "1x4"}
    assert definition["project"] == ["2x4"]


def test_a_projection_of_the_defaults_is_left_out_without_a_prediction(load: Load) -> None:
    by_default = study_of("[1, 2]", ", predict: false") + "defaults: {project: {devices: [8]}}\n"
    assert AllReducePlan.of(load(by_default)).jobs == {}
