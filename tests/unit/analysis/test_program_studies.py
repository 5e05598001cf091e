"""Studies of programs, from their records to the answer: planted speeds are found, the unknown is said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.planted_records import (
    DDP,
    STEPS,
    program_experiment,
    write_program_run,
)
from tests.unit.analysis.planted import at, concluded

from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.runs import collect
from scalewise.analysis.study import Analysis
from scalewise.config.experiment import ProgramExperiment

pytestmark = pytest.mark.slow

SCATTER = (0.99, 1.0, 1.01)


def write_runs(folder: Path, spec: ProgramExperiment, devices: int, seconds: float, **more: Any) -> None:
    """Write three runs on some devices whose steps take so many seconds, and what else scales with them."""
    for repeat, factor in enumerate(SCATTER, start=1):
        scaled: dict[str, Any] = {
            key: value * factor if isinstance(value, float) else value for key, value in more.items()
        }
        run = f"d{devices}.r{repeat}"
        write_program_run(folder / "runs", run, spec, seconds * factor, **scaled)


def write_study(folder: Path, spec: ProgramExperiment, steps: Mapping[int, float], **more: Any) -> None:
    for devices, seconds in steps.items():
        write_runs(folder, spec, devices, seconds, **more)


def cautions(analysis: Analysis) -> list[str]:
    return [text for text, _ in analysis.answer.cautions]


def test_planted_speedups_of_a_program_are_found_and_unknown_figures_stay_unknown(tmp_path: Path) -> None:
    spec = program_experiment(devices=[1, 2, 4])
    write_study(tmp_path, spec, {1: 0.1, 2: 0.11, 4: 0.2}, loader_wait=None)
    analysis = concluded(tmp_path, spec)
    scaling = analysis.scaling.set_index("devices")
    assert scaling["speedup"].to_dict() == pytest.approx({1: 1.0, 2: 2 * 0.1 / 0.11, 4: 2.0})
    assert analysis.answer.devices == 2
    for column in ("loader_wait_fraction", "final_accuracy", "wall_seconds", "device_hours"):
        assert scaling[column].isna().all(), column
    assert scaling["startup_seconds"].to_list() == pytest.approx([6.5] * 3)
    assert not {"NaN", "nan", "None"} & set(re.findall(r"\w+", analysis.answer.to_json()))
    assert analysis.epochs[["step", "loss"]].iloc[1].to_list() == [4, 1.8]


def test_time_to_a_metric_decides_as_time_to_an_accuracy_does(tmp_path: Path) -> None:
    metric = {"pattern": "val_loss=([0-9.]+)", "at_most": 2.9}
    spec = program_experiment(steps=None, metric=metric, decision={"min_efficiency": 0.8})
    # twice the speed, but twice the samples to learn from
    values = ((50, 3.1), (100, 2.9), (120, 2.8))
    for devices in (1, 2):
        for repeat, factor in enumerate(SCATTER, start=1):
            readings = [
                {"seconds": step * 0.1 * factor, "step": step, "value": each} for step, each in values
            ]
            program = {"metric": readings, "seconds_to_metric": readings[1]["seconds"]}
            run = f"d{devices}.r{repeat}"
            write_program_run(tmp_path / "runs", run, spec, 0.1 * factor, program=program)
    analysis = concluded(tmp_path, spec)
    assert analysis.runs["samples_to_target"].to_list() == [1600] * 3 + [3200] * 3
    assert (analysis.answer.clock, analysis.answer.devices) == ("target", 1)
    (time,) = (each for each in analysis.answer.figures if each.label == "Time to target")
    assert "val_loss=([0-9.]+) at most 2.9" in time.note
    assert time.value == pytest.approx(10.0, rel=0.01)
    point = at(analysis, 2)
    rates = {devices: at(analysis, devices)["throughput_samples_per_second"] for devices in (1, 2)}
    assert rates[2] / rates[1] == pytest.approx(2.0)
    assert (point["speedup"], point["wall_seconds"]) == (pytest.approx(1.0), pytest.approx(90))
    facts = analysis.origins["metric"]
    assert facts[0] == "val_loss=([0-9.]+) at most 2.9: reached in 6 of 6 runs"
    assert "last reading of a run: 2.80" in facts[1]


@pytest.mark.parametrize("steps", [STEPS, None])
def test_a_limit_of_whole_runs_is_judged_where_runs_are_whole(tmp_path: Path, steps: int | None) -> None:
    spec = program_experiment(steps=steps, decision={"deadline_minutes": 5, "min_efficiency": 0.9})
    write_study(tmp_path, spec, {1: 0.1, 2: 0.1})
    analysis = concluded(tmp_path, spec)
    assert analysis.answer.devices == (1 if steps is None else 2)
    assert ("a run within 5 minutes" in analysis.answer.rule) == (steps is None)
    if steps is not None:
        assert cautions(analysis)[0].startswith("deadline_minutes cannot be judged")
        assert analysis.answer.certainty != "clear"


# --- what may be compared -----------------------------------------------------------------------------


def reasons_apart(folder: Path, spec: ProgramExperiment) -> list[str]:
    """Return why runs are left out as made under other conditions, a reason for each run."""
    runs = collect("study", spec, folder / "runs").runs
    return runs.loc[runs["outcome"] == OTHER_CONDITIONS, "reason"].to_list()


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
    write_program_run(tmp_path / "runs", "d1.r1", spec, 0.1)
    write_program_run(tmp_path / "runs", "d2.r1", spec, 0.1, **changed)
    found = reasons_apart(tmp_path, spec)
    assert len(found) == bool(named)
    assert all(named in reason for reason in found)


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
        write_program_run(tmp_path / "runs", f"d{devices}.r1", spec, 0.1, origin={"versions": versions})
    assert bool(reasons_apart(tmp_path, spec)) == apart


# --- what belongs next to the answer ------------------------------------------------------------------


PASSES = "forward passes without gradients"


@pytest.mark.parametrize(
    ("rates", "certainty", "said"),
    [
        ({1: 40.0, 2: 64.0}, "likely", "the speedup is 1.60x, not 2.00x"),
        ({1: 80.0, 2: 159.0, 4: 319.0, 8: 638.0}, "clear", PASSES),
        ({1: 80.0, 2: None}, "likely", "the speedup is 4.00x, not 2.00x"),
        ({1: None, 2: None}, "clear", None),
        ({1: 40.0}, "clear", PASSES),
    ],
    ids=["another speedup", "about the same speedup", "known of one count", "known of none", "one count"],
)
def test_passes_that_may_be_part_of_a_training_have_a_caution_with_both_speedups(
    tmp_path: Path, rates: dict[int, float | None], certainty: str, said: str | None
) -> None:
    """A study whose runs train 160 samples/s a device, and at another rate with passes without gradients."""
    spec = program_experiment(devices=list(rates))
    for devices, rate in rates.items():
        # no trend, which would make an answer unclear
        for repeat, factor in enumerate((1.0, 1.01, 0.99), start=1):
            run, program = f"d{devices}.r{repeat}", {"throughput_with_no_grad": rate}
            write_program_run(tmp_path / "runs", run, spec, 0.1 * factor, program=program)
    analysis = concluded(tmp_path, spec)
    found = [text for text in cautions(analysis) if PASSES in text]
    assert analysis.answer.certainty == certainty
    assert len(found) == (said is not None)
    assert all(str(said) in text for text in found)
    for table in (analysis.scaling, analysis.runs):
        column = table["throughput_with_no_grad"]
        assert set(column.dropna().round(6)) == {rate for rate in rates.values() if rate is not None}


@pytest.mark.parametrize(("on_four", "apart"), [(DDP, 0), (["fully_shard"], 1)])
def test_one_device_needs_no_wrapper_and_several_need_the_same(
    tmp_path: Path, on_four: list[str], apart: int
) -> None:
    spec = program_experiment(devices=[1, 2, 4], repeats=1)
    for devices, wrappers in ((1, []), (2, DDP), (4, on_four)):
        run, program = f"d{devices}.r1", {"parallelism": wrappers}
        write_program_run(tmp_path / "runs", run, spec, 0.1, program=program)
    assert len(reasons_apart(tmp_path, spec)) == apart
