"""Peak memory of a rank, labelled by what it counts."""

from __future__ import annotations

import resource
import sys
from typing import Literal

import torch

MemoryKind = Literal["CUDA allocator peak", "process peak RSS"]


def peak_memory(device: torch.device) -> tuple[int, MemoryKind]:
    """Bytes: of CUDA's allocator on a GPU; of the whole process, libraries included, on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), "CUDA allocator peak"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes
    return peak * (1 if sys.platform == "darwin" else 1024), "process peak RSS"
