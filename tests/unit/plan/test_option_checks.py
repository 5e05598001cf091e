"""Options that cannot work together, or not on these devices, are refused with line, value and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.kinds import settings_of_loop
from tests.unit.plan.refusals import assert_refused, mistaken

CPU = "accelerator: cpu\ndevices_per_node: 4\ncpus_per_node: 8\nmax_nodes: 4\n"
GPU = CPU.replace("cpu\n", "cuda\n", 1)
BOTH = pytest.mark.parametrize("site", [CPU, GPU], ids=["CPUs", "GPUs"])


def study(*lines: str) -> str:
    """A study whose one experiment has these lines, of which the last is the mistake."""
    return mistaken("study", *lines)


ON_CPUS = [
    pytest.param(
        study("precision: tf32"),
        ("study.precision is 'tf32', a format of GPUs", "Use fp32 or bf16."),
        id="tf32",
    ),
    pytest.param(
        study("precision: fp16"),
        ("study.precision is 'fp16'", "CPU processes", "0.03 times the speed", "Use bf16 or fp32."),
        id="fp16",
    ),
    pytest.param(
        study("sweep: {precision: [fp32, bf16, fp16]}"),
        ("study.sweep.precision is 'fp16'", "Use bf16 or fp32."),
        id="fp16 in a sweep",
    ),
    pytest.param(
        study("communication_hook: bf16"),
        ("study.communication_hook is 'bf16'", "GPUs with NCCL", "Use fp16, which sends as few bytes."),
        id="bf16 gradients",
    ),
]


@pytest.mark.parametrize(("text", "says"), ON_CPUS)
def test_what_cpu_processes_cannot_do_is_refused_there_and_taken_on_gpus(
    text: str, says: tuple[str, ...], refuse: Refuse, load: Load, study_file: Path, site_file: Path
) -> None:
    assert_refused(text, says, refuse(text), study_file)

    site_file.write_text(GPU, encoding="utf-8")
    assert load(text).runs


def test_a_gpu_that_auto_leaves_alone_is_named_with_the_way_to_use_it(
    refuse: Refuse, load: Load, study_file: Path, site_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    site_file.write_text(CPU.replace("cpu\n", "auto\n", 1), encoding="utf-8")
    (warning,) = load(study("precision: bf16")).warnings
    assert warning.startswith("this machine has a GPU, which `accelerator: auto` does not use")
    text = study("precision: fp16")
    says = ("study.precision is 'fp16'", "`accelerator: cuda` in the site file: this machine has a GPU.")
    assert_refused(text, says, refuse(text), study_file)
    site_file.write_text(CPU, encoding="utf-8")
    assert load(study("precision: bf16")).warnings == []


ANYWHERE = [
    pytest.param(
        study("parallelism: fsdp", "gradient_as_bucket_view: true"),
        (
            "study.gradient_as_bucket_view is true",
            "parallelism is fsdp",
            "Remove it, or use parallelism ddp or zero1.",
        ),
        id="fsdp with a bucket view",
    ),
    pytest.param(
        study("parallelism: fsdp", "static_graph: true"),
        ("study.static_graph is true", "parallelism is fsdp", "Remove it, or"),
        id="fsdp with a static graph",
    ),
    pytest.param(
        study("parallelism: fsdp", "bucket_cap_mb: 50"),
        ("study.bucket_cap_mb is 50", "parallelism is fsdp", "Remove it, or"),
        id="fsdp with a bucket size",
    ),
    pytest.param(
        study("parallelism: fsdp", "communication_hook: fp16"),
        ("study.communication_hook is fp16", "parallelism is fsdp", "Remove it, or"),
        id="fsdp with a hook",
    ),
    pytest.param(
        study("parallelism: fsdp", "channels_last: true"),
        ("study.channels_last is true", "fsdp, which cannot divide weights in that layout", "Remove it, or"),
        id="fsdp with channels last",
    ),
    pytest.param(
        study("sweep: {parallelism: [ddp, fsdp], static_graph: [false, true]}"),
        (
            "study.sweep.static_graph is true, but parallelism is fsdp",
            "Exclude the two together: `exclude: [{parallelism: fsdp, static_graph: true}]`.",
        ),
        id="fsdp met by a static graph in a sweep",
    ),
    pytest.param(
        study("schedule: onecycle", "learning_rate_warmup_epochs: 1.5"),
        (
            "study.learning_rate_warmup_epochs is 1.5, but schedule is onecycle",
            "Remove it, or use another schedule.",
        ),
        id="two warm-ups of the learning rate",
    ),
    pytest.param(
        study("epochs: 5", "learning_rate_warmup_epochs: 5"),
        ("study.learning_rate_warmup_epochs (5) is not below the 5 epochs", "Use fewer, or more epochs."),
        id="a learning rate that rises to the end",
    ),
    pytest.param(
        study("stop_patience_epochs: 3"),
        ("study.stop_patience_epochs is 3", "no stop_at_accuracy", "Add `stop_at_accuracy: 0.97`"),
        id="patience without an accuracy",
    ),
    pytest.param(
        study("epochs: 5", "stop_at_accuracy: 0.9", "stop_patience_epochs: 6"),
        ("study.stop_patience_epochs (6) is over the 5 epochs", "Use at most 5, or more epochs."),
        id="patience beyond the run",
    ),
    pytest.param(
        study("target: {accuracy: 0.97}", "stop_at_accuracy: 0.9"),
        (
            "study.stop_at_accuracy (0.9) ends the training before target.accuracy (0.97)",
            "Use 0.97 or more, or a lower target.",
        ),
        id="a stop below the target",
    ),
    pytest.param(
        study("crop_padding: 8"),
        ("study.crop_padding (8) is not below the 8 pixels of digits", "Use for instance 1."),
        id="a crop of padding alone",
    ),
    pytest.param(
        study("image_size: 64", "crop_padding: 8"),
        ("study.crop_padding (8) is not below the 8 pixels of digits", "Use for instance 1."),
        id="a crop of padding alone before images are enlarged",
    ),
    pytest.param(
        study("image_size: 3"),
        ("study.image_size (3) is below the 4 pixels that 'digits_cnn' needs", "Use 4 or more."),
        id="images too small for the model",
    ),
    pytest.param(
        study("pretrained: true"),
        ("study.pretrained is true, but model is 'digits_cnn'", "Remove it, or use resnet18."),
        id="weights for another model",
    ),
    pytest.param(
        study("model: resnet18", "image_size: 224", "pretrained: true"),
        ("study.pretrained is true, but digits has images of 1 channels", "are for 3", "use other data"),
        id="weights for other channels",
    ),
    pytest.param(
        study("model: resnet18", "dataset: cifar10", "pretrained: true"),
        ("study.pretrained is true", "below 64 pixels", "these images have 32", "Add `image_size: 224`"),
        id="weights for larger images",
    ),
    pytest.param(
        study("model: resnet18", "dataset: cifar10", "image_size: 63", "pretrained: true"),
        ("study.pretrained is true", "below 64 pixels", "have 63", "Use image_size: 224, or remove it."),
        id="weights for images of more pixels than were asked for",
    ),
]


@BOTH
@pytest.mark.parametrize(("text", "says"), ANYWHERE)
def test_options_that_do_not_fit_together_are_refused_on_all_devices(
    text: str, says: tuple[str, ...], site: str, refuse: Refuse, study_file: Path, site_file: Path
) -> None:
    site_file.write_text(site, encoding="utf-8")

    assert_refused(text, says, refuse(text), study_file)


def test_a_crop_is_checked_against_the_size_that_is_stored(
    refuse: Refuse, load: Load, study_file: Path
) -> None:
    name = "synthetic-3x16x12-500samples"
    text = study(f"dataset: {name}", "image_size: 32", "crop_padding: 12")

    assert_refused(
        text, (f"(12) is not below the 12 pixels of {name}", "instance 1."), refuse(text), study_file
    )
    assert load(text.replace("padding: 12", "padding: 11")).runs


UNEVEN = [
    pytest.param(
        study("compile: true", "warmup_steps: 4"),
        (
            "study.warmup_steps (4) would measure the last of the first epoch's 6 steps",
            "for whose 237 samples, not 240, the model is compiled again",
            "Use warmup_steps: 6 or more.",
        ),
        id="the rest of an epoch",
    ),
    pytest.param(
        study("compile: true", "epochs: 1", "warmup_steps: 5"),
        ("(5) would measure the last", "Use warmup_steps: 6 and epochs: 2 or more."),
        id="the rest of the only epoch",
    ),
    pytest.param(
        # 23 steps an epoch on 1 device, 12 on 2
        study("compile: true", "scaling: weak", "batch_size_per_device: 64", "warmup_steps: 22"),
        ("(22) would measure the last of the first epoch's 23 steps on 1 device", "Use warmup_steps: 23 or"),
        id="the rest of the longest epoch",
    ),
]


@BOTH
@pytest.mark.parametrize(("text", "says"), UNEVEN)
def test_a_step_in_which_the_model_is_compiled_again_is_never_measured(
    text: str, says: tuple[str, ...], site: str, refuse: Refuse, study_file: Path, site_file: Path
) -> None:
    site_file.write_text(site, encoding="utf-8")

    assert_refused(text, says, refuse(text), study_file)


def test_where_all_steps_are_alike_compiling_asks_for_one_step_of_warm_up(
    refuse: Refuse, load: Load, study_file: Path
) -> None:
    text = study("dataset: synthetic-1x8x8-480samples", "compile: true", "warmup_steps: 0")

    says = (
        "(0) would measure the first step, in which the model is compiled",
        "Use warmup_steps: 1 or more.",
    )
    assert_refused(text, says, refuse(text), study_file)
    assert load(text.replace("warmup_steps: 0", "warmup_steps: 1")).runs


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("precision: bf16", "channels_last: true", "compile: true"), id="bf16, compiled"),
        pytest.param(("parallelism: zero1", "gradient_as_bucket_view: true"), id="zero1 with a bucket view"),
        pytest.param(("parallelism: zero1", "static_graph: true"), id="zero1 with a static graph"),
        pytest.param(("parallelism: zero1", "communication_hook: fp16"), id="zero1 with a hook"),
        pytest.param(("parallelism: zero1", "schedule: onecycle"), id="zero1 with a changing rate"),
        pytest.param(("parallelism: zero1", "accumulation_steps: 2"), id="zero1 with accumulation"),
        pytest.param(("static_graph: true", "accumulation_steps: 2"), id="a static graph with accumulation"),
        pytest.param(("parallelism: fsdp", "compile: true"), id="fsdp, compiled"),
        pytest.param(("parallelism: fsdp", "accumulation_steps: 2"), id="fsdp with accumulation"),
        pytest.param(("parallelism: fsdp", "precision: bf16"), id="fsdp with bf16"),
        pytest.param(
            (
                "sweep: {parallelism: [ddp, fsdp], static_graph: [false, true]}",
                "exclude: [{parallelism: fsdp, static_graph: true}]",
            ),
            id="fsdp beside a static graph",
        ),
        pytest.param(("communication_hook: fp16", "static_graph: true"), id="a hook, static graph"),
        pytest.param(("compile: true", "warmup_steps: 6"), id="compiled within the first epoch"),
        pytest.param(("schedule: cosine", "learning_rate_warmup_epochs: 9.5"), id="a long warm-up"),
        pytest.param(("schedule: onecycle", "learning_rate_warmup_epochs: 0"), id="no warm-up, one cycle"),
        pytest.param(("stop_at_accuracy: 0.9", "stop_patience_epochs: 10"), id="patience as long as the run"),
        pytest.param(("stop_at_accuracy: 0.9", "target: {accuracy: 0.9}"), id="a stop at the target"),
        pytest.param(("crop_padding: 7", "horizontal_flip: true"), id="a crop that shows a pixel"),
        pytest.param(("image_size: 4",), id="images as small as the model takes"),
        pytest.param(
            ("model: resnet18", "dataset: cifar10", "image_size: 64", "pretrained: true"),
            id="pretrained from 64 pixels on",
        ),
        pytest.param(("loader: workers", "cpus_per_device: 2", "image_size: 16"), id="workers that resize"),
        pytest.param(("deterministic: true", "save_model: true"), id="deterministic, kept"),
    ],
)
def test_options_that_torch_takes_together_are_taken(lines: tuple[str, ...], load: Load) -> None:
    assert load(study(*lines)).runs


def test_fp16_is_taken_with_every_parallelism_on_gpus(load: Load, site_file: Path) -> None:
    site_file.write_text(GPU, encoding="utf-8")

    runs = load(study("precision: fp16", "sweep: {parallelism: [ddp, zero1, fsdp]}")).runs

    assert {settings_of_loop(run).parallelism for run in runs.values()} == {"ddp", "zero1", "fsdp"}


def test_a_default_for_other_experiments_is_no_mistake_in_one_that_has_no_use_for_it(load: Load) -> None:
    assert load(study("epochs: 5").replace("defaults:\n", "defaults:\n  stop_patience_epochs: 3\n")).runs


def test_mistakes_of_options_dataset_and_model_are_all_found_in_one_go(refuse: Refuse) -> None:
    lines = refuse(study("dataset: digit", "model: digit_cnn", "precision: tf32", "stop_patience_epochs: 2"))

    found = {line.split(": experiments.study.")[1].split()[0] for line in lines}
    assert found == {"dataset", "model", "precision", "stop_patience_epochs"}
    assert len(lines) == 4


def test_an_unknown_model_hides_no_mistake_in_the_batch_and_makes_none_in_the_images(refuse: Refuse) -> None:
    model, batch = refuse(
        study("model: resnet19", "image_size: 2", "pretrained: true", "global_batch_size: 241")
    )

    assert "study.model is 'resnet19'" in model
    assert "study.global_batch_size (241) is not divisible by the world size (2)" in batch
