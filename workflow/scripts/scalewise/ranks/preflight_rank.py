"""Try out a site with the smallest job: every rank reports its place, and all-reduces are timed."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from scalewise.execution.preflight_job import (
    DATASETS,
    RANK_REPORT,
    PreflightReport,
    RankPreflight,
    TimedAllReduce,
    file_sizes,
)
from scalewise.execution.rank_files import RankFiles
from scalewise.plan.config.shape import Shape
from scalewise.ranks.all_reduce import MESSAGE_BYTES, all_reduce_seconds
from scalewise.ranks.distributed.device_timers import timer_for
from scalewise.ranks.distributed.devices import device_name
from scalewise.ranks.distributed.network_interface import interface_addresses
from scalewise.ranks.distributed.process_group import gather, process_group
from scalewise.ranks.rank_process import initialize_rank
from scalewise.records import write_json


def run_preflight_rank(rank_files: RankFiles) -> None:
    """Join the other ranks; rank 0 writes the reports of all to the attempt's folder."""
    rank_setup = rank_files.rank_setup()
    identity, cpus, device = initialize_rank(rank_files, rank_setup)
    paths = (rank_files.folder / DATASETS).read_text(encoding="utf-8").splitlines()
    with process_group(rank_files, rank_setup, identity, device):
        number = torch.tensor([identity.rank + 1.0], dtype=torch.float64, device=device)
        dist.all_reduce(number)
        reported = RankPreflight(
            rank=identity.rank,
            local_rank=identity.local_rank,
            host=identity.host,
            device=device_name(device),
            visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            cpus=cpus,
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
        report = gather(reported, identity.world_size)
        if identity.rank == 0:
            write_json(rank_files.folder / RANK_REPORT, PreflightReport(ranks=report))
    rank_files.finished(identity.rank)


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
