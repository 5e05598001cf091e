"""Facts of the machine or cluster that runs a study, apart from its science."""

from __future__ import annotations

import itertools
import os
import platform
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from scalewise.config.settings import Count, LauncherName, Memory, StrictModel
from scalewise.config.shape import Shape
from scalewise.config.slurm import Filled, Slurm, duration_seconds

Accelerator = Literal["cpu", "cuda"]

DEVICE_FILES = Path("/dev")

# CUDA stops reading the variable at the first entry that names no device
_GPU_ENTRY = re.compile(r"\d+|(GPU|MIG)-.+")


Argument = Annotated[str, Field(pattern=r"^[^-\n\x00][^\n\x00]*$"), Filled]
Option = Annotated[str, Field(pattern=r"^[^\x00]+$")]
_NAME = "[A-Za-z0-9][A-Za-z0-9_.:-]{0,14}"
Interface = Annotated[str, Field(pattern=f"^{_NAME}(,{_NAME})*$")]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PartitionName = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]
"""Part of a folder's name."""
ShellLine = Annotated[str, Field(pattern=r"^[^\n\x00]*\S[^\n\x00]*$")]


class Container(StrictModel):
    """The container that the ranks run in; snakemake itself runs outside."""

    image: Argument
    """Path of the image."""
    binds: list[Argument] = Field(default_factory=list)
    """Folders to make visible inside, in addition to the working folder."""
    runtime: Argument = "apptainer"
    """Program that starts it: apptainer or singularity."""
    arguments: list[Option] | None = None
    """Options before the image, such as `--overlay=/path/to/file.ext3:ro`. Default: ["--nv"] for cuda, none
    for cpu."""
    prelude: list[ShellLine] = Field(default_factory=list)
    """Lines of shell inside the container before the ranks start, such as `source /ext3/env.sh`. The image
    needs bash for them."""


class NodeFacts(StrictModel):
    """Facts of a site that may differ between its partitions."""

    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """What a device is: a GPU (cuda) or a CPU process (cpu). auto: GPUs if there are two."""
    devices_per_node: Count | Literal["auto"] = "auto"
    """Devices of one node. auto: this machine's GPUs, or its CPUs if those are the devices."""
    cpus_per_node: Count | Literal["auto"] = "auto"
    """CPUs of one node. auto: the CPUs this process may use."""
    memory_gb_per_node: Memory | None = None
    """Memory of one node that jobs may request. A run without memory_gb requests its devices' share. Default:
    no request for memory."""
    max_nodes: Count = 1
    """Nodes one run may take."""
    launcher: LauncherName | None = None
    """What starts the ranks. Default: srun on Slurm, popen on one machine."""
    python: Argument | None = None
    """Interpreter of the ranks, with torch, pydantic, numpy, safetensors and psutil; with torchvision for the
    workers loader and resnet18, with nvidia-ml-py to watch GPUs. Default: the one that runs snakemake;
    python3 in a container."""
    prelude: list[ShellLine] = Field(default_factory=list)
    """Lines of shell on every node before the ranks start, such as `module load cuda`; outside of a
    container."""
    container: Container | None = None
    """Run the ranks in a container."""
    network_interface: Interface | None = None
    """Interface between nodes, or several for NCCL, such as hsn0,hsn1: ranks meet at the first. Default: the
    one that has the address of the node's name."""
    price_per_device_hour: Price | None = None
    """Price of one device for one hour, in any currency or in the site's billing units. Compares partitions
    by cost."""


class Partition(NodeFacts, Slurm):
    """Facts of one partition that differ from the site's; keys of `slurm` stand among the others."""


class SiteFile(NodeFacts):
    """Facts that ``site.yaml`` of a profile may state; ``auto`` is looked up on this machine."""

    model_config = ConfigDict(title="Scalewise site")

    slurm: Slurm | None = None
    """The cluster's scheduler; without it, one machine."""
    partitions: Annotated[dict[PartitionName, Partition], Field(min_length=1)] | None = None
    """Kinds of nodes that a study compares, by names of your choice, each with the facts that differ there:
    keys of this table, and those of `slurm`. An experiment says which it runs on; one that does not runs on
    the first."""


