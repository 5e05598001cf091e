"""Where the time of a step goes on a GPU: the kernels that torch's profiler has seen, by kind."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

ON_THE_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of the profiler's events that keep a GPU busy."""

KINDS = (
    ("gradient exchange", r"nccl"),
    ("what compile has fused: batch norm, activations, loss, casts", r"^triton_"),
    ("optimizer", r"multi_tensor|fused\w*(sgd|adam)"),
    ("batch norm, activations and loss", r"batch_?norm|\bbn_|layer_?norm|softmax|nll_loss|threshold|pool"),
    (
        "convolutions and matrix products",
        r"conv|gemm|cutlass|xmma|wgrad|dgrad|fprop|nvjet|cudnn|flash|fmha|attention",
    ),
    ("copies, gathers, other arithmetic", r""),
)
"""Kinds of kernels, and what their names hold; the first that fits."""

IDLE = "the GPU waits"


def profiled_shares(work: Callable[[], object], device: torch.device) -> dict[str, float]:
    """Share of the time of some work on a GPU that each kind of kernel takes, and the share without any.

    Empty on a CPU, which has no kernels.
    """
    if device.type != "cuda":
        return {}
    work()
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        trace: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return shares(trace["traceEvents"])


def shares(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Share of the time from the first kernel to the last by kind, and of that without one.

    Kernels at once count whole each.

    Args:
        events: of a Chrome trace; ``ts`` and ``dur`` are in microseconds.
    """
    by_kind = dict.fromkeys((kind for kind, _ in KINDS), 0.0)
    intervals = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ON_THE_GPU:
            begin, duration = float(event["ts"]), float(event["dur"])
            intervals.append((begin, begin + duration))
            by_kind[kind_of(str(event["name"]))] += duration
    if not intervals:
        return {}
    whole = max(end for _, end in intervals) - min(begin for begin, _ in intervals)
    by_kind[IDLE] = whole - covered(intervals)
    return {kind: microseconds / whole for kind, microseconds in by_kind.items() if microseconds}


def kind_of(kernel: str) -> str:
    """The kind of a kernel, by its name."""
    return next(kind for kind, words in KINDS if re.search(words, kernel, re.IGNORECASE))


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of what the intervals cover together."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total
