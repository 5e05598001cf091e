"""An experiment on several partitions of a site: its runs, its jobs, and where they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.plan.conftest import Load

from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Container
from scalewise.plan.jobs.launch import SiteLaunch
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.plan_file import Plan
from scalewise.plan.planned_study import Study

CLUSTER = """\
accelerator: cuda
cpus_per_node: 64
memory_gb_per_node: 240
slurm: {account: p1}
partitions:
  a100: {partition: gpu-a100, gpu_type: a100, devices_per_node: 4, max_nodes: 2, price_per_device_hour: 1.2}
  h200:
    partition: gpu-h200
    gpu_type: h200
    devices_per_node: 8
    cpus_per_node: 96
    prelude: [module load new]
    price_per_device_hour: 2.5
default_partition: a100
"""
STUDY = """\
defaults: {dataset: digits, model: linear, global_batch_size: 240, repeats: 2}
experiments:
  both: {devices: [1, 2, 8], partitions: all}
  plain: {devices: [1, 2]}
"""


@pytest.fixture
def study(load: Load) -> Study:
    return load(STUDY, CLUSTER)


@pytest.fixture
def plan(study: Study) -> Plan:
    return make_plan(study, "profiles/site.yaml")


def test_each_partition_has_an_experiment_with_its_nodes(study: Study) -> None:
    shapes = {
        name: sorted({str(run.shape) for run in planned.runs}) for name, planned in study.experiments.items()
    }

    assert shapes == {
        "both@a100": ["1x1", "1x2", "2x4"],
        "both@h200": ["1x1", "1x2", "1x8"],
        "plain": ["1x1", "1x2"],
    }
    assert {name: planned.site.partition for name, planned in study.experiments.items()} == {
        "both@a100": "a100",
        "both@h200": "h200",
        "plain": "a100",
    }
    assert study.comparisons == {"both": ["both@a100", "both@h200"]}
    assert [each.experiment.title for each in study.experiments.values()][:2] == [
        "both on a100",
        "both on h200",
    ]


def test_partitions_are_measured_in_the_order_of_the_experiment(load: Load) -> None:
    study = load(STUDY.replace("partitions: all", "partitions: [h200, a100]"), CLUSTER)

    assert list(study.experiments) == ["both@h200", "both@a100", "plain"]


def test_a_job_requests_the_nodes_of_its_partition(plan: Plan) -> None:
    resources = {
        experiment: next(job["resources"] for name, job in runs.items() if name.startswith("d2."))
        for experiment, runs in plan["runs"].items()
    }

    for experiment, partition, memory in (
        ("both@a100", "a100", 120),
        ("both@h200", "h200", 60),
        ("plain", "a100", 120),
    ):
        assert resources[experiment]["slurm_partition"] == f"gpu-{partition}"
        assert resources[experiment]["slurm_account"] == "p1"
        # two of four GPUs, or of eight, with their share of 240 GB
        assert resources[experiment]["mem_mb"] == memory * 1000
        assert f"{partition}:2" in " ".join(map(str, resources[experiment].values()))


def test_an_experiment_without_partitions_is_the_one_of_a_site_without_any(load: Load, study: Study) -> None:
    alone = CLUSTER[: CLUSTER.index("partitions:")].replace("p1", "p1, partition: gpu-a100, gpu_type: a100")
    before = load(STUDY.replace(", partitions: all", ""), f"{alone}devices_per_node: 4\nmax_nodes: 2\n")

    of_site, of_partition = before.experiments["plain"], study.experiments["plain"]
    assert [run.as_json() for run in of_partition.runs] == [run.as_json() for run in of_site.runs]
    for run in of_site.runs:
        assert before.allocations["plain", run.run] == study.allocations["plain", run.run]
    assert of_partition.analysis_definition == of_site.analysis_definition
    assert of_partition.prediction_definition == of_site.prediction_definition
    plans = [make_plan(each, "profiles/site.yaml")["experiments"]["plain"] for each in (before, study)]
    assert plans[0] | {"partition": "a100"} == plans[1]


def test_each_partition_has_its_launch_and_its_preflight(plan: Plan) -> None:
    a100, h200 = (plan["sites"][name] for name in ("a100", "h200"))

    assert [SiteLaunch.model_validate(site["launch"]).prelude for site in (a100, h200)] == [
        (),
        ("module load new",),
    ]
    assert [str(site["preflight"]["shape"]) for site in (a100, h200)] == ["2x4", "1x8"]
    assert [site["preflight"]["slurm"]["partition"] for site in (a100, h200)] == ["gpu-a100", "gpu-h200"]
    assert [site["hello"]["resources"]["slurm_partition"] for site in (a100, h200)] == [
        "gpu-a100",
        "gpu-h200",
    ]


def test_a_partition_that_no_experiment_names_has_no_preflight(load: Load) -> None:
    study = load(STUDY.replace("partitions: all", "partitions: [h200]").split("  plain")[0], CLUSTER)

    assert list(make_plan(study)["sites"]) == ["h200"]


def test_all_reduce_is_measured_on_each_partition_and_predicted_from_there(plan: Plan) -> None:
    files = {name: set(facts["all_reduces"]) for name, facts in plan["experiments"].items()}

    assert files["both@a100"].isdisjoint(files["both@h200"])
    # the same nodes
    assert files["plain"] <= files["both@a100"]
    assert {f"resources/collectives/{name}.json" for name in plan["all_reduces"]} == set.union(
        *files.values()
    )
    for name, job in plan["all_reduces"].items():
        partition = job["partition"]
        assert f"resources/collectives/{name}.json" in files[f"both@{partition}"]
        assert job["resources"]["slurm_partition"] == f"gpu-{partition}"


def test_a_price_changes_no_run_and_no_table(load: Load, plan: Plan) -> None:
    dearer = make_plan(load(STUDY, CLUSTER.replace("hour: 2.5", "hour: 9")), "profiles/site.yaml")

    assert dearer["runs"] == plan["runs"]
    assert dearer["experiments"] == plan["experiments"]
    assert dearer["comparisons"] != plan["comparisons"]


def test_devices_that_one_partition_does_not_have_are_measured_on_the_other(load: Load) -> None:
    study = load(STUDY.replace("[1, 2, 8]", '[1, "2x4", 16]'), CLUSTER.replace("es: 2", "es: 4"))
    shapes = {name: {str(run.shape) for run in each.runs} for name, each in study.experiments.items()}

    assert shapes["both@a100"] == {"1x1", "2x4", "4x4"}
    assert shapes["both@h200"] == {"1x1"}
    assert [line.partition(" is ")[0] for line in study.warnings] == [
        "experiments.both.devices[1]",
        "experiments.both.devices[2]",
    ]
    assert all(line.endswith("not measured on partition h200.") for line in study.warnings)


def test_no_device_count_of_up_to_is_larger_than_a_partition(load: Load) -> None:
    text = STUDY.replace("devices: [1, 2, 8]", "devices: {up_to: 8}").replace("240", "256")
    study = load(text, CLUSTER.replace("es: 2", "es: 1"))
    counts = {
        name: sorted({run.shape.world_size for run in each.runs}) for name, each in study.experiments.items()
    }

    assert counts == {"both@a100": [1, 2, 4], "both@h200": [1, 2, 4, 8], "plain": [1, 2]}


MACHINE = """\
accelerator: cuda
cpus_per_node: 16
partitions:
  a100: {visible_devices: [2, 0]}
  t4: {visible_devices: [5]}
