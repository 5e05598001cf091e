"""The page has what was shown and what was not, and no fault, input or link of it is without a test."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.paths import ROOT, SCRIPTS
from tests.reliability.catalogue import FAULTS

LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+\.py)\)")
TABLE = ROOT / "docs" / "reliability.md"
FAULT = re.compile(r"\bfault\(([\d, ]+)\)")

SOURCE = """
import pytest

@pytest.mark.fault(10)
@pytest.mark.refuses("topology: 0 devices")
def test_a_preempted_run_resumes(record_property):
    record_property("figure", "20 of 20 resumed")
    record_property("message", "site.yaml:3: is wrong.")

@pytest.mark.fault(1)
def test_fails():
    assert False

@pytest.mark.fault(5)
def test_left_out():
    pytest.skip("needs root")
"""


def row(text: str, first: str | int) -> list[str]:
    """Return the other cells of a line of a table."""
    (line,) = re.findall(rf"^\| {first} \|.*$", text, re.MULTILINE)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[2:-1]]


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(SCRIPTS)]))


def call(pytester: pytest.Pytester, source: str) -> tuple[pytest.RunResult, str]:
    """Return one call of pytest in a separate process, and the page that it writes."""
    pytester.makepyfile(test_it=source)
    file = pytester.path / "made" / "reliability.md"
    plugin = ("-p", "tests.reliability.plugin", "-p", "no:cacheprovider")
    done = pytester.runpytest_subprocess(*plugin, "--reliability", file)
    return done, file.read_text(encoding="utf-8") if file.exists() else ""


def test_the_page_has_how_each_marked_test_ended(pytester: pytest.Pytester) -> None:
    done, text = call(pytester, SOURCE)
    assert row(text, 10)[2].startswith("[a preempted run resumes]")
    assert row(text, 10)[3:] == ["1 of 1", "20 of 20 resumed"]
    assert row(text, "0 devices")[1] == "`site.yaml:3: is wrong.`"
    assert row(text, 1)[2].startswith("**failed**: [")
    assert row(text, 5)[2].endswith("(needs root)")
    assert "## 1 of 30 faults\n" in text
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["fault 7: no test carries its mark"])


@pytest.mark.parametrize("mark", ["fault(31)", "fault()", "refuses('weather: rain')"])
def test_a_mark_that_means_nothing_stops_every_call(pytester: pytest.Pytester, mark: str) -> None:
    done, _ = call(pytester, f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR


def test_no_fault_and_no_input_of_the_table_goes_without_a_test() -> None:
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.parent != Path(__file__).parent]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    numbers = {int(number) for mark in FAULT.findall(text) for number in mark.split(",")}
    assert set(range(1, len(FAULTS) + 1)) <= numbers, "mark a test by fault()"
    _, *groups = TABLE.read_text(encoding="utf-8").split("\n### ")
    inputs = [
        f"{group.partition(chr(10))[0].lower()}: {given}"
        for group in groups
        for given in re.findall(r"^\| (.+?) \| (?:at|by|when|not) ", group, re.MULTILINE)
    ]
    assert f"\n## {len(inputs)} of {len(inputs)} inputs\n" in TABLE.read_text(encoding="utf-8")
    assert [given for given in inputs if f'"{given}"' not in text] == [], "mark a test by refuses()"


def test_the_table_in_the_repository_is_whole_and_names_no_test_that_is_gone() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert f"\n## {len(FAULTS)} of {len(FAULTS)} faults\n" in text, "make it by `make reliability`"
    assert "/tmp/" not in text, "a figure or a message names a folder of the machine it was made on"
    links = LINK.findall(text)
    assert links
    for words, file in links:
        source = " ".join((ROOT / file).read_text(encoding="utf-8").replace("_", " ").split())
        is_named = re.fullmatch(r"\d+ of \d+", words) or words.replace("_", " ") in source
        assert is_named, f"{file}: {words}: make the table by `make reliability`"
