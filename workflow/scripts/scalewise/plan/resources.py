"""What a run asks of the machine, in Slurm's and in Snakemake's terms. None of it defines a result."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from scalewise.plan.config import Experiment
from scalewise.plan.runs import Run
from scalewise.plan.site import Site

MB_PER_GB = 1000
START_UP_MINUTES = 1
"""Added to a job's time, so that a run has all of its own and leaves a reason when it is ended."""

ALL_CORES = 1024
"""Cut by Snakemake to the cores that there are."""


ON_ONE_MACHINE = ("runtime", "mem_mb", "limit_seconds", "timeout_seconds")
"""Resources that mean something without a scheduler."""


class Wildcards(Protocol):
    """What Snakemake gives to a function of a resource."""

    experiment: str
    run: str


Value = int | str
Resource = Value | Callable[[Wildcards], Value] | Callable[[Wildcards, int], Value]


@dataclass(frozen=True)
class Allocation:
    """What a run needs, on every one of its nodes alike.

    Args:
        nodes: of the run.
        tasks_per_node: as many as devices, whichever launcher starts the ranks: one rule serves every size.
        cpus_per_task: CPUs of one rank.
        minutes: after which the scheduler ends the job.
        limit_seconds: after which the run is ended, ahead of the scheduler, which would leave no reason.
        timeout_seconds: that a rank waits for another.
        memory_mb: per node; 0 asks for none.
        memory_mb_per_cpu: per CPU, where a site wants that; 0 asks for none.
        gres: GPUs per node as ``gpu:h100:4``; empty where they are asked for in another way.
        extra: further options of sbatch.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    minutes: int
    limit_seconds: int
    timeout_seconds: int
    memory_mb: int
    memory_mb_per_cpu: int = 0
    gres: str = ""
    extra: tuple[str, ...] = ()

    def options(self) -> str:
        """The allocation as sbatch gets it."""
        words = [f"--nodes={self.nodes}", *self.extra, f"--cpus-per-task={self.cpus_per_task}"]
        if self.gres:
            words.append(f"--gres={self.gres}")
        if self.memory_mb:
            words.append(f"--mem={self.memory_mb}")
        if self.memory_mb_per_cpu:
            words.append(f"--mem-per-cpu={self.memory_mb_per_cpu}")
        return shlex.join([*words, f"--time={self.minutes}"])

    def resources(self) -> dict[str, Value]:
        """The allocation as the executor plugin reads it from the resources of a job.

        ``mpi`` with an empty value: the key keeps the plugin's job step from wrapping the run in a srun
        of one task, the empty value keeps its submit side from refusing runs of one device. ``gpu`` and
        ``gpus`` must not stand here: they would place GPUs unevenly over nodes. Without ``gres`` the
        plugin adds ``--ntasks=1`` unless told the number; with it, that number would become
        ``--ntasks-per-gpu``.
        """
        values: dict[str, Value] = {
            "mpi": "",
            "nodes": self.nodes,
            "cpus_per_task": self.cpus_per_task,
            "slurm_extra": shlex.join(self.extra),
            "runtime": self.minutes,
            "limit_seconds": self.limit_seconds,
            "timeout_seconds": self.timeout_seconds,
            "mem_mb": self.memory_mb,
            # what the profile's budget counts; a name that neither Slurm nor the plugin reads
            "device_budget": self.nodes * self.tasks_per_node,
        }
        if self.memory_mb_per_cpu:
            values["mem_mb_per_cpu"] = self.memory_mb_per_cpu
        if self.gres:
            values["gres"] = self.gres
        else:
            values["tasks"] = self.nodes * self.tasks_per_node
        return values


def allocate(run: Run, experiment: Experiment, site: Site) -> Allocation:
    """The allocation of a run on a site.

    Args:
        run: the job.
        experiment: its time limit and memory.
        site: facts of the machine or cluster.
    """
    devices = run.shape.devices_per_node
    cpus = run.settings.cpus_per_device
    memory = node_memory_mb(devices, experiment, site)
    minutes, limit, timeout = (
        experiment.runtime_minutes,
        experiment.runtime_minutes * 60,
        experiment.timeout_seconds,
    )
    slurm = site.slurm
    if slurm is None:
        return Allocation(run.shape.nodes, devices, cpus, minutes, limit, timeout, memory)
    minutes += START_UP_MINUTES
    if site.longest_minutes is not None:
        minutes = min(minutes, site.longest_minutes)
    gpu_request = slurm.gpu_request or ("gres" if site.accelerator == "cuda" else "none")
    kind = f"{slurm.gpu_type}:" if slurm.gpu_type else ""
    # the plugin's own gres takes no type with a hyphen; then sbatch gets the option as it is
    gpus_per_node = gpu_request == "gpus-per-node" or "-" in kind or "+" in kind or "@" in kind
    extra = [f"--ntasks-per-node={devices}"]
    if gpu_request != "none" and gpus_per_node:
        extra.append(f"--gpus-per-node={kind}{devices}")
    if slurm.exclusive:
        extra.append("--exclusive")
    if slurm.reservation:
        extra.append(f"--reservation={slurm.reservation}")
    if slurm.mail_user:
        extra.append(f"--mail-user={slurm.mail_user}")
    if slurm.mail_type:
        extra.append(f"--mail-type={','.join(slurm.mail_type)}")
    per_cpu = slurm.memory == "per-cpu"
    return Allocation(
        nodes=run.shape.nodes,
        tasks_per_node=devices,
        cpus_per_task=cpus,
        minutes=minutes,
        limit_seconds=min(limit, minutes * 60 - START_UP_MINUTES * 30),
        timeout_seconds=timeout,
        memory_mb=memory if slurm.memory == "per-node" else 0,
        memory_mb_per_cpu=memory // (devices * cpus) if per_cpu else 0,
        gres=f"gpu:{kind}{devices}" if gpu_request != "none" and not gpus_per_node else "",
        extra=(*extra, *slurm.extra),
    )


def node_memory_mb(devices: int, experiment: Experiment, site: Site) -> int:
    """Megabytes on each node: what the experiment says, else its devices' share of the node; 0 for none."""
    if experiment.memory_gb is not None:
        return round(experiment.memory_gb * MB_PER_GB)
    whole = site.facts.memory_gb_per_node
    if site.slurm is None or whole is None:
        return 0
    return int(whole * MB_PER_GB * devices / site.devices_per_node)