default_partition: a100
"""


def test_a_partition_of_a_workstation_has_the_gpus_that_it_names(load: Load) -> None:
    study = load(STUDY.replace("[1, 2, 8]", "[1, 2]"), MACHINE)
    plan = make_plan(study)
    launches = {name: SiteLaunch.model_validate(site["launch"]) for name, site in plan["sites"].items()}

    assert {
        name: sorted({run.shape.world_size for run in each.runs}) for name, each in study.experiments.items()
    } == {
        "both@a100": [1, 2],
        "both@t4": [1],
        "plain": [1, 2],
    }
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert launches["a100"].device_environment(Shape(1, 2)) == order | {"CUDA_VISIBLE_DEVICES": "2,0"}
    assert launches["a100"].device_environment(Shape(1, 1)) == order | {"CUDA_VISIBLE_DEVICES": "2"}
    assert launches["t4"].device_environment(Shape(1, 1)) == order | {"CUDA_VISIBLE_DEVICES": "5"}


def test_a_container_with_a_clean_environment_sees_the_named_gpus() -> None:
    launch = SiteLaunch(visible_devices=(2, 0), container=Container(image="torch.sif"))
    variables = launch.device_environment(Shape(1, 2))

    for prefix in ("", "APPTAINERENV_", "SINGULARITYENV_"):
        assert variables[f"{prefix}CUDA_VISIBLE_DEVICES"] == "2,0"
        assert variables[f"{prefix}CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_site_that_names_no_gpus_changes_no_variable(plan: Plan) -> None:
    launch: dict[str, Any] = json.loads(json.dumps(plan["sites"]["a100"]["launch"]))

    assert SiteLaunch.model_validate(launch).device_environment(Shape(1, 4)) == {}
