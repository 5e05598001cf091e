"""A whole configuration: defaults, every mistake at once, and the site it is planned for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.unit.plan.conftest import Load, Refuse
from tests.unit.plan.kinds import built_in

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.yaml_source import read_source
from scalewise.plan.jobs.make_plan import make_plan
from scalewise.plan.study import load_study

HERE = "# the mistake"
ONE_DEVICE = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1]}
SOUND = """\
defaults:
  dataset: digits
  model: digits_cnn
  global_batch_size: 240
  devices: [1, 2, 4]
experiments:
"""
TEN_MISTAKES = f"""\
defaults:
  dataset: digits
  model: digits_cnn
  epochs: 1.5                    {HERE}
  learning_rate: 1e-3            {HERE}
  gradient_as_bucket_view: yes   {HERE}
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


def line_numbers(lines: list[str]) -> list[int]:
    return sorted(int(line.split(":")[1]) for line in lines)


def marked(text: str) -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if HERE in line]


def test_all_mistakes_of_a_file_are_reported_at_once_and_each_once(refuse: Refuse) -> None:
    lines = refuse(TEN_MISTAKES)

    assert len(lines) == 10
    assert line_numbers(lines) == marked(TEN_MISTAKES)


def test_the_error_counts_the_mistakes_and_says_that_nothing_was_started() -> None:
    assert str(StudyError(["a", "b"])) == (
        "2 mistakes in the configuration. Nothing was started.\n  - a\n  - b"
    )
    assert str(StudyError(["a"])).startswith("1 mistake in")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            SOUND.replace("  devices", f"  epochs: 1.5  {HERE}\n  devices")
            + f"  a: {{devices: [1, 6]}}  {HERE}\n",
            id="in defaults",
        ),
        pytest.param(SOUND + f"  a:\n    epochs: 1.5  {HERE}\n    devices: [1, 6]  {HERE}\n", id="beside it"),
    ],
)
def test_a_wrong_type_hides_no_device_count_that_does_not_fit(text: str, refuse: Refuse) -> None:
    assert line_numbers(refuse(text)) == marked(text)


def test_a_mistake_in_defaults_that_shows_in_an_experiment_is_found_in_defaults(refuse: Refuse) -> None:
    text = SOUND.replace("global_batch_size: 240", f"global_batch_size: 250  {HERE}") + "  a: {}\n"

    assert line_numbers(refuse(text)) == marked(text)


def test_an_experiment_replaces_a_default_whole_and_keeps_the_others(load: Load) -> None:
    study = load(
        """\
defaults:
  dataset: digits
  model: linear
  global_batch_size: 240
  devices: [1, 2]
  epochs: 7
  target: {accuracy: 0.5}
  sweep: {momentum: [0.0, 0.9]}
experiments:
  kept: {}
  own:
    epochs: 8
    target: {accuracy: 0.9}
    sweep: {learning_rate: [0.1, 0.2]}
"""
    )
    kept, own = (built_in(study, name) for name in ("kept", "own"))

    assert (kept.epochs, kept.swept) == (7, {"momentum": [0.0, 0.9]})
    assert (own.epochs, own.swept) == (8, {"learning_rate": [0.1, 0.2]})
    assert kept.target is not None
    assert own.target is not None
    assert (kept.target.accuracy, own.target.accuracy) == (0.5, 0.9)
    assert (own.model, own.device_counts) == ("linear", [1, 2])


def test_experiments_may_share_keys_by_an_anchor(load: Load) -> None:
    study = load(SOUND + "  a: &common {epochs: 7, momentum: 0.5}\n  b: {<<: *common, epochs: 8}\n")

    spec = built_in(study, "b")
    assert (spec.epochs, spec.momentum) == (8, 0.5)


def test_a_key_misspelt_in_defaults_is_reported_there_and_not_in_every_experiment(refuse: Refuse) -> None:
    (line,) = refuse(SOUND.replace("devices", "device") + "  a: {devices: [1]}\n  b: {devices: [1]}\n")

    assert ":5: defaults.device " in line


