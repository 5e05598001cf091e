"""Runs: what they are called, when they are made again, what they train, and in which order they start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.unit.plan.conftest import Load, settings_of_loop

from scalewise.plan.config.centre import Proposal, Requirement
from scalewise.plan.config.experiment import (
    Budget,
    DecisionRule,
    Devices,
    Experiment,
    ProgramExperiment,
    Projection,
    Repeats,
    Sweep,
    Target,
)
from scalewise.plan.config.reruns import DECIDES
from scalewise.plan.config.shape import Shape
from scalewise.plan.planned_study import PlannedExperiment, Study
from scalewise.plan.runs.run_definition import RunDefinition, parse_run_name
from scalewise.plan.runs.runs import expand, input_files, option_label, priority

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
    batch_size_per_device: 64
    devices: [1, 2]
    learning_rate: 0.1
"""


def edited(old: str, new: str, text: str = STUDY) -> str:
    assert text.count(old) == 1
    return text.replace(old, new)


def definitions(study: Study) -> dict[tuple[str, str], str]:
    return {key: run.as_json() for key, run in study.runs.items()}


def names(study: Study, experiment: str) -> list[str]:
    return [run.run for run in study.experiments[experiment].runs]


def start_order(study: Study) -> list[RunDefinition]:
    """The runs as Snakemake starts them."""
    return sorted(study.runs.values(), key=priority, reverse=True)


def test_a_run_is_named_by_its_devices_its_options_and_its_repeat(load: Load) -> None:
    study = load(STUDY)

    assert names(study, "strong") == [
        f"d{devices}.bucket-view-{view}.r{repeat}"
        for view, devices, repeat in product(("off", "on"), (1, 2), (1, 2))
    ]
    assert names(study, "weak") == ["d1.r1", "d1.r2", "d2.r1", "d2.r2"]


@pytest.mark.parametrize("point", ["d1", "d2x2.rate-0.5", "d4.model-a.r7"])
def test_a_runs_name_has_its_point_and_its_repeat(point: str) -> None:
    assert parse_run_name(f"{point}.r12") == (point, 12)


@pytest.mark.parametrize(
    ("key", "value", "label"),
    [
        ("gradient_as_bucket_view", True, "bucket-view-on"),
        ("gradient_as_bucket_view", False, "bucket-view-off"),
        ("epochs", 5, "epochs-5"),
        ("learning_rate", 0.001, "learning-rate-0.001"),
        ("learning_rate", 1e-05, "learning-rate-1e-05"),
        ("model", "digits_cnn", "model-digits_cnn"),
        ("accumulation_steps", 4, "accumulation-4"),
        ("bucket_cap_mb", 50, "bucket-mb-50"),
        ("communication_hook", "fp16", "hook-fp16"),
        ("crop_padding", 4, "crop-4"),
        ("horizontal_flip", True, "flip-on"),
        ("learning_rate_scaling", "linear", "rate-scaling-linear"),
        ("learning_rate_warmup_epochs", 0.5, "rate-warmup-0.5"),
        ("precision", "bf16", "precision-bf16"),
        ("stop_patience_epochs", 3, "patience-3"),
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
        pytest.param("64\n    devices: [1, 2]", "64\n    devices: [4, 1, 2]", id="device count"),
        pytest.param("[false, true]", "[true, false]", id="order of options"),
        pytest.param("repeats: 2", "repeats: 3", id="repeat"),
        pytest.param(
            "  weak:\n", "  more: {global_batch_size: 120, devices: [1]}\n  weak:\n", id="experiment"
        ),
        pytest.param("    title: First title\n", "    exclude: [{devices: 2}]\n", id="exclude"),
        pytest.param("[false, true]", "[true]", id="value of an option"),
        pytest.param(
            "  dataset: digits\n  model: digits_cnn\n",
            "  # a comment\n  model: digits_cnn\n  dataset: digits\n",
            id="key order",
        ),
        pytest.param("learning_rate: 0.1", "learning_rate: 1.0e-1", id="spelling of a number"),
        pytest.param("  repeats: 2\n", "  repeats: 2\n  momentum: 0.9\n", id="default written out"),
    ],
)
def test_what_changes_no_training_makes_no_run_again(old: str, new: str, load: Load) -> None:
    before, after = definitions(load(STUDY)), definitions(load(edited(old, new)))

    common = before.keys() & after.keys()
    assert common in (before.keys(), after.keys())
    assert {key: before[key] for key in common} == {key: after[key] for key in common}


