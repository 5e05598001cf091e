"""Tests marked `gpu` are skipped with the reason, rehearsed where that is asked for, and kept as a record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.gpu_record import Check, GpuRecord, Part

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "tests.gpu.plugin", "-p", "no:cacheprovider")
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
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "workflow" / "scripts")]))
    # also on a machine that has one
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_without_a_gpu_tests_are_skipped_with_the_reason_and_no_record_is_written(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SOURCE)
    file = pytester.path / "gpu.json"
    GpuRecord(machine={"GPU": "NVIDIA H200"}).write(file)
    done = pytester.runpytest_subprocess(*PLUGIN, "-rs", "-m", "gpu", "--gpu-json", file)
    done.assert_outcomes(skipped=4, deselected=1)
    done.stdout.fnmatch_lines(["*no GPU: torch * sees none (CUDA_VISIBLE_DEVICES=)"])
    assert GpuRecord.read(file) == GpuRecord(machine={"GPU": "NVIDIA H200"}, checks=[], parts=[])


def test_a_rehearsal_is_recorded_with_words_figures_and_reasons_beside_what_was_measured(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_it=SOURCE)
    file = pytester.path / "gpu.json"
    GpuRecord(parts=[Part("loop", 1.0)]).write(file)
    done = pytester.runpytest_subprocess(*PLUGIN, "-m", "gpu", "--accelerator", "cpu", "--gpu-json", file)
    done.assert_outcomes(passed=2, failed=1, skipped=1, deselected=1)
    record = GpuRecord.read(file)
    assert record.machine["GPU"] == "none: a rehearsal on the CPU"
    assert [part.name for part in record.parts] == ["loop"]
    assert [
        Check(check.test, check.words, check.outcome, check.reason, tuple(check.figures))
        for check in record.checks
    ] == [
        Check("test_it.py::test_of_a_size[1]", "of a size (1)", "passed", "", ("1 on cpu",)),
        Check("test_it.py::test_of_a_size[2]", "of a size (2)", "passed", "", ("2 on cpu",)),
        Check("test_it.py::test_that_fails", "Two numbers are equal", "failed", "assert 1 == 2"),
        Check(
            "test_it.py::test_that_asks_the_gpu",
            "that asks the gpu",
            "skipped",
            "asks the GPU itself: no rehearsal on a CPU",
        ),
    ]
