"""The schemas that complete the configuration in editors say what the models say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

import write_generated
from scalewise.analysis.report.figures import FIGURES
from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.program import SWEEPABLE_PROGRAM_KEYS
from scalewise.plan.config.schema import study_schema
from scalewise.plan.config.settings import SWEEPABLE
from scalewise.plan.config.site import SiteFile
from scalewise.plan.study import load_study

ROOT = Path(__file__).parents[3]
GENERATED = (
    "workflow/schemas/experiments.schema.json",
    "workflow/schemas/site.schema.json",
    *(f"workflow/report/{figure}.rst" for figure in FIGURES),
    "config/README.md",
)
EXPERIMENT = {"dataset": "digits", "model": "linear", "global_batch_size": 240, "devices": [1, "2x2"]}


PROGRAM = {
    "program": __file__,
    "arguments": ["--batch-size", "{global_batch_size}", "--lr", "{argument.lr}"],
    "argument": {"lr": 0.1},
    "environment": {"OUT": "{folder}"},
    "global_batch_size": 240,
    "samples_per_step": "planned",
    "steps": 20,
    "devices": [1, "2x2"],
}


def is_valid(schema: dict[str, Any], value: object) -> bool:
    return Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("path", GENERATED)
def test_a_generated_file_is_what_the_models_say(path: str) -> None:
    expected = write_generated.generated()[ROOT / path]

    # compared outside the assertion: the mend is worth more than a difference of two long texts
    in_step = (ROOT / path).read_text(encoding="utf-8") == expected
    assert in_step, f"{path} is out of step with the configuration models. Run: make generated"


def test_nothing_else_is_generated() -> None:
    assert set(write_generated.generated()) == {ROOT / path for path in GENERATED}


def test_the_schemas_are_schemas() -> None:
    for schema in (study_schema(), SiteFile.model_json_schema()):
        Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    "path", sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "config").rglob("*.yaml"))
)
def test_a_shipped_study_validates_in_an_editor(path: str) -> None:
    config = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))

    errors = [error.message for error in Draft202012Validator(study_schema()).iter_errors(config)]
    assert errors == []


@pytest.mark.parametrize(
    "path", sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "profiles").rglob("site.yaml"))
)
def test_a_shipped_site_validates_in_an_editor(path: str) -> None:
    facts = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))

    assert is_valid(SiteFile.model_json_schema(), facts)


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({"epoch": 4}, id="unknown key"),
        pytest.param({"epochs": "4"}, id="text for a number"),
        pytest.param({"epochs": 1.5}, id="1.5 epochs"),
        pytest.param({"epochs": 0}, id="0 epochs"),
        pytest.param({"epochs": None}, id="null"),
        pytest.param({"global_batch_size": None}, id="null for an optional key"),
        pytest.param({"learning_rate": -0.1}, id="negative rate"),
        pytest.param({"optimizer": "lion"}, id="unknown optimizer"),
        pytest.param({"gradient_as_bucket_view": "true"}, id="text for a boolean"),
        pytest.param({"devices": []}, id="no devices"),
        pytest.param({"devices": [True]}, id="a boolean for a device count"),
        pytest.param({"target": {"accuracy": 97}}, id="percent for a fraction"),
        pytest.param({"sweep": {"epochs": 4}}, id="a sweep of no list"),
        pytest.param({"sweep": {"epochs": []}}, id="a sweep of nothing"),
        pytest.param({"sweep": {"global_batch_size": [None]}}, id="a sweep of null"),
        pytest.param({"sweep": {"scaling": ["weak"]}}, id="a sweep of scaling"),
    ],
)
def test_an_editor_marks_what_the_plan_refuses(own: dict[str, Any], site_file: Path) -> None:
    schema = study_schema()
    sound, bad = ({"experiments": {"a": EXPERIMENT | more}} for more in ({}, own))

    assert is_valid(schema, sound)
    assert not is_valid(schema, bad)
    assert load_study(sound, (), site_file).runs
    with pytest.raises(StudyError):
        load_study(bad, (), site_file)


@pytest.mark.parametrize(
    "own",
    [
        pytest.param({"programm": "train.py"}, id="unknown key"),
        pytest.param({"precision": "bf16"}, id="option of the loop"),
        pytest.param({"target": {"accuracy": 0.9}}, id="target"),
        pytest.param({"program": None}, id="null"),
        pytest.param({"program": ["train.py"]}, id="a list for the program"),
        pytest.param({"arguments": "--lr 0.1"}, id="text for the arguments"),
        pytest.param({"arguments": [True]}, id="a boolean for a word"),
        pytest.param({"arguments": [["a"]]}, id="a list for a word"),
        pytest.param({"argument": {"learning-rate": 1}}, id="no name of a value"),
        pytest.param({"samples_per_step": "plan"}, id="another word for the samples"),
        pytest.param({"samples_per_step": 0}, id="0 samples"),
        pytest.param({"global_batch_size": "mine"}, id="another word for the batch"),
        pytest.param({"steps": 0}, id="0 steps"),
        pytest.param({"steps": {"most": 500}}, id="most steps without an interval"),
        pytest.param({"steps": {"most": 500, "until_interval": 1}}, id="an interval of 100 %"),
        pytest.param({"starts": "nodes"}, id="unknown start"),
        pytest.param({"resumes": "yes"}, id="text for a boolean"),
        pytest.param({"metric": "loss=([0-9]+)"}, id="a pattern for a metric"),
        pytest.param({"metric": {"at_most": 1.0}}, id="a metric without a pattern"),
        pytest.param({"sweep": {"lr": [1]}}, id="a sweep of no key"),
        pytest.param({"sweep": {"steps": [1]}}, id="a sweep of steps"),
        pytest.param({"sweep": {"argument.learning-rate": [1]}}, id="a sweep of no name"),
        pytest.param({"sweep": {"argument.lr": []}}, id="a sweep of nothing"),
        pytest.param({"sweep": {"argument.lr": 1}}, id="a sweep of no list"),
        pytest.param({"sweep": {"epochs": [1, 2]}}, id="a sweep of the loop"),
    ],
)
def test_an_editor_marks_what_the_plan_refuses_of_a_program(own: dict[str, Any], site_file: Path) -> None:
    schema = study_schema()
    sound, bad = ({"experiments": {"a": PROGRAM | more}} for more in ({}, own))

    assert is_valid(schema, sound)
    assert not is_valid(schema, bad)
    assert load_study(sound, (), site_file).runs
    with pytest.raises(StudyError):
        load_study(bad, (), site_file)


@pytest.mark.parametrize(
    "defaults",
    [
        pytest.param({"sweep": {"argument.lr": [0.1, 0.2]}, "epochs": 3}, id="a sweep of a program"),
        pytest.param({"learning_rate": 0.1, "argument": {"lr": 3}}, id="keys of both"),
    ],
)
def test_defaults_may_hold_keys_of_either_kind(defaults: dict[str, Any], site_file: Path) -> None:
    own = {key: value for key, value in PROGRAM.items() if key != "argument"}
    study = {"defaults": defaults, "experiments": {"own": own}}

    assert is_valid(study_schema(), study)
    assert load_study(study, (), site_file).runs


@pytest.mark.parametrize("name", ["../x", "a b", "", "-a", "a/b", "{run}", "a" * 101])
def test_an_editor_marks_a_name_that_cannot_be_a_folder(name: str) -> None:
    assert not is_valid(study_schema(), {"experiments": {name: EXPERIMENT}})


def test_what_defaults_give_an_experiment_need_not_repeat() -> None:
    assert is_valid(study_schema(), {"defaults": EXPERIMENT, "experiments": {"a": {}}})


def test_every_key_is_described() -> None:
    schemas = [*study_schema()["$defs"].values(), study_schema(), SiteFile.model_json_schema()]
    described = {
        f"{schema['title']}.{key}": bool(value.get("description"))
        for schema in schemas
        for key, value in schema["properties"].items()
    }

    assert {"Experiment.epochs", "Target.accuracy", "Sweep.epochs", "Scalewise site.max_nodes"} <= set(
        described
    )
    assert [key for key, has in described.items() if not has] == []


def test_every_option_is_sweepable_but_the_scaling_and_the_steps() -> None:
    definitions = study_schema()["$defs"]

    assert set(definitions["Sweep"]["properties"]) == set(SWEEPABLE)
    assert set(definitions["ProgramSweep"]["properties"]) == set(SWEEPABLE_PROGRAM_KEYS)
    assert not {"scaling", "steps"} & {*SWEEPABLE, *SWEEPABLE_PROGRAM_KEYS}
    assert "learning_rate" in SWEEPABLE