def test_a_sweep_makes_every_combination_named_in_one_order(load: Load) -> None:
    sweep = "momentum: [0.0, 0.9]\n      epochs: [4, 5, 6]"
    study = load(edited("gradient_as_bucket_view: [false, true]", sweep))

    assert names(study, "strong") == [
        f"d{devices}.epochs-{epochs}.momentum-{momentum}.r{repeat}"
        for epochs, momentum, devices, repeat in product((4, 5, 6), (0.0, 0.9), (1, 2), (1, 2))
    ]
    settings = settings_of_loop(study.runs["strong", "d2.epochs-5.momentum-0.9.r1"])
    assert (settings.epochs, settings.momentum) == (5, 0.9)


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("[{devices: 2}]", {"d1.bucket-mb-default", "d1.bucket-mb-50"}),
        ("[{bucket_cap_mb: 50}]", {"d1.bucket-mb-default", "d2.bucket-mb-default"}),
        ("[{bucket_cap_mb: default}]", {"d1.bucket-mb-50", "d2.bucket-mb-50"}),
        (
            "[{devices: 2, bucket_cap_mb: 50}]",
            {"d1.bucket-mb-default", "d2.bucket-mb-default", "d1.bucket-mb-50"},
        ),
        ("[{devices: 2}, {bucket_cap_mb: 50}]", {"d1.bucket-mb-default"}),
    ],
)
def test_exclude_leaves_out_the_runs_that_match_all_keys_of_an_entry(
    exclude: str, left: set[str], load: Load
) -> None:
    text = edited("gradient_as_bucket_view: [false, true]", "bucket_cap_mb: [default, 50]")
    study = load(edited("    title: First title\n", f"    exclude: {exclude}\n", text))

    assert {run.point for run in study.experiments["strong"].runs} == left


@pytest.mark.parametrize(
    ("accumulation", "strong", "weak"),
    [
        (1, [(240, 240), (120, 240), (60, 240), (40, 240)], [(64, 64), (64, 128), (64, 256), (64, 384)]),
        (2, [(120, 240), (60, 240), (30, 240), (20, 240)], [(64, 128), (64, 256), (64, 512), (64, 768)]),
    ],
)
def test_strong_scaling_keeps_the_global_batch_and_weak_scaling_the_batch_per_device(
    accumulation: int, strong: list[tuple[int, int]], weak: list[tuple[int, int]], load: Load
) -> None:
    text = STUDY.replace("devices: [1, 2]", 'devices: [1, 2, 4, "2x3"]')
    study = load(text.replace("repeats: 2", f"repeats: 2\n  accumulation_steps: {accumulation}"))

    for experiment, batches in (("strong", strong), ("weak", weak)):
        runs = study.experiments[experiment].runs
        found = {run.shape: (run.batch_size_per_device, run.global_batch_size) for run in runs}
        assert list(found.values()) == batches


def test_a_swept_key_may_also_be_left_out_by_the_word_default(load: Load) -> None:
    sweep = "bucket_cap_mb: [default, 50]\n      launcher: [default, spawn]\n      image_size: [default, 16]"
    study = load(edited("gradient_as_bucket_view: [false, true]", sweep))

    left_out = study.runs["strong", "d1.image-size-default.bucket-mb-default.launcher-default.r1"]
    swept = study.runs["strong", "d2.image-size-16.bucket-mb-50.launcher-spawn.r2"]
    assert settings_of_loop(left_out).bucket_cap_mb is None
    assert left_out.options["bucket_cap_mb"] == "default"
    assert (settings_of_loop(swept).image_size, settings_of_loop(swept).bucket_cap_mb) == (16, 50)
    assert (left_out.launcher, swept.launcher) == ("popen", "spawn")


def test_a_forced_shape_is_kept_and_named(load: Load) -> None:
    study = load(edited("64\n    devices: [1, 2]", '64\n    devices: [1, "2x2", "1x3", 8]'))

    shapes = {run.run: run.shape for run in study.experiments["weak"].runs if run.repeat == 1}
    assert shapes == {
        "d1.r1": Shape(1, 1),
        "d2x2.r1": Shape(2, 2),
        "d1x3.r1": Shape(1, 3),
        "d8.r1": Shape(2, 4),
    }


def test_each_repeat_has_a_seed_of_its_own_shared_by_all_device_counts(load: Load) -> None:
    study = load(STUDY.replace("repeats: 2", "repeats: 3\n  seed: 40"))

    seeds = {(run.repeat, run.settings.seed) for run in study.runs.values()}
    assert seeds == {(1, 40), (2, 41), (3, 42)}


MANY = edited("gradient_as_bucket_view: [false, true]", "epochs: [4, 5, 6, 7, 8, 9]")


