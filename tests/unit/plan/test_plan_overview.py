"""What stands in the terminal: the plan before a study, its decisions after it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.planting import leave_result, provenance, run_record
from tests.unit.plan.conftest import Load

from scalewise.analysis.decision.card import Card
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.study import load_study
from scalewise.plan.terminal.final_message import EarlierFiles, decisions
from scalewise.plan.terminal.plan_table import plan_table
from scalewise.records import SUMMARY, later

STUDY = """\
defaults: {dataset: digits, model: digits_cnn, repeats: 2, epochs: 5, devices: [1, 2]}
experiments:
  strong: {global_batch_size: 240, sweep: {gradient_as_bucket_view: [true]}}
  weak: {scaling: weak, batch_size_per_device: 64, devices: ["2x2"], repeats: 1, runtime_minutes: 30}
"""


def finish(run: RunDefinition, results: Path, seconds: int) -> Path:
    """Leave the summary of a run that took so long, over midnight."""
    began = "2026-03-01T23:59:30+00:00"
    origin = provenance(run, started_at=began, ended_at=later(began, seconds))
    folder = results / run.experiment / "runs" / run.run
    return leave_result(folder, run_record(run, provenance=origin)) / SUMMARY


def test_the_plan_shows_every_point_with_the_most_that_it_can_cost(load: Load, tmp_path: Path) -> None:
    assert plan_table(load(STUDY), tmp_path) == (
        "run                            nodes x devices  batch/device  epochs  device-hours\n"
        "strong/d1.bucket-view-on.r1-2  1x1              240           5       <= 0.333\n"
        "strong/d2.bucket-view-on.r1-2  1x2              120           5       <= 0.667\n"
        "weak/d2x2.r1                   2x2              64            5       <= 2.000\n"
        "5 runs, at most 3.000 device-hours. Devices are CPU processes (no GPU in use), 4 per node.\n"
        "Warning: experiments.weak.devices has no 1-device run: speedups will be relative to 4 devices. "
        "Add 1 for a baseline."
    )


def test_the_plan_tells_a_batch_of_one_pass_from_a_step_of_several(load: Load, tmp_path: Path) -> None:
    table = plan_table(load(STUDY.replace("repeats: 2", "repeats: 2, accumulation_steps: 2")), tmp_path)

    assert "strong/d2.bucket-view-on.r1-2  1x2              60 (2 passes)   5       <= 0.667\n" in table


def test_runs_that_another_launcher_has_started_are_said_to_be_trained_again(
    load: Load, tmp_path: Path
) -> None:
    """As after an update: torchrun was the default on one machine once."""
    study = load(STUDY.replace('devices: ["2x2"], ', "devices: [1], launcher: torchrun, "))
    names = [("strong", f"d{devices}.bucket-view-on.r1") for devices in (1, 2)]
    for name in names:
        finish(study.runs[name].model_copy(update={"launcher": "torchrun"}), tmp_path, seconds=90)
    finish(study.runs["weak", "d1.r1"], tmp_path, seconds=90)

    said = [line for line in plan_table(study, tmp_path).splitlines() if "trained again" in line]

    assert said == [
        "Warning: strong: 2 finished runs are trained again, because launcher changed from torchrun to "
        "popen; `launcher:` in the site file keeps it."
    ]


def test_finished_runs_of_other_settings_are_trained_again_and_tell_no_cost(
    load: Load, tmp_path: Path
) -> None:
    before = load(STUDY)
    for devices in (1, 2):
        finish(before.runs["strong", f"d{devices}.bucket-view-on.r1"], tmp_path, seconds=90)

    table = plan_table(load(STUDY.replace("epochs: 5", "epochs: 20000")), tmp_path)

    said = "strong: 2 finished runs are trained again, because epochs changed from 5 to 20000."
    assert f"Warning: {said}" in table.splitlines()
    assert "5 runs, at most 3.000 device-hours." in table
    assert "trained again" not in plan_table(before, tmp_path)


def test_a_report_on_another_study_is_said_to_be_replaced(load: Load, tmp_path: Path) -> None:
    for names, warned in ((["strong", "weak"], False), (["other", "weak"], True)):
        answers = json.dumps([{"experiment": name} for name in names])
        (tmp_path / "decision.json").write_text(answers, encoding="utf-8")
        assert (
            f"{tmp_path}/report.html is on other, not in this study." in plan_table(load(STUDY), tmp_path)
        ) is warned


def test_the_cost_of_a_finished_run_replaces_its_limit(load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    finish(study.runs["strong", "d2.bucket-view-on.r1"], tmp_path, seconds=90)

    table = plan_table(study, tmp_path)

    assert "strong/d1.bucket-view-on.r1-2  0 of 2  1x1              240           5       <= 0.333\n" in table
    assert "strong/d2.bucket-view-on.r1-2  1 of 2  1x2              120           5       0.100\n" in table
    assert "\n1 of 5 runs are done. To do: 4 runs, at most 2.383 device-hours." in table


def test_any_finished_repeat_tells_what_a_point_costs(load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    finish(study.runs["strong", "d2.bucket-view-on.r2"], tmp_path, seconds=90)

    assert "120           5       0.100\n" in plan_table(study, tmp_path)


def test_what_is_left_costs_what_was_measured(load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    *others, last = study.runs.values()
    for run in others:
        finish(run, tmp_path, seconds=90)
    assert "\n4 of 5 runs are done. To do: 1 run, " in plan_table(study, tmp_path)

    finish(last, tmp_path, seconds=90)
    assert "\nAll 5 runs are done." in plan_table(study, tmp_path)
    more = plan_table(load(STUDY.replace("repeats: 2", "repeats: 3")), tmp_path)
    # one run more on 1 and on 2 devices for 90 seconds
    assert "\n5 of 7 runs are done. To do: 2 runs, about 0.075 device-hours." in more


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"provenance": null}', "[" * 100_000])
def test_a_damaged_summary_is_no_measurement(text: str, load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    finish(study.runs["weak", "d2x2.r1"], tmp_path, seconds=90).write_text(text)

    table = plan_table(study, tmp_path)
    assert "<= 2.000" in table
    (warning,) = [line for line in table.splitlines() if "summary.json" in line]
    assert str(tmp_path / "weak" / "runs" / "d2x2.r1" / "summary.json") in warning
    assert "Delete" in warning


def test_a_named_pipe_as_a_summary_is_not_waited_for(load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    path = finish(study.runs["weak", "d2x2.r1"], tmp_path, seconds=90)
    path.unlink()
    os.mkfifo(path)

    assert f"{path}: Not a regular file" in plan_table(study, tmp_path)


def test_a_long_plan_is_cut_after_40_rows_and_counted_whole(load: Load, tmp_path: Path) -> None:
    sweep = "gradient_as_bucket_view: [true]"
    study = load(STUDY.replace(sweep, f"epochs: {list(range(3, 24))}"))

    lines = plan_table(study, tmp_path).splitlines()

    assert lines[40].startswith("strong/d2.epochs-22.r1-2 ")
    assert lines[41] == "... and 3 more"
    assert lines[42].startswith("85 runs, at most 23.000 device-hours.")


CLUSTER = """\
accelerator: cuda
devices_per_node: 4
cpus_per_node: 64
memory_gb_per_node: 240
max_nodes: 2
slurm:
"""
ON_CLUSTER = {
    "dataset": "digits",
    "model": "linear",
    "global_batch_size": 240,
    "devices": [1, 2, 8],
    "repeats": 2,
    "runtime_minutes": 30,
    "cpus_per_device": 8,
}


def cluster_table(tmp_path: Path, *slurm: str) -> str:
    site = tmp_path / "site.yaml"
    site.write_text(CLUSTER + "".join(f"  {line}\n" for line in slurm), encoding="utf-8")
    more = ON_CLUSTER | {"devices": [1], "runtime_minutes": 50}
    study = load_study({"experiments": {"a": ON_CLUSTER, "b": more}}, (), site)
    return plan_table(study, tmp_path)


def without_sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_on_a_cluster_the_plan_shows_what_sbatch_will_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_sbatch(monkeypatch, tmp_path)

    assert cluster_table(tmp_path, "account: nn9999k", "constraint: a&b", 'longest_walltime: "01:00:00"') == (
        "run        nodes x devices  batch/device  epochs  device-hours  sbatch\n"
        "a/d1.r1-2  1x1              240           10      <= 1.000      "
        "--nodes=1 --ntasks-per-node=1 --signal=USR1@30 "
        "--cpus-per-task=8 --gres=gpu:1 --mem=60000 --time=32\n"
        "a/d2.r1-2  1x2              120           10      <= 2.000      "
        "--nodes=1 --ntasks-per-node=2 --signal=USR1@30 "
        "--cpus-per-task=8 --gres=gpu:2 --mem=120000 --time=32\n"
        "a/d8.r1-2  2x4              30            10      <= 8.000      "
        "--nodes=2 --ntasks-per-node=4 --signal=USR1@30 "
        "--cpus-per-task=8 --gres=gpu:4 --mem=240000 --time=32\n"
        "b/d1.r1-2  1x1              240           10      <= 1.667      "
        "--nodes=1 --ntasks-per-node=1 --signal=USR1@30 "
        "--cpus-per-task=8 --gres=gpu:1 --mem=60000 --time=52\n"
        "8 runs, at most 12.667 device-hours. Devices are GPUs, 4 per node.\n"
        "Each run is a job of its own: account nn9999k, partition by default, constraint a&b. "
        "The longest requests 52 of 60 minutes.\n"
        "Warning: there is no sbatch on this machine, so the plan cannot be started here."
    )


def test_without_a_known_limit_the_longest_job_is_named_alone(tmp_path: Path) -> None:
    assert "The longest requests 52 minutes." in cluster_table(tmp_path, "account: a")


def test_a_run_that_takes_several_jobs_is_announced(tmp_path: Path) -> None:
    lines = cluster_table(tmp_path, "account: a", 'longest_walltime: "00:45:00"').splitlines()
    (said,) = [line for line in lines if "one after the other" in line]
    assert said == (
        "A run of b takes up to 2 jobs one after the other, 50 minutes in jobs of at most 45: each resumes "
        "from the checkpoint of the one before."
    )


def test_where_there_is_sbatch_nothing_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert "Warning" not in cluster_table(tmp_path, "account: a")


@pytest.mark.parametrize(
    ("line", "hours"),
    [
        pytest.param("partial_nodes: allowed", ["1.000", "2.000", "8.000", "1.667"], id="shared"),
        pytest.param("partial_nodes: billed-whole", ["4.000", "4.000", "8.000", "6.667"], id="billed whole"),
        pytest.param("exclusive: true", ["4.000", "4.000", "8.000", "6.667"], id="exclusive"),
    ],
)
def test_device_hours_are_those_that_are_paid(line: str, hours: list[str], tmp_path: Path) -> None:
    table = cluster_table(tmp_path, line)

    assert [row.split("<= ")[1].split()[0] for row in table.splitlines()[1:5]] == hours
    assert f"8 runs, at most {sum(map(float, hours)):.3f} device-hours." in table


def test_gpus_are_called_gpus(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("accelerator: cuda\ndevices_per_node: 8\ncpus_per_node: 64\n")
    own = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}

    table = plan_table(load_study({"experiments": {"a": own}}, (), site), tmp_path)

    assert table.endswith("3 runs, at most 0.500 device-hours. Devices are GPUs, 8 per node.")


def leave_decisions(results: Path) -> Path:
    answers = [
        {"experiment": name, "card": asdict(Card(verdict)), "other_trainings": [], "cautions": []}
        for name, verdict in (("strong", "Use 2 GPUs."), ("weak", "Use 4 GPUs."))
    ]
    (results / "decision.json").write_text(json.dumps(answers))
    report = results / "report.html"
    report.write_text("")
    return report


def test_a_finished_study_ends_with_its_decisions_and_the_report(tmp_path: Path) -> None:
    report = leave_decisions(tmp_path)

    assert decisions(tmp_path).splitlines() == [
        "Experiment  How sure  Answer",
        "strong      open      Use 2 GPUs.",
        "weak        open      Use 4 GPUs.",
        "",
        "strong: Use 2 GPUs.",
        "",
        "weak: Use 4 GPUs.",
        f"Report: {report}",
    ]


def test_a_report_that_this_command_did_not_make_is_not_announced(tmp_path: Path) -> None:
    report = leave_decisions(tmp_path)
    earlier = EarlierFiles()
    earlier.look(tmp_path)

    assert decisions(tmp_path, earlier) == ""
    report.write_text("anew")
    assert decisions(tmp_path, earlier) != ""


def test_without_a_report_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert decisions(tmp_path) == ""
