"""Peak memory of a process by phase: training and evaluation need different amounts."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any, Literal

import torch

MemoryPhase = Literal["train", "evaluate", "checkpoint"]
"""Phases whose peaks are kept apart; that of ``checkpoint`` is not reported."""

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")

RESET_PEAK = "5"
"""Written to clear_refs, it sets VmHWM to the present VmRSS: proc_pid_clear_refs(5), since Linux 4.0."""


class PeakMemory:
    """Peaks of a process: of CUDA's allocator if a GPU is trained on, otherwise of its resident memory.

    A user's program may read its own counters, so its peaks are not reset. Then a phase has a peak if it went
    above all that was before; the other phases needed no more than that.

    Args:
        resets: Whether peaks may be reset; then the memory of a CPU process counts beyond what it holds now,
            without pages of files: these are read when first used, shared by the ranks of a node, and given
            up when memory runs short.
    """

    def __init__(self, *, resets: bool = False) -> None:
        self.device: torch.device | None = None
        """The GPU whose allocator is read; None for the process's resident memory."""
        self._resets = resets
        self._held_before = _resident_without_files() if resets else 0
        self._phase: MemoryPhase | None = None if resets else "train"
        self._peaks: dict[MemoryPhase, int] = {}
        self._entered: set[MemoryPhase] = set()
        self._floor = -1
        self._file_bytes = 0
        self._refused = ""

    def enter(self, phase: MemoryPhase) -> None:
        """Count from here on for a phase; without resets only the first evaluation ends that of training."""
        if not self._resets and self._phase == "evaluate":
            return
        self._count()
        self._phase = phase
        self._entered.add(phase)
        if self._resets:
            self._refused = self._reset()
        peak = self._peak()
        self._floor = peak if self._refused or not self._resets else -1

    def record(self, evaluated: bool) -> dict[str, Any]:
        """Return the bytes at the highest while training, while evaluating, and in all, as JSON values.

        Args:
            evaluated: Whether the process has evaluated, also if that was seen too late.
        """
        self._count()
        highest = max(self._peaks.values(), default=self._peak())
        kind = "CUDA allocator" if self.device is not None else "process peak RSS"
        if self._resets and self.device is None:
            kind = "RSS beyond that before the model"
        elif self.device is not None and not self._resets and evaluated and self._phase == "train":
            kind = "CUDA allocator peak"
        return {
            "training_bytes": self._peaks.get("train", highest),
            "evaluation_bytes": self._peaks.get("evaluate") if self._resets else None,
            "whole_bytes": highest,
            "kind": kind,
            "note": self._note(),
        }

    def _note(self) -> str:
        """Return the reason why a peak is unknown, with what is known; empty if all are known."""
        reported: dict[MemoryPhase, str] = {"train": "training", "evaluate": "evaluation"}
        missing = self._entered - self._peaks.keys()
        names = [name for phase, name in reported.items() if phase in missing]
        if not names or not self._refused:
            return ""
        return (
            f"peak memory of {' and '.join(names)} is not known by itself, only that it was no higher than "
            f"the run's: a peak cannot be reset here ({self._refused})"
        )

    def _count(self) -> None:
        peak = self._peak()
        if self._phase is not None and peak > self._floor:
            self._peaks[self._phase] = max(self._peaks.get(self._phase, 0), peak)

    def _peak(self) -> int:
        """Return the highest number of bytes since the last reset, or since the process began."""
        if self.device is not None:
            return torch.cuda.max_memory_allocated(self.device)
        status = _status()
        if not self._resets:
            return status["VmHWM"]
        # VmHWM includes pages of files. The system drops some when memory runs short: fewer may be resident
        # now than at the peak, so the most that were seen since the reset count
        self._file_bytes = max(self._file_bytes, status["RssFile"])
        return max(status["VmHWM"] - self._file_bytes - self._held_before, 0)

    def _reset(self) -> str:
        """Set the peak to the present value; returns why that is impossible, or nothing."""
        if self.device is not None:
            torch.cuda.reset_peak_memory_stats(self.device)
            return ""
        try:
            CLEAR_REFS.write_text(RESET_PEAK, encoding="ascii")
        except OSError as error:
            return f"{CLEAR_REFS}: {error.strerror}"
        self._file_bytes = 0
        return ""


def _resident_without_files() -> int:
    status = _status()
    return status["VmRSS"] - status["RssFile"]


def _status() -> dict[str, int]:
    """Return the bytes of each kind of this process's memory, by the names of proc_pid_status(5)."""
    found = re.findall(
        r"^(\w+):\s+(\d+) kB$", STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE
    )
    held = {name: int(kilobytes) * 1024 for name, kilobytes in found}
    if "VmHWM" not in held:  # a sandbox with a /proc of its own; the other begins with its parent's peak
        held["VmHWM"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"VmRSS": 0, "RssFile": 0} | held
