"""Studies of programs, from their records to the report: planted speeds are found, the unknown is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.planted_records import (
    DDP,
    OWN_INTERVAL,
    STEPS,
    experiment,
    program_experiment,
    write_program_run,
    write_run,
)
from tests.unit.analysis.planted_tables import concluded, read_json
from tests.unit.analysis.report_page import Page, cells

from scalewise.analysis.analysis_spec import AnalysisSpec
from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.experiment_results import ExperimentResults
from scalewise.analysis.report import epoch_figures, step_figures
from scalewise.analysis.report.drawing import draw
from scalewise.analysis.report.figures import FIGURES
from scalewise.analysis.report.page import write_report
from scalewise.analysis.tables import collect
from scalewise.plan.config.experiment import Experiment, ProgramExperiment

pytestmark = pytest.mark.slow

SCATTER = (0.99, 1.0, 1.01)


def write_runs(folder: Path, spec: ProgramExperiment, devices: int, seconds: float, **more: Any) -> None:
    """Write three runs on some devices whose steps take so many seconds, and what else scales with them."""
    for repeat, factor in enumerate(SCATTER, start=1):
        scaled: dict[str, Any] = {
            key: value * factor if isinstance(value, float) else value for key, value in more.items()
        }
        run = f"d{devices}.r{repeat}"
        write_program_run(folder / "study/runs", run, spec, seconds * factor, **scaled)


def write_study(folder: Path, spec: ProgramExperiment, steps: Mapping[int, float], **more: Any) -> None:
    for devices, seconds in steps.items():
        write_runs(folder, spec, devices, seconds, **more)


def report_on(folder: Path, spec: ProgramExperiment | Experiment) -> tuple[dict[str, Any], str]:
    """The decision and the report's HTML, by way of all files between."""
    decision = concluded(folder / "study", spec)
    results = ExperimentResults.read(AnalysisSpec("study", spec), folder / "study", title="My training")
    draw(results)
    write_report([results], folder / "report.html")
    return decision, (folder / "report.html").read_text(encoding="utf-8")


def table_of(folder: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / "study" / f"{name}.csv")


def provenance_of(folder: Path) -> dict[str, Any]:
    return read_json(folder / "study/provenance.json")


def test_planted_speedups_of_a_program_are_found_and_unknown_figures_are_named(tmp_path: Path) -> None:
    spec = program_experiment(devices=[1, 2, 4])
    write_study(tmp_path, spec, {1: 0.1, 2: 0.11, 4: 0.2}, loader_wait=None)
    decision, html = report_on(tmp_path, spec)
    scaling = table_of(tmp_path, "scaling").set_index("devices")
    assert scaling["speedup"].to_dict() == pytest.approx({1: 1.0, 2: 2 * 0.1 / 0.11, 4: 2.0})
    assert decision["devices"] == 2
    for column in ("loader_wait_fraction", "final_accuracy", "wall_seconds", "device_hours"):
        assert scaling[column].isna().all(), column
    assert scaling["startup_seconds"].to_list() == pytest.approx([6.5] * 3)
    bars = step_figures.step(scaling.reset_index(), table_of(tmp_path, "runs"))
    labels = [text.get_text() for legend in bars.legends for text in legend.get_texts()]
    assert "waiting for data" not in labels
    assert "preparation" in labels
    text = Page(html).all_text()
    assert not re.search(r"\b(nan|None|NaN)\b", text)
    assert "loader wait (no DataLoader of PyTorch feeds the training)" in text
    assert "train.py --batch-size {batch_size_per_device} --out {folder}" in text
    assert "by Scalewise, after the steps to measure" in text
    assert "final accuracy" not in "".join(cells(html, "Scaling"))
    header = unescape(html).rsplit("Where a step's time goes, and start-up", 1)[1].split("</thead>")[0]
    assert ">preparation (s)</th>" in header
    assert "process group" not in header
    drawn = {path.stem: path.read_text() for path in (tmp_path / "study/figures").glob("*.svg")}
    assert drawn.keys() == set(FIGURES)
    assert 'class="axis x"' not in drawn["accuracy"], "a message without axes"
    losses = table_of(tmp_path, "epochs")
    assert losses[["step", "loss"]].iloc[1].to_list() == [4, 1.8]
    (axes,) = epoch_figures.loss(losses).axes
    assert axes.get_xlabel() == "step"
    assert {tuple(np.asarray(line.get_xdata())) for line in axes.get_lines()[1::2]} == {(0, 4, 8, 12, 16)}


