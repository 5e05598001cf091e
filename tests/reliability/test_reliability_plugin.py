"""What tests of faults and bad inputs have shown is kept, and a mark that means nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.reliability.evidence import Evidence, Shown
from tests.reliability.thoroughness import times

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "tests.reliability.plugin", "-p", "no:cacheprovider")


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def shown(pytester: pytest.Pytester, source: str, *options: str) -> dict[str, Shown]:
    """The evidence of a file of tests, by the name of the test."""
    pytester.makepyfile(test_it=f"import pytest\n\n{source}")
    file = pytester.path / "made" / "here" / "evidence.json"
    file.unlink(missing_ok=True)
    pytester.runpytest(*PLUGIN, "--reliability", file, *options)
    evidence = Evidence.read(file)
    return {test.test.removeprefix("test_it.py::"): test for test in evidence.tests}


def test_a_marked_test_that_passes_tells_its_words_and_figures(pytester: pytest.Pytester) -> None:
    tests = shown(
        pytester,
        """
@pytest.mark.fault(10, 12)
@pytest.mark.refuses("topology: 0 devices")
def test_a_preempted_run_goes_on(record_property):
    record_property("figure", "20 of 20 resumed")
    record_property("other", "not for the table")
    record_property("message", "site.yaml:3: is wrong.")
    record_property("figure", "0 steps lost")

@pytest.mark.fault(12)
class TestNamed:
    @pytest.mark.parametrize("how", [pytest.param("raised", marks=pytest.mark.fault(3))])
    def test_named(self, how):
        \"\"\"A run that is longer than its walltime
        finishes in several hops.

        How that is done.
        \"\"\"

def test_of_something_else():
    pass
""",
    )
    assert tests == {
        "test_a_preempted_run_goes_on": Shown(
            "test_it.py::test_a_preempted_run_goes_on",
            "a preempted run goes on",
            (10, 12),
            ("topology: 0 devices",),
            "passed",
            "",
            ("20 of 20 resumed", "0 steps lost"),
            ("site.yaml:3: is wrong.",),
        ),
        "TestNamed::test_named[raised]": Shown(
            "test_it.py::TestNamed::test_named[raised]",
            "A run that is longer than its walltime finishes in several hops",
            (3, 12),
            (),
            "passed",
        ),
    }


def test_a_test_that_did_not_pass_is_never_taken_for_one_that_did(pytester: pytest.Pytester) -> None:
    tests = shown(
        pytester,
        """
pytestmark = pytest.mark.fault(1)

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

def test_fails_and_skips_after(skipping_after):
    assert False

def test_fails_before(before):
    pass

def test_skips_and_fails_after(after):
    pytest.skip("needs root")

def test_skips():
    pytest.skip("needs root")

@pytest.mark.xfail(reason="not yet")
def test_is_expected_to_fail():
    assert False
""",
    )
    assert {test.says: (test.outcome, test.reason) for test in tests.values()} == {
        "fails and skips after": ("failed", ""),
        "fails before": ("failed", ""),
        "skips and fails after": ("failed", ""),
        "skips": ("skipped", "needs root"),
        "is expected to fail": ("skipped", "not yet"),
    }


def test_what_other_processes_ran_is_shown_like_what_this_one_ran(pytester: pytest.Pytester) -> None:
    tests = """
@pytest.mark.fault(1)
@pytest.mark.refuses("topology: 0 devices")
@pytest.mark.parametrize("how", ["killed", "raised"])
def test_a_rank_is_named(how, record_property):
    record_property("figure", how)
    record_property("message", ValueError("site.yaml:3: is wrong."))

@pytest.mark.fault(2)
def test_fails():
    assert False
"""
    alone = shown(pytester, tests)
    assert len(alone) == 3
    assert shown(pytester, tests, "-p", "xdist", "--numprocesses", "2") == alone


MEANINGLESS = {
    "fault(31)": "the mark fault(31) names nothing in tests/reliability/catalogue.py",
    "fault(True)": "the mark fault(True) names nothing",
    "fault()": "the mark fault takes numbers from 1 to 30, as in fault(10)",
    "refuses('topology: none')": "the mark refuses('topology: none') names nothing",
    "refuses()": "the mark refuses takes keys of BAD_INPUTS",
}


def test_marks_that_mean_nothing_stop_every_call(pytester: pytest.Pytester) -> None:
    tests = [
        f"@pytest.mark.{mark}\ndef test_{number}():\n    pass\n" for number, mark in enumerate(MEANINGLESS)
    ]
    pytester.makepyfile("\n".join(["import pytest", *tests]))
    result = pytester.runpytest(*PLUGIN, "-k", "nothing")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for number, said in enumerate(MEANINGLESS.values()):
        assert f"::test_{number}: {said}" in result.stderr.str()


@pytest.mark.parametrize(("variable", "thorough"), [("1", True), ("0", False), (None, False)])
def test_the_evidence_says_whether_tests_repeated_often(
    variable: str | None, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCALEWISE_THOROUGH", raising=False)
    if variable is not None:
        monkeypatch.setenv("SCALEWISE_THOROUGH", variable)
    assert Evidence.of([]).thorough is thorough
    assert times(quick=3, thorough=20) == (20 if thorough else 3)
    machine = Evidence.of([]).machine
    assert list(machine) == ["processor", "CPUs", "GPUs", "Linux", "Python", "torch", "snakemake", "Slurm"]
    assert all(machine.values())


def test_a_call_that_is_killed_leaves_what_it_has_shown(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
import os, pytest
pytestmark = pytest.mark.fault(1)
def test_first(): pass
def test_second(): os._exit(9)
"""
    )
    pytester.runpytest_subprocess(*PLUGIN, "--reliability", "evidence.json")
    tests = Evidence.read(pytester.path / "evidence.json").tests
    assert [test.outcome for test in tests] == ["passed", "not run"]


def test_a_file_that_is_no_evidence_is_refused_with_the_cure(tmp_path: Path) -> None:
    file = tmp_path / "evidence.json"
    for text in ("", "[]", '{"day": "2026-01-31"}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"evidence\.json is no evidence .*pytest --reliability"):
            Evidence.read(file)
