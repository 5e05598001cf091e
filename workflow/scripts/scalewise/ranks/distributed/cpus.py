"""Bind a rank to CPUs of its own. Needs no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from scalewise.ranks.distributed.identity import Identity


def take_cpus(accelerator: str, identity: Identity, cpus_per_device: int, ranks: int = 1) -> list[int]:
    """Bind this process, if the device is a CPU process, to CPUs that no other rank of its node has.

    Args:
        accelerator: ``cuda`` or ``cpu``.
        identity: This rank, or the first of several that this process starts.
        cpus_per_device: CPUs of each rank.
        ranks: Number of ranks that this process starts.

    Returns:
        The CPUs that this process may run on.

    Raises:
        RuntimeError: There are fewer CPUs than that.
    """
    needed = ranks * cpus_per_device
    allowed = cores_first(os.sched_getaffinity(0))
    if len(allowed) < needed:
        fix = "Look for options in the site's srun_extra that bind tasks."
        if identity.slurm_job_id is None:
            fix = "Lower it, or give Snakemake more CPUs; cpus_per_node in the site file may be too large."
        raise RuntimeError(
            f"rank {identity.rank} on {identity.host} may use {len(allowed)} CPUs ({cpu_list(allowed)}), "
            f"but cpus_per_device is {cpus_per_device}. {fix}"
        )
    if accelerator == "cpu" and len(allowed) >= identity.local_world_size * cpus_per_device:
        start = identity.local_rank * cpus_per_device
        allowed = allowed[start : start + needed]
        # each thread has a mask of its own; later ones inherit it
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), allowed)
    return allowed


def cores_first(cpus: Iterable[int]) -> list[int]:
    """Sort CPUs: one hardware thread of every core, then the other threads."""

    def place(cpu: int) -> tuple[int, int]:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            listed = [int(part) for part in re.findall(r"\d+", siblings.read_text(encoding="ascii"))]
        except OSError:
            return 0, cpu
        return (0 if cpu == min(listed) else 1), cpu

    return sorted(cpus, key=place)


def cpu_list(cpus: Sequence[int]) -> str:
    """Write CPUs in the kernel's notation: ``[0, 1, 2, 8]`` becomes ``0-2,8``."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][-1] + 1:
            spans[-1][1:] = [cpu]
        else:
            spans.append([cpu])
    return ",".join("-".join(map(str, span)) for span in spans)
