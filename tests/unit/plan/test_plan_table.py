"""The plan in the terminal: each point with its cost, what was measured, predicted, and what comes next."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.golden import compare
from tests.planted_records import leave_result, provenance, run_record
from tests.planted_study import CHOOSING, PlantedStudy, overhead
from tests.stand_ins import stand_ins
from tests.unit.plan.conftest import Load
from tests.unit.plan.refusals import CPUS
from tests.unit.planted_rounds import FIRST, LAST, SECOND, THIRD, judged_point, leave, planted_round

from scalewise.analysis.rounds.sentences import round_lines
from scalewise.plan.config.experiment import Repeats
from scalewise.plan.runs.rounds import Round
from scalewise.plan.runs.run_definition import RunDefinition, parse_point_name
from scalewise.plan.terminal.choice_lines import most_of_a_round
from scalewise.plan.terminal.final_message import EarlierFiles
from scalewise.plan.terminal.plan_table import plan_table, predicted_plan
from scalewise.plan.terminal.predictions import read_remarks
from scalewise.records import SUMMARY, later

STUDY = """\
defaults: {dataset: digits, model: digits_cnn, repeats: 2, epochs: 5, devices: [1, 2]}
experiments:
  strong: {global_batch_size: 240, sweep: {gradient_as_bucket_view: [true]}}
  weak: {scaling: weak, batch_size_per_device: 64, devices: ["2x2"], repeats: 1, runtime_minutes: 30}
"""
ON_TWO = ("strong", "d2.bucket-view-on.r1")


def finish(run: RunDefinition, results: Path) -> Path:
    """Leave the summary of a run of 90 seconds, over midnight."""
    began = "2026-03-01T23:59:30+00:00"
    origin = provenance(run, started_at=began, ended_at=later(began, 90))
    folder = results / run.experiment / "runs" / run.run
    return leave_result(folder, run_record(run, provenance=origin)) / SUMMARY


ON_CLUSTER = """\
defaults: {dataset: digits, model: linear, global_batch_size: 240, repeats: 2, cpus_per_device: 8}
experiments:
  a: {devices: [1, 2, 8], runtime_minutes: 30}
  b: {devices: [1], runtime_minutes: 50}
"""
GPUS = CPUS.replace("cpu\n", "cuda\n").replace("node: 8", "node: 64") + "memory_gb_per_node: 240\n"
REPEATED = """\
defaults: {dataset: digits, model: digits_cnn, global_batch_size: 240, devices: [1, 2], predict: false}
experiments:
  digits: {repeats: {min: 3, max: 10, until_interval: 0.03}}
