"""Peak memory of a rank, labelled by what it counts."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import Literal

import torch

MemoryKind = Literal["CUDA allocator peak", "process peak RSS"]


def peak_memory(device: torch.device) -> tuple[int, MemoryKind]:
    """Peak bytes: of CUDA's allocator on a GPU; of the whole process, libraries included, on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), "CUDA allocator peak"
    status = Path("/proc/self/status")
    if status.exists():
        # not ru_maxrss, which begins with the peak of the process that started this one
        match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))
        if match:
            return int(match[1]) * 1024, "process peak RSS"
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "process peak RSS"
