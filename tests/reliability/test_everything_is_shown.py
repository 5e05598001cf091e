"""Every fault and every input of the catalogue has a test, and a line in the table of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from tests.reliability.catalogue import BAD_INPUTS, FAULTS
from tests.reliability.evidence import Evidence

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "reliability.md"
MARK = re.compile(r"mark\.(fault|refuses)\b")


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """All marked tests, as pytest itself finds them, in a process of its own."""
    file = tmp_path_factory.mktemp("marked") / "evidence.json"
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    # the other files cannot hold one, and take their time to be imported
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if MARK.search(path.read_text("utf-8"))]
    done = subprocess.run(
        [*command, "--reliability", str(file), *map(str, sorted(files))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Evidence.read(file)


def test_no_fault_goes_without_a_test(marked: Evidence) -> None:
    tested = {number for test in marked.tests for number in test.faults}
    assert [fault for fault in FAULTS if fault.number not in tested] == [], "mark a test by fault(number)"


def test_no_input_to_refuse_goes_without_a_test(marked: Evidence) -> None:
    tested = {key for test in marked.tests for key in test.inputs}
    assert [given.key for given in BAD_INPUTS if given.key not in tested] == [], "mark a test by refuses(key)"


def test_the_catalogue_names_everything_once_and_in_order() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 31))
    assert len({given.key for given in BAD_INPUTS}) == len(BAD_INPUTS)
    groups = [group for group, _ in groupby(BAD_INPUTS, key=lambda given: given.group)]
    assert len(groups) == len(set(groups)), "a group is written in one piece: the table has it in one piece"


def test_the_table_in_the_repository_is_whole() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert "Made by `make reliability` on " in text, "make it by `make reliability`"
    assert f"\n## {len(FAULTS)} of {len(FAULTS)} faults\n" in text, "make it by `make reliability`"
    assert f"\n## {len(BAD_INPUTS)} of {len(BAD_INPUTS)} inputs\n" in text, "make it by `make reliability`"
    assert "/tmp/" not in text, "a figure or a message names a folder of the machine it was made on"


def test_the_table_names_no_test_that_is_gone(marked: Evidence) -> None:
    named = re.findall(r"\[([^\]]+)\]\(\.\./(tests/[^)]+\.py)\)", TABLE.read_text(encoding="utf-8"))
    assert named
    there = {(test.says, test.file) for test in marked.tests}
    assert sorted(set(named) - there) == [], "make the table by `make reliability`"
