"""The GPU or the CPUs that a rank has to itself."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from scalewise.training.distributed.identity import Identity


def claim_device(accelerator: str, local_rank: int) -> torch.device:
    """Claim this rank's device; a GPU that is not there is an error, never a silent CPU.

    Raises:
        RuntimeError: CUDA is asked for and absent, or has too few devices.
    """
    if accelerator == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 1 and local_rank > 0:
        raise RuntimeError(
            f"local rank {local_rank} on {socket.gethostname()} sees one GPU alone, and it may be another's "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Slurm binds GPUs "
            "to tasks here: remove options such as --gpu-bind from the site's srun_extra, or add a line such "
            "as `export CUDA_VISIBLE_DEVICES=0,1,2,3` to its prelude."
        )
    if local_rank >= count:
        raise RuntimeError(
            f"local rank {local_rank} needs a GPU, but torch {torch.__version__} sees {count} on "
            f"{socket.gethostname()} (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Set `accelerator: cpu` in the "
            "site file to train on CPUs, or mend the driver or the allocation."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def claim_cpus(accelerator: str, identity: Identity, cpus_per_device: int) -> str:
    """Give this rank its threads and, where the device is a CPU process, CPUs of its own.

    Returns:
        The CPUs the rank may run on, such as ``0-3,8``.

    Raises:
        RuntimeError: There are fewer than it needs.
    """
    torch.set_num_threads(cpus_per_device)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    allowed = cores_first(os.sched_getaffinity(0))
    if len(allowed) < cpus_per_device:
        raise RuntimeError(
            f"rank {identity.rank} on {identity.host} may use {len(allowed)} CPUs ({cpu_list(allowed)}), "
            f"but cpus_per_device is {cpus_per_device}. Look for options in the site's srun_extra "
            "that bind tasks."
        )
    if accelerator == "cpu" and len(allowed) >= identity.local_world_size * cpus_per_device:
        start = identity.local_rank * cpus_per_device
        allowed = allowed[start : start + cpus_per_device]
        # threads that torch has started already keep the mask they were born with
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), allowed)
    return cpu_list(allowed)


def cores_first(cpus: Iterable[int]) -> list[int]:
    """Sort CPUs so that every core comes once before a second hardware thread of any."""

    def place(cpu: int) -> tuple[int, int]:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            listed = [int(part) for part in re.findall(r"\d+", siblings.read_text(encoding="ascii"))]
        except OSError:
            return 0, cpu
        return (0 if cpu == min(listed) else 1), cpu

    return sorted(cpus, key=place)


def cpu_list(cpus: Sequence[int]) -> str:
    """Write CPUs in the kernel's own notation: ``[0, 1, 2, 8]`` becomes ``0-2,8``."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][-1] + 1:
            spans[-1][1:] = [cpu]
        else:
            spans.append([cpu])
    return ",".join("-".join(map(str, span)) for span in spans)
