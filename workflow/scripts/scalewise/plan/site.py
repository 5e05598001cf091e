"""Facts of the machine or cluster that runs a study, apart from its science."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Accelerator = Literal["cpu", "cuda"]
Count = Annotated[int, Field(gt=0)]

# CUDA stops reading the variable at the first entry that names no device
_GPU_ENTRY = re.compile(r"\d+|(GPU|MIG)-.+")


class SiteFile(BaseModel):
    """What ``site.yaml`` of a profile may say; ``auto`` is looked up on this machine."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title="Scalewise site")

    accelerator: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="What a device is: a GPU (cuda) or a CPU process (cpu). auto: GPUs where there are two.",
    )
    devices_per_node: Count | Literal["auto"] = Field(
        "auto",
        description="Devices of one node. auto: this machine's GPUs, or its CPUs where those are devices.",
    )
    cpus_per_node: Count | Literal["auto"] = Field(
        "auto", description="CPUs of one node. auto: the CPUs this process may use."
    )
    max_nodes: Count = Field(1, description="Nodes one run may take.")


@dataclass(frozen=True, slots=True)
class Site:
    """The facts with every ``auto`` resolved.

    Args:
        accelerator: ``cuda`` or ``cpu``.
        devices_per_node: devices of one node.
        cpus_per_node: CPUs of one node.
        max_nodes: nodes one run may take.
    """

    accelerator: Accelerator
    devices_per_node: int
    cpus_per_node: int
    max_nodes: int


def resolve_site(facts: SiteFile) -> Site:
    """Look up on this machine what the site leaves to ``auto``."""
    cpus = available_cpus() if facts.cpus_per_node == "auto" else facts.cpus_per_node
    gpus = visible_gpus()
    # one GPU has nothing to scale to, and the shipped study must run beside it
    looked_up: Accelerator = "cuda" if gpus > 1 else "cpu"
    accelerator = looked_up if facts.accelerator == "auto" else facts.accelerator
    if facts.devices_per_node != "auto":
        devices = facts.devices_per_node
    elif accelerator == "cuda":
        devices = max(gpus, 1)
    else:
        devices = cpus
    return Site(accelerator, devices, cpus, facts.max_nodes)


def available_cpus() -> int:
    """CPUs this process may use, which a container or a batch system may have limited."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(min(allowed, int(quota) // int(period)), 1)


def visible_gpus() -> int:
    """NVIDIA GPUs of this machine, by their device files: no driver is loaded to plan a study."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        entries = itertools.takewhile(_GPU_ENTRY.fullmatch, chosen.replace(" ", "").split(","))
        return sum(1 for _ in entries)
    devices = Path("/dev")
    return sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
