"""Join the process group of a run's ranks, and exchange values in it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from scalewise.execution.messages import RankSetup
from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.distributed.identity import Identity
from scalewise.ranks.distributed.network_interface import choose_interface

T = TypeVar("T")


@contextmanager
def process_group(
    rank_files: RankFiles, rank_setup: RankSetup, identity: Identity, device: torch.device
) -> Iterator[None]:
    """Join the ranks' process group, by NCCL on GPUs and gloo on CPUs, and leave it in order.

    Without the barrier and the destruction at the end, gloo's ranks sometimes abort after correct results.
    After an error a rank does not wait for the others.
    """
    timeout = timedelta(seconds=rank_setup.timeout_seconds)
    interface = choose_interface(rank_setup.shape.nodes, rank_setup.network_interface)
    # gloo would use the address of the host's name, which is a loopback address on many machines
    os.environ["GLOO_SOCKET_IFNAME"] = interface.name
    if rank_setup.network_interface is not None:
        # unless the site's modules name several
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface.name)
    backend = "nccl" if device.type == "cuda" else "gloo"
    options: dict[str, Any] = {"backend": backend, "timeout": timeout}
    if device.type == "cuda":
        options["device_id"] = device
    place: dict[str, Any] = {"rank": identity.rank, "world_size": identity.world_size}
    if rank_setup.rendezvous == "file":
        dist.init_process_group(init_method=f"file://{rank_files.rendezvous_file}", **place, **options)
    elif rank_setup.launcher == "torchrun":
        dist.init_process_group(**options)
    else:
        store = open_store(rank_files, identity.rank == 0, interface.address, timeout)
        dist.init_process_group(store=store, **place, **options)
    yield
    barrier(device)
    gc.collect()
    dist.destroy_process_group()


def open_store(rank_files: RankFiles, host: bool, address: str, timeout: timedelta) -> TCPStore:
    """Open the store by which ranks, or the agents of nodes, find each other.

    The system chooses a free port, and the others read it from the attempt's folder. So any number of runs
    start on one node at once, and nothing depends on host names or a batch system's commands.

    Args:
        rank_files: The attempt's folder, which all of them see.
        host: True in the process that hosts the store.
        address: This host's IPv4 address.
        timeout: A process waits this long for another.
    """
    if host:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False, timeout=timeout)
        rank_files.publish_endpoint(address, store.port)
        return store
    point = rank_files.wait_for_endpoint(timeout.total_seconds())
    return TCPStore(point.host, point.port, is_master=False, timeout=timeout)


def barrier(device: torch.device) -> None:
    """Wait for all ranks."""
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Return element-wise sums over all ranks, in double precision."""
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(value) for value in total.tolist()]


def gather(value: T, world_size: int, group: Any = None) -> list[T]:
    """Return the value of every rank, in rank order, on every rank.

    Args:
        value: This rank's.
        world_size: Number of ranks.
        group: A process group of all ranks; None for the default one.
    """
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value, group=group)
    return values
