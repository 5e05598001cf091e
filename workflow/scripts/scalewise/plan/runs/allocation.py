"""Allocations of runs, in Slurm's and in Snakemake's terms. None of it defines a result."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from scalewise.plan.config.experiment import AnyExperiment
from scalewise.plan.config.site import Site
from scalewise.plan.runs.runs import Run

MB_PER_GB = 1000
START_UP_MINUTES = 2
"""Added to a job's time, so that a run has all of its own, writes its last checkpoint and leaves a reason."""

EARLY_SECONDS = 60
"""Slurm may send a signal so long before the time it was asked for."""

LEAST_SECONDS = 30
"""Least time that a job must leave for training, beside its start and the signal."""

ALL_CORES = 1024
"""Cut by Snakemake to the cores that there are."""


ON_ONE_MACHINE = (
    *("runtime", "mem_mb", "limit_seconds", "timeout_seconds"),
    *("checkpoint_seconds", "train_options"),
)
"""Resources that mean something without a scheduler."""

OF_TRAINING = ("checkpoint_seconds", "train_options")
"""Resources that mean nothing to other jobs than a training."""


class Wildcards(Protocol):
    """Wildcards that Snakemake gives to a function of a resource."""

    experiment: str
    run: str


Value = int | str
Resource = Value | Callable[[Wildcards], Value] | Callable[[Wildcards, int], Value]


