"""Claim the GPU or the CPUs of a rank."""

from __future__ import annotations

import os
import socket

import torch

from scalewise.ranks.distributed.cpus import cpu_list, take_cpus
from scalewise.ranks.distributed.identity import Identity
from scalewise.records import CPU_PROCESS


def device_name(device: torch.device) -> str:
    """Return the device's name, such as ``NVIDIA H200``, or ``CPU process``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else CPU_PROCESS


def claim_device(accelerator: str, local_rank: int, *, in_slurm: bool = False) -> torch.device:
    """Return this rank's device. A missing GPU is an error; the CPU never takes its place.

    Args:
        accelerator: ``cuda`` or ``cpu``.
        local_rank: Number of this rank on its node, from 0.
        in_slurm: Whether the rank is part of a Slurm job, to which an error's fix applies.

    Raises:
        RuntimeError: There is no CUDA, or it has too few devices.
    """
    if accelerator == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count == 1 and local_rank > 0:
        fix = (
            "Unset that variable or name more GPUs in it, or correct visible_devices or devices_per_node in "
            "the site file."
        )
        if in_slurm:
            fix = (
                "Slurm binds GPUs to tasks here: remove options such as --gpu-bind from the site's "
                "srun_extra, or add a line such as `export CUDA_VISIBLE_DEVICES=0,1,2,3` to its prelude."
            )
        raise RuntimeError(
            f"local rank {local_rank} on {socket.gethostname()} sees one GPU only, and it may be another's "
            f"(CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}). {fix}"
        )
    if local_rank >= count:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        # CUDA ends the list at the first number that no GPU has
        cause = "the allocation" if in_slurm or visible is None else "visible_devices"
        raise RuntimeError(
            f"local rank {local_rank} needs a GPU, but torch {torch.__version__} sees {count} on "
            f"{socket.gethostname()} (CUDA_VISIBLE_DEVICES={visible or 'not set'}). Set `accelerator: cpu` "
            f"in the site file to train on CPUs, or fix the driver or {cause}."
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def claim_cpus(accelerator: str, identity: Identity, cpus_per_device: int) -> str:
    """Set the number of this rank's threads, and bind it to CPUs of its own if the device is a CPU process.

    Returns:
        The CPUs the rank may run on, such as ``0-3,8``.

    Raises:
        RuntimeError: There are fewer CPUs than that.
    """
    torch.set_num_threads(cpus_per_device)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    return cpu_list(take_cpus(accelerator, identity, cpus_per_device))
