"""Jobs of runs, in the terms of Slurm and of Snakemake. Their requests do not define a result."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping

from scalewise.config.experiment import AnyExperiment
from scalewise.config.site import Site
from scalewise.config.slurm import RESOURCES_OF_OPTIONS, Slurm
from scalewise.plan.plan_file import TrainJob, Value
from scalewise.plan.run_definition import RunDefinition
from scalewise.plan.runs import input_files, priority

START_UP_MINUTES = 2
"""Added to a run's time, so that its job can write the last checkpoint and the reason of its end."""

EARLY_SECONDS = 60
"""Slurm may send a signal this long before the requested time."""

SIGNAL_SECONDS, LAST_SIGNAL_SECONDS = 60, 30
"""A job of several gets SIGUSR1 this long before its end: its run stops, and goes back into the queue. The
only job of a run gets it later, once the run's own limit has passed."""

LEAST_SECONDS = 30
"""Least time for training in a job, without its start and the signal."""

ALL_CORES = 1024
"""Snakemake reduces it to the cores of the machine."""

SHARED_NODE = "shared_node"
"""Resource of a job that could share a node with another of the study; the main process limits it to 1."""


def sbatch_options(resources: Mapping[str, Value]) -> list[str]:
    """Return the resources of a job as options of sbatch."""
    place = {"account": "slurm_account", "partition": "slurm_partition"}
    place |= {name: name for name in (*RESOURCES_OF_OPTIONS, "nodes")}
    amounts = {"cpus-per-task": "cpus_per_task", "gres": "gres", "mem": "mem_mb", "time": "runtime"}
    first, last = (
        [f"--{option}={resources[name]}" for option, name in names.items() if resources.get(name)]
        for names in (place, amounts)
    )
    return [*first, *shlex.split(str(resources.get("slurm_extra", ""))), *last]


def train_job(run: RunDefinition, experiment: AnyExperiment, site: Site) -> TrainJob:
    """Make the job of a run on a site, by the time limit and memory of its experiment."""
    minutes, memory = experiment.runtime_minutes, node_memory_mb(run, experiment, site)
    threads, limit_seconds = ALL_CORES, 60 * minutes
    resources: dict[str, Value] = {"runtime": minutes, "mem_mb": memory}
    if site.slurm is not None:
        threads = run.shape.devices_per_node * run.settings.cpus_per_device
        minutes, limit_seconds, signal_seconds = split_walltime(minutes, site.longest_minutes)
        resources = slurm_resources(run, site, site.slurm, minutes, memory, signal_seconds)
    return {
        "site": site.partition,
        "threads": threads,
        "resources": resources,
        "limit_seconds": limit_seconds,
        "limit_over_tries": experiment.budget is not None,
        "timeout_seconds": experiment.timeout_seconds,
        "definition": run.as_json(),
        "inputs": input_files(run),
        "priority": priority(run),
    }


