"""The shipped examples are what an editor accepts, and fit the clusters that are shipped with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.workflow.login_node import filled_in

from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.schema import study_schema
from scalewise.plan.study import load_study

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "config" / "examples").glob("*.yaml"))
SITES = [ROOT / "profiles" / "slurm" / "site.yaml", *sorted((ROOT / "profiles" / "sites").glob("*.yaml"))]
SMALLER = {
    # 7 CPUs a GPU; the tutorials have 8 or 18
    "csc-lumi-g": {"nyu-ddp", "olivia-cifar100", "palmetto-torchrun", "princeton-mnist"},
    # jobs cannot request memory
    "juelich-juwels-booster": {"nyu-ddp", "palmetto-torchrun", "princeton-mnist"},
    "nersc-perlmutter": {"nyu-ddp", "palmetto-torchrun", "princeton-mnist"},
    # 2 nodes a run, of which one experiment takes 3; 16 CPUs a GPU
    "nyu-greene": {"olivia-cifar100", "princeton-mnist"},
    # 12 and 16 CPUs a GPU
    "princeton-della": {"olivia-cifar100"},
    "site": {"olivia-cifar100"},
}


def content(example: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(example.read_text(encoding="utf-8")))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_editor_completes_an_example_and_marks_nothing_in_it(example: Path) -> None:
    first = example.read_text(encoding="utf-8").splitlines()[0]
    schema = example.parent / first.removeprefix("# yaml-language-server: $schema=")
    assert schema.resolve() == ROOT / "workflow" / "schemas" / "experiments.schema.json"
    errors = Draft202012Validator(study_schema()).iter_errors(content(example))
    assert [error.message for error in errors] == []


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
    assert all(re.search("Use at most|Remove it", message) for message in refused.values())


def test_experiments_of_two_examples_never_share_a_results_folder() -> None:
    names = [name for example in EXAMPLES for name in content(example)["experiments"]]
    assert len(names) == len(set(names))
