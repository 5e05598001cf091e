"""`snakemake predict`: expectations before any large job, from an all-reduce that is measured once."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from tests.machine import skip_without_two_cores
from tests.planted_records import all_reduce, leave_result
from tests.prepared_digits import place_digits_of_study
from tests.workflow.workplace import SITE, LoginNode, Outcome, Workplace, running

from scalewise.plan.plan_file import MEASUREMENT_RETRIES
from scalewise.records import AllReduceMeasurement, read_summary, write_json

STUDY = """\
defaults: {dataset: digits, model: linear, epochs: 2, warmup_steps: 2, repeats: 2, learning_rate: 0.05}
experiments:
  strong: {global_batch_size: 256, devices: [1, 2], project: {devices: [4, 64]}}
  alone: {global_batch_size: 256, devices: [1]}
  unwanted: {global_batch_size: 256, devices: [1, 2], predict: false}
"""
OTHERS = "  others: {global_batch_size: 256, devices: [1, 2], launcher: spawn, project: {devices: [4, 64]}}\n"


def jobs(outcome: Outcome, rule: str) -> int:
    """How many jobs of a rule there were, or would be."""
    return len(re.findall(rf"^(?:local)?rule {rule}:$", outcome.text, re.MULTILINE))


def measurements(workplace: Workplace) -> list[Path]:
    return sorted((workplace.folder / "resources" / "collectives").rglob("*.*"))


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory, preloaded_python: Path) -> tuple[Workplace, Outcome]:
    """A study that was predicted, and nothing else."""
    skip_without_two_cores()
    workplace = Workplace(tmp_path_factory.mktemp("predicted"), preloaded_python)
    place_digits_of_study(workplace.folder)
    outcome = workplace.snakemake("--scheduler", "greedy", "predict", config=STUDY)
    assert outcome.code == 0, outcome.text
    return workplace, outcome


Predicted = tuple[Workplace, Outcome]


def test_a_prediction_measures_the_all_reduce_and_runs_before_any_large_job(predicted: Predicted) -> None:
    workplace, outcome = predicted
    assert outcome.text.index("rule measure_all_reduce:") < outcome.text.index("rule train:")
    results = workplace.folder / "results"
    assert sorted(path.parent.name for path in results.glob("*/runs/*/summary.json")) == ["d1.r1", "d1.r2"]
    assert sorted(path.parent.name for path in results.glob("*/prediction.csv")) == ["strong"]
    assert (results / "strong" / "prediction.json").exists()


def test_a_measurement_says_what_it_is_of(predicted: Predicted) -> None:
    (path,) = measurements(predicted[0])
    record = AllReduceMeasurement.model_validate_json(path.read_text())

    assert re.fullmatch(r"machine-[0-9a-f]{8}", path.parent.name)
    assert (str(record.shape), record.backend, record.launcher, record.error) == ("1x2", "gloo", "popen", "")
    assert len(record.hosts) == 1
    assert record.devices == ["CPU process", "CPU process"]
    assert {"torch", "python"} <= record.versions.keys()
    sizes = [reduction.bytes for reduction in record.reductions]
    assert sizes[0] == 4096
    assert sizes == sorted(set(sizes))
    for reduction in record.reductions:
        assert 5 <= len(reduction.seconds) <= 20
        assert min(reduction.seconds) > 0


def test_the_plan_then_shows_what_to_expect_and_what_was_not_measured(predicted: Predicted) -> None:
    workplace, outcome = predicted
    with (workplace.folder / "results" / "strong" / "prediction.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert {row["shape"] for row in rows} >= {"1x1", "1x2"}
    last = outcome.text[outcome.text.rindex("run             ") :]
    assert "expected speedup" in last.splitlines()[0]
    assert re.search(
        r"^strong/d2\.r1-2 +0 of 2 +1x2 +128 +2 +[0-9.]+ \([0-9.]+ to [0-9.]+\) +~0\.0", last, re.MULTILINE
    )
    again = workplace.snakemake("-n", "plan", config=STUDY).text
    assert "expected speedup" in again
    assert jobs(workplace.snakemake("-n", "predict", config=STUDY), "measure_all_reduce") == 0


def test_another_study_and_a_further_projection_measure_nothing_again(predicted: Predicted) -> None:
    further = STUDY.replace("[4, 64]", "[4, 64, 128]")
    dry = predicted[0].snakemake("-n", "predict", config=further + OTHERS)

    assert dry.code == 0, dry.text
    assert dry.trained == {"others/d1.r1", "others/d1.r2"}
    assert (jobs(dry, "measure_all_reduce"), jobs(dry, "compute_prediction")) == (0, 2)


def test_another_network_is_measured_and_trains_nothing(predicted: Predicted) -> None:
    dry = predicted[0].snakemake("-n", "predict", config=STUDY, site=SITE + 'prelude: ["export A=b"]\n')

    assert jobs(dry, "measure_all_reduce") == 1
    assert dry.trained == set()


def test_a_study_that_has_run_on_two_nodes_projects_from_its_own_steps(
    predicted: Predicted, tmp_path: Path
) -> None:
    workplace = Workplace(tmp_path, predicted[0].python)
    results = tmp_path / "results" / "strong"
    shutil.copytree(predicted[0].folder / "results" / "strong" / "runs", results / "runs")
    study = STUDY.replace("[1, 2], project: {devices: [4, 64]}", "[1, 4], project: {devices: [16]}")
    site = SITE + "max_nodes: 2\n"
    # what only a cluster could measure: all-reduces of an instant, and a step of 10 s on two nodes
    dry = workplace.snakemake("-n", "predict", config=study, site=site)
    shapes = dict(
        re.findall(r"^    output: (resources/collectives/\S+/(\S+)\.json)$", dry.text, re.MULTILINE)
    )
    assert sorted(shapes.values()) == ["1x2", "2x2"]
    for path, shape in shapes.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        write_json(tmp_path / path, all_reduce(shape, dict.fromkeys((4096, 2**26), [1e-4] * 5)))
    one = read_summary(results / "runs" / "d1.r1")
    assert one.measurements is not None
    windows = [
        window.model_copy(update={"seconds": 10.0 * window.steps}) for window in one.measurements.windows
    ]
    slow = one.measurements.model_copy(update={"windows": windows})
    leave_result(results / "runs" / "d4.r1", one.model_copy(update={"measurements": slow}))
    (results / "runs.csv").write_text("")

    rules = ("--allowed-rules", "compute_prediction", "compute_projection")
    outcome = workplace.snakemake("results/strong/projection.csv", *rules, config=study, site=site)

    assert outcome.code == 0, outcome.text
    steps = {}
    for name in ("prediction", "projection"):
        with (results / f"{name}.csv").open() as file:
            steps[name] = {row["shape"]: float(row["step_seconds"]) for row in csv.DictReader(file)}
    assert steps["projection"]["2x2"] == steps["prediction"]["2x2"] < 1
    assert steps["prediction"]["8x2"] < 1
    assert steps["projection"]["8x2"] > 10
    assert "from the study's own steps on 2x2" in (results / "projection.json").read_text()


FAILING = SITE + 'prelude: ["case $0-$* in *all_reduce*) exit 3;; esac"]\n'
PASSING = SITE + 'prelude: ["case $0-$* in *all_reduce*) test -e tried || { touch tried; exit 3; };; esac"]\n'
"""Sites where every measurement fails, and where the first rank of the first one does."""


def test_a_measurement_that_fails_keeps_no_study_from_its_end(workplace: Workplace) -> None:
    study = STUDY.replace("repeats: 2", "repeats: 1").replace(
        "devices: [1, 2], predict", "devices: [1], predict"
    )
    place_digits_of_study(workplace.folder)
    outcome = workplace.snakemake("predict", config=study, site=FAILING)

    assert outcome.code == 0, outcome.text
    assert outcome.text.count("Snakemake tries again.") == MEASUREMENT_RETRIES
    assert outcome.text.count("The study continues") == 1
    facts = json.loads((workplace.folder / "results" / "strong" / "prediction.json").read_text())
    assert "no rank started, and the process of a rank exited with code" in json.dumps(facts)
    # it is not kept: another study measures again
    assert measurements(workplace) == []
    after = workplace.snakemake("-n", "predict", config=study + OTHERS, site=FAILING)
    assert jobs(after, "measure_all_reduce") == 1


def test_a_failure_of_a_measurement_that_passes_is_tried_again(workplace: Workplace) -> None:
    skip_without_two_cores()
    place_digits_of_study(workplace.folder)
    outcome = workplace.snakemake("predict", config=STUDY, site=PASSING)

    assert outcome.code == 0, outcome.text
    assert outcome.text.count("Snakemake tries again.") == 1
    (path,) = measurements(workplace)
    record = AllReduceMeasurement.model_validate_json(path.read_text())
    assert record.error == ""
    assert record.reductions != []


@pytest.mark.fault(14)
def test_a_measurement_that_was_cut_off_leaves_nothing_and_is_made_again(workplace: Workplace) -> None:
    logs = workplace.folder / "logs" / "measure_all_reduce"
    with running(workplace.folder, workplace.python, STUDY, "predict") as snakemake:
        snakemake.wait_until(
            lambda: list(logs.glob("*/1x2.attempt-*/rank1.json")), "no measurement on two devices has begun"
        )
        os.killpg(snakemake.process.pid, signal.SIGINT)
        assert snakemake.end() != 0

    assert measurements(workplace) == []
    assert not list(logs.glob("*/*attempt*"))
    dry = workplace.snakemake("-n", "predict", "--rerun-incomplete", config=STUDY)
    assert jobs(dry, "measure_all_reduce") == 1


def test_the_dry_run_on_a_cluster_shows_four_nodes_that_are_measured_where_more_are_predicted(
    login_node: LoginNode,
) -> None:
    login_node.fill_in("profiles/slurm/site.yaml")
    study = STUDY.replace("[1, 2], project: {devices: [4, 64]}", "[1, 8], project: {devices: [64]}")
    login_node.write("study.yaml", study.replace("devices: [1, 2], predict", "devices: [1], predict"))

    dry = login_node.snakemake("-n", "--configfile", "study.yaml")

    assert dry.code == 0, dry.text
    measured = re.findall(r"^rule measure_all_reduce:\n    output: \S+/(\S+)\.json$", dry.text, re.MULTILINE)
    assert sorted(measured) == ["1x4", "2x4", "4x4"]
    # from the steps on two nodes, once they have run
    assert (jobs(dry, "compute_prediction"), jobs(dry, "compute_projection")) == (1, 1)