class Site(StrictModel):
    """Facts of a site with every ``auto`` resolved.

    Args:
        devices_per_node: Devices of one node.
        cpus_per_node: CPUs of one node.
        facts: The content of the site file, with those of the partition.
        partition: The partition that it describes; empty for a site without partitions.
    """

    accelerator: Accelerator
    devices_per_node: int
    cpus_per_node: int
    max_nodes: int
    facts: SiteFile = Field(default_factory=SiteFile)
    partition: str = ""

    @property
    def slurm(self) -> Slurm | None:
        """The cluster's scheduler; None on one machine."""
        return self.facts.slurm

    @property
    def launcher(self) -> LauncherName:
        """The program that starts the ranks if an experiment names none."""
        if self.facts.launcher is not None:
            return self.facts.launcher
        return "srun" if self.slurm else "popen"

    @property
    def container_arguments(self) -> list[str]:
        """Options of the container's program before the image."""
        container = self.facts.container
        if container is not None and container.arguments is not None:
            return container.arguments
        return ["--nv"] if self.accelerator == "cuda" else []

    @property
    def most_devices(self) -> int:
        """Most devices of one run."""
        return self.devices_per_node * self.max_nodes

    def billed_devices(self, shape: Shape) -> int:
        """Count the devices that a training of this shape pays for: all of its nodes' if these are whole."""
        slurm = self.slurm
        whole = slurm is not None and slurm.exclusive is True
        return shape.nodes * self.devices_per_node if whole else shape.world_size

    def held_devices(self, shape: Shape) -> int:
        """Count the devices that a run of the study pays for: by default no run shares a node.

        A later training of the same shape may share one, so an answer counts ``billed_devices``.
        """
        if self.slurm is not None and self.slurm.exclusive is None:
            return shape.nodes * self.devices_per_node
        return self.billed_devices(shape)

    def billing(self, shapes: Collection[Shape]) -> dict[str, dict[int, float]]:
        """Return ``billed_devices`` and ``held_devices`` by device count, if they are more than it uses."""
        found = {
            key: {
                shape.world_size: float(paid) for shape in shapes if (paid := of(shape)) != shape.world_size
            }
            for key, of in (("billed_devices", self.billed_devices), ("held_devices", self.held_devices))
        }
        return {key: devices for key, devices in found.items() if devices}

    @property
    def longest_minutes(self) -> int | None:
        """Whole minutes that a job may take; None if unknown."""
        longest = self.slurm.longest_walltime if self.slurm else None
        seconds = duration_seconds(longest) if longest else None
        return None if seconds is None else seconds // 60


def facts_of_partition(values: Mapping[str, Any], partition: str) -> dict[str, Any]:
    """Return the content of the site file as if it had one partition only.

    Args:
        values: Content of the site file, with ``partitions``.
        partition: Name of one of them.
    """
    partitions = values["partitions"]
    slurm = {key: value for key, value in partitions[partition].items() if key in Slurm.model_fields}
    facts = {**values, **partitions[partition]}
    for key in ("partitions", *slurm):
        del facts[key]
    # with a fact of Slurm in one partition, all of them have Slurm
    if "slurm" in values or any(Slurm.model_fields.keys() & each for each in partitions.values()):
        facts["slurm"] = {**values.get("slurm", {}), **slurm}
    return facts


def resolve_site(facts: SiteFile, partition: str = "") -> Site:
    """Replace each ``auto`` of a site by the facts of this machine.

    Args:
        facts: The content of the site file, with those of the partition.
        partition: The partition; empty for a site without partitions.
    """
    cpus = available_cpus() if facts.cpus_per_node == "auto" else facts.cpus_per_node
    gpus = visible_gpus()
    accelerator = facts.accelerator
    if accelerator == "auto":
        # a single GPU leaves nothing to scale to, and the shipped study must run on such a machine, too
        accelerator = "cuda" if gpus > 1 else "cpu"
    automatic = max(gpus, 1) if accelerator == "cuda" else cpus
    devices = automatic if facts.devices_per_node == "auto" else facts.devices_per_node
    return Site(
        accelerator=accelerator,
        devices_per_node=devices,
        cpus_per_node=cpus,
        max_nodes=facts.max_nodes,
        facts=facts,
        partition=partition,
    )


AUTO_KEYS = ("accelerator", "devices_per_node", "cpus_per_node")
"""Keys that ``auto`` reads from the machine of snakemake, which on a cluster is no compute node."""


def available_cpus() -> int:
    """Count the CPUs that this process may use; a container or a batch system may limit them."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return allowed
    return allowed if quota == "max" else max(min(allowed, int(quota) // int(period)), 1)


def cpu_model() -> str:
    """Return the processor's model name from the kernel, or else its architecture."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            named = next(line for line in lines if line.startswith(("model name", "Model")))
    except (OSError, StopIteration):
        return platform.machine()
    return named.partition(":")[2].strip()


def visible_gpus() -> int:
    """Count the NVIDIA GPUs of this machine by their device files, without loading a driver."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        entries = itertools.takewhile(_GPU_ENTRY.fullmatch, chosen.replace(" ", "").split(","))
        return sum(1 for _ in entries)
    return sum(1 for path in DEVICE_FILES.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
