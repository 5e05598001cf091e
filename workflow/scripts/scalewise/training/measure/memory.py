"""Peak memory of a rank by phase, so that what evaluation needs is not taken for what training needs."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

import torch

from scalewise.records import MemoryKind

MemoryPhase = Literal["train", "evaluate", "checkpoint"]
"""Phases of a rank whose peaks are kept apart; that of ``checkpoint`` is not reported."""

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RESET_PEAK = "5"
"""Written to clear_refs, it sets VmHWM to the present VmRSS: proc_pid_clear_refs(5), since Linux 4.0."""


class Gauge(Protocol):
    """The highest value of a kind of memory since the last reset, in bytes."""

    kind: MemoryKind

    def peak(self) -> int:
        """Bytes at the highest since the last reset that was done, or since the process began."""

    def reset(self) -> str:
        """Begin anew; returns why that could not be done, or nothing."""


class CudaGauge:
    """Memory that CUDA's allocator has given out, data that lie on the GPU included."""

    kind: MemoryKind = "CUDA allocator"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def peak(self) -> int:
        """Bytes in tensors, without what the allocator keeps for reuse."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> str:
        """Begin anew from what is allocated now, which always works."""
        torch.cuda.reset_peak_memory_stats(self._device)
        return ""


class LinuxGauge:
    """Resident memory of this process beyond what it held when the gauge was made.

    Pages of files are left out: those of libraries and of the mapped dataset are read when they are first
    used, shared by the ranks of a node, and given up when memory runs short.
    """

    kind: MemoryKind = "RSS beyond that before the model"

    def __init__(self) -> None:
        held = _status()
        self._before = held["VmRSS"] - held["RssFile"]

    def peak(self) -> int:
        """Bytes above those from before; pages of files count as many as are resident now."""
        held = _status()
        return max(held["VmHWM"] - held["RssFile"] - self._before, 0)

    def reset(self) -> str:
        """Begin anew from what is resident now, where the system lets a process do that."""
        try:
            CLEAR_REFS.write_text(RESET_PEAK, encoding="ascii")
        except OSError as error:
            return f"{CLEAR_REFS}: {error.strerror}"
        return ""


class PosixGauge:
    """Resident memory of the whole process, libraries and data included, where the system tells no more."""

    kind: MemoryKind = "process peak RSS"

    def peak(self) -> int:
        """Bytes at the highest since the process began."""
        # getrusage(2): kilobytes on Linux, bytes on macOS
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def reset(self) -> str:
        """Do nothing: no process may."""
        return "getrusage(2) has no way to do it"


def gauge_of(device: torch.device) -> Gauge:
    """The gauge that tells most of a rank on this device, with what the process holds now as its zero."""
    if device.type == "cuda":
        return CudaGauge(device)
    # not ru_maxrss where it can be helped: it begins with the peak of the process that started this one
    return LinuxGauge() if {"VmHWM", "VmRSS", "RssFile"} <= _status().keys() else PosixGauge()


class PeakMemory:
    """Peaks of a rank's memory in each phase of its work, over all starts of its run.

    Where a peak cannot be reset, a phase has one if it went above all that was before; the other phases
    needed no more than that, and how much less is not known.

    Args:
        gauge: The memory that is measured; on a CPU made before the model is built, whose zero it sets.
    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._peaks: dict[MemoryPhase, int] = {}
        self._phase: MemoryPhase | None = None
        self._entered: set[MemoryPhase] = set()
        self._floor = -1
        self._refused = ""

    @property
    def kind(self) -> MemoryKind:
        """The memory that the peaks count."""
        return self._gauge.kind

    def enter(self, phase: MemoryPhase) -> None:
        """Count from here on for a phase; to be called while the clock of the steps stands still."""
        self._count()
        self._phase = phase
        self._entered.add(phase)
        self._refused = self._gauge.reset()
        self._floor = self._gauge.peak() if self._refused else -1

    def peaks(self) -> dict[MemoryPhase, int]:
        """Bytes of each phase whose peak is known, the present one included."""
        self._count()
        return dict(self._peaks)

    @property
    def training_bytes(self) -> int:
        """Peak while training; where that is not known by itself, the peak so far, which is no less."""
        return self.peaks().get("train", self._gauge.peak())

    @property
    def evaluation_bytes(self) -> int | None:
        """Peak while evaluating, if it is known."""
        return self.peaks().get("evaluate")

    @property
    def note(self) -> str:
        """The reason why a peak is not known, with what is known; empty where all are."""
        reported: dict[MemoryPhase, str] = {"train": "training", "evaluate": "evaluation"}
        missing = self._entered - self.peaks().keys()
        names = [name for phase, name in reported.items() if phase in missing]
        if not names or not self._refused:
            return ""
        return (
            f"peak memory of {' and '.join(names)} is not known by itself, only that it was no higher than "
            f"the run's: a peak cannot be reset here ({self._refused})"
        )

    def resume(self, earlier: Mapping[MemoryPhase, int]) -> None:
        """Take in the peaks of earlier starts."""
        for phase, peak in earlier.items():
            self._peaks[phase] = max(self._peaks.get(phase, 0), peak)

    def _count(self) -> None:
        peak = self._gauge.peak()
        if self._phase is not None and peak > self._floor:
            self._peaks[self._phase] = max(self._peaks.get(self._phase, 0), peak)


def _status() -> dict[str, int]:
    """Bytes of each kind of this process's memory, by the names of proc_pid_status(5)."""
    if not STATUS.exists():
        return {}
    found = re.findall(
        r"^(\w+):\s+(\d+) kB$", STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE
    )
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}
