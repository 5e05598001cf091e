"""Take part as one rank of the preflight's job: be placed and meet as in a training, and time all-reduces."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalewise.execution.rank_files import RankFiles, RankSetup
from scalewise.ranks.distributed.cpus import take_cpus
from scalewise.ranks.distributed.identity import Identity, check_place, identify
from scalewise.ranks.distributed.network_interface import Interface, choose_interface
from scalewise.ranks.program.environment import find_endpoint, own_gpu, set_interface
from scalewise.records import write_text

WARM_UP, REPETITIONS = 2, 5
CPU_BYTES, GPU_BYTES = 25 * 2**20, 256 * 2**20
"""A bucket of gradients of DistributedDataParallel; on GPUs enough for their full rate."""
INFINIBAND = Path("/sys/class/infiniband")
PCIE_3_LANE = 0.985e9
"""Bytes per second of a lane of PCIe 3; each generation doubles it."""


def main() -> None:
    """Take part as one rank; rank 0 writes the report of all."""
    rank_files = RankFiles(Path(sys.argv[1]))
    setup = rank_files.setup
    run = setup.definition
    identity = identify(os.environ, run.launcher)
    check_place(identity, run.shape)
    gpu = own_gpu(os.environ, setup, identity)
    cpus = take_cpus(run.accelerator, identity, run.settings.cpus_per_device, gpu=gpu)
    device = torch.device("cpu")
    if is_gpu := run.accelerator == "cuda":
        device = torch.device("cuda", identity.local_rank)
        torch.cuda.set_device(device)
    join(rank_files, setup, identity, device)
    number = torch.tensor([identity.rank + 1.0], dtype=torch.float64, device=device)
    dist.all_reduce(number)
    if number.item() != (expected := identity.world_size * (identity.world_size + 1) / 2):
        raise RuntimeError(
            f"the all-reduce over {identity.world_size} ranks gave {number.item():g}, not {expected:g}. "
            "Set network_interface in the site file, and ask the site which one is right."
        )
    model = torch.cuda.get_device_name(device) if is_gpu else "CPU process"
    uuid = f" GPU-{torch.cuda.get_device_properties(device).uuid}" if is_gpu else ""
    rank = {
        "text": f"rank {identity.rank} on {identity.host}: {model}{uuid}, {len(cpus)} CPUs",
        "host": identity.host,
        "same": {
            "device": model,
            "python": f"{sys.executable} with torch {torch.__version__}",
            **{path: size_of(Path(path)) for path in sys.argv[2:]},
        },
    }
    print(rank, flush=True)
    interface = choose_interface(run.shape.nodes, setup.network_interface)
    timed = list(time_all_reduces(setup, device, interface))
    ranks: list[Any] = [None] * identity.world_size
    dist.all_gather_object(ranks, rank)
    if identity.rank == 0:
        shown = f"{interface.name} on {identity.host}" if run.shape.nodes > 1 else ""
        report = {"ranks": ranks, "all_reduces": timed, "interface": shown}
        write_text(setup.folder / "report.json", json.dumps(report))
    # without it gloo's ranks sometimes abort after correct results
    dist.barrier()
    dist.destroy_process_group()


def size_of(path: Path) -> str:
    """Return the size of a file on this node."""
    return f"{path.stat().st_size:,} bytes" if path.exists() else "missing"


def join(rank_files: RankFiles, setup: RankSetup, identity: Identity, device: torch.device) -> None:
    """Join the other ranks, as the ranks of a training do."""
    set_interface(os.environ, setup)
    if setup.definition.settings.rendezvous == "file":
        meeting = f"file://{rank_files.rendezvous_file}"
    else:
        meeting = "tcp://{}:{}".format(*find_endpoint(rank_files, setup, identity))
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=meeting,
        rank=identity.rank,
        world_size=identity.world_size,
        timeout=timedelta(seconds=setup.timeout_seconds),
        device_id=device if device.type == "cuda" else None,
    )


def time_all_reduces(
    setup: RankSetup, device: torch.device, interface: Interface
) -> Iterator[dict[str, object]]:
    """Time an all-reduce inside the nodes, all at once, and one across them; none over a single device."""
    shape = setup.definition.shape
    if shape.devices_per_node > 1:
        group, _ = dist.new_subgroups(shape.devices_per_node)
        yield {"where": "inside a node"} | time_one(device, group, *node_link(device))
    if shape.nodes > 1:
        yield {"where": "across nodes"} | time_one(device, None, *network_link(device, interface))


def time_one(
    device: torch.device, group: dist.ProcessGroup | None, hardware: str, promised: float
) -> dict[str, object]:
    """Return the mean time of an all-reduce over a group's ranks, on the slowest of all ranks."""
    size = GPU_BYTES if device.type == "cuda" else CPU_BYTES
    message = torch.ones(size // 4, dtype=torch.float32, device=device)
    for _ in range(WARM_UP):  # the first opens connections
        dist.all_reduce(message, group=group)
    # all ranks begin together, also those of other nodes; item() waits for the device
    dist.all_reduce(start := torch.ones(1, device=device))
    start.item()
    began = time.perf_counter()
    for _ in range(REPETITIONS):
        dist.all_reduce(message, group=group)
    message[0].item()
    seconds = torch.tensor([(time.perf_counter() - began) / REPETITIONS], dtype=torch.float64, device=device)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return {
        "devices": dist.get_world_size(group),
        "bytes": size,
        "seconds": seconds.item(),
        "hardware": hardware,
        "promised": promised,
    }


def node_link(device: torch.device) -> tuple[str, float]:
    """Return the link between the GPUs of a node and its bytes per second in one direction; 0 if unknown."""
    if device.type != "cuda":
        return "", 0
    with suppress(Exception):  # without nvidia-ml-py, or with a driver that does not answer
        import pynvml  # noqa: PLC0415 - may be missing

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        gpu = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        links = 0
        with suppress(pynvml.NVMLError):  # from the first link on that the GPU does not have
            for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
                links += pynvml.nvmlDeviceGetNvLinkState(gpu, link)
        if links:
            (speed,) = pynvml.nvmlDeviceGetFieldValues(gpu, [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])
            return f"{links} NVLinks", links * speed.value.uiVal * 1e6
        generation = pynvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)
        width = pynvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)
        return f"PCIe {generation} x{width}", PCIE_3_LANE * 2 ** (generation - 3) * width
    return "", 0


def network_link(device: torch.device, interface: Interface) -> tuple[str, float]:
    """Return the link between the nodes and its bytes per second in one direction; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        if device.type == "cuda":
            # NCCL takes all of them; which other interfaces it takes is not known
            ports = [
                path for path in INFINIBAND.glob("*/ports/*") if "ACTIVE" in (path / "state").read_text()
            ]
            rates = [float((port / "rate").read_text().split()[0]) for port in ports]
            return f"{len(rates)} InfiniBand or RoCE ports", sum(rates) * 1e9 / 8
        megabits = int(Path(f"/sys/class/net/{interface.name}/speed").read_text())
        return interface.name, max(megabits, 0) * 1e6 / 8
    return "", 0


if __name__ == "__main__":
    main()
