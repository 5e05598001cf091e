"""The settings of a run are the command line of train.py, and the epochs that it writes are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.small_runs import definition

from scalewise.config.settings import Settings
from scalewise.plan.runs.training_program import NOT_OPTIONS, TRAIN, program_of
from scalewise.ranks.results.epochs import read_epochs
from scalewise.training.options import make_parser

DEFAULTS = vars(make_parser().parse_args([]))


def test_every_key_of_a_training_is_an_option_with_the_same_default_or_named_as_none() -> None:
    keys = set(Settings.model_fields)
    assert keys >= NOT_OPTIONS
    assert keys - NOT_OPTIONS <= DEFAULTS.keys()
    usual = Settings(dataset="digits", model="digits_cnn").model_dump()
    assert {key: usual[key] for key in keys - NOT_OPTIONS} == {
        key: DEFAULTS[key] for key in keys - NOT_OPTIONS
    }


def options_of(run: Any, **files: Any) -> dict[str, Any]:
    """The options that train.py gets; its folder is `here`."""
    program = program_of(run, **files)
    assert program.program == str(TRAIN)
    words = [
        str(word).replace("{output}", "here").replace("{{", "{").replace("}}", "}")
        for word in program.arguments
    ]
    return vars(make_parser().parse_args(words))


def test_a_run_trains_by_its_settings() -> None:
    keys: dict[str, Any] = {"optimizer": "adamw", "horizontal_flip": True, "seed": 7}
    found = options_of(definition(4, steps=200, warmup_steps=5, loader="workers", cpus_per_device=3, **keys))
    assert (found["batch_size_per_device"], found["steps"], found["workers"]) == (8, 205, 3)
    assert {key: found[key] for key in keys} == keys
    assert (found["model"], found["device"], found["spawn"]) == ("linear", "cpu", None)


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
