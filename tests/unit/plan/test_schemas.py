"""Schemas and shipped files: what an editor completes is what the models say, and examples fit the sites."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.paths import ROOT
from tests.workflow.workplace import filled_in

import write_generated
from scalewise.config.errors import StudyError
from scalewise.config.schema import site_schema, study_schema
from scalewise.plan.study import load_study

GENERATED = (
    "workflow/schemas/experiments.schema.json",
    "workflow/schemas/site.schema.json",
    "config/README.md",
)
STUDIES = sorted((ROOT / "config").rglob("*.yaml"))
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))
SITES = [ROOT / "profiles" / "slurm" / "site.yaml", *sorted((ROOT / "profiles" / "sites").glob("*.yaml"))]
SMALLER = {
    # 2 nodes a run, of which one experiment takes 3; 16 CPUs a GPU
    "nyu-greene": {"olivia-cifar100", "princeton-mnist"},
    # 12 and 16 CPUs a GPU
    "princeton-della": {"olivia-cifar100"},
    "site": {"olivia-cifar100"},
}
"""Sites -> examples that request more than the site grants."""


def errors(schema: dict[str, Any], value: object) -> list[str]:
    return [error.message for error in Draft202012Validator(schema).iter_errors(value)]


def content(example: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(example.read_text(encoding="utf-8")))


def test_generated_files_are_what_the_models_say() -> None:
    generated = write_generated.generated()

    assert set(generated) == {ROOT / path for path in GENERATED}
    # the fix is worth more than a difference of two long texts
    changed = [str(path) for path, text in generated.items() if path.read_text(encoding="utf-8") != text]
    assert changed == [], "out of step with the configuration models. Run: make generated"


def test_an_editor_marks_nothing_in_a_shipped_file_but_placeholders() -> None:
    sites = {*SITES, *(ROOT / "profiles").rglob("site.yaml")}
    for schema, files in (
        (study_schema(), {path: content(path) for path in STUDIES}),
        (site_schema(), {path: yaml.safe_load(filled_in(path)) for path in sites}),
    ):
        Draft202012Validator.check_schema(schema)
        marked = {path.name: found for path, values in files.items() if (found := errors(schema, values))}
        assert marked == {}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_its_schema(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    schema = path.parent / first.removeprefix("# yaml-language-server: $schema=")
    assert schema.resolve() == ROOT / "workflow" / "schemas" / "experiments.schema.json"


def test_every_key_is_described() -> None:
    schemas = [*study_schema()["$defs"].values(), study_schema(), site_schema()]
    described = {
        f"{schema['title']}.{key}": bool(value.get("description"))
        for schema in schemas
        for key, value in schema["properties"].items()
    }

    known = {"Experiment.epochs", "Target.accuracy", "Sweep.epochs", "Scalewise site.max_nodes"}
    assert known <= set(described)
    assert [key for key, has in described.items() if not has] == []


@pytest.mark.parametrize("site", SITES, ids=lambda path: path.stem)
def test_every_example_fits_every_cluster_that_grants_what_it_requests(site: Path, tmp_path: Path) -> None:
    filled = tmp_path / "site.yaml"
    filled.write_text(filled_in(site))
    refused = {}
    for example in EXAMPLES:
        try:
            study = load_study(content(example), [str(example)], str(filled))
        except StudyError as error:
            refused[example.stem] = str(error)
        else:
            assert study.warnings == []
    assert refused.keys() == SMALLER.get(site.stem, set()), refused
    assert all(re.search("Use 1 to|Use at most", message) for message in refused.values())


def test_experiments_of_two_examples_never_share_a_results_folder() -> None:
    names = [name for example in EXAMPLES for name in content(example)["experiments"]]
    assert len(names) == len(set(names))