def test_every_point_is_measured_once_before_any_twice_in_an_order_of_each_repeats_own(load: Load) -> None:
    study = load(edited("    learning_rate: 0.1", "    learning_rate: 0.1\n    repeats: 5", MANY))
    ordered = start_order(study)

    assert [run.repeat for run in ordered] == sorted(run.repeat for run in ordered)
    assert min(map(priority, ordered)) > 0
    configured, first, second = (
        [(run.experiment, run.point) for run in runs if run.repeat == repeat]
        for runs, repeat in ((list(study.runs.values()), 1), (ordered, 1), (ordered, 2))
    )
    assert len(configured) == 14
    assert sorted(first) == sorted(second) == sorted(configured)
    assert len({tuple(order) for order in (configured, configured[::-1], first, second)}) == 4


def test_added_runs_leave_the_order_of_the_others_as_it_was(load: Load) -> None:
    small = load(MANY)
    large = load(MANY.replace("repeats: 2", "repeats: 3").replace("devices: [1, 2]", "devices: [1, 2, 4]"))

    before = [(run.experiment, run.run) for run in start_order(small)]
    after = [(run.experiment, run.run) for run in start_order(large)]

    assert len(after) > len(before)
    assert [key for key in after if key in small.runs] == before


def test_a_run_waits_for_its_data_and_its_first_weights(load: Load) -> None:
    plain = input_files(load(STUDY).runs["weak", "d1.r1"])
    assert plain == {"dataset": "resources/datasets/digits/dataset.safetensors", "weights": []}

    pretrained = "dataset: cifar10\n  image_size: 224\n  pretrained: true"
    text = edited("model: digits_cnn", "model: resnet18", edited("dataset: digits", pretrained))
    weights = input_files(load(text).runs["weak", "d1.r1"])["weights"]
    assert weights == "resources/weights/resnet18/model.safetensors"


ADAPTIVE = """\
experiments:
  digits:
    dataset: digits
    model: digits_cnn
    global_batch_size: 240
    devices: [1, 2]
    repeats: {min: 3, max: 6, until_interval: 0.03}
"""
FIELDS = Experiment.model_fields | ProgramExperiment.model_fields
CHANGED: dict[str, Any] = {
    "title": "Another",
    "description": "Another",
    "tensorboard": True,
    "proposal": Proposal(centre="ncar", months=3),
    "requirement": Requirement(efficiency=0.75),
    "runtime_minutes": 99,
    "memory_gb": 3.5,
    "timeout_seconds": 77,
    "checkpoint_minutes": 3.0,
    "keep_checkpoints": True,
    "budget": Budget(device_hours=3),
    "predict": False,
    "project": Projection(devices=[64]),
    "decision": DecisionRule(min_efficiency=0.7),
    "trainings": 8,
    "samples_per_training": 600_000,
    "target": Target(accuracy=0.9),
    "exclude": [{"devices": 2}],
    "repeats": Repeats(min=4, max=6, until_interval=0.03),
    "devices": Devices(every=[1, 4]),
    "sweep": Sweep.model_validate({"momentum": [0.0, 0.9]}),
    "learning_rate": 0.2,
    "global_batch_size": 120,
}


def products(planned: PlannedExperiment) -> dict[str, Any]:
    """The definitions of an experiment's products."""
    runs = expand("digits", planned.experiment, {1: Shape(1, 1), 2: Shape(1, 2), 4: Shape(1, 4)}, "cpu")
    return {
        "runs": {run.run: run.as_json() for run in runs},
        "tables": planned.analysis_definition,
        "prediction": planned.prediction_definition,
        "rounds": planned.rounds_definition,
    }


def test_the_table_of_what_a_key_decides_holds_every_key_and_no_other() -> None:
    assert set(DECIDES) == set(FIELDS)
    said = {key for key, field in FIELDS.items() if "reruns nothing" in (field.description or "")}
    assert {"title", "runtime_minutes", "project"} <= said
    assert [key for key in said if DECIDES[key] & {"runs", "tables"}] == []


@pytest.mark.parametrize("key", CHANGED)
def test_a_changed_key_changes_what_the_table_says(key: str, load: Callable[[str], Study]) -> None:
    before = load(ADAPTIVE).experiments["digits"]
    after = replace(before, experiment=before.experiment.model_copy(update={key: CHANGED[key]}))

    old, new = products(before), products(after)
    if "runs" not in DECIDES[key]:
        # which runs there are may change, but nothing of any run
        kept = old["runs"].keys() & new["runs"].keys()
        assert all(old["runs"][name] == new["runs"][name] for name in kept)
        new["runs"] = old["runs"]
    assert {product for product in old if old[product] != new[product]} == DECIDES[key]
