"""Measure the share of the machines' CPU time that processes outside a run used while it trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

import psutil


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds between two moments, of one rank and of its whole machine.

    Args:
        rank: Used by the rank and its children, such as the loader's processes.
        busy: Used by any process on any CPU of the machine, also by other virtual machines.
        total: Used or idle, which is the time multiplied by the number of CPUs.
    """

    host: str
    rank: float
    busy: float
    total: float


class CpuMeter:
    """Measure CPU time from the creation of this object on; no thread runs meanwhile."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._before = _cpu_seconds()

    def used(self) -> CpuUse:
        """Return the CPU time used since the creation of this object."""
        rank, busy, total = (now - then for now, then in zip(_cpu_seconds(), self._before, strict=True))
        return CpuUse(self._host, rank, busy, total)


def other_cpu_fraction(ranks: Sequence[CpuUse]) -> float | None:
    """Return the share of CPU time used outside the run, on the machine where it is largest; None if unknown.

    The ranks of a machine measure at nearly the same times, so their values for it are averaged. The
    processes that started the ranks count as outside: they only wait.
    """
    by_host = defaultdict[str, list[CpuUse]](list)
    for use in ranks:
        by_host[use.host].append(use)
    shares = [
        (fmean(use.busy for use in uses) - sum(use.rank for use in uses)) / total
        for uses in by_host.values()
        if (total := fmean(use.total for use in uses)) > 0
    ]
    # the kernel counts in ticks of 10 ms, so a share may be below 0
    return min(max(*shares, 0.0), 1.0) if shares else None


def _cpu_seconds() -> tuple[float, float, float]:
    """Return the CPU seconds of this process with its children, of the machine, and of it with idle time."""
    this = psutil.Process()
    rank = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended: the times of its parent's children include it
            rank += sum(process.cpu_times()[:4])
    times = psutil.cpu_times()
    # user time includes that of guests
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return rank, total - times.idle - getattr(times, "iowait", 0.0), total
