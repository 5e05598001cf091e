"""Tests marked `gpu` are skipped with the reason, rehearsed where that is asked for, and kept in a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from tests.gpu.page import BEGIN, END, outcomes
from tests.marked_outcomes import Shown
from tests.paths import ROOT, SCRIPTS

PLUGIN = ("-p", "tests.gpu.plugin", "-p", "no:cacheprovider")
PAGE = f"before\n{BEGIN}\nold\n{END}\nafter\n"
SOURCE = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 2])
def test_of_a_size(size, accelerator, record_property):
    record_property("figure", f"{size} on {accelerator}")

@pytest.mark.gpu
def test_that_fails():
    '''Two numbers are equal.'''
    assert 1 == 2

@pytest.mark.gpu
@pytest.mark.usefixtures("needs_cuda")
def test_that_asks_the_gpu():
    pass

def test_of_something_else():
    pass
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(SCRIPTS)]))
    # also on a machine that has one
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_without_a_gpu_tests_are_skipped_with_the_reason_and_the_page_stays(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SOURCE)
    page = pytester.path / "gpu.md"
    page.write_text(PAGE)
    done = pytester.runpytest_subprocess(*PLUGIN, "-rs", "-m", "gpu", "--gpu-page", page)
    done.assert_outcomes(skipped=4, deselected=1)
    done.stdout.fnmatch_lines(["*no GPU: torch * sees none (CUDA_VISIBLE_DEVICES=)"])
    assert page.read_text() == PAGE


def test_a_rehearsal_is_written_into_the_page_with_words_figures_and_reasons(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SOURCE)
    page = pytester.path / "gpu.md"
    page.write_text(PAGE)
    done = pytester.runpytest_subprocess(*PLUGIN, "-m", "gpu", "--accelerator", "cpu", "--gpu-page", page)
    done.assert_outcomes(passed=2, failed=1, skipped=1, deselected=1)
    before, found, after = re.split(f"{BEGIN}|{END}", page.read_text())
    assert (before, after) == ("before\n", "\nafter\n")
    lines = found.split("\n")
    assert "2 passed, 1 failed, 1 skipped." in lines
    assert "| of a size | passed | 1: 1 on cpu; 2: 2 on cpu |" in lines
    assert "| Two numbers are equal | **failed**: assert 1 == 2 |  |" in lines
    assert "- 1 tests: asks the GPU itself: no rehearsal on a CPU" in lines
    assert "GPU none: a rehearsal on the CPU" in found
    assert "old" not in found


def test_tests_that_measured_nothing_are_counted_by_folder_and_those_that_were_cut_off_named() -> None:
    tests = [
        Shown("tests/gpu/a.py::one", "a | b", outcome="failed", reason="AssertionError"),
        Shown("tests/gpu/a.py::two", "weights are equal", outcome="passed"),
        Shown("tests/unit/training/b.py::three", "not begun"),
    ]
    text = outcomes({"GPU": "NVIDIA H200"}, tests)
    for line in (
        "| a / b | **failed**: AssertionError |  |",
        "- `tests/gpu`: 1 more passed",
        "- 1 tests of `tests/unit/training`: no time was left",
        "GPU NVIDIA H200.",
    ):
        assert line in text.split("\n"), line


def test_a_part_of_the_benchmark_is_rehearsed_where_there_is_no_gpu() -> None:
    words = ["gpu", "--accelerator", "cpu", "--only", "loop"]
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| gpu: a step of our loop, against a bare loop" in done.stdout


def test_without_a_gpu_make_gpu_says_so_and_runs_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.on_gpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no GPU: torch" in done.stdout
    assert "0 tests run" in done.stdout
