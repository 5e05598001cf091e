"""Peaks of memory: of each phase by itself, and what is said where a system does not tell them apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scalewise.measure.memory import CLEAR_REFS, PeakMemory

SCRIPTS = Path(__file__).parents[3] / "workflow" / "scripts"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PeakMemory(resets=True)._reset() != "", reason=f"{CLEAR_REFS} cannot be written here"),
]

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from scalewise.measure import memory
from scalewise.measure.memory import PeakMemory

MB = 1_000_000

def held(megabytes):
    # a mapping of its own, which the system gets back as soon as nobody holds it
    return np.ones(megabytes * MB, dtype=np.uint8)

def spend(peaks, phase, megabytes):
    peaks.enter(phase)
    held(megabytes)

def found(peaks, evaluated=True):
    record = peaks.record(evaluated)
    evaluation = record["evaluation_bytes"]
    megabytes = None if evaluation is None else evaluation / MB
    return record["training_bytes"] / MB, megabytes, record["note"]

seen = {}
before = held(300)
peaks = PeakMemory(resets=True)
for training in (50, 150, 20):
    spend(peaks, "train", training)
    spend(peaks, "evaluate", 40)
    spend(peaks, "checkpoint", 250)
seen["phases"], seen["kind"] = found(peaks), peaks.record(True)["kind"]
del before

folder = Path(sys.argv[1])
held(200).tofile(folder / "dataset")
peaks = PeakMemory(resets=True)
peaks.enter("train")
mapped = np.memmap(folder / "dataset", np.uint8)
assert mapped.all()  # reads all pages, which are resident now
seen["mapped"] = found(peaks)
del mapped

memory.CLEAR_REFS = folder / "proc" / "clear_refs"
peaks = PeakMemory(resets=True)
for phase, megabytes in (("train", 400), ("evaluate", 100), ("train", 600), ("evaluate", 300)):
    spend(peaks, phase, megabytes)
seen["less"] = found(peaks)
spend(peaks, "evaluate", 700)
seen["more"] = found(peaks)

peaks, before = PeakMemory(), found(PeakMemory())[0]
held(400)
peaks.enter("evaluate")
held(900)
peaks.enter("evaluate")
seen["program"] = found(peaks)[0] - before, found(peaks)[1], peaks.record(True)["kind"]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Peaks in MB, and the note on them, of a process that has held nothing else."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("memory"))]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(SCRIPTS)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_phase_has_its_own_peak_beyond_what_was_held_before(seen: dict[str, Any]) -> None:
    training, evaluation, note = seen["phases"]
    assert training == pytest.approx(150, abs=3)
    assert evaluation == pytest.approx(40, abs=3)
    assert (seen["kind"], note) == ("RSS beyond that before the model", "")


def test_pages_of_files_are_no_memory_of_the_training(seen: dict[str, Any]) -> None:
    assert seen["mapped"][0] < 5


def test_where_no_peak_can_be_reset_a_smaller_evaluation_is_not_known_and_the_note_says_why(
    seen: dict[str, Any],
) -> None:
    training, evaluation, note = seen["less"]
    assert training == pytest.approx(600, abs=5)
    assert evaluation is None
    assert note.startswith("peak memory of evaluation is not known by itself")
    assert note.endswith("clear_refs: No such file or directory)")


def test_where_no_peak_can_be_reset_a_larger_evaluation_is_known_and_is_not_the_trainings(
    seen: dict[str, Any],
) -> None:
    training, evaluation, note = seen["more"]
    assert training == pytest.approx(600, abs=5)
    assert evaluation == pytest.approx(700, abs=5)
    assert note == ""


def test_a_programs_peak_of_training_is_that_before_its_first_evaluation(seen: dict[str, Any]) -> None:
    """Nothing of it is reset: a program may read its own counters."""
    _, evaluation, kind = seen["program"]
    assert (evaluation, kind) == (None, "process peak RSS")
