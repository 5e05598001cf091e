"""Peak memory of a process, read without a reset, which would take the program's own counters from it."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Any

import torch

STATUS = Path("/proc/self/status")


class PeakReadings:
    """Readings of the peak so far, at moments that tell training from evaluation."""

    def __init__(self) -> None:
        self.device: torch.device | None = None
        """The GPU whose allocator is asked; None for the process's own memory."""
        self._whole = 0
        self._before_evaluation: int | None = None

    def read(self) -> None:
        """Take in the peak so far; the program may reset it at any time."""
        device = self.device
        peak = resident_peak() if device is None else torch.cuda.max_memory_allocated(device)
        self._whole = max(self._whole, peak)

    def evaluation_begins(self) -> None:
        """Keep the peak of training, before the first evaluation can raise it."""
        if self._before_evaluation is None:
            self.read()
            self._before_evaluation = self._whole

    def record(self, evaluated: bool) -> dict[str, Any]:
        """Bytes at the highest, while training as far as that is known by itself, and in all.

        Args:
            evaluated: True if the program has evaluated, at moments that may have been seen too late.
        """
        self.read()
        training = self._before_evaluation
        apart = training is not None or not evaluated
        kind = "process peak RSS"
        if self.device is not None:
            kind = "CUDA allocator" if apart else "CUDA allocator peak"
        return {
            "training_bytes": self._whole if training is None else training,
            "kind": kind,
            "whole_bytes": self._whole,
        }


def resident_peak() -> int:
    """Bytes that were resident at the highest since the process began."""
    if STATUS.exists():
        # not ru_maxrss where it can be helped: it begins with the peak of the process that started this one
        found = re.search(
            r"^VmHWM:\s+(\d+) kB$", STATUS.read_text(encoding="ascii", errors="replace"), re.MULTILINE
        )
        if found:
            return int(found[1]) * 1024
    # getrusage(2): kilobytes on Linux, bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
