"""The page has what was shown and what was not, and no fault, input or link of it is without a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from tests.marked_outcomes import Outcome, Shown
from tests.paths import ROOT, SCRIPTS
from tests.reliability.catalogue import BAD_INPUTS, FAULTS
from tests.reliability.page import page, problems

PLUGIN = ("-p", "tests.reliability.plugin", "-p", "no:cacheprovider")
LINK = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+\.py)\)")

COMPLETE = [
    *(
        Shown(f"tests/faults.py::test_{n}", f"survives {n}", (n,), "passed")
        for n in range(1, len(FAULTS) + 1)
    ),
    *(Shown("tests/inputs.py::test_it", "is refused", (given.key,), "passed") for given in BAD_INPUTS),
]
OTHERS = [test for test in COMPLETE if 7 not in test.marks]
SURVIVES, ANOTHER = "[survives 7](../tests/faults.py)", "[another](../tests/more.py)"


def another(
    outcome: Outcome, words: str = "another", figures: tuple[str, ...] = (), reason: str = ""
) -> Shown:
    """A further test of fault 7."""
    return Shown("tests/more.py::test_it", words, (7,), outcome, reason, figures)


def row(text: str, first: str | int) -> list[str]:
    """The other cells of a line of a table."""
    (line,) = re.findall(rf"^\| {first} \|.*$", text, re.MULTILINE)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[2:-1]]


@pytest.mark.parametrize("thorough", [True, False])
def test_the_page_says_how_much_is_shown_and_how_thoroughly(
    thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEWISE_THOROUGH", str(int(thorough)))
    text = page(COMPLETE)
    assert ("Made by `make reliability` on " in text) == thorough
    assert ("**This is the quick part**" in text) == (not thorough)
    assert "## 30 of 30 faults\n" in text
    assert f"## {len(BAD_INPUTS)} of {len(BAD_INPUTS)} inputs\n" in text
    assert "not shown" not in text
    assert "left out" not in text
    assert problems(COMPLETE) == []


@pytest.mark.parametrize(
    ("tests", "cells", "missing"),
    [
        pytest.param(
            [*COMPLETE, another("passed", figures=("5 of 5",)), another("passed", figures=("5 of 5", "1 s"))],
            [f"{SURVIVES}; {ANOTHER}", "3 of 3", "5 of 5; 1 s"],
            [],
            id="each word and figure once",
        ),
        pytest.param(
            OTHERS, ["", "**no test**", ""], ["fault 7: no test carries its mark"], id="without a test"
        ),
        pytest.param(
            [*COMPLETE, another("failed", figures=("19 of 20 started",))],
            [f"**failed**: {ANOTHER}; {SURVIVES}", "1 of 2", ""],
            ["tests/more.py::test_it: failed"],
            id="one that fails outweighs all that pass",
        ),
        pytest.param(
            [*OTHERS, another("skipped", reason="needs root")],
            [f"**not shown**: {ANOTHER} (needs root)", "0 of 1", ""],
            ["fault 7: no test of it passed (0 of 1)"],
            id="left out",
        ),
        pytest.param(
            [*OTHERS, another("passed", "a | b [c]\nd", ("1 | 2",))],
            ["[a \\| b \\[c\\] d](../tests/more.py)", "1 of 1", "1 \\| 2"],
            [],
            id="words that would break the table",
        ),
    ],
)
def test_a_fault_is_shown_if_a_test_passes_and_none_fails(
    tests: list[Shown], cells: list[str], missing: list[str]
) -> None:
    text = page(tests)
    assert row(text, 7) == [FAULTS[6].happening, FAULTS[6].provocation, *cells]
    assert f"## {29 if missing else 30} of 30 faults\n" in text
    assert problems(tests) == missing
    assert ("## Tests that were left out\n" in text) == any(test.reason for test in tests)


@pytest.mark.parametrize(
    ("message", "quoted"),
    [
        ("a.yaml:3: is\nwrong.", "`a.yaml:3: is wrong.`"),
        ("a.yaml:3: is `a|b`.", "`` a.yaml:3: is `a\\|b`. ``"),
        ("word " * 100, "`" + "word " * 39 + "word ...`"),
    ],
    ids=["plain", "with marks", "long"],
)
def test_what_a_user_reads_stands_in_the_row_of_the_input(message: str, quoted: str) -> None:
    key = ("slurm: unknown qos",)
    failed = Shown("tests/more.py::test_it", "is named", key, "failed", messages=("not this one",))
    passed = Shown("tests/more.py::test_it", "is named", key, "passed", messages=(message,))
    cells = row(page([failed, passed]), "an unknown QoS")
    assert cells[:2] == ["by `snakemake preflight`", quoted]


SOURCE = """
import os
import pytest

