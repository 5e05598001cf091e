"""All-reduce over one shape: how long messages of several sizes take, on the rank that is slowest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from scalewise.execution.rank_files import RankFiles
from scalewise.plan.jobs.all_reduce_jobs import RANKS_RESULT
from scalewise.records import AllReduce, AllReduceMeasurement, utc_now, write_json
from scalewise.training.distributed.process_group import barrier, gather, process_group
from scalewise.training.measure import provenance
from scalewise.training.measure.device_timers import timer_for
from scalewise.training.rank import initialize_rank

KIB, MIB = 1024, 1024**2
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
"""Bytes of a message: from what latency decides to more than DDP's largest bucket, 25 MiB."""

LONGEST_SECONDS = 2.0
"""Longest all-reduce. A larger message that would take longer is left out: a slow link is a line by then."""
SECONDS_PER_SIZE = 1.0
"""Time for each size. All take about 30 s at most: a slow link takes the last ones with all 5 repetitions."""
CHAINED, SHORT_SECONDS = 10, 1e-3
"""All-reduces in a row that are timed together, where one by itself takes less than these seconds."""
FEWEST, MOST = 5, 20
"""Fewest and most repetitions of a size."""


class Clock(Protocol):
    """The device's clock, as ``scalewise.training.measure.device_timers`` has it."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...


def run_all_reduce_rank(rank_files: RankFiles) -> None:
    """One rank's part of the measurement of a shape; rank 0 leaves the record in the attempt's folder."""
    rank_setup = rank_files.rank_setup()
    identity, _, device = initialize_rank(rank_files, rank_setup)
    with process_group(rank_files, rank_setup, identity, device):
        reductions = measure_all_reduce(device, timer_for(device))
        places = gather((identity.host, provenance.device_name(device)), identity.world_size)
        if identity.rank == 0:
            record = AllReduceMeasurement(
                shape=rank_setup.shape,
                backend=dist.get_backend(),
                launcher=rank_setup.launcher,
                hosts=list(dict.fromkeys(host for host, _ in places)),
                devices=[name for _, name in places],
                versions=provenance.versions(),
                measured_at=utc_now(),
                reductions=reductions,
            )
            write_json(rank_files.folder / RANKS_RESULT, record)
    rank_files.finished(identity.rank)


def measure_all_reduce(
    device: torch.device,
    clock: Clock,
    sizes: Sequence[int] = SIZES,
    longest_seconds: float = LONGEST_SECONDS,
    seconds_per_size: float = SECONDS_PER_SIZE,
) -> list[AllReduce]:
    """Time sums of float32 messages over all ranks, smallest first; all ranks must call it.

    Before each repetition the ranks meet at a barrier, and its seconds are those of the rank that had to
    wait longest; short messages are summed several times in a row. All ranks decide alike, because they
    decide by these seconds.

    Args:
        device: Holds the messages.
        clock: Waits for the device, and tells the time.
        sizes: Bytes of the messages, growing.
        longest_seconds: Limit of one all-reduce; the first size is measured whatever it takes.
        seconds_per_size: Budget of repetitions beyond the fewest.

    Returns:
        One entry for each size that was measured, the same on every rank.

    Raises:
        RuntimeError: A sum is wrong.
    """
    measured: list[AllReduce] = []
    for size in sizes:
        if measured and expected_seconds(measured[-1], size) > longest_seconds:
            break
        message = torch.empty(max(size // 4, 1), dtype=torch.float32, device=device)
        if not measured:
            _seconds_of_one([message], clock)  # in the first of all, connections are made
        (warm,) = _slowest([_seconds_of_one([message], clock)], device)
        chained = CHAINED if warm < SHORT_SECONDS else 1
        messages = [message, *(torch.empty_like(message) for _ in range(chained - 1))]
        repeats = repetitions(warm * chained, seconds_per_size)
        seconds = _slowest([_seconds_of_one(messages, clock) for _ in range(repeats)], device)
        measured.append(AllReduce(bytes=size, seconds=seconds))
    return measured


def repetitions(seconds: float, budget_seconds: float) -> int:
    """Number of repetitions of a message that takes so long, 5 to 20."""
    affordable = MOST if seconds * MOST <= budget_seconds else int(budget_seconds / seconds)
    return max(FEWEST, affordable)


def expected_seconds(smaller: AllReduce, size: int) -> float:
    """Upper bound for a message, from a smaller one's fastest repetition as if all of it were bandwidth."""
    return min(smaller.seconds) * size / smaller.bytes


def _seconds_of_one(messages: Sequence[torch.Tensor], clock: Clock) -> float:
    """Time all-reduces in a row on this rank; filling and checking the messages is off the clock.

    Returns:
        Seconds of a message. The ranks leave the barrier at different times, and the device is waited for at
        the end: a short all-reduce by itself would take as long as these.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for message in messages:
        message.fill_(rank + 1)
    clock.synchronize()
    barrier(messages[0].device)
    start = clock.now()
    for message in messages:
        dist.all_reduce(message)
    clock.synchronize()
    seconds = clock.now() - start
    for message in messages:
        check_sum(message, world_size * (world_size + 1) / 2, rank)
    return seconds / len(messages)


def check_sum(message: torch.Tensor, expected: float, rank: int) -> None:
    """Stop at a network or library that adds up wrong: no figure of it means anything.

    Raises:
        RuntimeError: The message names the rank, the size, what was found and what was expected.
    """
    wrong = message[message != expected]
    if wrong.numel():
        raise RuntimeError(
            f"the all-reduce of {message.numel() * 4} bytes gave rank {rank} {wrong[0].item():g} in place of "
            f"{expected:g} ({wrong.numel()} of {message.numel()} values are wrong). Set network_interface in "
            "the site file, and ask the site which one is right."
        )


def _slowest(seconds: Sequence[float], device: torch.device) -> list[float]:
    """The longest of all ranks, element by element."""
    values = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    found: list[Any] = values.tolist()
    return [float(value) for value in found]
