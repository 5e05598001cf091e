"""How the ranks of a probe meet: as those of a run, and two of them on one GPU where there is no second."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from scalewise.execution.rank_files import RankFiles
from scalewise.ranks.distributed.devices import claim_cpus, claim_device
from scalewise.ranks.distributed.identity import Identity, identify
from scalewise.ranks.distributed.process_group import process_group


def share_one_gpu(accelerator: str, ranks: int) -> bool:
    """Whether so many ranks have to share a GPU. They then meet by gloo: NCCL takes one rank a GPU."""
    return accelerator == "cuda" and torch.cuda.device_count() < ranks


@contextmanager
def probe_group(rank_files: RankFiles) -> Iterator[tuple[Identity, torch.device]]:
    """Join the ranks that the folder tells of; torchrun has started this one."""
    rank_setup = rank_files.rank_setup()
    accelerator = rank_setup.accelerator
    identity = identify(os.environ, rank_setup.launcher)
    claim_cpus(accelerator, identity, rank_setup.cpus_per_device)
    if not share_one_gpu(accelerator, identity.local_world_size):
        device = claim_device(accelerator, identity.local_rank)
        with process_group(rank_files, rank_setup, identity, device):
            yield identity, device
        return
    device = claim_device(accelerator, 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", timeout=timedelta(seconds=rank_setup.timeout_seconds))
    yield identity, device
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()
