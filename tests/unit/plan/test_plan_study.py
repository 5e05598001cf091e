"""A whole configuration: its files, its defaults, its results folder, and every mistake at once and once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from tests.paths import SCRIPTS
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import CPUS, DEFAULTS, HERE, StudyFolder, built_in, site_of

from scalewise.config.errors import StudyError
from scalewise.plan.study import check_spelling, load_study

ONE_DEVICE = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}
SOUND = f"{DEFAULTS}experiments:\n"
TEN_MISTAKES = f"""\
defaults:
  dataset: digits
  model: digits_cnn
  epochs: 1.5                    {HERE}
  learning_rate: 1e-3            {HERE}
  gradient_as_bucket_view: 1     {HERE}
experiments:
  strong:
    global_batch_size: "240"     {HERE}
    devices: []                  {HERE}
    momentum: 1.5                {HERE}
    titel: Strong                {HERE}
  weak:
    scaling: weaker              {HERE}
    warmup_steps: null           {HERE}
    devices: [1, 2]
    devices: [1, 4]              {HERE}
"""
BOTH = """\
defaults: {learning_rate: 0.2, epochs: 3, arguments: ["--lr", "{argument.lr}"], devices: [1, 2]}
experiments:
  loop: {dataset: digits, model: linear, global_batch_size: 64}
  own: {program: train.py, argument: {lr: 1}, scaling: weak, batch_size_per_device: 4, steps: 50}
"""


def lines_of(messages: Sequence[str]) -> list[int]:
    return sorted(int(message.split(":")[1]) for message in messages)


def marked(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if HERE in line]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEN_MISTAKES, id="ten"),
        pytest.param(
            SOUND.replace("  devices", f"  epochs: 1.5  {HERE}\n  devices")
            + f"  a: {{devices: [1, 6]}}  {HERE}\n",
            id="a wrong type in the defaults and a count",
        ),
        pytest.param(
            SOUND + f"  a:\n    epochs: 1.5  {HERE}\n    devices: [1, 6]  {HERE}\n", id="side by side"
        ),
        pytest.param(
            SOUND.replace("devices:", f"device:  {HERE}\n   ") + "  b: {devices: [1]}\n", id="a key"
        ),
    ],
)
def test_all_mistakes_of_a_file_are_reported_at_once_and_each_once(text: str, refuse: Refuse) -> None:
    assert lines_of(refuse(text)) == marked(text)


@pytest.mark.parametrize(
    ("mistakes", "keys"),
    [
        (
            ("dataset: digit", "model: digit_cnn", "precision: tf32"),
            {"dataset", "model", "precision"},
        ),
        (
            ("model: resnet19", "global_batch_size: 241"),
            {"model", "global_batch_size"},
        ),
    ],
    ids=["of each kind", "none of an unknown model"],
)
def test_no_mistake_hides_or_makes_another(mistakes: tuple[str, ...], keys: set[str], refuse: Refuse) -> None:
    messages = refuse(built_in(*mistakes))

    assert {message.split(": experiments.digits.")[1].split()[0].rstrip(":") for message in messages} == keys
    assert len(messages) == len(keys)


@pytest.mark.parametrize(
    ("right", "wrong", "key"),
    [
        ("epochs: 3", "epochs: x", "defaults.epochs"),
        ('arguments: ["--lr", "{argument.lr}"]', "arguments: --lr", "defaults.arguments"),
    ],
)
def test_a_mistake_in_the_defaults_is_named_once_whichever_training_it_is_for(
    right: str, wrong: str, key: str, refuse: Refuse
) -> None:
    (message,) = [line for line in refuse(BOTH.replace(right, wrong)) if f" {key}: " in line]
    assert lines_of([message]) == [1]


def test_of_very_many_mistakes_the_first_are_shown_and_the_others_counted(load: Load) -> None:
    with pytest.raises(StudyError) as refused:
        load(SOUND + "".join(f"  e{number}: {{epochs: x}}\n" for number in range(60)))
    shown = str(refused.value).splitlines()
    assert shown[0] == "60 mistakes in the configuration. Nothing was started."
    assert len(shown) == 42
    assert shown[-1] == "  - ... and 20 more"
    assert str(StudyError(["a"])).startswith("1 mistake in")


def test_the_mistakes_of_the_site_come_before_those_of_the_study(refuse: Refuse) -> None:
    text = built_in("devices: [1, 16]")
    (account,) = refuse(text, site_of("cluster", slurm=["account: <account>"]))
    assert "site.yaml:6: slurm.account " in account
    (devices,) = refuse(text, site_of("cluster", slurm=["account: nn9999k"]))
    assert " experiments.digits.devices[1] is 16" in devices


def test_what_is_left_to_auto_by_silence_is_named_on_a_cluster(refuse: Refuse) -> None:
    keys = [line.split(": ")[1].split(",")[0] for line in refuse(built_in(), "slurm: {}\n")]
    assert keys == ["accelerator is auto", "devices_per_node is auto", "cpus_per_node is auto"]


def test_a_gpu_that_auto_does_not_use_is_named_with_the_way_to_use_it(
    load: Load, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    auto = CPUS.replace("cpu\n", "auto\n", 1)
    (warning,) = load(built_in("precision: bf16"), auto).warnings
    (refusal,) = refuse(built_in("precision: fp16"), auto)
    assert "`accelerator: auto`" in warning
    assert "`accelerator: cuda`" in refusal
    assert load(built_in("precision: bf16")).warnings == []


def test_an_experiment_replaces_a_default_whole_and_keeps_the_others(load: Load) -> None:
    study = load(
        """\