@dataclass(frozen=True)
class Allocation:
    """The resources of a run, alike on every one of its nodes.

    Args:
        nodes: Nodes of each job.
        tasks_per_node: Devices of a node, whichever launcher starts the ranks: one rule serves every size.
        cpus_per_task: CPUs of one rank.
        minutes: The scheduler ends a job after so long.
        limit_seconds: The run is ended after so long over all its jobs, ahead of the scheduler, which would
            leave no reason.
        timeout_seconds: A rank waits so long for another.
        memory_mb: Per node; 0 asks for none.
        memory_mb_per_cpu: Per CPU, where a site wants that; 0 asks for none.
        gres: GPUs per node as ``gpu:h100:4``; empty where they are asked for in another way.
        extra: Further options of sbatch.
        signal_seconds: A job's ranks get SIGUSR1 so long before the end of its time; 0 asks for none.
        jobs: Most jobs that the run takes, one after the other.
        checkpoint_seconds: Training time between two checkpoints.
        keep_checkpoints: The checkpoints of a completed run stay.
        limit_over_tries: The limit is of all tries at the run together, as a budget counts it.
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
    signal_seconds: int = 0
    jobs: int = 1
    checkpoint_seconds: float = 600.0
    keep_checkpoints: bool = False
    limit_over_tries: bool = False

    def _train_options(self) -> Iterator[str]:
        if self.keep_checkpoints:
            yield "--keep-checkpoints"
        if self.limit_over_tries:
            yield "--limit-over-tries"

    @property
    def extra_args(self) -> tuple[str, ...]:
        """Options of sbatch that the executor plugin has no resource for.

        ``USR1@`` and not ``B:USR1@``: the ranks get the signal; the job's shell would die of it.
        """
        signal = (f"--signal=USR1@{self.signal_seconds}",) if self.signal_seconds else ()
        return (*self.extra, *signal)

    def sbatch_args(self) -> str:
        """The allocation as sbatch gets it."""
        words = [f"--nodes={self.nodes}", *self.extra_args, f"--cpus-per-task={self.cpus_per_task}"]
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
            "slurm_extra": shlex.join(self.extra_args),
            "runtime": self.minutes,
            "limit_seconds": self.limit_seconds,
            "timeout_seconds": self.timeout_seconds,
            "mem_mb": self.memory_mb,
            # a number with a fraction is text to Snakemake
            "checkpoint_seconds": f"{self.checkpoint_seconds:g}",
            "train_options": " ".join(self._train_options()),
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


def allocate(run: Run, experiment: AnyExperiment, site: Site) -> Allocation:
    """Allocate a run on a site, by the time limit and memory of its experiment."""
    devices = run.shape.devices_per_node
    cpus = run.settings.cpus_per_device
    memory = node_memory_mb(devices, experiment, site)
    slurm = site.slurm
    alone = Allocation(
        nodes=run.shape.nodes,
        tasks_per_node=devices,
        cpus_per_task=cpus,
        minutes=experiment.runtime_minutes,
        limit_seconds=experiment.runtime_minutes * 60,
        timeout_seconds=experiment.timeout_seconds,
        memory_mb=memory,
        checkpoint_seconds=experiment.checkpoint_minutes * 60,
        keep_checkpoints=experiment.keep_checkpoints,
        limit_over_tries=experiment.budget is not None,
    )
    if slurm is None:
        return alone
    share = split_walltime(experiment.runtime_minutes, site.longest_minutes, slurm.signal_seconds)
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
    return replace(
        alone,
        minutes=share.minutes,
        limit_seconds=share.limit_seconds,
        signal_seconds=share.signal_seconds,
        jobs=share.jobs,
        memory_mb=memory if slurm.memory == "per-node" else 0,
        memory_mb_per_cpu=memory // (devices * cpus) if per_cpu else 0,
        gres=f"gpu:{kind}{devices}" if gpu_request != "none" and not gpus_per_node else "",
        extra=(*extra, *slurm.extra),
    )


@dataclass(frozen=True)
class Walltime:
    """A run's time, laid out over jobs.

    Args:
        minutes: Time that each job asks for.
        limit_seconds: Limit of the run, over all its jobs.
        signal_seconds: A job's ranks get SIGUSR1 so long before its end; 0 for none.
        jobs: Most jobs that the run takes, one after the other.
    """

    minutes: int
    limit_seconds: int
    signal_seconds: int
    jobs: int = 1


def split_walltime(runtime_minutes: int, longest_minutes: int | None, signal_seconds: int) -> Walltime:
    """Lay out a run's time: in one job with time to spare for its end, or in several of the longest.

    Args:
        runtime_minutes: Training time that the run has, over all its jobs.
        longest_minutes: The longest job that the site allows; None where nobody says.
        signal_seconds: Time ahead of a job's end at which the site wants a signal; 0 for none, and then there
            is one job. A run that one job holds gets it at most 30 s ahead: it ends by its own limit before.
    """
    limit, wanted = runtime_minutes * 60, runtime_minutes + START_UP_MINUTES
    if longest_minutes is None or wanted <= longest_minutes:
        # not before the run's own limit, at which it stops by itself, nor while it starts
        spare = wanted * 60 - limit - EARLY_SECONDS
        return Walltime(wanted, limit, min(signal_seconds, spare // 2))
    seconds = trained_seconds(longest_minutes, signal_seconds)
    if signal_seconds and seconds >= LEAST_SECONDS:
        return Walltime(longest_minutes, limit, signal_seconds, math.ceil(limit / seconds))
    return Walltime(longest_minutes, min(limit, longest_minutes * 60 - 30), 0)


def trained_seconds(longest_minutes: int, signal_seconds: int) -> int:
    """Least seconds for training in one job of several: the start and an early signal are taken off."""
    return longest_minutes * 60 - START_UP_MINUTES * 30 - EARLY_SECONDS - signal_seconds


def node_memory_mb(devices: int, experiment: AnyExperiment, site: Site) -> int:
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
    # these have nothing to write a checkpoint of
    asked = replace(allocation, signal_seconds=0).resources()
    asked = {name: value for name, value in asked.items() if name not in OF_TRAINING}
    kept = (
        asked if site.slurm is not None else {name: asked[name] for name in ON_ONE_MACHINE if name in asked}
    )
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
    """Resources that every job of a cluster states alike."""
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
