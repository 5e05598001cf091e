"""Runs: what they are called, when they are made again, what they train, and in which order they start."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.unit.plan.conftest import Load
from tests.unit.plan.kinds import settings_of_loop

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape
from scalewise.plan.runs.run_definition import RunDefinition, parse_run_name
from scalewise.plan.runs.runs import input_files, option_label, priority
from scalewise.plan.study import Study

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
        "d1.bucket-view-off.r1",
        "d1.bucket-view-off.r2",
        "d2.bucket-view-off.r1",
        "d2.bucket-view-off.r2",
        "d1.bucket-view-on.r1",
        "d1.bucket-view-on.r2",
        "d2.bucket-view-on.r1",
        "d2.bucket-view-on.r2",
    ]
    assert names(study, "weak") == ["d1.r1", "d1.r2", "d2.r1", "d2.r2"]


@pytest.mark.parametrize("point", ["d1", "d2x2.rate-0.5", "d4.model-a.r7"])
def test_a_runs_name_says_its_point_and_its_repeat_whatever_stands_in_its_options(point: str) -> None:
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
        ("argument.config", "configs/mine.yaml", "config-configs-mine.yaml"),
        ("argument.config", "my model;$(x).yaml", "config-my-model---x-.yaml"),
        ("argument.config", "é/ü.yaml", "config----.yaml"),
    ],
)
def test_an_option_is_readable_in_a_name_and_safe_in_a_path(key: str, value: object, label: str) -> None:
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
    ],
)
def test_adding_to_a_study_makes_none_of_its_runs_again(old: str, new: str, load: Load) -> None:
    before, after = definitions(load(STUDY)), definitions(load(edited(old, new)))

    common = before.keys() & after.keys()
    assert common in (before.keys(), after.keys())
    assert {key: before[key] for key in common} == {key: after[key] for key in common}


def test_adding_an_option_value_adds_its_runs_alone(load: Load) -> None:
    text = edited("gradient_as_bucket_view: [false, true]", "epochs: [10, 20]")
    before, after = definitions(load(text)), definitions(load(edited("[10, 20]", "[10, 20, 30]", text)))

    assert before.items() < after.items()
    assert {name for _, name in after.keys() - before.keys()} == {
        f"d{devices}.epochs-30.r{repeat}" for devices, repeat in product((1, 2), (1, 2))
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("    title: First title\n", "    # a comment\n    title: Second title\n", id="title"),
        pytest.param("    title: First title\n", "    description: Why\n", id="description"),
        pytest.param("  repeats: 2\n", "  repeats: 2\n  runtime_minutes: 99\n", id="runtime_minutes"),
        pytest.param("  repeats: 2\n", "  repeats: 2\n  memory_gb: 3.5\n", id="memory_gb"),
        pytest.param(
            "  dataset: digits\n  model: digits_cnn\n",
            "  model: digits_cnn\n  dataset: digits\n",
            id="key order",
        ),
        pytest.param("learning_rate: 0.1", "learning_rate: 1.0e-1", id="spelling of a number"),
        pytest.param("  repeats: 2\n", "  repeats: 2\n  momentum: 0.9\n", id="default written out"),
    ],
)
def test_what_does_not_change_a_training_makes_nothing_again(old: str, new: str, load: Load) -> None:
    before, after = load(STUDY), load(edited(old, new))

    assert definitions(before) == definitions(after)
    for name in ("strong", "weak"):
        analysed = [study.experiments[name].analysis_definition for study in (before, after)]
        assert analysed[0] == analysed[1]


def test_the_order_of_keys_within_an_exclude_makes_no_analysis_again(load: Load) -> None:
    orders = ("{devices: 2, gradient_as_bucket_view: true}", "{gradient_as_bucket_view: true, devices: 2}")
    studies = [load(edited("    title: First title\n", f"    exclude: [{entry}]\n")) for entry in orders]

    first, second = (study.experiments["strong"].analysis_definition for study in studies)
    assert first == second


def changed(before: Study, after: Study) -> set[tuple[str, str]]:
    old, new = definitions(before), definitions(after)
    assert old.keys() == new.keys()
    return {key for key in old if old[key] != new[key]}


def test_a_changed_learning_rate_makes_the_runs_again_that_use_it_and_no_others(load: Load) -> None:
    study = load(STUDY)

    own = changed(study, load(edited("learning_rate: 0.1", "learning_rate: 0.2")))
    default = changed(study, load(edited("  repeats: 2\n", "  repeats: 2\n  learning_rate: 0.2\n")))

    assert own == {("weak", name) for name in names(study, "weak")}
    assert default == {("strong", name) for name in names(study, "strong")}


def test_a_changed_target_makes_the_analysis_again_and_no_run(load: Load) -> None:
    before = load(STUDY)
    after = load(edited("learning_rate: 0.1\n", "learning_rate: 0.1\n    target: {accuracy: 0.9}\n"))

    assert changed(before, after) == set()
    redone = {
        name
        for name, planned in before.experiments.items()
        if planned.analysis_definition != after.experiments[name].analysis_definition
    }
    assert redone == {"weak"}


def test_training_reads_the_definition_that_the_plan_writes(load: Load) -> None:
    run = load(STUDY).runs["strong", "d2.bucket-view-on.r2"]

    definition = RunDefinition.model_validate_json(run.as_json())

    assert (definition.experiment, definition.run) == ("strong", "d2.bucket-view-on.r2")
    assert (definition.shape, definition.accelerator, definition.repeat) == (Shape(1, 2), "cpu", 2)
    assert (definition.global_batch_size, definition.batch_size_per_device) == (240, 120)
    assert definition.options == {"gradient_as_bucket_view": True}
    assert isinstance(definition.settings, Settings)
    assert definition.settings.gradient_as_bucket_view is True
    assert definition.settings.seed == 2


def test_a_sweep_makes_every_combination_named_in_one_order(load: Load) -> None:
    sweep = "momentum: [0.0, 0.9]\n      epochs: [4, 5, 6]"
    study = load(edited("gradient_as_bucket_view: [false, true]", sweep))

    expected = [
        f"d{devices}.epochs-{epochs}.momentum-{momentum}.r{repeat}"
        for epochs, momentum, devices, repeat in product((4, 5, 6), (0.0, 0.9), (1, 2), (1, 2))
    ]
    assert names(study, "strong") == expected
    run = study.runs["strong", "d2.epochs-5.momentum-0.9.r1"]
    settings = settings_of_loop(run)
    assert (settings.epochs, settings.momentum) == (5, 0.9)


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("[{devices: 2}]", {"d1.bucket-view-off", "d1.bucket-view-on"}),
        ("[{gradient_as_bucket_view: true}]", {"d1.bucket-view-off", "d2.bucket-view-off"}),
        (
            "[{devices: 2, gradient_as_bucket_view: true}]",
            {"d1.bucket-view-off", "d2.bucket-view-off", "d1.bucket-view-on"},
        ),
        ("[{devices: 2}, {gradient_as_bucket_view: true}]", {"d1.bucket-view-off"}),
    ],
)
def test_exclude_leaves_out_the_runs_that_match_all_keys_of_an_entry(
    exclude: str, left: set[str], load: Load
) -> None:
    study = load(edited("    title: First title\n", f"    exclude: {exclude}\n"))

    assert {name.rsplit(".", 1)[0] for name in names(study, "strong")} == left


def test_an_exclude_of_true_does_not_take_1_for_it(load: Load) -> None:
    text = edited("gradient_as_bucket_view: [false, true]", "epochs: [1, 2]")
    with pytest.raises(StudyError, match=r"exclude\[0\]\.epochs is True, which is not among \[1, 2\]"):
        load(text.replace("    title: First title\n", "    exclude: [{epochs: true}]\n"))


def test_an_exclude_may_name_the_word_default(load: Load) -> None:
    text = edited("gradient_as_bucket_view: [false, true]", "bucket_cap_mb: [default, 50]")
    study = load(text.replace("    title: First title\n", "    exclude: [{bucket_cap_mb: default}]\n"))

    assert {run.point for run in study.experiments["strong"].runs} == {"d1.bucket-mb-50", "d2.bucket-mb-50"}


def test_strong_scaling_keeps_the_global_batch_and_weak_scaling_the_batch_per_device(load: Load) -> None:
    study = load(STUDY.replace("devices: [1, 2]", 'devices: [1, 2, 4, "2x3"]'))

    def batches(experiment: str) -> list[tuple[int, int]]:
        runs = study.experiments[experiment].runs
        first = {run.shape: (run.batch_size_per_device, run.global_batch_size) for run in runs}
        return list(first.values())

    assert batches("strong") == [(240, 240), (120, 240), (60, 240), (40, 240)]
    assert batches("weak") == [(64, 64), (64, 128), (64, 256), (64, 384)]


def test_accumulation_divides_the_batch_that_strong_scaling_keeps_and_multiplies_the_other(
    load: Load,
) -> None:
    study = load(STUDY.replace("  repeats: 2\n", "  repeats: 1\n  accumulation_steps: 4\n"))

    def batches(experiment: str) -> list[tuple[int, int]]:
        runs = study.experiments[experiment].runs
        first = {run.shape: (run.batch_size_per_device, run.global_batch_size) for run in runs}
        return list(first.values())

    assert batches("strong") == [(60, 240), (30, 240)]
    assert batches("weak") == [(64, 256), (64, 512)]
    definition = RunDefinition.model_validate_json(study.runs["weak", "d2.r1"].as_json())
    assert (definition.batch_size_per_device, definition.global_batch_size) == (64, 512)


@pytest.mark.parametrize(
    ("key", "value", "label"),
    [
        ("accumulation_steps", 4, "accumulation-4"),
        ("bucket_cap_mb", 50, "bucket-mb-50"),
        ("communication_hook", "fp16", "hook-fp16"),
        ("crop_padding", 4, "crop-4"),
        ("horizontal_flip", True, "flip-on"),
        ("learning_rate_scaling", "linear", "rate-scaling-linear"),
        ("learning_rate_warmup_epochs", 0.5, "rate-warmup-0.5"),
        ("precision", "bf16", "precision-bf16"),
        ("stop_patience_epochs", 3, "patience-3"),
    ],
)
def test_options_have_short_names_in_a_run(key: str, value: object, label: str) -> None:
    assert option_label(key, value) == label


def test_a_swept_key_may_also_be_left_out_by_the_word_default(load: Load) -> None:
    sweep = "bucket_cap_mb: [default, 50]\n      launcher: [default, spawn]\n      image_size: [default, 16]"
    study = load(edited("gradient_as_bucket_view: [false, true]", sweep))

    runs = {run.run: run for run in study.experiments["strong"].runs}
    left_out = runs["d1.image-size-default.bucket-mb-default.launcher-default.r1"]
    settings = settings_of_loop(left_out)
    assert settings.bucket_cap_mb is None
    assert left_out.options["bucket_cap_mb"] == "default"
    swept = runs["d2.image-size-16.bucket-mb-50.launcher-spawn.r2"]
    other = settings_of_loop(swept)
    assert (other.image_size, other.bucket_cap_mb) == (16, 50)
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


def test_every_point_is_measured_once_before_any_is_measured_twice(load: Load) -> None:
    study = load(edited("    learning_rate: 0.1", "    learning_rate: 0.1\n    repeats: 5", MANY))

    repeats = [run.repeat for run in start_order(study)]

    assert repeats == sorted(repeats)
    assert min(priority(run) for run in study.runs.values()) > 0


def test_within_a_repeat_the_order_is_shuffled_and_another_one_in_the_next(load: Load) -> None:
    study = load(MANY)

    def block(repeat: int, runs: list[RunDefinition]) -> list[tuple[str, Any]]:
        return [(run.experiment, run.run.rsplit(".", 1)[0]) for run in runs if run.repeat == repeat]

    configured = block(1, list(study.runs.values()))
    first, second = block(1, start_order(study)), block(2, start_order(study))
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
    assert (
        input_files(load(text).runs["weak", "d1.r1"])["weights"]
        == "resources/weights/resnet18/model.safetensors"
    )
