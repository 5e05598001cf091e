"""The table says what was shown and what was not, and no fault, input or link of it is without a test."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from tests.reliability.catalogue import BAD_INPUTS, FAULTS
from tests.reliability.evidence import Evidence, Outcome, Shown
from tests.reliability.write_table import main, page, problems

MACHINE = {"processor": "Abacus 9000", "CPUs": "2", "torch": "2.15.0"}
COMPLETE = Evidence(
    "2026-01-31",
    True,
    MACHINE,
    (
        *(
            Shown(
                f"tests/faults.py::test_{fault.number}",
                f"survives {fault.number}",
                (fault.number,),
                (),
                "passed",
            )
            for fault in FAULTS
        ),
        *(
            Shown(f"tests/inputs.py::test_it[{given.key}]", "is refused", (), (given.key,), "passed")
            for given in BAD_INPUTS
        ),
    ),
)


def one_of(
    number: int, outcome: Outcome, says: str = "another", reason: str = "", figures: tuple[str, ...] = ()
) -> Shown:
    """A further test of a fault."""
    return Shown("tests/more.py::test_it", says, (number,), (), outcome, reason, figures)


def with_tests(*tests: Shown, without: int | None = None) -> Evidence:
    kept = tuple(test for test in COMPLETE.tests if without is None or without not in test.faults)
    return replace(COMPLETE, tests=kept + tests)


def row(number: int, evidence: Evidence) -> list[str]:
    """The cells of a fault."""
    (line,) = re.findall(rf"^\| {number} \|.*$", page(evidence), re.MULTILINE)
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_where_all_is_shown_the_table_says_so_and_how_it_was_made() -> None:
    text = page(COMPLETE)
    assert "Made by `make reliability` on 2026-01-31; do not edit." in text
    assert "Machine: processor Abacus 9000, CPUs 2, torch 2.15.0.\n" in text
    assert "## 30 of 30 faults\n" in text
    assert f"## {len(BAD_INPUTS)} of {len(BAD_INPUTS)} inputs\n" in text
    assert "not shown" not in text
    assert "left out" not in text
    assert "quick part" not in text
    assert problems(COMPLETE) == []


def test_inputs_stand_under_their_group_with_the_moment_of_their_refusal() -> None:
    text = page(COMPLETE)
    groups = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert groups == ["Topology", "Types", "Batch", "Names", "Data", "Slurm", "Security"]
    assert (
        "| an unknown QoS | by `snakemake preflight` |  | [is refused](../tests/inputs.py) | 1 of 1 |\n"
        in text
    )


@pytest.mark.parametrize(
    ("message", "quoted"),
    [
        ("a.yaml:3: is\nwrong.", "`a.yaml:3: is wrong.`"),
        ("a.yaml:3: is `a|b`.", "`` a.yaml:3: is `a\\|b`. ``"),
        ("word " * 100, "`" + "word " * 79 + "word ...`"),
    ],
    ids=["plain", "with marks", "long"],
)
def test_what_a_user_is_told_stands_beside_the_input(message: str, quoted: str) -> None:
    qos = Shown(
        "tests/more.py::test_it", "is named", (), ("slurm: unknown qos",), "passed", messages=(message,)
    )
    left_out = replace(qos, outcome="failed", messages=("not this one",))
    text = page(with_tests(left_out, qos))
    assert f"| an unknown QoS | by `snakemake preflight` | {quoted} | " in text


SURVIVES, ANOTHER = "[survives 7](../tests/faults.py)", "[another](../tests/more.py)"


@pytest.mark.parametrize(
    ("evidence", "shown", "cells", "said"),
    [
        pytest.param(
            with_tests(
                one_of(7, "passed", figures=("50 of 50 resumed",)),
                one_of(7, "passed", figures=("50 of 50 resumed", "4 ranks: 20 of 20")),
            ),
            30,
            [f"{SURVIVES}; {ANOTHER}", "3 of 3", "50 of 50 resumed; 4 ranks: 20 of 20"],
            [],
            id="each word and figure once",
        ),
        pytest.param(
            with_tests(without=7),
            29,
            ["", "**no test**", ""],
            ["fault 7: no test carries its mark"],
            id="no test",
        ),
        pytest.param(
            with_tests(one_of(7, "failed", figures=("19 of 20 started",))),
            29,
            [f"**failed**: {ANOTHER}; {SURVIVES}", "1 of 2", ""],
            ["tests/more.py::test_it: failed"],
            id="one that fails outweighs all that pass",
        ),
        pytest.param(
            with_tests(one_of(7, "skipped", reason="needs root"), without=7),
            29,
            [f"**not shown**: {ANOTHER} (needs root)", "0 of 1", ""],
            ["fault 7: no test of it passed (0 of 1)"],
            id="left out",
        ),
        pytest.param(
            with_tests(one_of(7, "not run")),
            30,
            [f"**not shown**: {ANOTHER} (not run); {SURVIVES}", "1 of 2", ""],
            [],
            id="shown by others",
        ),
        pytest.param(
            with_tests(one_of(7, "passed", "a | b [c]\nd", figures=("1 | 2",)), without=7),
            30,
            ["[a \\| b \\[c\\] d](../tests/more.py)", "1 of 1", "1 \\| 2"],
            [],
            id="words that would break the table",
        ),
    ],
)
def test_a_fault_is_shown_if_a_test_passes_and_none_fails(
    evidence: Evidence, shown: int, cells: list[str], said: list[str]
) -> None:
    assert row(7, evidence) == ["7", FAULTS[6].happening, FAULTS[6].provocation, *cells]
    assert f"## {shown} of 30 faults\n" in page(evidence)
    assert problems(evidence) == said
    left_out = [test for test in evidence.tests if test.outcome in {"skipped", "not run"}]
    assert ("## Tests that were left out\n" in page(evidence)) == bool(left_out)


def test_an_input_without_a_test_is_counted_and_named() -> None:
    evidence = replace(
        COMPLETE, tests=tuple(test for test in COMPLETE.tests if "names: slash" not in test.inputs)
    )
    assert f"## {len(BAD_INPUTS) - 1} of {len(BAD_INPUTS)} inputs\n" in page(evidence)
    assert problems(evidence) == ['input "names: slash": no test carries its mark']


def test_the_quick_part_is_not_taken_for_the_whole() -> None:
    text = page(replace(COMPLETE, thorough=False))
    assert "Made by `pytest --reliability`" in text
    assert "**This is the quick part**" in text


@pytest.mark.parametrize(("without", "code"), [(None, 0), (7, 1)])
def test_the_program_writes_the_table_and_fails_where_something_is_missing(
    without: int | None, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = with_tests(without=without)
    evidence.write(tmp_path / "evidence.json")
    assert main([str(tmp_path / "evidence.json"), "--into", str(tmp_path / "table.md")]) == code
    assert (tmp_path / "table.md").read_text() == page(evidence)
    assert capsys.readouterr().err == ("fault 7: no test carries its mark\n" if code else "")


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