def test_the_wait_for_data_is_no_cause_where_it_is_unknown(tmp_path: Path) -> None:
    spec = program_experiment()
    write_runs(tmp_path, spec, 1, 0.1, loader_wait=None)
    write_runs(tmp_path, spec, 2, 0.15, loader_wait=None, exposed=0.05)
    decision = concluded(tmp_path / "study", spec)
    (legend,) = step_figures.step(table_of(tmp_path, "scaling"), table_of(tmp_path, "runs")).legends
    assert legend.get_texts()[0].get_text() == "computing and waiting for data"
    slowdown = decision["slowdown"]
    assert (slowdown["part"], round(slowdown["share"]["estimate"], 2)) == ("communication", 0.33)
    assert "under no_sync" in slowdown["advice"]
    assert "communication_hook" not in slowdown["advice"]


def test_a_loader_that_is_seen_to_wait_is_named_with_a_fix_that_a_program_has(tmp_path: Path) -> None:
    spec = program_experiment()
    for devices, wait in ((1, 0.0), (2, 0.04)):
        write_runs(tmp_path, spec, devices, 0.1 + wait, loader_wait=wait, exposed=0.0)
    slowdown = concluded(tmp_path / "study", spec)["slowdown"]
    assert slowdown["part"] == "loader"
    assert "workers of the program's DataLoader" in slowdown["advice"]


def test_time_to_a_metric_decides_as_time_to_an_accuracy_does(tmp_path: Path) -> None:
    metric = {"pattern": "val_loss=([0-9.]+)", "at_most": 2.9}
    spec = program_experiment(steps=None, metric=metric, decision={"min_efficiency": 0.8})
    # twice the speed, but twice the samples to learn from
    for devices in (1, 2):
        for repeat, factor in enumerate(SCATTER, start=1):
            values = ((50, 3.1), (100, 2.9), (120, 2.8))
            readings = [
                {"seconds": step * 0.1 * factor, "step": step, "value": each} for step, each in values
            ]
            program = {"metric": readings, "seconds_to_metric": readings[1]["seconds"]}
            run = f"d{devices}.r{repeat}"
            write_program_run(tmp_path / "study/runs", run, spec, 0.1 * factor, program=program)
    decision = concluded(tmp_path / "study", spec)
    assert table_of(tmp_path, "runs")["samples_to_target"].to_list() == [1600] * 3 + [3200] * 3
    assert (decision["measure"], decision["devices"]) == ("time to target", 1)
    time = decision["card"]["figures"][-1]
    assert (time["label"], time["note"]) == ("Time to target", "val_loss=([0-9.]+) at most 2.9")
    assert time["value"] == pytest.approx(10.0, rel=0.01)
    point = table_of(tmp_path, "scaling").set_index("devices").loc[2]
    assert point["speedup"] == pytest.approx(2.0)
    assert point["statistical_efficiency"] == pytest.approx(0.5)
    assert point["wall_seconds"] == 90
    facts = provenance_of(tmp_path)["metric"]
    assert facts[0] == "val_loss=([0-9.]+) at most 2.9: reached in 6 of 6 runs"
    assert "last reading of a run: 2.80" in facts[1]


def test_a_metric_that_no_run_reaches_leaves_the_decision_to_throughput(tmp_path: Path) -> None:
    spec = program_experiment(steps=None, metric={"pattern": "acc=([0-9.]+)$", "at_least": 0.9})
    reading = [{"seconds": 1.0, "step": 10, "value": 0.7}]
    write_study(tmp_path, spec, {1: 0.1, 2: 0.1}, program={"metric": reading})
    decision = concluded(tmp_path / "study", spec)
    assert decision["measure"] == "throughput"
    assert any("No run reached acc=([0-9.]+)$ at least 0.9, so throughput" in s for s in decision["cautions"])
    fact = provenance_of(tmp_path)["metric"][0]
    assert fact == "acc=([0-9.]+)$ at least 0.9: reached in 0 of 6 runs"


@pytest.mark.parametrize("steps", [STEPS, None])
def test_a_limit_of_whole_runs_is_judged_where_runs_are_whole(tmp_path: Path, steps: int | None) -> None:
    spec = program_experiment(steps=steps, decision={"deadline_minutes": 5, "min_efficiency": 0.9})
    write_study(tmp_path, spec, {1: 0.1, 2: 0.1})
    decision = concluded(tmp_path / "study", spec)
    assert decision["devices"] == (1 if steps is None else 2)
    assert ("a run within 5 minutes" in decision["card"]["rule"]) == (steps is None)
    if steps is not None:
        assert decision["cautions"][0].startswith("deadline_minutes cannot be judged: steps (20)")
        assert not decision["clear"]


