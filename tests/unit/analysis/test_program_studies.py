"""Studies of programs, from their records to the answer: planted speeds are found, the unknown is said."""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from tests.planted_records import leave_result, measurements, provenance, rank_record, run_record
from tests.small_runs import definition
from tests.unit.analysis.planted import at, concluded

from scalewise.analysis.conditions import OTHER_CONDITIONS
from scalewise.analysis.runs import collect
from scalewise.analysis.study import Analysis
from scalewise.config.experiment import ProgramExperiment
from scalewise.plan.runs import repeat_settings, settings_of
from scalewise.records import ProgramMeasurements, Window

pytestmark = pytest.mark.slow

DDP = ["DistributedDataParallel"]
STEPS = 20
SCATTER = (1.0, 1.01, 0.99)
"""Of the repeats; no trend, which would make an answer unclear."""


def program_experiment(**changed: Any) -> ProgramExperiment:
    """Return a study of ``train.py`` on 1 and 2 devices, ended after some steps, with weak scaling."""
    usual: dict[str, Any] = {"program": "train.py", "scaling": "weak", "batch_size_per_device": 16}
    usual |= {"devices": [1, 2], "repeats": 3, "steps": STEPS, "warmup_steps": 2}
    return ProgramExperiment.model_validate(usual | changed)


def write_runs(
    folder: Path,
    spec: ProgramExperiment,
    devices: int,
    step_seconds: float = 0.1,
    program: Mapping[str, Any] = MappingProxyType({}),
    origin: Mapping[str, Any] = MappingProxyType({}),
    **measured: Any,
) -> None:
    """Write the records of all repeats on one node.

    Args:
        folder: Holds the folder of the runs.
        spec: The experiment.
        devices: Device count.
        step_seconds: Mean of a measured step.
        program: Parts of what was found of the program that are not the usual ones.
        origin: The same of the provenance.
        measured: The same of the figures.
    """
    samples = 16 * devices
    found: dict[str, Any] = {
        "command": ["python", "train.py"],
        "ended": "steps" if spec.steps else "itself",
        "samples_from": "loader",
        "samples_seen": float(samples),
        "precision": "parameters bfloat16",
        "parallelism": DDP if devices > 1 else [],
        "imported_files": {"model.py": "a" * 64},
        "losses": [(step, 2.0 - 0.05 * step) for step in range(0, STEPS, 4)],
    }
    known = {"inputs": {"program": "b" * 64}, "versions": {"torch": "2.15.0", "python": "3.11.7"}}
    startup = {"launch_seconds": 1.0, "preparation_seconds": 3.0, "first_step_seconds": 0.5}
    for repeat, factor in zip(range(1, spec.repeats.max + 1), SCATTER, strict=False):
        seconds = step_seconds * factor
        settings = repeat_settings(settings_of(spec, ()), repeat)
        sizes = {"batch_size_per_device": 16, "global_batch_size": samples}
        run = definition(devices).model_copy(
            update=sizes | {"run": f"d{devices}.r{repeat}", "repeat": repeat, "settings": settings}
        )
        warm_up, timed = (
            Window(first_step=first, steps=steps, samples=steps * samples, seconds=taken, warmup=first == 0)
            for first, steps, taken in ((0, 2, 9.0), (2, STEPS, STEPS * seconds))
        )
        usual: dict[str, Any] = {
            "throughput_samples_per_second": samples / seconds,
            "windows": [warm_up, timed],
            "train_seconds": warm_up.seconds + timed.seconds,
            "evaluation_seconds": None,
            "loader": "program",
            "program": ProgramMeasurements.model_validate(found | dict(program)),
        }
        figures, facts = measurements(**startup | usual | measured), provenance(run, **known | dict(origin))
        record = run_record(run, measurements=figures, provenance=facts)
        leave_result(folder / "runs" / run.run, record, (), [rank_record(rank) for rank in range(devices)])


def cautions(analysis: Analysis) -> list[str]:
    return [text for text, _ in analysis.answer.cautions]


def test_planted_speedups_of_a_program_are_found_and_unknown_figures_stay_unknown(tmp_path: Path) -> None:
    spec = program_experiment(devices=[1, 2, 4])
    for devices, seconds in ((1, 0.1), (2, 0.11), (4, 0.2)):
        write_runs(tmp_path, spec, devices, seconds, loader_wait_fraction=None)
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
    readings = [
        {"seconds": step * 0.1, "step": step, "value": value}
        for step, value in ((50, 3.1), (100, 2.9), (120, 2.8))
    ]
    for devices in (1, 2):
        write_runs(tmp_path, spec, devices, program={"metric": readings, "seconds_to_metric": 10.0})
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
    for devices in (1, 2):
        write_runs(tmp_path, spec, devices)
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
    write_runs(tmp_path, spec, 1)
    write_runs(tmp_path, spec, 2, **changed)
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
        write_runs(tmp_path, spec, devices, origin={"versions": versions})
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
        write_runs(tmp_path, spec, devices, program={"throughput_with_no_grad": rate})
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
        write_runs(tmp_path, spec, devices, program={"parallelism": wrappers})
    assert len(reasons_apart(tmp_path, spec)) == apart
