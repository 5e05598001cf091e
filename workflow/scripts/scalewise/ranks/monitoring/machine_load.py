"""The share of its machines' CPU time that processes outside a run took while it trained."""

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
        own: Taken by the rank and its children, the loader's processes.
        busy: Taken by anything on any CPU of the machine, other virtual machines among it.
        total: Taken or idle: the time times the number of CPUs.
    """

    host: str
    own: float
    busy: float
    total: float


class CpuMeter:
    """Reads the kernel's accounts when it is made and when it is asked; nothing runs in between."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._before = _accounts()

    def used(self) -> CpuUse:
        """CPU time that was used since this was made."""
        own, busy, total = (now - then for now, then in zip(_accounts(), self._before, strict=True))
        return CpuUse(self._host, own, busy, total)


def other_cpu_fraction(ranks: Sequence[CpuUse]) -> float | None:
    """The share of a machine's CPU time that went to processes outside the run, of the machine with most.

    The ranks of a machine look at nearly the same moments; what they see of it is averaged. The processes
    that started the ranks count as outside: they wait, and take next to nothing.
    """
    by_host = defaultdict[str, list[CpuUse]](list)
    for rank in ranks:
        by_host[rank.host].append(rank)
    shares = [
        (fmean(rank.busy for rank in here) - sum(rank.own for rank in here)) / total
        for here in by_host.values()
        if (total := fmean(rank.total for rank in here)) > 0
    ]
    # accounts are kept in ticks of 10 ms
    return min(max(*shares, 0.0), 1.0) if shares else None


def _accounts() -> tuple[float, float, float]:
    """CPU seconds of this process with its children, of the machine, and of the machine with idle time."""
    process = psutil.Process()
    own = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):  # ended a moment ago; its parent's account has it
            own += sum(each.cpu_times()[:4])
    times = psutil.cpu_times()
    # a guest's time is counted in the user's, too
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return own, total - times.idle - getattr(times, "iowait", 0.0), total