def test_an_experiment_of_any_size_is_planned(load: Load) -> None:
    entries = ", ".join(["{devices: 1, epochs: 5}"] * 4000)

    study = load(SOUND + f"  a:\n    sweep: {{epochs: [4, 5]}}\n    exclude: [{entries}]\n")

    assert {"d1.epochs-4", "d2.epochs-5"} <= {run.point for run in study.runs.values()}
    assert "d1.epochs-5" not in {run.point for run in study.runs.values()}


def test_titles_reach_the_report_and_no_definition(load: Load) -> None:
    study = load(SOUND + "  a: {title: First, description: Why}\n  b: {}\n")

    definitions = [planned.analysis_definition for planned in study.experiments.values()]
    assert not any("First" in text or "Why" in text for text in definitions)
    facts = make_plan(study)["experiments"]
    assert [(each["title"], each["description"]) for each in facts.values()] == [("First", "Why"), ("b", "")]
    assert [each["definition"] for each in facts.values()] == definitions


def test_of_several_files_the_one_with_the_mistake_is_named(tmp_path: Path, site_file: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("defaults: {dataset: digits, model: linear}\n")
    second.write_text("experiments:\n  a:\n    global_batch_size: 240\n    devices: [0]\n")
    config = {
        "defaults": {"dataset": "digits", "model": "linear"},
        "experiments": {"a": {"global_batch_size": 240, "devices": [0]}},
    }

    with pytest.raises(StudyError) as refused:
        load_study(config, [first, second], site_file)

    (line,) = refused.value.lines
    assert line.startswith(f"{second}:4: experiments.a.devices[0] is 0")


def test_a_value_given_on_the_command_line_is_refused_without_a_file(site_file: Path) -> None:
    own = ONE_DEVICE | {"devices": [0]}

    with pytest.raises(StudyError) as refused:
        load_study({"experiments": {"a": own}}, (), site_file)

    (line,) = refused.value.lines
    assert line.startswith("config: experiments.a.devices[0] is 0")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"title": None}, "title "),
        ({"epochs": None}, "epochs "),
        ({"sweep": {"launcher": [None]}}, "sweep.launcher[0] "),
        ({"epochs": 2**63}, "epochs is 9223372036854775808"),
    ],
)
def test_a_value_that_no_file_may_hold_is_refused_once_without_one(
    own: dict[str, object], says: str, site_file: Path
) -> None:
    with pytest.raises(StudyError) as refused:
        load_study({"experiments": {"a": ONE_DEVICE | own}}, (), site_file)

    (line,) = refused.value.lines
    assert line.startswith(f"config: experiments.a.{says}")


@pytest.mark.parametrize(
    ("text", "value"),
    [("010", "8"), ("0x10", "16"), ("-07", "-7")],
)
def test_a_number_in_another_base_is_refused(tmp_path: Path, text: str, value: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(f"defaults: {{seed: {text}}}\n", encoding="utf-8")
    (problem,) = read_source(path).problems
    assert problem.render("here").startswith(f"here: defaults.seed is {text}, which YAML takes for {value}")
    assert "Write the decimal number." in problem.render("here")


def test_numbers_in_base_10_are_none_in_another(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("a: 0\nb: 10\nc: 0.5\nd: 1_000\ne: -3\nf: 0.0\n", encoding="utf-8")
    assert read_source(path).problems == []


def test_two_configuration_files_are_named(tmp_path: Path) -> None:
    text = "experiments: {e: {dataset: digits, model: linear, global_batch_size: 240, devices: [1]}}\n"
    paths = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for path in paths:
        path.write_text(text, encoding="utf-8")
    config = yaml.safe_load(text)
    (warning,) = [line for line in load_study(config, paths).warnings if "merged" in line]
    assert str(paths[0]) in warning
    assert str(paths[1]) in warning
    assert not [line for line in load_study(config, paths[:1]).warnings if "merged" in line]
