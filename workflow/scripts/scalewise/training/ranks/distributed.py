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
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.plan.topology import Shape
from scalewise.training.ranks.network import choose_interface
from scalewise.training.supervision.attempt import Attempt
from scalewise.training.supervision.notes import Muster

T = TypeVar("T")

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Set by torchrun, and by our own spawn."""

_SLURM_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_NODEID",
    "SLURM_STEP_TASKS_PER_NODE",
)


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


def identify(environ: Mapping[str, str], launcher: str) -> Identity:
    """Read the identity that the launcher gave this process.

    Args:
        environ: of the process. Under Slurm torchrun's ranks find the variables of both.
        launcher: whose variables count.

    Raises:
        RuntimeError: some are missing; names those that are.
    """
    names = _SLURM_VARIABLES if launcher == "srun" else RANK_VARIABLES
    missing = [name for name in names if name not in environ]
    if missing:
        raise RuntimeError(
            f"this process was not started as a rank by {launcher}: {', '.join(missing)} not set. "
            "Ranks are started by train.py alone."
        )
    if launcher == "srun":
        rank, local_rank, world_size, node = (int(environ[name]) for name in names[:4])
        local_world_size = tasks_on_node(environ["SLURM_STEP_TASKS_PER_NODE"], node)
    else:
        rank, local_rank, world_size, local_world_size = (int(environ[name]) for name in names)
    return Identity(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        local_world_size=local_world_size,
        host=socket.gethostname(),
        slurm_job_id=environ.get("SLURM_JOB_ID"),
        restart_count=int(environ.get("SLURM_RESTART_COUNT", "0")),
    )


def node_rank(environ: Mapping[str, str]) -> int:
    """Of a process that starts the ranks of one node: one task a node under Slurm, else the only one."""
    return int(environ.get("SLURM_PROCID", "0"))


def tasks_on_node(counts: str, node: int) -> int:
    """Tasks of one node from Slurm's notation, such as ``4(x2),3``."""
    expanded: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        expanded += [int(tasks)] * int(times or 1)
    return expanded[node]


def check_place(identity: Identity, shape: Shape) -> None:
    """Stop where the ranks do not stand as planned: their figures would be of something else.

    Raises:
        RuntimeError: names what was planned and what was found.
    """
    found = (identity.world_size, identity.local_world_size)
    if found != (shape.world_size, shape.devices_per_node):
        raise RuntimeError(
            f"planned were {shape.world_size} ranks, {shape.devices_per_node} on each node ({shape}), but "
            f"{found[0]} were started, {found[1]} of them on {identity.host}. Look for options in the site's "
            "extra and srun_extra that place tasks."
        )


def claim_device(accelerator: str, local_rank: int) -> torch.device:
    """The device of this rank; a GPU that is not there is an error, never a silent CPU.

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
        the CPUs the rank may run on, such as ``0-3,8``.

    Raises:
        RuntimeError: there are fewer than it needs.
    """
    torch.set_num_threads(cpus_per_device)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    if not hasattr(os, "sched_setaffinity"):
        return "unknown"
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
def process_group(
    attempt: Attempt, muster: Muster, identity: Identity, device: torch.device
) -> Iterator[None]:
    """Join the ranks' process group: nccl on GPUs, gloo on CPUs; leave it in order.

    Without the barrier and the destruction at the end, gloo ranks abort now and then after correct
    results. After an error the group is left without waiting for the others.

    Args:
        attempt: whose folder every rank sees.
        muster: how the ranks meet.
        identity: of this rank.
        device: of this rank.
    """
    timeout = timedelta(seconds=muster.timeout_seconds)
    interface = choose_interface(Shape.parse(muster.shape).nodes, muster.network_interface)
    # gloo would take the address of the host's name, which on many machines is a loopback one
    os.environ["GLOO_SOCKET_IFNAME"] = interface.name
    if muster.network_interface is not None:
        # a site's module may have named several
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface.name)
    backend = "nccl" if device.type == "cuda" else "gloo"
    options: dict[str, Any] = {"backend": backend, "timeout": timeout}
    if device.type == "cuda":
        options["device_id"] = device
    place: dict[str, Any] = {"rank": identity.rank, "world_size": identity.world_size}
    if muster.rendezvous == "file":
        dist.init_process_group(init_method=f"file://{attempt.meeting_file}", **place, **options)
    elif muster.launcher == "torchrun":
        dist.init_process_group(**options)
    else:
        store = open_store(attempt, identity.rank == 0, interface.address, timeout)
        dist.init_process_group(store=store, **place, **options)
    yield
    barrier(device)
    gc.collect()
    dist.destroy_process_group()


def open_store(attempt: Attempt, host: bool, address: str, timeout: timedelta) -> TCPStore:
    """The store through which ranks, or the agents of nodes, find each other.

    The system chooses a free port, and the attempt's folder tells it to the others: any number of runs
    start on one node at once, and nothing depends on names, lists of hosts or a batch system's commands.

    Args:
        attempt: whose folder all of them see.
        host: this process keeps the store.
        address: of this host.
        timeout: that one waits for another.
    """
    if host:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        attempt.wait_here(address, store.port)
        return store
    point = attempt.meeting_point(timeout.total_seconds())
    return TCPStore(point.host, point.port, is_master=False, timeout=timeout)


def barrier(device: torch.device) -> None:
    """Wait for all ranks."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Element-wise sums over all ranks, in double precision."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def gather(value: T, world_size: int, group: Any = None) -> list[T]:
    """The value of every rank, in rank order, on every rank.

    Args:
        value: of this rank.
        world_size: of the group.
        group: of all ranks; the usual one where None.
    """
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value, group=group)
    return values
