"""Runs: what they are called, when they are made again, what they train, and in which order they start."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.golden import compare
from tests.unit.plan.conftest import Load
from tests.unit.plan.refusals import CPUS, MACHINES, of_program

from scalewise.config.experiment import Budget, DecisionRule, Devices, Proposal, Repeats, Sweep, Target
from scalewise.config.schema import study_schema
from scalewise.config.shape import Shape
from scalewise.plan.planned_study import CHANGE_NO_NUMBER, Study
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.runs import expand, input_files, option_label, priority

STUDY = """\
defaults:
  dataset: digits
  model: digits_cnn
  repeats: 2
experiments:
  strong:
    title: First title
    global_batch_size: 240
    devices: [1, 2]
    sweep:
      gradient_as_bucket_view: [false, true]
  weak:
    scaling: weak
    warmup_steps: 5
    batch_size_per_device: 64
    devices: [1, 2]
    learning_rate: 0.1
"""


def edited(old: str, new: str, text: str = STUDY) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


TITLE, VIEWS = "    title: First title\n", "gradient_as_bucket_view: [false, true]"
SHAPES = STUDY.replace("devices: [1, 2]", 'devices: [1, 8, "2x3"]').replace(VIEWS, "bucket_cap_mb: [25]")
OF_VALUES = ('arguments: ["{argument.lr}", "{folder}"]', "sweep: {argument.lr: [0.1, 2.0e-5]}", "repeats: 1")
COUNTS = """\
experiments:
  chosen: {dataset: synthetic-3x32x32, model: linear, SCALING, devices: {up_to: MOST}, repeats: 2}
"""
WEAK, STRONG = "scaling: weak, batch_size_per_device: 32", "global_batch_size: 256"
NODES = MACHINES["cluster"].replace("max_nodes: 2", "max_nodes: 16")
STUDIES: dict[str, tuple[str, str]] = {
    "options, and repeats with their seeds": (edited("  repeats: 2\n", "  repeats: 2\n  seed: 40\n"), CPUS),
    "shapes and accumulation steps": (SHAPES.replace("s: 2\n", "s: 1\n  accumulation_steps: 2\n"), CPUS),
    "excluded": (edited(TITLE, "    exclude: [{devices: 2, gradient_as_bucket_view: false}]\n"), CPUS),
    "a program's values, some excluded": (
        of_program(*OF_VALUES, "exclude: [{argument.lr: 0.1, devices: 2}]"),
        CPUS,
    ),
    "a program in the defaults": (
        "defaults: {program: train.py, scaling: weak, batch_size_per_device: 4, devices: [1], steps: 50,\n"
        '  arguments: ["{folder}"], epochs: 3}\nexperiments:\n  own: {repeats: 1}\n',
        CPUS,
    ),
    **{
        f"up to {most} devices, {name}": (COUNTS.replace("MOST", str(most)).replace("SCALING", scaling), site)
        for most, name, scaling, site in (
            (18, "which fill no nodes of 4", WEAK, NODES),
            (3, "less than a node", WEAK, NODES),
            (18, "nodes of 6", WEAK, NODES.replace("node: 4", "node: 6")),
            (16, "of which some do not divide the batch", STRONG, NODES),
        )
    },
}
WORDS = Path(__file__).with_name("planned_runs.txt")


def test_runs_are_as_they_are_kept(load: Load, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for name, plan in STUDIES.items():
        runs = list(load(*plan).runs.values())
        if name.startswith("up to"):
            shapes = dict.fromkeys(f"d{run.shape.world_size}={run.shape}" for run in runs)
            lines = [" ".join(shapes), ""]
        else:
            lines = [*map(text_of, runs), f"from {input_files(runs[0])}\n"]
        parts.append("\n".join([f"# {name}", *lines]))
    compare(WORDS, "\n".join(parts), __file__, capsys)


def test_the_largest_seed_leaves_room_for_repeats(load: Load) -> None:
    for run in load(of_program("seed: 2147483647"), CPUS).runs.values():
        assert RunDefinition.model_validate_json(run.as_json()) == run


def text_of(run: RunDefinition) -> str:
    """Return a run's name, shape, batches and seed, and what its options have become."""
    settings = run.settings.model_dump() | {"launcher": run.launcher}
    settings |= {f"argument.{key}": value for key, value in settings.get("argument", {}).items()}
    options = ", ".join(f"{key}: {settings[key]}" for key in run.options)
    batches = f"batch {run.batch_size_per_device} of {run.global_batch_size}"
    return f"{run.experiment}/{run.run}: {run.shape}, {batches}, seed {run.settings.seed}, {{{options}}}"


def definitions(study: Study) -> dict[tuple[str, str], str]:
    return {key: run.as_json() for key, run in study.runs.items()}


def start_order(study: Study) -> list[RunDefinition]:
    return sorted(study.runs.values(), key=priority, reverse=True)


