"""Try out a site with the smallest job: every rank reports its place, and all-reduces are timed."""

from __future__ import annotations

import os
import signal
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from scalewise.config.shape import Shape
from scalewise.execution.preflight_job import (
    DATASETS,
    RANK_REPORT,
    PreflightReport,
    RankPreflight,
    TimedAllReduce,
    file_sizes,
)
from scalewise.execution.rank_files import RankFiles, RankSetup, is_out_of_memory
from scalewise.execution.start import exit_when_parent_dies
from scalewise.ranks.distributed.cpus import cpu_list, take_cpus
from scalewise.ranks.distributed.device_timers import DeviceTimer, timer_for
from scalewise.ranks.distributed.identity import Identity, check_place, identify
from scalewise.ranks.distributed.network_interface import interface_addresses
from scalewise.ranks.program.environment import find_endpoint, own_gpu, set_interface
from scalewise.records import CPU_PROCESS, write_json

MESSAGE_BYTES = 25 * 1024**2
"""A bucket of gradients of DistributedDataParallel."""

REPETITIONS = 5


def run_preflight_rank(rank_files: RankFiles) -> None:
    """Report this rank; an exception is written to a file for the supervisor before it is raised again."""
    rank_setup = rank_files.rank_setup()
    identity = identify(os.environ, rank_setup.launcher)
    install_sigterm_handler(rank_files, identity.rank)
    try:
        report_rank(rank_files, rank_setup, identity)
    except Exception as error:
        out_of_memory = is_out_of_memory(f"{type(error).__name__}: {error}")
        # a full disk or a missing folder must not hide the error, which is printed as it is raised again
        with suppress(OSError):
            rank_files.failed(identity.rank, socket.gethostname(), error, out_of_memory)
        raise


def install_sigterm_handler(rank_files: RankFiles, rank: int) -> None:
    """Leave a note at SIGTERM, which a launcher sends to the peers of a failed rank; SIGKILL leaves none."""

    def stop(signum: int, _frame: FrameType | None) -> None:
        with suppress(OSError):  # the folder may be gone, or be used by another attempt
            rank_files.terminated(rank)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, stop)


def report_rank(rank_files: RankFiles, rank_setup: RankSetup, identity: Identity) -> None:
    """Claim CPUs and device, join the other ranks, and report; rank 0 writes the reports of all.

    Raises:
        RuntimeError: Place, CPUs or device are not as planned.
    """
    rank_files.started(identity.rank, identity.host)
    exit_when_parent_dies(rank_setup.supervisor_pid, rank_setup.supervisor_host == identity.host)
    check_place(identity, rank_setup.shape)
    gpu = own_gpu(os.environ, rank_setup, identity)
    device = claim_device(rank_setup, identity)
    cpus = take_cpus(rank_setup.accelerator, identity, rank_setup.cpus_per_device, gpu=gpu)
    torch.set_num_threads(rank_setup.cpus_per_device)
    paths = (rank_files.folder / DATASETS).read_text(encoding="utf-8").splitlines()
    join(rank_files, rank_setup, identity, device)
    number = torch.tensor([identity.rank + 1.0], dtype=torch.float64, device=device)
    dist.all_reduce(number)
    reported = RankPreflight(
        rank=identity.rank,
        local_rank=identity.local_rank,
        host=identity.host,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else CPU_PROCESS,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        cpus=cpu_list(cpus),
        threads=torch.get_num_threads(),
        python=sys.executable,
        torch=torch.__version__,
        total=number.item(),
        all_reduces=time_all_reduces(rank_setup.shape, device),
        datasets=file_sizes(paths),
        interface=os.environ["GLOO_SOCKET_IFNAME"],
        interfaces=[
            name for name, address in interface_addresses().items() if not address.startswith("127.")
        ],
    )
    reports: list[Any] = [None] * identity.world_size
    dist.all_gather_object(reports, reported)
    if identity.rank == 0:
        write_json(rank_files.folder / RANK_REPORT, PreflightReport(ranks=reports))
    # without both gloo's ranks sometimes abort after correct results
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()
    rank_files.finished(identity.rank)


def claim_device(rank_setup: RankSetup, identity: Identity) -> torch.device:
    """Return this rank's device. A missing GPU is an error; the CPU never takes its place.

    Raises:
        RuntimeError: There is no CUDA, or it has too few devices.
    """
    if rank_setup.accelerator == "cpu":
        return torch.device("cpu")
    if identity.local_rank >= (count := torch.cuda.device_count()):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        # CUDA ends the list at the first number that no GPU has
        cause = "the allocation" if identity.slurm_job_id or visible is None else "visible_devices"
        raise RuntimeError(
            f"local rank {identity.local_rank} needs a GPU, but torch {torch.__version__} sees {count} on "
            f"{identity.host} (CUDA_VISIBLE_DEVICES={visible or 'not set'}). Set `accelerator: cpu` in the "
            f"site file to train on CPUs, or fix the driver or {cause}."
        )
    device = torch.device("cuda", identity.local_rank)
    torch.cuda.set_device(device)
    return device


def join(rank_files: RankFiles, rank_setup: RankSetup, identity: Identity, device: torch.device) -> None:
    """Join the ranks' process group, by NCCL on GPUs and gloo on CPUs."""
    set_interface(os.environ, rank_setup)
    if rank_setup.rendezvous == "file":
        method = f"file://{rank_files.rendezvous_file}"
    else:
        endpoint = find_endpoint(rank_files, rank_setup, identity)
        os.environ |= {"MASTER_ADDR": endpoint.host, "MASTER_PORT": str(endpoint.port)}
        method = "env://"
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=method,
        rank=identity.rank,
        world_size=identity.world_size,
        timeout=timedelta(seconds=rank_setup.timeout_seconds),
        **options,
    )


def time_all_reduces(shape: Shape, device: torch.device) -> list[TimedAllReduce]:
    """Time an all-reduce inside the nodes, all at once, and one across them; none over a single device."""
    groups: dict[Shape, dist.ProcessGroup | None] = {}
    if shape.devices_per_node > 1:
        groups[Shape(1, shape.devices_per_node)], _ = dist.new_subgroups(shape.devices_per_node)
    if shape.nodes > 1:
        groups[shape] = None
    timer = timer_for(device)
    return [
        TimedAllReduce(shape=over, bytes=MESSAGE_BYTES, seconds=all_reduce_seconds(device, timer, group))
        for over, group in groups.items()
    ]


def all_reduce_seconds(
    device: torch.device, timer: DeviceTimer[Any], group: dist.ProcessGroup | None = None
) -> float:
    """Return the seconds of an all-reduce over a group's ranks, a mean, on the slowest of all ranks.

    All ranks must call it, each with its own group. Their devices come out of a small all-reduce together,
    and the others follow it without a gap. A barrier would let the hosts start at different times, and their
    way to the device would count.

    Args:
        device: Holds the message.
        timer: The device's.
        group: All ranks by default.
    """
    message = torch.ones(MESSAGE_BYTES // 4, dtype=torch.float32, device=device)
    dist.all_reduce(message, group=group)  # the first opens connections
    dist.all_reduce(torch.ones(1, device=device))
    start = timer.record()
    for _ in range(REPETITIONS):
        dist.all_reduce(message, group=group)
    end = timer.record()
    timer.synchronize()
    slowest = torch.tensor(timer.seconds(start, end) / REPETITIONS, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())