# --- keys that a record lacks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "spec", "keys", "changed"),
    [
        (partial(write_program_run, spec=program_experiment(), step_seconds=0.1),
         program_experiment(repeats=1), ["resumes", "inputs"], program_experiment(repeats=1, resumes=True)),
        (write_run, experiment(repeats=1), ["steps"], experiment(repeats=1, steps=50)),
    ],
    ids=["program", "built-in"],
)  # fmt: skip
def test_a_key_that_a_record_lacks_has_its_default(
    tmp_path: Path,
    write: Callable[..., Path],
    spec: ProgramExperiment | Experiment,
    keys: list[str],
    changed: ProgramExperiment | Experiment,
) -> None:
    path = write(tmp_path, run="d1.r1") / "summary.json"
    write(tmp_path, run="d2.r1")
    record = read_json(path)
    for key in keys:
        del record["definition"]["settings"][key]
    path.write_text(json.dumps(record), encoding="utf-8")
    runs = collect("study", spec, tmp_path).runs
    assert runs["outcome"].to_list() == ["completed", "completed"]
    assert set(collect("study", changed, tmp_path).runs["outcome"]) == {"out of date"}


@pytest.mark.parametrize(
    ("steps", "own", "said"),
    [
        pytest.param(50, None, "50", id="fixed"),
        pytest.param(
            {"most": 100, "until_interval": 0.01}, OWN_INTERVAL, "at most 100", id="until an interval"
        ),
    ],
)
def test_a_built_in_study_that_steps_end_has_an_answer_without_epochs(
    tmp_path: Path, steps: object, own: object, said: str
) -> None:
    spec = experiment(steps=steps, decision={"max_device_hours": 1})
    for devices, rate in ((1, 1000.0), (2, 1900.0)):
        for repeat, factor in enumerate(SCATTER, start=1):
            write_run(
                tmp_path / "study/runs",
                f"d{devices}.r{repeat}",
                accuracies=(),
                rate=rate * factor,
                settings={"steps": steps},
                train_seconds=6.0,
                own_interval=own,
            )
    decision = concluded(tmp_path / "study", spec)
    assert decision["devices"] == 2
    assert decision["cautions"][0].startswith(f"max_device_hours cannot be judged: steps ({said})")
    cut = [caution for caution in decision["cautions"] if "ended before their most steps" in caution]
    assert len(cut) == (own is not None)
    assert table_of(tmp_path, "runs")["wall_seconds"].isna().all()
    assert decision["startup"] == []


# --- what may be compared -----------------------------------------------------------------------------


