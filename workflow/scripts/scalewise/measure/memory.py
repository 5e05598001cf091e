"""Peak memory of a process, up to its first evaluation and in all."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Any

import torch

STATUS = Path("/proc/self/status")


class PeakMemory:
    """Peaks of a process: of CUDA's allocator if a GPU is trained on, otherwise of its resident memory.

    They are not reset, as a program may read its own counters: what the first evaluation needs beyond the
    training before it is told apart, later ones are not.
    """

    def __init__(self) -> None:
        self.device: torch.device | None = None
        """The GPU whose allocator is read; None for the process's resident memory."""
        self._before_evaluation: int | None = None

    def begin_evaluation(self) -> None:
        """Note the peak of the training before the first evaluation."""
        if self._before_evaluation is None:
            self._before_evaluation = self._peak()

    def record(self, evaluated: bool) -> dict[str, Any]:
        """Return the bytes at the highest up to the first evaluation, and in all, as JSON values.

        Args:
            evaluated: Whether the process has evaluated, also if that was seen too late.
        """
        highest, before = self._peak(), self._before_evaluation
        kind = "process peak RSS"
        if self.device is not None:
            kind = "CUDA allocator peak" if evaluated and before is None else "CUDA allocator"
        return {"training_bytes": before or highest, "whole_bytes": highest, "kind": kind}

    def _peak(self) -> int:
        """Return the highest number of bytes since the process began."""
        if self.device is not None:
            return torch.cuda.max_memory_allocated(self.device)
        status = STATUS.read_text(encoding="ascii", errors="replace")
        if found := re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE):
            return int(found[1]) * 1024
        # a sandbox with a /proc of its own; this one begins with the parent's peak
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
