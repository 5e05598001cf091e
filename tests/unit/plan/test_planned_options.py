"""Options that work together are planned, each with what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.kinds import settings_of_loop
from tests.unit.plan.refusals import MACHINES, built_in

from scalewise.plan.terminal.plan_table import plan_table


def test_a_gpu_that_auto_leaves_alone_is_named_with_the_way_to_use_it(
    load: Load, refuse: Refuse, site_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    site_file.write_text(MACHINES["cpus"].replace("cpu\n", "auto\n", 1), encoding="utf-8")
    (warning,) = load(built_in("precision: bf16")).warnings
    (line,) = refuse(built_in("precision: fp16"))
    assert "`accelerator: auto`" in warning
    assert "`accelerator: cuda`" in line

    site_file.write_text(MACHINES["cpus"], encoding="utf-8")
    assert load(built_in("precision: bf16")).warnings == []


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
        pytest.param(("steps: 50", "schedule: cosine"), id="as long as the schedule"),
        pytest.param(("steps: 500", "schedule: step"), id="a schedule without an end"),
        pytest.param(("epochs: 1", "warmup_steps: 100", "steps: 100"), id="a warm-up over all epochs"),
        pytest.param(
            ("schedule: cosine", "steps: 20", "sweep: {epochs: [5, 10]}"), id="epochs for the schedule"
        ),
        pytest.param(("steps: {most: 100, until_interval: 0.2}",), id="until an interval"),
        pytest.param(
            ("steps: 20", "save_model: true", "decision: {min_efficiency: 0.8}"), id="weights to keep"
        ),
    ],
)
def test_options_that_go_together_are_planned(lines: tuple[str, ...], load: Load) -> None:
    assert load(built_in(*lines)).runs


def test_fp16_is_taken_with_every_parallelism_on_gpus(load: Load, site_file: Path) -> None:
    site_file.write_text(MACHINES["gpus"], encoding="utf-8")

    runs = load(built_in("precision: fp16", "sweep: {parallelism: [ddp, zero1, fsdp]}")).runs

    assert {settings_of_loop(run).parallelism for run in runs.values()} == {"ddp", "zero1", "fsdp"}


def test_a_default_for_other_experiments_is_no_mistake_in_one_that_has_no_use_for_it(load: Load) -> None:
    assert load(built_in("epochs: 5").replace("defaults:\n", "defaults:\n  stop_patience_epochs: 3\n")).runs


def test_the_plan_says_that_steps_may_be_fewer(load: Load, tmp_path: Path) -> None:
    assert "10 + up to 500 steps" in plan_table(
        load(built_in("steps: {most: 500, until_interval: 0.01}")), tmp_path
    )
    assert "10 + 500 steps" in plan_table(load(built_in("steps: 500")), tmp_path)