def left_out(folder: Path, spec: ProgramExperiment) -> dict[str, str]:
    """Return the runs that are left out, each with what differs."""
    concluded(folder / "study", spec)
    runs = table_of(folder, "runs")
    apart = runs[runs["outcome"] == OTHER_CONDITIONS]
    return dict(zip(apart["run"], apart["reason"], strict=True))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"program": {"imported_files": {"model.py": "c" * 64}}}, "model.py differs"),
        (
            {"program": {"imported_files": {"/home/a/elsewhere/model.py": "a" * 64}}},
            "model.py was imported by some runs only; elsewhere/model.py was imported by some runs only",
        ),
        ({"program": {"imported_files": {"model.py": "a" * 64, "parallel.py": "f" * 64}}}, ""),
        ({"program": {"precision": "parameters float32"}}, "formats of numbers"),
        ({"program": {"compiled": True}}, "compiled is true, not false"),
        ({"program": {"command": ["python", "train.py", "--seed", "9"]}}, ""),
        ({"origin": {"inputs": {"program": "d" * 64}}}, "contents of the program"),
        ({"origin": {"inputs": {"program": "b" * 64, "data": "e" * 64}}}, ""),
        ({"origin": {"versions": {"torch": "2.14.0", "python": "3.11.7"}}}, "torch version"),
        ({"origin": {"versions": {"torch": "2.15.0", "python": "3.11.7", "deepspeed": "1.0"}}}, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_keeps_a_programs_runs_apart(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    spec = program_experiment(repeats=1)
    write_program_run(tmp_path / "study/runs", "d1.r1", spec, 0.1)
    write_program_run(tmp_path / "study/runs", "d2.r1", spec, 0.1, **changed)
    apart = left_out(tmp_path, spec)
    assert list(apart) == (["d2.r1"] if named else [])
    assert named in "".join(apart.values())


@pytest.mark.parametrize(
    ("packages", "apart"),
    [(["python-dateutil", "typing_extensions", "Jinja2"], False), (["pillow"], True), (["unknown"], True)],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_another_version_keeps_runs_apart_if_it_may_change_their_speed(
    tmp_path: Path, packages: list[str], apart: bool
) -> None:
    spec = program_experiment(repeats=1)
    for devices, version in ((1, "2.8"), (2, "2.9")):
        versions = {"torch": "2.15.0", "python": "3.11.7"} | dict.fromkeys(packages, version)
        write_program_run(tmp_path / "study/runs", f"d{devices}.r1", spec, 0.1, origin={"versions": versions})
    assert bool(left_out(tmp_path, spec)) == apart


# --- what belongs next to the answer ------------------------------------------------------------------


PASSES = "forward passes without gradients"


@pytest.mark.parametrize(
    ("rates", "clear", "said"),
    [
        ({1: 40.0, 2: 64.0}, False, ["160 samples/s", "40.0", "320 samples/s", "64.0", "1.60x, not 2.00x"]),
        ({1: 80.0, 2: 159.0, 4: 319.0, 8: 638.0}, True, ["319", "both rates of 1 more device count"]),
        ({1: 80.0, 2: None}, False, ["4.00x, not 2.00x"]),
        ({1: None, 2: None}, True, []),
        ({1: 40.0}, False, ["160 samples/s"]),
    ],
    ids=["another speedup", "about the same speedup", "known of one count", "known of all", "one count"],
)
def test_passes_that_may_be_part_of_a_training_have_a_caution_with_both_rates(
    tmp_path: Path, rates: dict[int, float | None], clear: bool, said: list[str]
) -> None:
    """A study whose runs train 160 samples/s a device, and at another rate with passes without gradients."""
    spec = program_experiment(devices=list(rates))
    for devices, rate in rates.items():
        # no trend, which would make an answer unclear
        for repeat, factor in enumerate((1.0, 1.01, 0.99), start=1):
            run, program = f"d{devices}.r{repeat}", {"throughput_with_no_grad": rate}
            write_program_run(tmp_path / "study/runs", run, spec, 0.1 * factor, program=program)
    decision = concluded(tmp_path / "study", spec)
    assert decision["clear"] == clear
    assert any(PASSES in each for each in decision["cautions"]) == bool(said)
    assert not said or all(each in decision["cautions"][0] for each in (PASSES, *said))
    assert (PASSES in (tmp_path / "study/what_if.json").read_text()) == (len(rates) > 1 and not clear)
    for table in ("scaling", "runs"):
        column = table_of(tmp_path, table)["throughput_with_no_grad"]
        assert set(column.dropna().round(6)) == {rate for rate in rates.values() if rate is not None}


def test_what_a_program_was_seen_to_do_stands_among_the_first_cautions_with_its_runs(tmp_path: Path) -> None:
    spec = program_experiment()
    same = "All ranks train on the same batches."
    write_study(tmp_path, spec, {1: 0.1})
    write_study(tmp_path, spec, {2: 0.1}, program={"cautions": [same]})
    assert concluded(tmp_path / "study", spec)["cautions"][0] == f"In 3 of 6 runs: {same}"


def test_a_run_that_is_left_out_on_one_device_count_is_named_in_the_answer(tmp_path: Path) -> None:
    spec = program_experiment(devices=[1], repeats=2)
    for repeat in (1, 2):
        program = {"imported_files": {f"/home/a/m{repeat}.py": "a" * 64}}
        write_program_run(tmp_path / "study/runs", f"d1.r{repeat}", spec, 0.1, program=program)
    decision = concluded(tmp_path / "study", spec)
    assert decision["card"]["reason"] == "Measured: 160 samples/s (n = 1 of 2) on 1 device."
    (caution,) = decision["cautions"]
    assert caution.startswith("1 of 2 runs on 1 device is left out: a/m")


def test_a_swept_argument_is_a_series_and_a_condition_of_its_own(tmp_path: Path) -> None:
    arguments = ["--lr", "{argument.lr}", "--seed", "{seed}"]
    spec = program_experiment(repeats=1, arguments=arguments, sweep={"argument.lr": [0.1, 0.2]})
    for rate, speed in ((0.1, 1.0), (0.2, 1.5)):
        for devices in (1, 2):
            run, options = f"d{devices}.lr-{rate}.r1", {"argument.lr": rate}
            write_program_run(tmp_path / "study/runs", run, spec, 0.1 / speed, options=options)
    assert left_out(tmp_path, spec) == {}
    table = table_of(tmp_path, "options")
    assert table["option"].unique().tolist() == ["argument.lr"]
    assert table["throughput_ratio"].to_list() == pytest.approx([1.5, 1.5])


@pytest.mark.parametrize(("on_four", "apart"), [(DDP, []), (["fully_shard"], ["d4.r1"])])
def test_one_device_needs_no_wrapper_and_several_need_the_same(
    tmp_path: Path, on_four: list[str], apart: list[str]
) -> None:
    spec = program_experiment(devices=[1, 2, 4], repeats=1)
    for devices, wrappers in ((1, []), (2, DDP), (4, on_four)):
        run, program = f"d{devices}.r1", {"parallelism": wrappers}
        write_program_run(tmp_path / "study/runs", run, spec, 0.1, program=program)
    assert list(left_out(tmp_path, spec)) == apart
