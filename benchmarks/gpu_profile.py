"""Where the time of a step goes on a GPU: the kernels that torch's profiler records, by kind."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

ON_THE_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
"""Categories of the profiler's events that keep a GPU busy."""

KINDS = (
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


def profiled_shares(work: Callable[[], object]) -> dict[str, float]:
    """Return the share of the time of some work that each kind of kernel takes, and the share without any.

    The time is that without the profiler, which slows the host. Kernels at once count whole each.

    Args:
        work: Waits for the GPU at its end.
    """
    work()
    began = time.perf_counter()
    work()
    microseconds = 1e6 * (time.perf_counter() - began)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    by_kind = dict.fromkeys((kind for kind, _ in KINDS), 0.0)
    intervals = []
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in ON_THE_GPU:
            begin, duration = float(event["ts"]), float(event["dur"])
            intervals.append((begin, begin + duration))
            by_kind[kind_of(str(event["name"]))] += duration
    by_kind[IDLE] = max(microseconds - covered(intervals), 0.0)
    return {kind: busy / microseconds for kind, busy in by_kind.items() if busy}


def kind_of(kernel: str) -> str:
    """Return the kind of a kernel, by its name."""
    return next(kind for kind, words in KINDS if re.search(words, kernel, re.IGNORECASE))


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of what the intervals cover together."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(stop - max(start, end), 0.0)
        end = max(end, stop)
    return total
