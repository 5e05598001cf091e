"""Time the all-reduce of one message over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from scalewise.ranks.distributed.device_timers import DeviceTimer

MESSAGE_BYTES = 25 * 1024**2
"""A bucket of gradients of DistributedDataParallel."""

REPETITIONS = 5


def all_reduce_seconds(
    device: torch.device, timer: DeviceTimer[Any], group: dist.ProcessGroup | None = None
) -> float:
    """Return the seconds of an all-reduce over a group's ranks, a mean, on the slowest of all ranks.

    All ranks must call it, each with its own group. Their devices come out of a small all-reduce together,
    and the others follow it without a gap. A barrier would let the hosts start at different times, and their
    way to the device would count.

    Args:
        device: Holds the message.
        timer: The device's.
        group: All ranks by default.
    """
    message = torch.ones(MESSAGE_BYTES // 4, dtype=torch.float32, device=device)
    dist.all_reduce(message, group=group)  # the first opens connections
    dist.all_reduce(torch.ones(1, device=device))
    start = timer.record()
    for _ in range(REPETITIONS):
        dist.all_reduce(message, group=group)
    end = timer.record()
    timer.synchronize()
    slowest = torch.tensor(timer.seconds(start, end) / REPETITIONS, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())
