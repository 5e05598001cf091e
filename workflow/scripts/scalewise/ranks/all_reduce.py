"""Measure the all-reduce of one shape: the time of messages of several sizes, on the slowest rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalewise.execution.rank_files import RankFiles
from scalewise.measure import origins
from scalewise.plan.jobs.all_reduce_jobs import RANKS_RESULT
from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
from scalewise.ranks.distributed.devices import device_name
from scalewise.ranks.distributed.process_group import gather, process_group
from scalewise.ranks.monitoring.sensors import driver_version
from scalewise.ranks.rank_process import initialize_rank
from scalewise.records import AllReduce, AllReduceMeasurement, utc_now, write_json

KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
"""Bytes of a message: from sizes whose time is latency to more than DDP's largest bucket, 25 MiB."""

LONGEST_SECONDS = 2.0
"""Longest all-reduce. Messages that would take longer are not measured: their time grows with their size."""

SECONDS_PER_SIZE = 1.0
"""Time for each size. All take about 30 s at most: on a slow link the last ones need all 5 repetitions."""

CHAINED, SHORT_SECONDS = 10, 1e-3
"""All-reduces in a row that are timed together if one takes less than these seconds."""

FEWEST, MOST = 5, 20
"""Fewest and most repetitions of a size."""


def run_all_reduce_rank(rank_files: RankFiles) -> None:
    """Measure a shape together with the other ranks; rank 0 writes the record to the attempt's folder."""
    rank_setup = rank_files.rank_setup()
    identity, _, device = initialize_rank(rank_files, rank_setup)
    with process_group(rank_files, rank_setup, identity, device):
        reductions = measure_all_reduce(device, timer_for(device))
        places = gather((identity.host, device_name(device)), identity.world_size)
        if identity.rank == 0:
            record = AllReduceMeasurement(
                shape=rank_setup.shape,
                backend=dist.get_backend(),
                launcher=rank_setup.launcher,
                hosts=list(dict.fromkeys(host for host, _ in places)),
                devices=[name for _, name in places],
                versions=_versions(device),
                measured_at=utc_now(),
                reductions=reductions,
            )
            write_json(rank_files.folder / RANKS_RESULT, record)
    rank_files.finished(identity.rank)


def _versions(device: torch.device) -> dict[str, str]:
    driver = driver_version() if device.type == "cuda" else None
    return origins.versions(device.type == "cuda") | ({} if driver is None else {"driver": driver})


def measure_all_reduce(
    device: torch.device,
    timer: DeviceTimer[Any],
    sizes: Sequence[int] = SIZES,
    longest_seconds: float = LONGEST_SECONDS,
    seconds_per_size: float = SECONDS_PER_SIZE,
) -> list[AllReduce]:
    """Time sums of float32 messages over all ranks, smallest first; all ranks must call it.

    A repetition has the seconds of the slowest rank. By them all ranks make the same decisions.

    Args:
        device: Holds the messages.
        timer: The device's.
        sizes: Bytes of the messages, in ascending order.
        longest_seconds: Limit of one all-reduce; the first size is measured in any case.
        seconds_per_size: Budget of repetitions beyond the fewest.

    Returns:
        An entry for each size that was measured, the same on every rank.

    Raises:
        RuntimeError: A sum is wrong.
    """
    measured: list[AllReduce] = []
    for size in sizes:
        if measured and expected_seconds(measured[-1], size) > longest_seconds:
            break
        message = torch.empty(max(size // 4, 1), dtype=torch.float32, device=device)
        if not measured:
            _time([message], timer)  # the first of all opens connections
        (warm,) = _slowest([_time([message], timer)], device)
        chained = CHAINED if warm < SHORT_SECONDS else 1
        messages = [message, *(torch.empty_like(message) for _ in range(chained - 1))]
        repeats = repetitions(warm * chained, seconds_per_size)
        seconds = _slowest([_time(messages, timer) for _ in range(repeats)], device)
        measured.append(AllReduce(bytes=size, seconds=seconds))
    return measured


def repetitions(seconds: float, budget_seconds: float) -> int:
    """Return the number of repetitions of a message that takes these seconds, 5 to 20."""
    affordable = MOST if seconds * MOST <= budget_seconds else int(budget_seconds / seconds)
    return max(FEWEST, affordable)


def expected_seconds(smaller: AllReduce, size: int) -> float:
    """Return an upper bound: the fastest repetition of a smaller message, times the ratio of their sizes."""
    return min(smaller.seconds) * size / smaller.bytes


def _time(messages: Sequence[torch.Tensor], timer: DeviceTimer[Any]) -> float:
    """Return the seconds of one of several all-reduces in a row, on this rank.

    The devices of all ranks come out of a first, small all-reduce together, and the others follow it without
    a gap. A barrier would let the hosts start at different times, and their way to the device would count.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for message in messages:
        message.fill_(rank + 1)
    dist.all_reduce(torch.ones(1, device=messages[0].device))
    start = timer.record()
    for message in messages:
        dist.all_reduce(message)
    end = timer.record()
    timer.synchronize()
    for message in messages:
        check_sum(message, world_size * (world_size + 1) / 2, rank)
    return timer.seconds(start, end) / len(messages)


def check_sum(message: torch.Tensor, expected: float, rank: int) -> None:
    """Check the result of an all-reduce.

    Raises:
        RuntimeError: The network or a library gives wrong sums.
    """
    wrong = message[message != expected]
    if wrong.numel():
        raise RuntimeError(
            f"the all-reduce of {message.numel() * 4} bytes gave rank {rank} {wrong[0].item():g} in place of "
            f"{expected:g} ({wrong.numel()} of {message.numel()} values are wrong). Set network_interface in "
            "the site file, and ask the site which one is right."
        )


def _slowest(seconds: Sequence[float], device: torch.device) -> list[float]:
    """Return the longest seconds of all ranks, element by element."""
    values = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [float(value) for value in values.tolist()]