@pytest.mark.parametrize(
    ("key", "value", "label"),
    [
        ("gradient_as_bucket_view", True, "bucket-view-on"),
        ("gradient_as_bucket_view", False, "bucket-view-off"),
        ("learning_rate", 1e-05, "learning-rate-1e-05"),
        ("model", "digits_cnn", "model-digits_cnn"),
        ("accumulation_steps", 4, "accumulation-4"),
        ("horizontal_flip", True, "flip-on"),
        ("argument.config", "configs/mine.yaml", "config-configs-mine.yaml"),
        ("argument.config", "my model;$(x).yaml", "config-my-model---x-.yaml"),
        ("argument.config", "é/ü.yaml", "config----.yaml"),
    ],
)
def test_an_option_is_short_in_a_name_and_safe_in_a_path(key: str, value: object, label: str) -> None:
    assert option_label(key, value) == label


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("[false, true]", "[true, false]", id="order of options"),
        pytest.param("repeats: 2", "repeats: {min: 2, max: 5}", id="until it is clear"),
        pytest.param("devices: [1, 2]\n    sweep", "devices: {up_to: 4}\n    sweep", id="a choice of counts"),
        pytest.param("    title: First title\n", "    exclude: [{devices: 2}]\n", id="exclude"),
        pytest.param("learning_rate: 0.1", "learning_rate: 1.0e-1", id="spelling of a number"),
    ],
)
def test_what_changes_no_training_makes_no_run_again(old: str, new: str, load: Load) -> None:
    before, after = definitions(load(STUDY)), definitions(load(edited(old, new)))

    common = before.keys() & after.keys()
    assert common in (before.keys(), after.keys())
    assert {key: before[key] for key in common} == {key: after[key] for key in common}


def test_every_point_is_measured_once_before_any_twice_in_an_order_that_added_runs_leave(load: Load) -> None:
    many = edited(VIEWS, "epochs: [4, 5, 6, 7, 8, 9]")
    small, large = load(many), load(many.replace("repeats: 2", "repeats: 5").replace("[1, 2]", "[1, 2, 4]"))
    ordered = start_order(large)

    assert [run.repeat for run in ordered] == sorted(run.repeat for run in ordered)
    assert min(map(priority, ordered)) > 0
    configured, first, second = (
        [(run.experiment, run.point) for run in runs if run.repeat == repeat]
        for runs, repeat in ((list(large.runs.values()), 1), (ordered, 1), (ordered, 2))
    )
    assert sorted(first) == sorted(second) == sorted(configured)
    assert len({tuple(order) for order in (configured, configured[::-1], first, second)}) == 4
    labels = [run.label for run in start_order(small)]
    assert [run.label for run in ordered if run.label in labels] == labels


ADAPTIVE = """\
experiments:
  digits:
    dataset: digits
    model: digits_cnn
    global_batch_size: 240
    devices: [1, 2]
    repeats: {min: 3, max: 6}
"""
KEYS = study_schema()["properties"]["defaults"]["properties"]
CHANGED: dict[str, Any] = {
    "title": "Another",
    "proposal": Proposal(centre="ncar"),
    "runtime_minutes": 99,
    "memory_gb": 3.5,
    "timeout_seconds": 77,
    "budget": Budget(device_hours=3),
    "decision": DecisionRule(min_efficiency=0.7),
    "trainings": 8,
    "samples_per_training": 600_000,
    "target": Target(accuracy=0.9),
    "exclude": [{"devices": 2}],
    "repeats": Repeats(min=4, max=6),
    "devices": Devices(counts=[1, 4]),
    "sweep": Sweep.model_validate({"momentum": [0.0, 0.9]}),
    "learning_rate": 0.2,
    "global_batch_size": 120,
}


@pytest.mark.parametrize("key", CHANGED)
def test_a_changed_key_trains_again_what_it_defines_and_nothing_else(key: str, load: Load) -> None:
    before = load(ADAPTIVE).parts[0]
    changed = before.experiment.model_copy(update={key: CHANGED[key]})
    shapes = {devices: Shape(1, int(devices)) for devices in changed.devices.counts}
    runs = expand("digits", changed, shapes, before.site.accelerator, before.site.launcher)
    defined = {run.run: run.as_json() for run in runs}
    is_kept = all(defined.get(run.run, run.as_json()) == run.as_json() for run in before.runs)

    assert is_kept is (key not in {"learning_rate", "global_batch_size"})
    is_same = replace(before, experiment=changed).definition == before.definition
    assert is_same is (key in CHANGE_NO_NUMBER)


def test_keys_that_change_no_number_say_so() -> None:
    said = {key for key, schema in KEYS.items() if "reruns nothing" in schema.get("description", "")}
    assert said == CHANGE_NO_NUMBER
