"""Choose what of a cluster a site file describes: partitions, one kind of nodes of each, and the account."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from scalewise.config.errors import did_you_mean
from scalewise.config.shape import count_devices
from scalewise.site.cluster import Association, Cluster, ClusterError, Node, Partition

PART_OF_GPU = re.compile(r"(^|[-_.])\d+g\.\d+gb\b")
"""A MIG profile at the end of a GPU type, such as ``a100_1g.5gb``."""


@dataclass(frozen=True)
class SiteOptions:
    """Options of the command.

    Args:
        partitions: The partition to describe, or those to compare; empty if there is only one.
        account: The account that pays; None for the default one.
        gpu_types: The GPU type, or those to compare; empty if each partition has only one.
        constraint: Features that nodes must have, joined by ``&``; empty for none.
        output: The file to write.
        force: Replace a file that the user may have written.
        command: The command as the user gave it.
    """

    partitions: Sequence[str]
    account: str | None
    gpu_types: Sequence[str]
    constraint: str
    output: Path
    force: bool
    command: str


@dataclass
class Place:
    """One kind of nodes of a partition.

    Args:
        gpu_type: The type of its GPUs, empty if Slurm has none; None if a device is a CPU process.
        devices: Devices of each node.
        nodes: Nodes of this kind.
        excluded: Other nodes on which Slurm could place its jobs.
        account: Accounting's entry for the account that pays; None if unknown.
        site: Facts of the nodes as lines of YAML.
        slurm: Facts of the jobs, in the same way.
        remarks: Sentences for the terminal.
    """

    partition: Partition
    gpu_type: str | None
    devices: int
    nodes: Sequence[Node]
    excluded: Sequence[Node]
    account: Association | None
    site: list[str] = field(default_factory=list)
    slurm: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def places_of(cluster: Cluster, options: SiteOptions) -> list[Place]:
    """Return each kind of nodes that the user has chosen, the default one first.

    Raises:
        ClusterError: The user has to choose.
    """
    return [
        place
        for partition in _partitions(cluster, options.partitions)
        for place in _places(cluster, partition, options)
    ]


def _partitions(cluster: Cluster, names: Sequence[str]) -> list[Partition]:
    known = {each.name: each for each in cluster.partitions}
    usable = [each for each in cluster.partitions if each.state == "UP" and cluster.nodes_of(each.name)]
    if not names:
        with_gpus = [each for each in usable if any(node.gpus for node in cluster.nodes_of(each.name))]
        candidates = with_gpus or usable
        if len(candidates) != 1:
            listed = "".join(f"\n  {_partition_line(each, cluster)}" for each in candidates)
            raise ClusterError(
                f"there are {len(candidates)} partitions to choose from. Add one to the command, as "
                f"--partition NAME, or those to compare, as --partition ONE,OTHER.{listed}"
            )
        return candidates
    for name in names:
        if name not in known:
            raise ClusterError(f"there is no partition {name!r}. {did_you_mean(name, list(known))}")
        if known[name] not in usable:
            why = f"is {known[name].state}" if known[name].state != "UP" else "has no nodes now"
            raise ClusterError(f"partition {name} {why}. Choose another one, or try again later.")
    return [known[name] for name in dict.fromkeys(names)]


def _partition_line(partition: Partition, cluster: Cluster) -> str:
    nodes = cluster.nodes_of(partition.name)
    kinds = Counter(map(hardware, nodes)).most_common(3)
    default = "; the default" if partition.is_default else ""
    listed = " or ".join(kind for kind, _ in kinds)
    return (
        f"{partition.name}: {count_devices(len(nodes), 'node')} with {listed}; "
        f"{walltime(partition.longest_seconds)}{default}"
    )


def _places(cluster: Cluster, partition: Partition, options: SiteOptions) -> Iterator[Place]:
    """Yield each kind of nodes of a partition that the user has chosen."""
    needed = frozenset(filter(None, options.constraint.split("&")))
    nodes = [node for node in cluster.nodes_of(partition.name) if needed <= node.features]
    if not nodes:
        raise ClusterError(
            f"no node of partition {partition.name} has the features {options.constraint}. Choose others."
        )
    types = Counter(kind for node in nodes for kind in node.gpus)
    whole = [kind for kind in types if not PART_OF_GPU.search(kind)] or list(types)
    chosen: list[str | None] = [kind for kind in options.gpu_types if kind in types]
    if options.gpu_types and not chosen:
        raise ClusterError(
            f"partition {partition.name} has no GPUs of type {', '.join(options.gpu_types)}. "
            f"{did_you_mean(options.gpu_types[0], list(types)) if types else 'Slurm knows no GPUs there.'}"
        )
    if not options.gpu_types and len(whole) > 1:
        listed = "".join(
            f"\n  {kind or '(no type)'}: {count_devices(types[kind], 'node')}" for kind in sorted(whole)
        )
        raise ClusterError(
            f"partition {partition.name} has {len(whole)} GPU types, and a run must not mix them. Add one to "
            f"the command, as --gpu-type NAME, or those to compare, as --gpu-type ONE,OTHER.{listed}"
        )
    account = _account(cluster, partition, options.account)
    for gpu_type in dict.fromkeys(chosen or whole or [None]):
        if gpu_type is None:
            counts = {node.name: node.cpus for node in nodes}
        else:
            counts = {node.name: node.gpus.get(gpu_type, 0) for node in nodes}
        having = [node for node in nodes if counts[node.name]]
        kinds = Counter((counts[node.name], node.cpus) for node in having)
        devices, cpus = max(kinds, key=lambda kind: (kinds[kind], *kind))
        alike = [node for node in having if (counts[node.name], node.cpus) == (devices, cpus)]
        known = [node.memory_mb for node in alike if node.memory_mb is not None]
        # nodes of one order differ by a little
        least = 0.95 * median(known) if known else 0
        kept = [node for node in alike if node.memory_mb is None or node.memory_mb >= least]
        # a request that names a type reaches no others; one without a type reaches all GPUs
        reached = having if gpu_type else [node for node in nodes if gpu_type is None or node.gpus]
        excluded = [node for node in reached if node not in kept]
        yield Place(partition, gpu_type, devices, kept, excluded, account)


def _account(cluster: Cluster, partition: Partition, name: str | None) -> Association | None:
    """Return the account that pays: the user's choice, the default one, or the only one.

    Raises:
        ClusterError: It cannot be used in the partition, or the user has to choose.
    """
    accounts = cluster.accounts
    if accounts.unknown:
        return None if name is None else Association(name)
    usable = {
        account: row
        for account, row in accounts.usable_in(partition.name).items()
        if partition.takes_account(account)
    }
    listed = f"Yours are {', '.join(usable)}." if usable else "Ask the site."
    if name is not None:
        # Slurm keeps names of accounts in small letters
        found = usable.get(name) or usable.get(name.lower())
        if found is None:
            raise ClusterError(f"account {name} cannot be used in partition {partition.name}. {listed}")
        return found
    if accounts.default in usable:
        return usable[accounts.default]
    if len(usable) == 1:
        return next(iter(usable.values()))
    if not usable:
        raise ClusterError(f"none of your accounts can be used in partition {partition.name}. {listed}")
    raise ClusterError(
        f"your default account {accounts.default or '(unknown)'} cannot be used in partition "
        f"{partition.name}. Add one to the command, as --account NAME. {listed}"
    )


def hardware(node: Node) -> str:
    """Return the hardware of a node in words."""
    gpus = [f"{count} {kind or 'GPUs'}" for kind, count in sorted(node.gpus.items())]
    memory = [f"{node.memory_mb // 1000} GB"] if node.memory_mb else []
    return ", ".join([*gpus, f"{node.cpus} CPUs", *memory])


def walltime(seconds: int | None) -> str:
    """Return a time limit as Slurm writes it; ``no limit`` for None."""
    if seconds is None:
        return "no limit"
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock
