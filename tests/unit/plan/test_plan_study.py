"""A whole configuration: its files, its defaults, its results folder, and every mistake at once and once."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.refusals import CPUS, DEFAULTS, HERE, StudyFolder, built_in, site_of

from scalewise.config.errors import StudyError
from scalewise.config.experiment import Experiment
from scalewise.config.yaml_source import read_source
from scalewise.plan.study import check_results_folder, load_study

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


def test_no_mistake_hides_another(refuse: Refuse) -> None:
    messages = refuse(built_in("dataset: digit", "model: digit_cnn", "precision: tf32"))
    keys = [message.split(": experiments.digits.")[1].split()[0] for message in messages]
    assert sorted(keys) == ["dataset", "model", "precision"]


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
    assert "`accelerator`" in refusal
    assert load(built_in("precision: bf16")).warnings == []


def test_an_experiment_replaces_a_default_whole_and_keeps_the_others(load: Load) -> None:
    study = load(
        """\
defaults:
  {dataset: digits, model: linear, global_batch_size: 240, devices: [1, 2], epochs: 7,
   repeats: {min: 3, max: 10}, sweep: {momentum: [0.0, 0.9]}}
experiments:
  kept: {}
  own: &common {epochs: 8, repeats: 2, sweep: {learning_rate: [0.1, 0.2]}}
  anchored: {<<: *common, epochs: 9}
"""
    )
    found = {
        name: (spec.epochs, spec.repeats.min, spec.repeats.max, spec.swept)
        for name, (part,) in study.experiments.items()
        if isinstance(spec := part.experiment, Experiment)
    }
    rates = {"learning_rate": [0.1, 0.2]}
    assert found == {
        "kept": (7, 3, 10, {"momentum": [0.0, 0.9]}),
        "own": (8, 2, 2, rates),
        "anchored": (9, 2, 2, rates),
    }


@pytest.mark.usefixtures("study_folder")
def test_of_several_files_the_one_with_the_mistake_is_named() -> None:
    defaults = "defaults: {dataset: digits, model: linear, global_batch_size: 240}\n"
    files = [Path("first.yaml"), Path("second.yaml")]
    for devices in (0, 1):
        text = f"experiments:\n  a:\n    devices: [{devices}]\n"
        for file, content in zip(files, (defaults, text), strict=True):
            file.write_text(content)
        config = yaml.safe_load(defaults + text)
        if devices == 0:
            with pytest.raises(StudyError, match=r"second.yaml:3: experiments\.a\.devices\[0\] is 0"):
                load_study(config, files)
    (warning,) = load_study(config, files).warnings
    assert "first.yaml, second.yaml are merged" in warning


def test_a_key_at_the_top_is_refused_in_a_file_and_ignored_from_the_command(
    study_folder: StudyFolder,
) -> None:
    text = built_in("epochs: 3")
    study_folder.plan(text)
    config = yaml.safe_load(text) | {"foo": 1}

    (warning,) = load_study(config, ["study.yaml"], study_folder.site_file).warnings
    assert warning.startswith("foo of --config is no key of a study. Known: defaults, ")
    # of a key that the file has as well
    given = {"experiments": {"digits": {"epochs": "4"}}}
    config["experiments"]["digits"] |= given["experiments"]["digits"]
    with pytest.raises(StudyError, match=r"--config: experiments\.digits\.epochs: .* \(is '4'\)"):
        load_study(config, ["study.yaml"], study_folder.site_file, command=given)
    (line,) = study_folder.refuse(f"{text}foo: 1\n")
    assert ": foo: Extra inputs are not permitted (is 1)." in line


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({}, ""),
        ({"devices": [0]}, "devices[0] is 0"),
        ({"epochs": None}, "epochs "),
        ({"sweep": {"launcher": [None]}}, "sweep.launcher[0] "),
        ({"epochs": 2**63}, "epochs: Input should be at most"),
    ],
)
def test_a_value_that_the_command_or_another_workflow_gives_is_planned_or_refused_without_a_file(
    own: dict[str, object], says: str, study_folder: StudyFolder
) -> None:
    Path("parent.yaml").write_text("trim: yes\n")
    made = {"experiments": {"a": ONE_DEVICE | own}}
    for files, is_module in (((), False), (("parent.yaml",), True)):
        if not says:
            assert load_study(made, files, is_module=is_module).runs
            continue
        with pytest.raises(StudyError) as refused:
            load_study(made, files, is_module=is_module)
        (line,) = refused.value.lines
        assert line.startswith(f"config: experiments.a.{says}")


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"{tmp_path}/none.yaml:1: "):
        read_source(tmp_path / "none.yaml")
    with pytest.raises(StudyError, match=f"profiles/none.yaml: .*{Path.cwd()}.*--config site=PATH"):
        load_study({"experiments": {}}, [], "profiles/none.yaml")


def test_a_byte_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(
        "# café\n".encode() + built_in("title: caf").encode().rstrip(b"\n") + b"\xe9\n    epochs: 3\n"
    )
    with pytest.raises(StudyError) as refused:
        read_source(path)
    (line,) = refused.value.lines
    assert line.startswith(f"{path}:9: ")


@pytest.mark.parametrize("existing", ["results", "."])
@pytest.mark.refuses("names: output folder unwritable")
def test_an_unwritable_results_folder_is_refused(
    existing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    folder = tmp_path / existing
    folder.mkdir(exist_ok=True)
    check_results_folder(tmp_path / "results")
    # permissions do not bind root
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder)
    with pytest.raises(StudyError) as refused:
        check_results_folder(tmp_path / "results")
    (line,) = refused.value.lines
    assert line.startswith(f"{folder}: cannot be written to.")
    record_property("message", line.replace(f"{folder}", existing))
