"""Allocations of runs, in the terms of Slurm and of Snakemake. They do not define a result."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from scalewise.config.experiment import AnyExperiment
from scalewise.config.site import Site
from scalewise.config.slurm import RESOURCES_OF_OPTIONS
from scalewise.plan.plan_file import Limits, Value
from scalewise.plan.runs.run_definition import RunDefinition

MB_PER_GB = 1000
START_UP_MINUTES = 2
"""Added to a run's time, so that its job can write the last checkpoint and the reason of its end."""

EARLY_SECONDS = 60
"""Slurm may send a signal this long before the requested time."""

SIGNAL_SECONDS = 60
"""A job of several gets SIGUSR1 this long before its end: its run stops, and goes back into the queue."""

LEAST_SECONDS = 30
"""Least time for training in a job, without its start and the signal."""

ALL_CORES = 1024
"""Snakemake reduces it to the cores of the machine."""

SHARED_NODE = "shared_node"
"""Resource of a job that could share a node with another of the study; the main process limits it to 1."""

ON_ONE_MACHINE = ("runtime", "mem_mb")
"""Resources that have a meaning without a scheduler."""


PLACE_RESOURCES = {
    "account": "slurm_account",
    "partition": "slurm_partition",
    **{option: option for option in RESOURCES_OF_OPTIONS},
}
"""Resources of the executor plugin by which Slurm chooses a job's nodes, by options of sbatch."""


