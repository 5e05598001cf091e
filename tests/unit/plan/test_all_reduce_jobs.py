"""Before any large job: which all-reduces are measured, under what name, and what the plan then expects."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.plan.conftest import Load

from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Site, SiteFile, resolve_site
from scalewise.plan.jobs.all_reduce_jobs import (
    AllReducePlan,
    has_steps_to_project_from,
    site_id,
)
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.study import Study, load_study
from scalewise.plan.terminal.final_message import EarlierFiles
from scalewise.plan.terminal.plan_table import plan_table, predicted_plan
from scalewise.plan.terminal.predictions import read_remarks

STRONG = "  strong: {dataset: digits, model: linear, global_batch_size: 192, repeats: 2, devices: %s}\n"


def study_of(devices: str, more: str = "") -> str:
    entry = STRONG % devices
    return "experiments:\n" + entry.replace("}\n", f"{more}}}\n")


def on_cluster(tmp_path: Path, text: str, **facts: Any) -> Study:
    """A study on a cluster of nodes with four GPUs."""
    site: dict[str, Any] = {
        "accelerator": "cuda",
        "devices_per_node": 4,
        "cpus_per_node": 64,
        "memory_gb_per_node": 240,
        "max_nodes": 16,
        "slurm": {"account": "a", "partition": "gpu"},
    }
    path, study_path = tmp_path / "cluster.yaml", tmp_path / "study.yaml"
    path.write_text(json.dumps(site | facts))
    study_path.write_text(text)
    return load_study(yaml.safe_load(text), [study_path], path)


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
    tmp_path: Path, devices: str, more: str, shapes: list[str]
) -> None:
    plan = AllReducePlan.of(on_cluster(tmp_path, study_of(devices, more)))

    assert sorted(plan.jobs) == sorted(plan.allocations) == shapes
    assert plan.shapes.get("strong", []) == shapes


def test_a_projection_beyond_the_site_asks_for_no_nodes_that_a_run_may_not_take(tmp_path: Path) -> None:
    study = on_cluster(tmp_path, study_of("[1, 2]", ", project: {devices: [64]}"), max_nodes=1)

    assert sorted(AllReducePlan.of(study).jobs) == ["1x2", "1x4"]


@pytest.mark.parametrize(
    ("max_nodes", "shapes"), [(2, ["1x4", "2x4"]), (3, ["1x4", "2x4", "3x4"]), (4, ["1x4", "2x4", "4x4"])]
)
def test_as_many_nodes_are_measured_as_a_run_may_take_up_to_four(
    tmp_path: Path, max_nodes: int, shapes: list[str]
) -> None:
    study = on_cluster(tmp_path, study_of("[1]", ", project: {devices: [64]}"), max_nodes=max_nodes)

    assert sorted(AllReducePlan.of(study).jobs) == shapes


def test_a_machine_without_a_scheduler_measures_no_other_node(load: Load) -> None:
    text = study_of("[1, 2]", ", project: {devices: [64]}")

    assert sorted(AllReducePlan.of(load(text)).jobs) == ["1x2", "1x4"]


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
    tmp_path: Path, devices: str, more: str, expected: bool
) -> None:
    study = on_cluster(tmp_path, study_of(devices, more))

    assert has_steps_to_project_from(study.experiments["strong"]) is expected


def test_a_measurement_is_one_short_job_of_the_shape_that_it_measures(tmp_path: Path) -> None:
    study = on_cluster(tmp_path, study_of("[1, 4, 8]", ", cpus_per_device: 8, runtime_minutes: 300"))
    plan = make_plan(study, "profiles/sites/here.yaml")

    jobs = plan["all_reduces"]
    asked = {shape: jobs[shape]["resources"] for shape in ("1x4", "2x4")}
    assert [asked[shape]["nodes"] for shape in asked] == [1, 2]
    assert [asked[shape]["device_budget"] for shape in asked] == [4, 8]
    for values in asked.values():
        assert (values["gres"], values["cpus_per_task"], values["mem_mb"]) == ("gpu:4", 8, 240000)
        assert values["runtime"] == 7
        assert values["slurm_extra"] == "--ntasks-per-node=4"
        assert (values["slurm_account"], values["slurm_partition"]) == ("a", "gpu")
    assert {job["threads"] for job in jobs.values()} == {32}
    assert {job["limits"]["limit_seconds"] for job in jobs.values()} == {300}
    site = site_id(study.site, "profiles/sites/here.yaml")
    files = [f"resources/collectives/{site}/{shape}.json" for shape in asked]
    assert plan["experiments"]["strong"]["all_reduces"] == files


@pytest.mark.parametrize(
    ("walltime", "minutes", "limit_seconds"),
    [("00:01:00", 1, 30), ("00:02:00", 2, 60), ("00:04:00", 4, 180), ("08:00:00", 7, 300)],
)
def test_a_measurement_fits_into_the_longest_job_of_the_site(
    tmp_path: Path, walltime: str, minutes: int, limit_seconds: int
) -> None:
    slurm = {"account": "a", "longest_walltime": walltime, "signal_seconds": 0}
    study = on_cluster(tmp_path, study_of("[1, 4]", ", runtime_minutes: 1"), slurm=slurm)

    allocation = AllReducePlan.of(study).allocations["1x4"]

    assert (allocation.minutes, allocation.limits.limit_seconds) == (minutes, limit_seconds)


def test_a_shape_that_no_run_has_is_started_as_the_largest_run_but_within_a_nodes_cpus(
    tmp_path: Path,
) -> None:
    text = study_of("[1]", ", cpus_per_device: 40, launcher: spawn, project: {devices: [8]}")
    study = on_cluster(tmp_path, text)

    job = AllReducePlan.of(study).jobs["2x4"]

    assert (job.shape, job.launcher, job.cpus_per_device, job.accelerator) == (
        Shape(2, 4),
        "spawn",
        16,
        "cuda",
    )


def test_the_first_experiment_with_a_shape_says_how_its_ranks_start(load: Load) -> None:
    two = study_of("[1, 2]", ", launcher: spawn, rendezvous: file")
    study = load(two + (STRONG % "[1, 2, 4]").replace("strong", "more"))

    jobs = AllReducePlan.of(study).jobs

    assert (jobs["1x2"].launcher, jobs["1x2"].rendezvous) == ("spawn", "file")
    assert (jobs["1x4"].launcher, jobs["1x4"].rendezvous) == ("popen", "tcp")


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


def test_predicting_more_devices_makes_no_table_again(load: Load) -> None:
    texts = ("", ", project: {devices: [8]}", ", predict: false")
    studies = [load(study_of("[1, 2]", more)) for more in texts]
    tables = {study.experiments["strong"].analysis_definition for study in studies}
    runs = {study.runs["strong", "d2.r1"].as_json() for study in studies}

    assert len(tables) == len(runs) == 1


def test_a_prediction_starts_from_the_first_repeats_on_one_device_alone(load: Load) -> None:
    more = ", project: {devices: [4, 8]}"
    text = study_of("[1, 2, 4]", more).replace("repeats: 2", "repeats: {min: 2, max: 5, until_interval: 0.1}")
    planned = load(text).experiments["strong"]

    assert planned.prediction_runs == ["d1.r1", "d1.r2"]
    definition = json.loads(planned.prediction_definition)
    assert definition["name"] == "strong"
    assert definition["shapes"] == {"1": "1x1", "2": "1x2", "4": "1x4"}
    assert definition["project"] == ["2x4"]


def test_titles_and_criteria_make_no_prediction_again_but_projected_devices_do(load: Load) -> None:
    def definition(more: str) -> str:
        return load(study_of("[1, 2]", more)).experiments["strong"].prediction_definition

    plain = definition("")
    assert definition(", title: Another, runtime_minutes: 99, decision: {min_efficiency: 0.5}") == plain
    assert definition(", project: {devices: [8]}") != plain
    assert definition(", bucket_cap_mb: 1") != plain


def test_a_projection_of_the_defaults_is_left_out_without_a_prediction(load: Load) -> None:
    by_default = study_of("[1, 2]", ", predict: false") + "defaults: {project: {devices: [8]}}\n"
    assert AllReducePlan.of(load(by_default)).jobs == {}


def test_a_site_of_whole_nodes_predicts_no_part_of_one(tmp_path: Path) -> None:
    slurm = {"account": "a", "partial_nodes": "refused"}
    with pytest.raises(Exception, match=r"project.devices\[0\] is 2, part of a node of 4 devices"):
        on_cluster(tmp_path, study_of('["1x4"]', ", project: {devices: [2, 8]}"), slurm=slurm)


HEADER = (
    "experiment,series,devices,nodes,shape,measured_point,speedup,speedup_low,speedup_high,"
    "parallel_efficiency,device_hours_per_epoch\n"
)
ROWS = (
    "strong,all runs,1,1,1x1,True,1.0,0.98,1.02,1.0,0.006\n"
    "strong,all runs,4,1,1x4,True,3.412,3.09,3.61,0.853,0.0061\n"
    "strong,all runs,64,16,16x4,False,38.4,30.2,41.7,0.6,0.012\n"
    "strong,all runs,128,32,32x4,False,50,30,60,0.39,0.02\n"
)
PROJECTED = ", project: {devices: [64]}, epochs: 10"


def predict(results: Path, rows: str = HEADER + ROWS) -> None:
    (results / "strong").mkdir(exist_ok=True)
    (results / "strong" / "prediction.csv").write_text(rows)
    told = {"notes": ["all runs: from 64 devices on, it shows."], "refused": {}}
    (results / "strong" / "prediction.json").write_text(json.dumps(told))


def test_a_projection_stands_for_the_prediction_that_it_was_made_from_and_for_no_later_one(
    load: Load, tmp_path: Path
) -> None:
    predict(tmp_path)
    folder = tmp_path / "strong"
    (folder / "projection.csv").write_text(HEADER + ROWS.replace("38.4,30.2,41.7", "20.4,18.2,22.7"))
    (folder / "projection.json").write_text(json.dumps({"notes": ["from its own steps."], "refused": {}}))
    study = load(study_of("[1, 2, 4]", PROJECTED))

    assert "strong on 64 devices (16x4): 20 (18 to 23) times the speed" in plan_table(study, tmp_path)
    assert read_remarks(folder) == ["from its own steps."]
    later = (folder / "projection.csv").stat().st_mtime + 1
    os.utime(folder / "prediction.csv", (later, later))
    assert "strong on 64 devices (16x4): 38 (30 to 42) times the speed" in plan_table(study, tmp_path)
    assert read_remarks(folder) == ["all runs: from 64 devices on, it shows."]


def test_the_plan_shows_what_to_expect_before_a_large_job(load: Load, tmp_path: Path) -> None:
    predict(tmp_path)

    assert plan_table(load(study_of("[1, 2, 4]", PROJECTED)), tmp_path) == (
        "run             nodes x devices  batch/device  epochs  expected speedup  device-hours\n"
        "strong/d1.r1-2  1x1              192           10      1                 ~0.12\n"
        "strong/d2.r1-2  1x2              96            10                        <= 0.667\n"
        "strong/d4.r1-2  1x4              48            10      3.4 (3.1 to 3.6)  ~0.12\n"
        "6 runs, at most 2.333 device-hours. Devices are CPU processes (no GPU in use), 4 per node.\n"
        "Expected speedups, and device-hours marked ~, are predicted from 1-device runs and the measured "
        "all-reduce. They are of training only: start-up and evaluation are not included.\n"
        "strong on 64 devices (16x4): 38 (30 to 42) times the speed, efficiency 0.60, ~0.12 device-hours a "
        "run: predicted, not measured."
    )


@pytest.mark.parametrize(
    "text",
    ["", HEADER, HEADER + "strong,all runs,4\n", HEADER + ROWS.replace("3.412", "nan"), "no,columns\n1,2\n"],
    ids=["empty", "no rows", "cut", "not a number", "other columns"],
)
def test_a_damaged_prediction_is_none(load: Load, tmp_path: Path, text: str) -> None:
    study = load(study_of("[1, 4]", PROJECTED))
    before = plan_table(study, tmp_path)
    predict(tmp_path, text)

    assert plan_table(study, tmp_path) == before


def test_what_is_paid_in_whole_nodes_is_expected_in_whole_nodes(tmp_path: Path) -> None:
    slurm = {"account": "a", "exclusive": True}
    study = on_cluster(tmp_path, study_of("[1, 4]", ", epochs: 10"), slurm=slurm)
    predict(tmp_path)

    first, second = plan_table(study, tmp_path).splitlines()[1:3]

    assert " ~0.48 " in first
    assert " ~0.12 " in second


def test_the_plan_is_shown_again_once_it_has_predictions(load: Load, tmp_path: Path) -> None:
    study = load(study_of("[1, 4]", PROJECTED))
    earlier = EarlierFiles()
    assert predicted_plan(study, tmp_path, earlier) == ""
    predict(tmp_path)

    told = predicted_plan(study, tmp_path, earlier)

    assert told == plan_table(study, tmp_path) + "\nstrong: all runs: from 64 devices on, it shows."
    earlier.look(tmp_path)
    assert predicted_plan(study, tmp_path, earlier) == ""


def test_what_an_earlier_configuration_predicted_is_not_shown_where_nothing_is_predicted(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "results" / "strong"
    folder.mkdir(parents=True)
    (folder / "prediction.csv").write_text(
        "series,shape,speedup,speedup_low,speedup_high,parallel_efficiency,device_hours_per_epoch\n"
        "all runs,1x4,3.5,3.4,3.6,0.9,0.1\n"
    )
    wanted = on_cluster(tmp_path, study_of("[1, 4]"))
    unwanted = on_cluster(tmp_path, study_of("[1, 4]", ", predict: false"))
    assert "3.5 (3.4 to 3.6)" in plan_table(wanted, tmp_path / "results")
    assert "3.5" not in plan_table(unwanted, tmp_path / "results")