"""
PLANS: dict[str, tuple[str, str]] = {
    "two experiments": (STUDY, CPUS),
    "passes": (STUDY.replace("repeats: 2", "repeats: 2, accumulation_steps: 2"), CPUS),
    "steps": (STUDY.replace("repeats: 2", "repeats: 2, steps: 500"), CPUS),
    "up to some steps": (
        STUDY.replace("repeats: 2", "repeats: 2, steps: {most: 500, until_interval: 0.01}"),
        CPUS,
    ),
    "repeats until an interval": (REPEATED, CPUS),
    "a long plan": (
        STUDY.replace("gradient_as_bucket_view: [true]", f"epochs: {list(range(3, 24))}"),
        CPUS,
    ),
    "a cluster": (
        ON_CLUSTER,
        f"{GPUS}slurm: {{account: nn9999k, constraint: a&b, longest_walltime: '01:00:00'}}\n",
    ),
    "a cluster without a known limit": (ON_CLUSTER, f"{GPUS}slurm: {{account: a}}\n"),
    "a cluster whose jobs are shorter": (
        ON_CLUSTER,
        f"{GPUS}slurm: {{account: a, longest_walltime: '00:45:00'}}\n",
    ),
}
TWO_PARTITIONS = (
    "accelerator: cuda\ncpus_per_node: 64\nslurm: {account: a}\npartitions:\n"
    "  a100: {partition: gpu-a100, devices_per_node: 4, max_nodes: 4,\n"
    "    test_partition: {name: gputest, longest_walltime: '00:40:00', max_nodes: 1}}\n"
    "  h200: {partition: gpu-h200, devices_per_node: 8, longest_walltime: '01:00:00', constraint: nvlink}\n"
    "default_partition: a100\n"
)
PLANS["two partitions"] = (
    ON_CLUSTER.replace("[1, 2, 8],", "[1, 8, 16], partitions: all,").replace("device: 8", "device: 4"),
    TWO_PARTITIONS,
)
PLANS["chosen counts of two partitions"] = (
    "experiments:\n  a: {dataset: digits, model: linear, global_batch_size: 256, devices: {up_to: 16},\n"
    "    partitions: [h200, a100], budget: {device_hours: 100}}\n",
    TWO_PARTITIONS,
)
TESTS = "name: gputest, longest_walltime: '00:40:00', max_nodes"
PLANS |= {
    f"a test partition: {name}": (ON_CLUSTER, f"{GPUS}slurm: {{test_partition: {{{limits}}}{use}}}\n")
    for name, limits, use in (
        ("some runs fit", f"{TESTS}: 1", ""),
        ("few devices, and it is used", f"{TESTS}: 2, max_devices: 1", ", use_test_partition: true"),
        ("a QOS, and no run fits", "qos: devel, longest_walltime: '00:10:00', max_nodes: 2", ""),
    )
}
ROUNDS = {
    "first": FIRST,
    "repeats": THIRD,
    "last": LAST,
    "budget": planted_round(
        2, {1: (2, 2, "not needed"), 4: (1, 1, "not needed")}, 4, {8: 0.2, 16: 0.1}, budget=4.0
    ),
    "budget for repeats": planted_round(
        2, {1: (2, 2, "over the budget"), 4: (1, 1, "over the budget")}, 4, {}, budget=4.0
    ),
    "no answer": planted_round(2, {1: (2, 2, "not needed"), 16: (1, 1, "not needed")}, None, {8: 0.0}),
    "no baseline": planted_round(1, {}, None, {}, other_answer=1.0),
}
WORDS = Path(__file__).with_name("plan_tables.txt")


def test_plans_are_shown_as_they_are_kept(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # no sbatch, of which the plan warns
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = {name: plan_table(load(*plan), tmp_path) for name, plan in PLANS.items()}
    predict(tmp_path)
    shown["predictions"] = plan_table(load(PROJECTED), tmp_path)
    shown |= {f"a round: {name}": "\n".join(round_lines(judged)) for name, judged in ROUNDS.items()}
    study = chosen_study(tmp_path / "chosen")
    shown["chosen counts"] = "\n".join(shown_of(study))
    for number, judged in enumerate((FIRST, SECOND, THIRD, LAST), start=1):
        study.make_runs()
        leave(study.folder, judged)
        shown[f"chosen counts after round {number}"] = "\n".join(shown_of(study))
    text = "\n".join(f"# {name}\n\n{table}\n" for name, table in shown.items())
    compare(WORDS, text, __file__, capsys)


def test_a_plan_that_can_be_started_has_no_warning(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(tmp_path / "programs", {"sbatch": ""})
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    assert "Warning" not in plan_table(load(*PLANS["a cluster"]), tmp_path)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        pytest.param("epochs: 20000", "because epochs changed from 5 to 20000.", id="other settings"),
        pytest.param(
            "epochs: 5, launcher: spawn",
            "because launcher changed from popen to spawn; `launcher:` in the site file keeps it.",
            id="another launcher",
        ),
    ],
)
def test_finished_runs_of_other_settings_are_trained_again_and_tell_no_cost(
    now: str, said: str, load: Load, tmp_path: Path
) -> None:
    before = load(STUDY)
    for devices in (1, 2):
        finish(before.runs["strong", f"d{devices}.bucket-view-on.r1"], tmp_path)

    table = plan_table(load(STUDY.replace("epochs: 5", now)), tmp_path)

    assert f"Warning: strong: 2 finished runs are trained again, {said}" in table.splitlines()
    assert "5 runs, at most 3.000 device-hours." in table
    assert "trained again" not in plan_table(before, tmp_path)


def test_a_report_on_another_study_is_said_to_be_replaced(load: Load, tmp_path: Path) -> None:
    for names, warned in ((["strong", "weak"], False), (["other", "weak"], True)):
        answers = json.dumps([{"experiment": name} for name in names])
        (tmp_path / "decision.json").write_text(answers, encoding="utf-8")
        table = plan_table(load(STUDY), tmp_path)
        assert (f"{tmp_path}/report.html is on other, not in this study." in table) is warned


def test_what_is_left_costs_what_was_measured(load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    finish(study.runs[ON_TWO], tmp_path)
    table = plan_table(study, tmp_path)
    assert "strong/d1.bucket-view-on.r1-2  0 of 2  1x1              240           5       <= 0.333\n" in table
    assert "strong/d2.bucket-view-on.r1-2  1 of 2  1x2              120           5       0.100\n" in table
    assert "\n1 of 5 runs are done. To do: 4 runs, at most 2.383 device-hours." in table

    for run in study.runs.values():
        finish(run, tmp_path)
    assert "\nAll 5 runs are done." in plan_table(study, tmp_path)
    more = plan_table(load(STUDY.replace("repeats: 2", "repeats: 3")), tmp_path)
    # one run more on 1 and on 2 devices for 90 seconds
    assert "\n5 of 7 runs are done. To do: 2 runs, about 0.075 device-hours." in more


@pytest.mark.parametrize("text", ["", "[]", '{"provenance": null}', "[" * 100_000, None])
def test_a_damaged_summary_is_no_measurement(text: str | None, load: Load, tmp_path: Path) -> None:
    study = load(STUDY)
    path = finish(study.runs["weak", "d2x2.r1"], tmp_path)
    if text is None:
        path.unlink()
        os.mkfifo(path)
    else:
        path.write_text(text)

    table = plan_table(study, tmp_path)
    assert "<= 2.000" in table
    (warning,) = [line for line in table.splitlines() if str(path) in line]
    assert ("Not a regular file" if text is None else "Delete") in warning


@pytest.mark.parametrize(
    ("line", "hours"),
    [
        pytest.param("partial_nodes: allowed", ["1.000", "2.000", "8.000", "1.667"], id="shared"),
        pytest.param("partial_nodes: billed-whole", ["4.000", "4.000", "8.000", "6.667"], id="billed whole"),
        pytest.param("exclusive: true", ["4.000", "4.000", "8.000", "6.667"], id="exclusive"),
    ],
)
def test_device_hours_are_those_that_are_paid(
    line: str, hours: list[str], load: Load, tmp_path: Path
) -> None:
    table = plan_table(load(ON_CLUSTER, f"{GPUS}slurm: {{{line}}}\n"), tmp_path)

    assert [row.split("<= ")[1].split()[0] for row in table.splitlines()[1:5]] == hours
    assert f"8 runs, at most {sum(map(float, hours)):.3f} device-hours." in table


def test_the_plan_shows_the_repeats_that_rounds_have_asked_for(load: Load, tmp_path: Path) -> None:
    study = load(REPEATED)
    rule = Repeats(min=3, max=10, until_interval=0.03)
    for number, (asked, after) in enumerate(((3, 6), (6, 6)), start=1):
        points = [judged_point("d1", 3, 3, "narrow enough"), judged_point("d2", asked, after, "too wide")]
        leave(tmp_path / "digits", Round(experiment="digits", number=number, rule=rule, points=points))
        shown = plan_table(study, tmp_path)
        assert ("digits/d2.r1-6 (up to 10)" if number == 1 else "digits/d2.r1-6  1x2") in shown
    assert "digits/d1.r1-3  1x1" in shown
    assert "\n9 runs, " in shown
    assert "most repeats" not in shown
    assert "digits/d1.r1-3 (up to 20)" in plan_table(load(REPEATED.replace("10", "20")), tmp_path)


PROJECTED = """\
experiments:
  strong:
    dataset: digits
    model: linear
    global_batch_size: 192
    repeats: 2
    devices: [1, 2, 4]
    project: {devices: [64]}
    epochs: 10
