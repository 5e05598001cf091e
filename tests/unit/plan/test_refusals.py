"""Each mistake of refusals.yaml is named with its file, line, key and value, in the words of refusals.txt.

``SCALEWISE_GOLDEN=1 pytest tests/unit/plan/test_refusals.py`` renews them and prints what differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jsonschema import Draft202012Validator
from snakemake_executor_plugin_slurm.validation import validate_slurm_extra
from tests.golden import compare
from tests.unit.plan.refusals import Refusal, StudyFolder, refusals

from scalewise.config.errors import one_line
from scalewise.config.schema import study_schema
from scalewise.config.site import SiteFile

CASES = {
    ends: [case for case in refusals() if case.ends == ends] for ends in ("refused", "warned", "planned")
}
NAMED = [*CASES["refused"], *CASES["warned"]]
SCHEMAS = {
    "study.yaml": Draft202012Validator(study_schema()),
    "site.yaml": Draft202012Validator(SiteFile.model_json_schema()),
}
WORDS = Path(__file__).with_name("refusals.txt")


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyFolder]:
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HOME", "/home/me")
        yield StudyFolder(folder)


def case(refusal: Refusal) -> object:
    marks = [pytest.mark.refuses(refusal.refuses)] if refusal.refuses else []
    return pytest.param(refusal, id=refusal.name, marks=marks)


@pytest.mark.parametrize("refusal", [case(refusal) for refusal in CASES["refused"]])
def test_a_mistake_is_refused_with_its_line_and_value_and_a_fix(
    refusal: Refusal, study_folder: StudyFolder, record_property: Callable[[str, object], None]
) -> None:
    before = sorted(study_folder.folder.rglob("*"))
    (message,) = study_folder.messages_of(refusal)
    record_property("message", message)

    place, text = message.split(": ", 1)
    assert place == refusal.place
    assert re.search(in_this_order(refusal.names), text), f"{refusal.names} are not named"
    assert re.search(r"\. [A-Z].*[.?]$", text), "there is no fix"
    assert message == one_line(message)
    assert len(message) < 4000
    assert sorted(study_folder.folder.rglob("*")) == before, "something was started"


def in_this_order(names: Sequence[str]) -> str:
    """Return a pattern of a text that has these names as whole words, one after the other."""
    return ".*".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names)


@pytest.mark.parametrize("refusal", [refusal for refusal in NAMED if refusal.planned], ids=lambda it: it.name)
def test_the_same_without_the_mistake_is_planned(refusal: Refusal, study_folder: StudyFolder) -> None:
    assert refusal.planned
    assert study_folder.plan(*refusal.planned).warnings == []


@pytest.mark.parametrize("refusal", [case(refusal) for refusal in CASES["warned"]])
def test_what_is_possible_and_seldom_meant_is_warned_of(refusal: Refusal, study_folder: StudyFolder) -> None:
    (warning,) = study_folder.messages_of(refusal)
    assert re.search(in_this_order(refusal.names), warning), f"{refusal.names} are not named"


@pytest.mark.parametrize("refusal", CASES["planned"], ids=lambda it: it.name)
def test_what_goes_together_is_planned_without_a_warning_and_taken_by_the_executor_plugin(
    refusal: Refusal, study_folder: StudyFolder
) -> None:
    study = study_folder.plan(refusal.study, refusal.site)
    assert study.warnings == []
    for allocation in study.allocations.values():
        validate_slurm_extra(SimpleNamespace(resources=SimpleNamespace(**allocation.resources())))


def test_each_message_has_the_words_that_are_kept(
    study_folder: StudyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = []
    for group, members in groupby(NAMED, key=lambda refusal: refusal.group):
        blocks = [block(refusal, study_folder) for refusal in members]
        parts.append("\n".join([f"# {group}\n", *dict.fromkeys(blocks)]))
    compare(WORDS, "\n".join(parts), __file__, capsys)


def block(refusal: Refusal, study_folder: StudyFolder) -> str:
    """Return the name of a case, its mistake, and what a user sees; runs of one character are counted."""
    marked = "    <- marked in an editor" if is_marked(refusal) else ""
    mistake = one_line(refusal.mistake) + marked
    lines = [refusal.name.partition(", on ")[0], mistake, *study_folder.messages_of(refusal)]
    text = "\n    ".join(line for line in lines if line)
    return re.sub(r"(.{1,4}?)\1{39,}", lambda it: f"<{it[1]} x {len(it[0]) // len(it[1])}>", text) + "\n"


def is_marked(refusal: Refusal) -> bool:
    """Return whether the schema that an editor completes by refuses what YAML makes of the file."""
    try:
        config = yaml.safe_load(refusal.text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    return not SCHEMAS[refusal.place.partition(":")[0]].is_valid(config)


def test_no_two_cases_have_one_name() -> None:
    cases = [case for cases in CASES.values() for case in cases]
    assert len({refusal.name for refusal in cases}) == len(cases)
