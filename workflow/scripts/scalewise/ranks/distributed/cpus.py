"""Bind a rank to CPUs of its own. Needs no torch."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scalewise.ranks.distributed.identity import Identity

PCI = Path("/sys/bus/pci/devices")
"""The kernel's folder of each device, with the CPUs that are next to it."""

NVML_SECONDS = 5.0
"""Longest wait for NVML, which may hang with a broken driver."""


def take_cpus(
    accelerator: str, identity: Identity, cpus_per_device: int, ranks: int = 1, gpu: str = ""
) -> list[int]:
    """Bind this process to CPUs: a CPU process to some that no other rank has, others to those next to a GPU.

    The second is what ``torchrun --numa-binding=node`` does, for each launcher.

    Args:
        accelerator: ``cuda`` or ``cpu``.
        identity: This rank, or the first of several that this process starts.
        cpus_per_device: CPUs of each rank.
        ranks: Number of ranks that this process starts.
        gpu: The GPU of the rank as CUDA_VISIBLE_DEVICES names it; empty for none, or several.

    Returns:
        The CPUs that this process may run on.

    Raises:
        RuntimeError: There are fewer CPUs than that.
    """
    needed = ranks * cpus_per_device
    allowed = cores_first(os.sched_getaffinity(0))
    if len(allowed) < needed:
        fix = "Look for options in the site's slurm.extra that bind tasks."
        if identity.slurm_job_id is None:
            fix = "Lower it, or give Snakemake more CPUs; cpus_per_node in the site file may be too large."
        raise RuntimeError(
            f"rank {identity.rank} on {identity.host} may use {len(allowed)} CPUs ({cpu_list(allowed)}), "
            f"but cpus_per_device is {cpus_per_device}. {fix}"
        )
    if accelerator == "cpu" and len(allowed) >= identity.local_world_size * cpus_per_device:
        start = identity.local_rank * cpus_per_device
        _bind(allowed := allowed[start : start + needed])
    elif gpu:
        near = cpus_near(gpu)
        if needed <= len(chosen := [cpu for cpu in allowed if cpu in near]) < len(allowed):
            _bind(allowed := chosen)
    return allowed


def _bind(cpus: Sequence[int]) -> None:
    # each thread has a mask of its own; later ones inherit it
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), cpus)


def cpus_near(gpu: str) -> set[int]:
    """Return the CPUs next to a GPU; none if they are unknown.

    A number is that of NVML only if all GPUs are of one model: CUDA sorts others by their speed.

    Args:
        gpu: An entry of CUDA_VISIBLE_DEVICES: a number or a UUID.
    """
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(_bus_id(gpu)), daemon=True)
    asking.start()
    asking.join(NVML_SECONDS)
    # NVML's domain has eight digits, the kernel's four
    bus_id = re.sub(r"^0{4}(?=[0-9a-f]{4}:)", "", "".join(found).lower())
    try:
        text = (PCI / bus_id / "local_cpulist").read_text(encoding="ascii") if bus_id else ""
    except OSError:
        return set()
    spans = (span.partition("-") for span in text.strip().split(",") if span)
    return {cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)}


def _bus_id(gpu: str) -> str:
    """Return the address of a GPU on the PCI bus, by NVML; empty if it is unknown."""
    try:
        import pynvml  # noqa: PLC0415  # a machine without GPUs may lack it

        nvml: Any = pynvml
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        if not gpu.isdigit():
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
        elif len({nvml.nvmlDeviceGetName(each) for each in handles}) == 1:
            handle = handles[int(gpu)]
        else:
            return ""
        address = nvml.nvmlDeviceGetPciInfo(handle).busId
        return address.decode() if isinstance(address, bytes) else str(address)
    except Exception:  # noqa: BLE001  # a rank that is not bound trains all the same
        return ""


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