defaults:
  dataset: digits
  model: linear
  global_batch_size: 240
  devices: [1, 2]
  epochs: 7
  repeats: {min: 3, max: 10}
  target: {accuracy: 0.5}
  sweep: {momentum: [0.0, 0.9]}
experiments:
  kept: {}
  own: &common
    epochs: 8
    repeats: 2
    target: {accuracy: 0.9}
    sweep: {learning_rate: [0.1, 0.2]}
  anchored: {<<: *common, epochs: 9}
"""
    )
    kept, own, anchored = (
        study.experiments[name][0].experiment.model_dump(include={"epochs", "repeats", "target", "sweep"})
        for name in ("kept", "own", "anchored")
    )
    defaults = {"epochs": 7, "repeats": {"min": 3, "max": 10}}
    own_values = {"epochs": 8, "repeats": {"min": 2, "max": 2}, "target": {"accuracy": 0.9}}

    assert kept == defaults | {"target": {"accuracy": 0.5}, "sweep": kept["sweep"]}
    assert own == own_values | {"sweep": own["sweep"]}
    assert anchored == own | {"epochs": 9}
    assert [study.experiments[name][0].experiment.swept for name in ("kept", "own")] == [
        {"momentum": [0.0, 0.9]},
        {"learning_rate": [0.1, 0.2]},
    ]


def test_of_several_files_the_one_with_the_mistake_is_named(study_folder: StudyFolder) -> None:
    defaults = "defaults: {dataset: digits, model: linear, global_batch_size: 240}\n"
    text = "experiments:\n  a:\n    devices: [0]\n"
    first, second = Path("first.yaml"), Path("second.yaml")
    first.write_text(defaults)
    second.write_text(text)
    study_folder.site_file.write_text(CPUS)

    with pytest.raises(StudyError) as refused:
        load_study(yaml.safe_load(defaults + text), [first, second], study_folder.site_file)
    (line,) = refused.value.lines
    assert line.startswith("second.yaml:3: experiments.a.devices[0] is 0")

    sound = yaml.safe_load(defaults + text.replace("0", "1"))
    second.write_text(text.replace("0", "1"))
    (warning,) = load_study(sound, [first, second], study_folder.site_file).warnings
    assert "first.yaml" in warning
    assert "second.yaml" in warning
    assert "merged" in warning


def test_a_configuration_that_the_other_workflow_makes_is_planned_without_a_file(
    study_folder: StudyFolder,
) -> None:
    study_folder.site_file.write_text(CPUS)
    Path("parent.yaml").write_text("trim: yes\n")
    made = {"experiments": {"a": ONE_DEVICE}}
    assert load_study(made, ["parent.yaml"], study_folder.site_file, is_module=True).runs

    made = {"experiments": {"a": ONE_DEVICE | {"devices": [0]}}}
    with pytest.raises(StudyError) as refused:
        load_study(made, ["parent.yaml"], study_folder.site_file, is_module=True)
    (line,) = refused.value.lines
    assert line.startswith("config: experiments.a.devices[0] is 0")


def test_a_key_that_the_command_adds_is_ignored_unless_it_resembles_one_of_the_study(
    study_folder: StudyFolder,
) -> None:
    study_folder.site_file.write_text(CPUS)
    text = built_in("epochs: 3")
    Path("study.yaml").write_text(text)
    config = yaml.safe_load(text)

    assert load_study(config | {"foo": 1}, ["study.yaml"], study_folder.site_file).runs
    with pytest.raises(StudyError) as refused:
        load_study(config | {"sites": "site.yaml"}, ["study.yaml"], study_folder.site_file)
    (line,) = refused.value.lines
    assert ": sites: Extra inputs are not permitted (is 'site.yaml'). Did you mean 'site'?" in line
    Path("study.yaml").write_text(f"{text}foo: 1\n")
    with pytest.raises(StudyError) as refused:
        load_study(config | {"foo": 1}, ["study.yaml"], study_folder.site_file)
    (line,) = refused.value.lines
    assert ": foo: Extra inputs are not permitted (is 1)." in line


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"devices": [0]}, "devices[0] is 0"),
        ({"title": None}, "title "),
        ({"epochs": None}, "epochs "),
        ({"sweep": {"launcher": [None]}}, "sweep.launcher[0] "),
        ({"epochs": 2**63}, "epochs: Input should be at most"),
    ],
)
def test_a_value_from_the_command_line_is_refused_without_a_file(
    own: dict[str, object], says: str, study_folder: StudyFolder
) -> None:
    study_folder.site_file.write_text(CPUS)
    with pytest.raises(StudyError) as refused:
        load_study({"experiments": {"a": ONE_DEVICE | own}}, (), study_folder.site_file)

    (line,) = refused.value.lines
    assert line.startswith(f"config: experiments.a.{says}")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as refused:
        check_spelling(tmp_path / "none.yaml")
    (line,) = refused.value.lines
    assert line.startswith(f"{tmp_path}/none.yaml:1: ")

    with pytest.raises(StudyError) as refused:
        load_study({"experiments": {}}, [], "profiles/none.yaml")
    (line,) = refused.value.lines
    assert line.startswith("profiles/none.yaml: ")
    assert str(Path.cwd()) in line
    assert "--config site=PATH" in line


def test_a_byte_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(built_in("title: caf").encode().rstrip(b"\n") + b"\xe9\n    epochs: 3\n")
    with pytest.raises(StudyError) as refused:
        check_spelling(path)
    (line,) = refused.value.lines
    assert line.startswith(f"{path}:8: ")
    assert "0xe9" in line


# Imports first, then gives up root where there is one: permissions do not bind it.
CHECK_AS_ANOTHER_USER = """\
import os, sys
from pathlib import Path
from scalewise.config.errors import StudyError
from scalewise.plan.study import check_results_folder
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    check_results_folder(Path("results"))
except StudyError as error:
    sys.exit(error.lines[0])
"""


def check_results_as_another_user(folder: Path) -> str:
    """What stops a user who does not own the folder; empty where nothing does."""
    ended = subprocess.run(
        [sys.executable, "-c", CHECK_AS_ANOTHER_USER],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(SCRIPTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == bool(ended.stderr), ended.stderr
    return ended.stderr.strip()


@pytest.mark.parametrize("existing", ["results", "."])
@pytest.mark.refuses("names: output folder unwritable")
def test_an_unwritable_results_folder_is_refused(
    existing: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    folder = tmp_path / existing
    folder.mkdir(exist_ok=True)
    for path in (tmp_path, folder):
        path.chmod(0o777)
    assert check_results_as_another_user(tmp_path) == ""
    tmp_path.chmod(0o755)
    folder.chmod(0o555)
    try:
        refusal = check_results_as_another_user(tmp_path)
    finally:
        folder.chmod(0o755)

    assert refusal == f"{folder}: cannot be written to. Change its permissions, or run elsewhere."
    record_property("message", refusal.replace(f"{folder}", existing))
