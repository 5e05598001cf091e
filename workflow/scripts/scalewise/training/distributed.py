"""Who am I, and how do I meet the others? The only reader of RANK, LOCAL_RANK, WORLD_SIZE and SLURM_*."""

from __future__ import annotations

import gc
import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

COLLECTIVE_TIMEOUT = timedelta(seconds=120)
"""How long a rank waits for the others; torch's own default on gloo is 30 minutes."""

_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Identity:
    """The place of this process in the run.

    Args:
        rank: over all nodes.
        local_rank: on this node.
        world_size: ranks in all.
        local_world_size: ranks on this node.
        host: name of this node.
        slurm_job_id: None outside Slurm.
        restart_count: how often Slurm started the job anew.
    """

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str
    slurm_job_id: str | None
    restart_count: int


def identify(environ: Mapping[str, str]) -> Identity:
    """Read the identity that torchrun gave this process.

    Raises:
        RuntimeError: the variables are missing or incomplete; names those that are.
    """
    missing = [name for name in _TORCHRUN if name not in environ]
    if missing:
        raise RuntimeError(
            f"this process was not started as a rank: {', '.join(missing)} not set. "
            "Start it by train.py, which calls torchrun."
        )
    return Identity(
        rank=int(environ["RANK"]),
        local_rank=int(environ["LOCAL_RANK"]),
        world_size=int(environ["WORLD_SIZE"]),
        local_world_size=int(environ["LOCAL_WORLD_SIZE"]),
        host=socket.gethostname(),
        slurm_job_id=environ.get("SLURM_JOB_ID"),
        restart_count=int(environ.get("SLURM_RESTART_COUNT", "0")),
    )


def claim_device(accelerator: str, local_rank: int) -> torch.device:
    """The device of this rank; a GPU that is not there is an error, never a silent CPU.

    Raises:
        RuntimeError: CUDA is asked for and absent, or has too few devices.
    """
    if accelerator == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise RuntimeError(
            f"local rank {local_rank} needs a GPU, but torch {torch.__version__} sees {count} on "
            f"{socket.gethostname()} (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). Set `accelerator: cpu` in the "
            "site file to train on CPUs, or mend the driver or the allocation."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    # fp32 means fp32: cuDNN would use TF32 for convolutions by itself
    torch.backends.cudnn.allow_tf32 = False
    return device


def claim_cpus(accelerator: str, identity: Identity, cpus_per_device: int) -> str:
    """Give this rank its threads and, where the device is a CPU process, CPUs of its own.

    Returns:
        the CPUs the rank may run on, such as ``0-3,8``.
    """
    torch.set_num_threads(cpus_per_device)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    if not hasattr(os, "sched_setaffinity"):
        return "unknown"
    allowed = cores_first(os.sched_getaffinity(0))
    if accelerator == "cpu" and len(allowed) >= identity.local_world_size * cpus_per_device:
        start = identity.local_rank * cpus_per_device
        allowed = allowed[start : start + cpus_per_device]
        # threads that torch has started already keep the mask they were born with
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), allowed)
    return cpu_list(allowed)


def cores_first(cpus: Iterable[int]) -> list[int]:
    """CPUs in an order that takes every core once before a second hardware thread of any."""

    def place(cpu: int) -> tuple[int, int]:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            listed = [int(part) for part in re.findall(r"\d+", siblings.read_text(encoding="ascii"))]
        except OSError:
            return 0, cpu
        return (0 if cpu == min(listed) else 1), cpu

    return sorted(cpus, key=place)


def cpu_list(cpus: Sequence[int]) -> str:
    """``[0, 1, 2, 8]`` -> ``0-2,8``, the kernel's own notation."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][-1] + 1:
            spans[-1][1:] = [cpu]
        else:
            spans.append([cpu])
    return ",".join("-".join(map(str, span)) for span in spans)


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the ranks' process group: nccl on GPUs, gloo on CPUs; leave it in order.

    Without the barrier and the destruction at the end, gloo ranks abort now and then after correct
    results. After an error the group is left without waiting for the others.
    """
    if device.type == "cuda":
        dist.init_process_group("nccl", timeout=COLLECTIVE_TIMEOUT, device_id=device)
    else:
        dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    yield
    barrier(device)
    gc.collect()
    dist.destroy_process_group()


def barrier(device: torch.device) -> None:
    """Wait for all ranks."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Element-wise sums over all ranks, in double precision."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def gather(value: Any, world_size: int) -> list[Any]:
    """The value of every rank, in rank order, on every rank."""
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values