@dataclass(frozen=True)
class Allocation:
    """Resources of a run, the same on each of its nodes.

    Args:
        nodes: Nodes of each job.
        tasks_per_node: Devices of a node, for every launcher: one rule serves all sizes.
        cpus_per_task: CPUs of one rank.
        minutes: The scheduler ends a job after this time.
        memory_mb: Per node; 0 requests none.
        gres: GPUs per node as ``gpu:h100:4``; empty if they are requested in another way.
        extra: Further options of sbatch.
        placed: Resources of the executor plugin by which Slurm chooses the nodes.
        signal_seconds: A job's ranks get SIGUSR1 this long before the end of its time; 0 requests none.
        jobs: Most jobs that the run takes, one after the other.
        leaves_free: Whether another job of the study would fit on a node that this one takes a part of.
        held_devices: Devices of the nodes if the job requests whole ones; 0 if it requests no whole nodes.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    minutes: int
    limits: Limits
    memory_mb: int
    gres: str = ""
    extra: tuple[str, ...] = ()
    placed: Mapping[str, str] = field(default_factory=dict)
    signal_seconds: int = 0
    jobs: int = 1
    leaves_free: bool = False
    held_devices: int = 0

    @property
    def shares_nodes(self) -> bool:
        """Whether another job of the study could run on its nodes at the same time."""
        return self.leaves_free and not self.held_devices

    @property
    def extra_args(self) -> tuple[str, ...]:
        """Options of sbatch without a resource of the executor plugin.

        ``USR1@`` and not ``B:USR1@``: the ranks get the signal; it would kill the job's shell.
        """
        signal = (f"--signal=USR1@{self.signal_seconds}",) if self.signal_seconds else ()
        return (*self.extra, *signal)

    def sbatch_args(self) -> str:
        """Return the allocation as options of sbatch."""
        words = [f"--nodes={self.nodes}", *self.extra_args, f"--cpus-per-task={self.cpus_per_task}"]
        if self.gres:
            words.append(f"--gres={self.gres}")
        if self.memory_mb:
            words.append(f"--mem={self.memory_mb}")
        return shlex.join([*words, f"--time={self.minutes}"])

    def sbatch_options(self) -> list[str]:
        """Return all options of sbatch, with those by which Slurm chooses the nodes."""
        place = (
            f"--{option}={self.placed[name]}"
            for option, name in PLACE_RESOURCES.items()
            if name in self.placed
        )
        return [*place, *shlex.split(self.sbatch_args())]

    def resources(self) -> dict[str, Value]:
        """Return the allocation as the executor plugin reads it from the resources of a job.

        ``mpi`` with an empty value: with the key, the plugin does not wrap the run in a srun of one task;
        with an empty value, it does not refuse runs of one device. ``gpu`` and ``gpus`` must not be used:
        they would place GPUs unevenly over nodes. Without ``gres`` the plugin needs ``tasks``, or it adds
        ``--ntasks=1``; with it, ``tasks`` would become ``--ntasks-per-gpu``.
        """
        values: dict[str, Value] = {
            "mpi": "",
            "nodes": self.nodes,
            "cpus_per_task": self.cpus_per_task,
            "slurm_extra": shlex.join(self.extra_args),
            "runtime": self.minutes,
            "mem_mb": self.memory_mb,
            # the profile's budget counts it; neither Slurm nor the plugin reads this name
            "device_budget": self.held_devices or self.nodes * self.tasks_per_node,
        }
        if self.shares_nodes:
            values[SHARED_NODE] = 1
        if self.gres:
            values["gres"] = self.gres
        else:
            values["tasks"] = self.nodes * self.tasks_per_node
        return values


def allocate(run: RunDefinition, experiment: AnyExperiment, site: Site) -> Allocation:
    """Allocate a run on a site, by the time limit and memory of its experiment."""
    devices = run.shape.devices_per_node
    cpus = run.settings.cpus_per_device
    memory = node_memory_mb(devices, experiment, site)
    slurm = site.slurm
    allocation = Allocation(
        nodes=run.shape.nodes,
        tasks_per_node=devices,
        cpus_per_task=cpus,
        minutes=experiment.runtime_minutes,
        limits=Limits(
            limit_seconds=experiment.runtime_minutes * 60,
            timeout_seconds=experiment.timeout_seconds,
            limit_over_tries=experiment.budget is not None,
        ),
        memory_mb=memory,
    )
    if slurm is None:
        return allocation
    share = split_walltime(experiment.runtime_minutes, site.longest_minutes)
    requests_gpus = slurm.requests_gpus(site.accelerator)
    kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
    # the plugin's gres accepts no type with such a character; then sbatch gets the option itself
    gpus_per_node = any(mark in kind for mark in "-+@")
    extra = [f"--ntasks-per-node={devices}"]
    if requests_gpus and gpus_per_node:
        extra.append(f"--gpus-per-node={kind}{devices}")
    # without a request for GPUs, Slurm knows only a job's CPUs
    leaves_free = devices < site.devices_per_node if requests_gpus else devices * cpus < site.cpus_per_node
    exclusive = leaves_free if slurm.exclusive is None else slurm.exclusive
    if exclusive:
        extra.append("--exclusive")
    as_resources = dict(word[2:].split("=", 1) for word in slurm.extra if _is_resource(word))
    placed = {"slurm_account": slurm.account, "slurm_partition": slurm.partition, **as_resources}
    return replace(
        allocation,
        minutes=share.minutes,
        limits=replace(allocation.limits, limit_seconds=share.limit_seconds, job_seconds=60 * share.minutes),
        signal_seconds=share.signal_seconds,
        jobs=share.jobs,
        gres=f"gpu:{kind}{devices}" if requests_gpus and not gpus_per_node else "",
        extra=(*extra, *(word for word in slurm.extra if not _is_resource(word))),
        placed={name: value for name, value in placed.items() if value is not None},
        leaves_free=leaves_free,
        held_devices=run.shape.nodes * site.devices_per_node if exclusive else 0,
    )


def _is_resource(word: str) -> bool:
    """Return whether the executor plugin refuses an option among others, and takes it as a resource."""
    return word[2:].partition("=")[0] in RESOURCES_OF_OPTIONS


@dataclass(frozen=True)
class Walltime:
    """A run's time, divided among jobs.

    Args:
        minutes: Requested time of each job.
        limit_seconds: Limit of the run, over all its jobs.
        signal_seconds: A job's ranks get SIGUSR1 this long before its end; 0 for none.
        jobs: Most jobs that the run takes, one after the other.
    """

    minutes: int
    limit_seconds: int
    signal_seconds: int
    jobs: int = 1


def split_walltime(runtime_minutes: int, longest_minutes: int | None) -> Walltime:
    """Divide a run's time: one job with additional time for its end, or several of the longest.

    Args:
        runtime_minutes: Training time that the run has, over all its jobs.
        longest_minutes: The longest job that the site allows; None if unknown.
    """
    limit, job_minutes = runtime_minutes * 60, runtime_minutes + START_UP_MINUTES
    if longest_minutes is None or job_minutes <= longest_minutes:
        # after the run's limit, at which it stops itself, and not while it starts
        spare = job_minutes * 60 - limit - EARLY_SECONDS
        return Walltime(job_minutes, limit, min(SIGNAL_SECONDS, spare // 2))
    seconds = trained_seconds(longest_minutes)
    if seconds >= LEAST_SECONDS:
        return Walltime(longest_minutes, limit, SIGNAL_SECONDS, math.ceil(limit / seconds))
    return Walltime(longest_minutes, min(limit, longest_minutes * 60 - 30), 0)


def trained_seconds(longest_minutes: int) -> int:
    """Return the least seconds for training in one job of several, without its start and an early signal."""
    return longest_minutes * 60 - START_UP_MINUTES * 30 - EARLY_SECONDS - SIGNAL_SECONDS


def node_memory_mb(devices: int, experiment: AnyExperiment, site: Site) -> int:
    """Return the MB on each node: the experiment's, or else its devices' share of the node; 0 for none."""
    if experiment.memory_gb is not None:
        return round(experiment.memory_gb * MB_PER_GB)
    whole = site.facts.memory_gb_per_node
    if site.slurm is None or whole is None:
        return 0
    return int(whole * MB_PER_GB * devices / site.devices_per_node)


def job_resources(allocation: Allocation, site: Site) -> dict[str, Value]:
    """Return the ``resources`` of a job in Snakemake's terms."""
    resources = allocation.resources()
    if site.slurm is None:
        return {name: resources[name] for name in ON_ONE_MACHINE}
    return {**resources, **allocation.placed}


def job_threads(allocation: Allocation, site: Site) -> int:
    """Return all cores on one machine: runs must not overlap. On a cluster, the CPUs of a node's ranks."""
    return ALL_CORES if site.slurm is None else allocation.tasks_per_node * allocation.cpus_per_task