@pytest.mark.fault(10, 12)
@pytest.mark.refuses("topology: 0 devices")
def test_a_preempted_run_resumes(record_property):
    record_property("figure", "20 of 20 resumed")
    record_property("other", "not for the table")
    record_property("message", "site.yaml:3: is wrong.")

@pytest.mark.parametrize("how", [pytest.param("raised", marks=pytest.mark.fault(3))])
def test_named(how):
    \"\"\"The rank
    is named.

    How that is done.
    \"\"\"

def test_of_something_else():
    pass

@pytest.fixture
def before():
    raise OSError

@pytest.fixture
def after():
    yield
    raise OSError

@pytest.fixture
def skipping_after():
    yield
    pytest.skip("nothing to clean")

@pytest.mark.fault(1)
def test_fails_and_skips_after(skipping_after):
    assert False

@pytest.mark.fault(2)
def test_fails_before(before):
    pass

@pytest.mark.fault(4)
def test_skips_and_fails_after(after):
    pytest.skip("needs root")

@pytest.mark.fault(5)
@pytest.mark.xfail(reason="not yet")
def test_is_expected_to_fail():
    assert False

@pytest.mark.fault(6)
def test_that_is_killed():
    os._exit(9)
"""


def call(pytester: pytest.Pytester, source: str, *options: str) -> tuple[pytest.RunResult, str]:
    """One call of pytest in a separate process, and the page that it writes."""
    pytester.makepyfile(test_it=source)
    file = pytester.path / "made" / "here" / "reliability.md"
    done = pytester.runpytest_subprocess(*PLUGIN, "--reliability", file, *options)
    return done, file.read_text(encoding="utf-8") if file.exists() else ""


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(SCRIPTS)]))


@pytest.mark.parametrize(
    "options",
    [[], ["-p", "xdist", "--numprocesses", "2", "-k", "not killed"]],
    ids=["killed", "run by others"],
)
def test_the_page_has_how_each_marked_test_of_a_call_ended(
    pytester: pytest.Pytester, options: list[str]
) -> None:
    done, text = call(pytester, SOURCE, *options)
    named, failed, left_out = "[The rank is named]", "**failed**: [", "**not shown**: ["
    assert [row(text, n)[2].partition("(../")[0] for n in (10, 12, 3)] == [
        *(["[a preempted run resumes]"] * 2),
        named,
    ]
    assert row(text, 10)[3:] == ["1 of 1", "20 of 20 resumed"]
    assert row(text, "0 devices")[1] == "`site.yaml:3: is wrong.`"
    assert [row(text, n)[2].startswith(failed) for n in (1, 2, 4)] == [True] * 3
    assert row(text, 5)[2].startswith(left_out)
    assert row(text, 5)[2].endswith("(not yet)")
    assert "something else" not in text
    if options:
        assert done.ret == pytest.ExitCode.TESTS_FAILED
        done.stdout.fnmatch_lines(["*test_fails_before: failed", "fault 7: no test carries its mark"])
    else:
        assert row(text, 6)[2].endswith("(not run)")


MEANINGLESS = {
    "fault(31)": "fault(31) names nothing in tests/reliability/catalogue.py.",
    "fault(True)": "fault(True) names nothing",
    "fault()": "the mark fault needs an argument, such as fault(1).",
    "refuses('topology: none')": "refuses('topology: none') names nothing",
}


def test_marks_that_mean_nothing_stop_every_call(pytester: pytest.Pytester) -> None:
    tests = [f"@pytest.mark.{mark}\ndef test_{number}(): pass\n" for number, mark in enumerate(MEANINGLESS)]
    done, _ = call(pytester, "\n".join(["import pytest", *tests]), "-k", "nothing")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    for number, line in enumerate(MEANINGLESS.values()):
        assert f"::test_{number}: {line}" in done.stderr.str()


TABLE = ROOT / "docs" / "reliability.md"
MARK = re.compile(r"mark\.(fault|refuses)\b")


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


def test_the_catalogue_names_everything_once_and_in_order() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 31))
    assert len({given.key for given in BAD_INPUTS}) == len(BAD_INPUTS)
    groups = [group for group, _ in groupby(BAD_INPUTS, key=lambda given: given.group)]
    assert len(groups) == len(set(groups)), "a group is written in one piece: the table has it in one piece"


def test_the_table_in_the_repository_is_whole_and_names_no_test_that_is_gone(collected: str) -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert "Made by `make reliability` on " in text, "make it by `make reliability`"
    assert f"\n## {len(FAULTS)} of {len(FAULTS)} faults\n" in text, "make it by `make reliability`"
    assert f"\n## {len(BAD_INPUTS)} of {len(BAD_INPUTS)} inputs\n" in text, "make it by `make reliability`"
    assert "/tmp/" not in text, "a figure or a message names a folder of the machine it was made on"
    named = set(LINK.findall(text))
    assert named
    assert sorted(named - set(LINK.findall(collected))) == [], "make the table by `make reliability`"
