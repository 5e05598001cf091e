"""Keys are the options of train.py, which do what their names say; the epochs that it writes are read."""

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from scalewise.config.settings import Settings
from scalewise.plan.run_definition import NOT_OPTIONS
from scalewise.ranks.results.epochs import read_epochs
from scalewise.training.options import build_optimizer, build_schedule, make_parser
from train import choose_algorithms

DEFAULTS = vars(make_parser().parse_args([]))


def test_every_key_of_a_training_is_an_option_with_the_same_default_or_named_as_none() -> None:
    keys = set(Settings.model_fields)
    assert keys >= NOT_OPTIONS
    assert keys - NOT_OPTIONS <= DEFAULTS.keys()
    usual = Settings(dataset="digits", model="digits_cnn").model_dump()
    assert {key: usual[key] for key in keys - NOT_OPTIONS} == {
        key: DEFAULTS[key] for key in keys - NOT_OPTIONS
    }


def write_epochs(folder: Path, *lines: str) -> None:
    (folder / "epochs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_column_that_a_program_does_not_write_is_unknown_and_further_ones_are_ignored(
    tmp_path: Path,
) -> None:
    assert read_epochs(tmp_path) == []
    write_epochs(tmp_path, "epoch,test_accuracy,color,train_loss", "1,0.5,red,", "2,0.75,blue,1e-3")
    first, second = read_epochs(tmp_path)
    assert (first.epoch, first.test_accuracy, first.train_loss, first.test_loss) == (1, 0.5, None, None)
    assert (second.epoch, second.test_accuracy, second.train_loss) == (2, 0.75, 0.001)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("2,much", r"epochs\.csv, line 3: test_accuracy is 'much', not a number"),
        ("3,0.5", r"epochs\.csv, line 3: epoch is '3', not 2"),
        (",0.5", r"epochs\.csv, line 3: epoch is '', not 2"),
    ],
)
def test_epochs_that_cannot_be_read_are_named_with_file_line_and_value(
    row: str, complaint: str, tmp_path: Path
) -> None:
    write_epochs(tmp_path, "epoch,test_accuracy", "1,0.4", row)
    with pytest.raises(ValueError, match=complaint):
        read_epochs(tmp_path)


# --- optimizers, schedules and number formats ----------------------------------------------------------


OPTIMIZERS = ("sgd", "adam", "adamw", "adadelta")


def options(**changed: Any) -> Namespace:
    """The options of train.py, but for those that change."""
    return Namespace(**vars(make_parser().parse_args([])) | changed)


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.ones(1))


def rates(chosen: Namespace, steps_per_epoch: int) -> list[float]:
    """The learning rate that each step of the whole run uses."""
    optimizer = build_optimizer(chosen, [parameter()], 1)
    schedule = build_schedule(chosen, optimizer, steps_per_epoch)
    used = []
    for _ in range(chosen.epochs * steps_per_epoch):
        used.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return used


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_made_by_its_keys(name: str) -> None:
    chosen = options(optimizer=name, learning_rate=0.1, weight_decay=0.2, momentum=0.8)
    optimizer = build_optimizer(chosen, [parameter()], 1)
    (group,) = optimizer.param_groups
    assert type(optimizer).__name__.lower() == name
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.2)
    assert group.get("momentum", 0.8) == 0.8


def cosine(peak: float, steps: int) -> list[float]:
    return [peak * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.8] * 12),
        # it counts epochs, not steps
        ("step", [0.8] * 4 + [0.56] * 4 + [0.392] * 4),
        ("cosine", cosine(0.8, 12)),
    ],
)
def test_the_rate_of_each_step_follows_the_schedule(schedule: str, expected: list[float]) -> None:
    assert rates(options(learning_rate=0.8, epochs=3, schedule=schedule), 4) == pytest.approx(expected)


@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_tf32_rounds_what_fp32_does_not() -> None:
    matrix = torch.rand(512, 512, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    exact = matrix.double() @ matrix.double()
    errors = {}
    for name in ("fp32", "tf32"):
        choose_algorithms(options(precision=name), torch.device("cpu"))
        errors[name] = float((matrix @ matrix - exact).abs().max())
    assert errors["tf32"] > 10 * errors["fp32"]