"""
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


def predict(results: Path, rows: str = HEADER + ROWS, name: str = "prediction") -> None:
    (results / "strong").mkdir(exist_ok=True)
    (results / "strong" / f"{name}.csv").write_text(rows)
    told = {"notes": [f"all runs: of the {name}."], "refused": {}}
    (results / "strong" / f"{name}.json").write_text(json.dumps(told))


def test_a_projection_stands_for_the_prediction_that_it_was_made_from_and_for_no_later_one(
    load: Load, tmp_path: Path
) -> None:
    predict(tmp_path)
    predict(tmp_path, HEADER + ROWS.replace("38.4,30.2,41.7", "20.4,18.2,22.7"), "projection")
    study, folder = load(PROJECTED), tmp_path / "strong"

    assert "strong on 64 devices (16x4): 20 (18 to 23) times the speed" in plan_table(study, tmp_path)
    assert read_remarks(folder) == ["all runs: of the projection."]
    newer = (folder / "projection.csv").stat().st_mtime + 1
    os.utime(folder / "prediction.csv", (newer, newer))
    assert "strong on 64 devices (16x4): 38 (30 to 42) times the speed" in plan_table(study, tmp_path)
    assert read_remarks(folder) == ["all runs: of the prediction."]


@pytest.mark.parametrize(
    "text",
    ["", HEADER, HEADER + "strong,all runs,4\n", HEADER + ROWS.replace("3.412", "nan"), "no,columns\n1,2\n"],
    ids=["empty", "no rows", "cut", "not a number", "other columns"],
)
def test_a_damaged_prediction_is_none(load: Load, tmp_path: Path, text: str) -> None:
    study = load(PROJECTED)
    before = plan_table(study, tmp_path)
    predict(tmp_path, text)

    assert plan_table(study, tmp_path) == before


def test_what_is_paid_in_whole_nodes_is_expected_in_whole_nodes(load: Load, tmp_path: Path) -> None:
    study = load(PROJECTED, f"{GPUS}slurm: {{account: a, exclusive: true}}\n")
    predict(tmp_path)

    first, _, third = plan_table(study, tmp_path).splitlines()[1:4]

    assert " ~0.48 " in first
    assert " ~0.12 " in third


def test_the_plan_is_shown_again_once_it_has_predictions_that_are_wanted(load: Load, tmp_path: Path) -> None:
    study, earlier = load(PROJECTED), EarlierFiles()
    assert predicted_plan(study, tmp_path, earlier) == ""
    predict(tmp_path)

    shown = plan_table(study, tmp_path)
    assert predicted_plan(study, tmp_path, earlier) == f"{shown}\nstrong: all runs: of the prediction."
    earlier.look(tmp_path)
    assert predicted_plan(study, tmp_path, earlier) == ""
    unwanted = load(PROJECTED.replace("project: {devices: [64]}", "predict: false"))
    assert "3.4 (3.1 to 3.6)" not in plan_table(unwanted, tmp_path)


def chosen_study(folder: Path, old: str = "", new: str = "") -> PlantedStudy:
    """The study that chooses its device counts, with this text in place of another."""
    assert old in CHOOSING
    return PlantedStudy(folder, CHOOSING.replace(old, new), overhead(0.1))


def shown_of(study: PlantedStudy) -> list[str]:
    return plan_table(study.study, study.results).splitlines()


def test_a_budget_is_the_most_that_the_study_costs_and_that_a_round_takes(tmp_path: Path) -> None:
    study = chosen_study(tmp_path, "steps: 300", "steps: 300\n    budget: {device_hours: 2}")
    assert shown_of(study)[-2:] == [
        "  5 further counts (2 to 16 devices) are measured if the answer needs them: a round takes "
        "at most 2 runs and 2.00 device-hours",
        "  limit: 2 device-hours by its budget, of which 2.00 are left",
    ]
    assert study.make_runs() == ["d1.r1", "d1.r2"]
    # two runs of 30 s and 300 steps on one device
    assert shown_of(study)[-1] == "  limit: 2 device-hours by its budget, of which 1.98 are left"


def test_what_is_predicted_of_counts_that_are_not_asked_for_is_told_until_a_round_knows_better(
    tmp_path: Path,
) -> None:
    study = chosen_study(tmp_path, "predict: false", "predict: true")
    study.folder.mkdir(parents=True)
    columns = "series,shape,speedup,speedup_low,speedup_high,parallel_efficiency,device_hours_per_epoch"
    rows = ["all runs,1x1,1,1,1,1,", "all runs,1x4,3.4,3.1,3.6,0.85,", "all runs,4x4,12,9,13,0.75,"]
    (study.folder / "prediction.csv").write_text("\n".join([columns, *rows]))
    told = "  predicted speedups: 3.4 (3.1 to 3.6) on 4, 12 (9.0 to 13) on 16 devices"

    assert told in shown_of(study)
    leave(study.folder, FIRST)
    assert told not in shown_of(study)


def test_counts_that_the_batch_leaves_out_are_named(tmp_path: Path) -> None:
    weak = "scaling: weak\n    batch_size_per_device: 16"
    lines = shown_of(chosen_study(tmp_path, weak, "scaling: strong\n    global_batch_size: 256"))
    assert "gpt chooses among 5 counts that fill nodes of 4 devices: 1, 2, 4, 8, 16" in lines
    assert "  left out, as global_batch_size is not divisible by it: 12" in lines


def test_each_series_has_lines_of_its_own(tmp_path: Path) -> None:
    sweep = "steps: 300\n    sweep: {gradient_as_bucket_view: [false, true]}"
    study = chosen_study(tmp_path, "steps: 300", sweep)
    labels = ("bucket-view-off", "bucket-view-on")
    leave(
        study.folder,
        planted_round(
            1, {1: (2, 2, "not needed"), 8: (0, 1, "may be the answer")}, None, {8: 0.3}, series=labels
        ),
    )

    lines = shown_of(study)
    for label in labels:
        assert f"  {label}: next: 1 run on 8 devices (may be the answer, with a chance of 30 %)" in lines
    assert any(line.startswith("gpt (bucket-view-on), round 1: ") for line in round_lines(study.rounds()[0]))


@pytest.mark.parametrize("share", [0.02, 0.15])
def test_no_round_asks_for_more_than_the_plan_said(share: float, tmp_path: Path) -> None:
    """The plan's bound, and what the engine really asks for, round by round."""
    study = PlantedStudy(tmp_path, CHOOSING, overhead(share, scatter=0.02))
    rule, hours, rounds = Repeats(min=3, max=3), 10 / 60, 0
    while rounds < 20 and (rounds == 0 or study.rounds()[-1].requests_more):
        rounds += 1
        study.make_runs()
        found = {parse_point_name(point.point)[0]: point for point in study.judge().points}
        asked = [found[each].asked for each in sorted(found)]
        more = {each: point.next_asked - point.asked for each, point in found.items()}
        runs, most = most_of_a_round(asked, [each * hours for each in sorted(found)], rule)
        assert sum(more.values()) <= runs
        assert sum(count * each * hours for each, count in more.items()) <= most + 1e-9
    assert 2 < rounds < 20
