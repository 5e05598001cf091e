"""Report rank, host and device of each rank, and time all-reduces, for `snakemake preflight`.

By hand: torchrun --nproc-per-node=2 workflow/scripts/hello.py report.json
"""

from __future__ import annotations

import argparse
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

from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.distributed.identity import Identity, identify
from scalewise.ranks.distributed.network_interface import Interface, choose_interface, free_port
from scalewise.records import write_text

WAIT = timedelta(minutes=2)
WARM_UP, REPETITIONS = 2, 5
CPU_BYTES, GPU_BYTES = 25 * 2**20, 256 * 2**20
"""A bucket of gradients of DistributedDataParallel; on GPUs enough for their full rate."""
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""Bytes per second of a lane, by PCIe's generation."""


def main() -> None:
    """Take part as one rank; rank 0 writes the report of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, help="JSON file to write")
    parser.add_argument("--dataset", action="append", default=[], help="file that each rank must read")
    parser.add_argument("--accelerator", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--interface", help="network interface between nodes")
    options = parser.parse_args()
    identity = identify(os.environ, "torchrun" if "RANK" in os.environ else "srun")
    nodes = identity.world_size // identity.local_world_size
    device = claim_device(options.accelerator, identity)
    interface = choose_interface(nodes, options.interface)
    join(identity, device, options, interface)
    number = torch.tensor([identity.rank + 1.0], dtype=torch.float64, device=device)
    dist.all_reduce(number)
    rank = {
        "rank": identity.rank,
        "local_rank": identity.local_rank,
        "host": identity.host,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU process",
        "gpu": f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else "",
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.executable,
        "torch": torch.__version__,
        "total": number.item(),
        "datasets": {path: size_of(Path(path)) for path in options.dataset},
    }
    print(" ".join(f"{key}={value}" for key, value in rank.items()), flush=True)
    timed = list(time_all_reduces(identity, nodes, device, interface))
    ranks: list[Any] = [None] * identity.world_size
    dist.all_gather_object(ranks, rank)
    if identity.rank == 0:
        shown = f"{interface.name} on {identity.host}" if nodes > 1 else ""
        write_text(options.report, json.dumps({"ranks": ranks, "all_reduces": timed, "interface": shown}))
    # without it gloo's ranks sometimes abort after correct results
    dist.barrier()
    dist.destroy_process_group()


def size_of(path: Path) -> int | None:
    """Return the bytes of a file; None if it is missing on this node."""
    return path.stat().st_size if path.exists() else None


def claim_device(accelerator: str, identity: Identity) -> torch.device:
    """Return the device of this rank.

    Raises:
        RuntimeError: The rank does not see a GPU with its local number.
    """
    if accelerator == "cpu":
        return torch.device("cpu")
    if identity.local_rank >= (count := torch.cuda.device_count()):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise RuntimeError(
            f"local rank {identity.local_rank} needs a GPU, but torch {torch.__version__} sees {count} on "
            f"{identity.host} (CUDA_VISIBLE_DEVICES={visible}). Correct devices_per_node, the driver or "
            "options that bind GPUs to tasks, or set `accelerator: cpu` in the site file."
        )
    device = torch.device("cuda", identity.local_rank)
    torch.cuda.set_device(device)
    return device


def join(identity: Identity, device: torch.device, options: argparse.Namespace, interface: Interface) -> None:
    """Join the other ranks: rank 0 chooses address and port, as in a training, and the others read them."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface.name)
    if options.interface is not None:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", options.interface)
    if "MASTER_PORT" not in os.environ:
        rank_files = RankFiles(options.report.with_suffix(""))
        if identity.rank == 0:
            rank_files.publish_endpoint(interface.address, free_port(interface.address))
        host, port = rank_files.wait_for_endpoint(WAIT.total_seconds())
        os.environ |= {"MASTER_ADDR": host, "MASTER_PORT": str(port)}
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        rank=identity.rank,
        world_size=identity.world_size,
        timeout=WAIT,
        device_id=device if device.type == "cuda" else None,
    )


def time_all_reduces(
    identity: Identity, nodes: int, device: torch.device, interface: Interface
) -> Iterator[dict[str, object]]:
    """Time an all-reduce inside the nodes, all at once, and one across them; none over a single device."""
    if identity.local_world_size > 1:
        group, _ = dist.new_subgroups(identity.local_world_size)
        yield time_one(device, group, node_link(device)) | {
            "where": "inside a node",
            "devices": identity.local_world_size,
        }
    if nodes > 1:
        yield time_one(device, None, network_link(device, interface)) | {
            "where": "across nodes",
            "devices": identity.world_size,
        }


def time_one(
    device: torch.device, group: dist.ProcessGroup | None, link: tuple[str, float]
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
    return {"bytes": size, "seconds": seconds.item(), "hardware": link[0], "promised": link[1]}


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
        return f"PCIe {generation} x{width}", PCIE_LANE[generation] * width
    return "", 0


def network_link(device: torch.device, interface: Interface) -> tuple[str, float]:
    """Return the link between the nodes and its bytes per second in one direction; 0 if unknown."""
    if device.type == "cuda":
        # NCCL takes all of them; which other interfaces it takes is not known
        rates = []
        for port in Path("/sys/class/infiniband").glob("*/ports/*"):
            with suppress(OSError, ValueError, IndexError):
                if "ACTIVE" in (port / "state").read_text():
                    rates.append(float((port / "rate").read_text().split()[0]))
        return (f"{len(rates)} InfiniBand or RoCE ports", sum(rates) * 1e9 / 8) if rates else ("", 0)
    with suppress(OSError, ValueError):
        megabits = int(Path(f"/sys/class/net/{interface.name}/speed").read_text())
        if megabits > 0:
            return interface.name, megabits * 1e6 / 8
    return "", 0


if __name__ == "__main__":
    main()