def train_resources(
    runs: Mapping[tuple[str, str], Run], allocations: Mapping[tuple[str, str], Allocation], site: Site
) -> dict[str, Resource]:
    """The ``resources`` of the rule that trains."""
    values = {key: allocations[key].resources() for key in runs}
    names = dict.fromkeys(name for asked in values.values() for name in asked)
    if site.slurm is None:
        names = dict.fromkeys(ON_ONE_MACHINE)
    resources = {name: _by_run({key: asked.get(name, 0) for key, asked in values.items()}) for name in names}
    return {**resources, **_constants(site), "attempt": _attempt}


def job_resources(allocation: Allocation, site: Site) -> dict[str, Value]:
    """The ``resources`` of a rule with a single job."""
    asked = allocation.resources()
    kept = asked if site.slurm is not None else {name: asked[name] for name in ON_ONE_MACHINE}
    return {**kept, **_constants(site)}


def train_threads(allocations: Mapping[tuple[str, str], Allocation], site: Site) -> Resource:
    """``threads`` of the rule that trains."""
    return _by_run({key: job_threads(allocation, site) for key, allocation in allocations.items()})


def job_threads(allocation: Allocation, site: Site) -> int:
    """All cores on one machine, so that no two runs overlap; on a cluster the CPUs of a node's ranks."""
    return ALL_CORES if site.slurm is None else allocation.tasks_per_node * allocation.cpus_per_task


def _attempt(wildcards: Wildcards, attempt: int) -> int:
    """Snakemake's count of the tries at a job, from 1."""
    del wildcards
    return attempt


def _constants(site: Site) -> dict[str, Value]:
    """What every job of a cluster says alike."""
    if site.slurm is None:
        return {}
    stated = {
        "slurm_account": site.slurm.account,
        "slurm_partition": site.slurm.partition,
        "qos": site.slurm.qos,
        "constraint": site.slurm.constraint,
    }
    return {name: value for name, value in stated.items() if value is not None}


def _by_run(values: Mapping[tuple[str, str], Value]) -> Resource:
    """One value where all agree: Snakemake calls a function four times a job, a second per 10,000."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return lambda wildcards: values[wildcards.experiment, wildcards.run]
