"""Peaks of memory: of each phase by itself, and what is said where a system does not tell them apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from scalewise.training.measure import memory
from scalewise.training.measure.memory import (
    CLEAR_REFS,
    STATUS,
    LinuxGauge,
    MemoryPhase,
    PeakMemory,
    gauge_of,
)

MB = 1_000_000

pytestmark = pytest.mark.skipif(not STATUS.exists(), reason="reads what Linux tells of a process")


def resettable() -> bool:
    """Whether this process may reset its peak; sandboxes forbid it."""
    return LinuxGauge().reset() == ""


may_reset = pytest.mark.skipif(not resettable(), reason=f"{CLEAR_REFS} cannot be written here")


def held(megabytes: int) -> NDArray[np.uint8]:
    """Memory of its own pages, which the system gets back as soon as nobody holds it."""
    return np.ones(megabytes * MB, dtype=np.uint8)


def spend(peaks: PeakMemory, phase: MemoryPhase, megabytes: int) -> None:
    """Enter a phase that holds so much for a moment."""
    peaks.enter(phase)
    held(megabytes)


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A system that has no file to reset a peak with."""
    monkeypatch.setattr(memory, "CLEAR_REFS", folder / "none" / "clear_refs")


@may_reset
def test_each_phase_has_its_own_peak_beyond_what_was_held_before() -> None:
    before = held(300)
    peaks = PeakMemory(gauge_of(torch.device("cpu")))
    for _ in range(2):
        spend(peaks, "train", 100)
        spend(peaks, "evaluate", 40)
        spend(peaks, "checkpoint", 200)
    assert peaks.training_bytes / MB == pytest.approx(100, abs=5)
    assert peaks.evaluation_bytes is not None
    assert peaks.evaluation_bytes / MB == pytest.approx(40, abs=5)
    assert (peaks.kind, peaks.note) == ("RSS beyond that before the model", "")
    assert before.all()


@may_reset
def test_the_highest_of_all_epochs_counts_and_that_of_earlier_starts() -> None:
    peaks = PeakMemory(LinuxGauge())
    peaks.resume({"evaluate": 500 * MB})
    for megabytes in (50, 150, 20):
        spend(peaks, "train", megabytes)
        spend(peaks, "evaluate", 10)
    assert peaks.training_bytes / MB == pytest.approx(150, abs=5)
    assert peaks.peaks()["evaluate"] == 500 * MB


def test_pages_of_files_are_no_memory_of_the_training(tmp_path: Path) -> None:
    held(200).tofile(tmp_path / "dataset")
    gauge = LinuxGauge()
    gauge.reset()
    before = gauge.peak()
    mapped = np.memmap(tmp_path / "dataset", np.uint8)
    assert mapped.all()  # reads all pages, which are resident now
    assert gauge.peak() - before < 100 * MB


@may_reset
def test_where_no_peak_can_be_reset_a_smaller_evaluation_is_not_known_and_the_note_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    LinuxGauge().reset()  # of what other tests have held in this process
    peaks = PeakMemory(LinuxGauge())
    refuse(monkeypatch, tmp_path)
    peaks.enter("train")
    trained = held(300)
    peaks.enter("evaluate")
    del trained
    assert peaks.training_bytes / MB == pytest.approx(300, abs=20)
    assert peaks.evaluation_bytes is None
    assert peaks.note.startswith("peak memory of evaluation is not known by itself")
    assert "clear_refs: No such file or directory" in peaks.note
    spend(peaks, "evaluate", 500)
    assert peaks.evaluation_bytes is not None
    assert peaks.evaluation_bytes / MB == pytest.approx(500, abs=20)
    assert peaks.training_bytes / MB == pytest.approx(300, abs=20)
    assert peaks.note == ""
