"""Several mistakes are named in one go, each once, and none of them hides or makes another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import DEFAULTS, built_in, site_of

from scalewise.plan.config.errors import StudyError

BOTH = """\
defaults: {learning_rate: 0.2, epochs: 3, arguments: ["--lr", "{argument.lr}"], devices: [1, 2]}
experiments:
  loop: {dataset: digits, model: linear, global_batch_size: 64}
  own: {program: train.py, argument: {lr: 1}, scaling: weak, batch_size_per_device: 4, steps: 50}
"""


def places(lines: Sequence[str]) -> list[str]:
    """Return the file, the line and the key of each message."""
    return [" ".join(Path(line).name.split()[:2]) for line in lines]


def test_mistakes_of_options_dataset_and_model_are_all_found_in_one_go(refuse: Refuse) -> None:
    lines = refuse(
        built_in("dataset: digit", "model: digit_cnn", "precision: tf32", "stop_patience_epochs: 2")
    )

    found = {line.split(": experiments.digits.")[1].split()[0] for line in lines}
    assert found == {"dataset", "model", "precision", "stop_patience_epochs"}
    assert len(lines) == 4


def test_an_unknown_model_hides_no_mistake_in_the_batch_and_makes_none_in_the_images(refuse: Refuse) -> None:
    model, batch = refuse(
        built_in("model: resnet19", "image_size: 2", "pretrained: true", "global_batch_size: 241")
    )

    assert "digits.model is 'resnet19'" in model
    assert "digits.global_batch_size (241)" in batch


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        ("epochs: 3", "epochs: x", "experiments.loop.epochs"),
        ('arguments: ["--lr", "{argument.lr}"]', "arguments: --lr", "experiments.own.arguments"),
    ],
)
def test_a_mistake_in_the_defaults_is_named_once_whichever_training_it_is_for(
    right: str, wrong: str, key: str, refuse: Refuse, study_file: Path
) -> None:
    (line,) = [line for line in refuse(BOTH.replace(right, wrong)) if f" {key} is " in line]
    assert line.startswith(f"{study_file}:1: ")


def test_of_very_many_mistakes_the_first_are_shown_and_the_others_counted(load: Load) -> None:
    with pytest.raises(StudyError) as refused:
        load(f"{DEFAULTS}experiments:\n" + "".join(f"  e{number}: {{epochs: x}}\n" for number in range(60)))
    shown = str(refused.value).splitlines()
    assert shown[0].startswith("60 mistakes in the configuration.")
    assert len(shown) == 42
    assert shown[-1] == "  - ... and 20 more"


def test_the_mistakes_of_the_site_come_before_those_of_the_study(refuse: Refuse, site_file: Path) -> None:
    text = built_in("devices: [1, 16]")
    site_file.write_text(site_of("cluster", slurm=["account: <account>"]), encoding="utf-8")
    (account,) = refuse(text)
    assert account.startswith(f"{site_file}:6: slurm.account ")

    site_file.write_text(site_of("cluster", slurm=["account: nn9999k"]), encoding="utf-8")
    (devices,) = refuse(text)
    assert " experiments.digits.devices[1] is 16" in devices


def test_what_is_left_to_auto_by_silence_is_named_on_a_cluster(refuse: Refuse, site_file: Path) -> None:
    site_file.write_text("slurm: {}\n", encoding="utf-8")
    keys = [line.removeprefix(f"{site_file}:1: ").split(",")[0] for line in refuse(built_in())]
    assert keys == ["accelerator is auto", "devices_per_node is auto", "cpus_per_node is auto"]
