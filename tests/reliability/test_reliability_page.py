"""The page has what was shown and what was not, and no fault, input or link of it is without a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.paths import ROOT, SCRIPTS
from tests.reliability.catalogue import BAD_INPUTS, FAULTS

LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+\.py)\)")
TABLE = ROOT / "docs" / "reliability.md"
MARK = re.compile(r"mark\.(fault|refuses)\b")

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


@pytest.mark.parametrize("mark", ["fault(31)", "fault()", "refuses('topology: none')"])
def test_a_mark_that_means_nothing_stops_every_call(pytester: pytest.Pytester, mark: str) -> None:
    done, _ = call(pytester, f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    assert done.ret == pytest.ExitCode.USAGE_ERROR


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of all marked tests of the repository, of which none has run."""
    file = tmp_path_factory.mktemp("collected") / "reliability.md"
    command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "-p", "no:cacheprovider"]
    # the other files cannot hold one, and take their time to be imported
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if MARK.search(path.read_text("utf-8"))]
    files.remove(Path(__file__))
    done = subprocess.run(
        [*command, "--reliability", str(file), *map(str, sorted(files))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert file.exists(), done.stdout + done.stderr
    assert "error" not in done.stdout.rpartition("\n\n")[2], done.stdout
    return file.read_text(encoding="utf-8")


def test_no_fault_and_no_input_goes_without_a_test(collected: str) -> None:
    rows = [line for line in collected.splitlines() if line.startswith("| ")]
    assert [line for line in rows if "**no test**" in line] == [], "mark a test by fault() or refuses()"


def test_the_table_in_the_repository_is_whole_and_names_no_test_that_is_gone(collected: str) -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert f"\n## {len(FAULTS)} of {len(FAULTS)} faults\n" in text, "make it by `make reliability`"
    assert f"\n## {len(BAD_INPUTS)} of {len(BAD_INPUTS)} inputs\n" in text, "make it by `make reliability`"
    assert "/tmp/" not in text, "a figure or a message names a folder of the machine it was made on"
    named = set(LINK.findall(text))
    assert named
    assert sorted(named - set(LINK.findall(collected))) == [], "make the table by `make reliability`"