def slurm_resources(
    run: RunDefinition, site: Site, slurm: Slurm, minutes: int, memory_mb: int, signal_seconds: int
) -> dict[str, Value]:
    """Return what a run requests of Slurm.

    ``mpi`` with an empty value: with the key, the plugin does not wrap the run in a srun of one task; with an
    empty value, it does not refuse runs of one device. ``gpu`` and ``gpus`` must not be used: they would
    place GPUs unevenly over nodes. Without ``gres`` the plugin needs ``tasks``, or it adds ``--ntasks=1``;
    with it, ``tasks`` would become ``--ntasks-per-gpu``. ``USR1@`` and not ``B:USR1@``: the ranks get the
    signal; it would kill the job's shell.

    Args:
        run: The run.
        site: Where it runs.
        slurm: The site's cluster.
        minutes: Time of the job.
        memory_mb: Memory of each node; 0 for no request.
        signal_seconds: Time of the signal before the job's end; 0 for none.
    """
    shape, cpus = run.shape, run.settings.cpus_per_device
    devices = shape.devices_per_node
    requests_gpus = slurm.requests_gpus(site.accelerator)
    gpus = f"{slurm.gpu_type}:{devices}" if slurm.gpu_type else f"{devices}"
    # without a request for GPUs, Slurm knows only a job's CPUs
    leaves_free = devices < site.devices_per_node if requests_gpus else devices * cpus < site.cpus_per_node
    exclusive = leaves_free if slurm.exclusive is None else slurm.exclusive
    # the executor plugin refuses some options among others, and takes them as resources
    is_resource = {word: word[2:].partition("=")[0] in RESOURCES_OF_OPTIONS for word in slurm.extra}
    extra = [f"--ntasks-per-node={devices}", *(["--exclusive"] if exclusive else [])]
    extra += [word for word in slurm.extra if not is_resource[word]]
    extra += [f"--signal=USR1@{signal_seconds}"] if signal_seconds else []
    resources: dict[str, Value] = {
        "mpi": "",
        "nodes": shape.nodes,
        "cpus_per_task": cpus,
        "runtime": minutes,
        "mem_mb": memory_mb,
        # the profile's budget counts it; neither Slurm nor the plugin reads this name
        "device_budget": site.devices_per_node * shape.nodes if exclusive else shape.world_size,
    }
    if not requests_gpus:
        resources["tasks"] = shape.world_size
    elif any(mark in gpus for mark in "-+@"):
        # the plugin's gres accepts no type with such a character
        extra.insert(1, f"--gpus-per-node={gpus}")
        resources["tasks"] = shape.world_size
    else:
        resources["gres"] = f"gpu:{gpus}"
    if leaves_free and not exclusive:
        resources[SHARED_NODE] = 1
    # with quotes, the plugin does not take the end of --exclude=gpu-c for its option -c
    words = (f"'{word}'" if re.fullmatch(r"[\w,.=-]+-\w", word) else shlex.quote(word) for word in extra)
    resources["slurm_extra"] = " ".join(words)
    placed = {"slurm_account": slurm.account, "slurm_partition": slurm.partition}
    placed |= dict(word[2:].split("=", 1) for word in slurm.extra if is_resource[word])
    return resources | {name: value for name, value in placed.items() if value is not None}


def split_walltime(runtime_minutes: int, longest_minutes: int | None) -> tuple[int, int, int]:
    """Divide a run's time: one job with additional time for its end, or several of the longest.

    Args:
        runtime_minutes: Training time that the run has, over all its jobs.
        longest_minutes: The longest job that the site allows; None if unknown.

    Returns:
        Minutes of each job, seconds of the run over all its jobs, and seconds before a job's end at which its
        ranks get SIGUSR1 (0 for none).
    """
    limit, job_minutes = 60 * runtime_minutes, runtime_minutes + START_UP_MINUTES
    if longest_minutes is None or job_minutes <= longest_minutes:
        # after the run's limit, at which it stops itself, and not while it starts
        return job_minutes, limit, LAST_SIGNAL_SECONDS
    if most_jobs(runtime_minutes, longest_minutes) > 1:
        return longest_minutes, limit, SIGNAL_SECONDS
    return longest_minutes, min(limit, 60 * longest_minutes - 30), 0


def most_jobs(runtime_minutes: int, longest_minutes: int | None) -> int:
    """Return the most jobs that a run takes, one after the other; see ``split_walltime``."""
    if longest_minutes is None or runtime_minutes + START_UP_MINUTES <= longest_minutes:
        return 1
    seconds = trained_seconds(longest_minutes)
    return math.ceil(60 * runtime_minutes / seconds) if seconds >= LEAST_SECONDS else 1


def trained_seconds(longest_minutes: int) -> int:
    """Return the least seconds for training in one job of several, without its start and an early signal."""
    return longest_minutes * 60 - START_UP_MINUTES * 30 - EARLY_SECONDS - SIGNAL_SECONDS


def node_memory_mb(run: RunDefinition, experiment: AnyExperiment, site: Site) -> int:
    """Return the MB on each node: the experiment's, or else its devices' share of the node; 0 for none."""
    if experiment.memory_gb is not None:
        return round(experiment.memory_gb * 1000)
    whole = site.facts.memory_gb_per_node
    if site.slurm is None or whole is None:
        return 0
    return int(whole * 1000 * run.shape.devices_per_node / site.devices_per_node)
