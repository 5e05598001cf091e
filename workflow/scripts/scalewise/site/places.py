"""Choose what of a cluster a site file describes: partitions, one kind of nodes of each, and the account."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scalewise.config.errors import did_you_mean
from scalewise.config.shape import count_devices
from scalewise.site.cluster import Association, Cluster, ClusterError, Facts, Node, names, number

PART_OF_GPU = re.compile(r"(^|[-_.])\d+g\.\d+gb\b")
"""A MIG profile at the end of a GPU type, such as ``a100_1g.5gb``."""
MOST_KINDS = 8
"""Most kinds of nodes in one remark."""
ALIKE = 0.95
"""Nodes of one order differ by a little memory; one with less than this part of the usual is another kind."""


@dataclass(frozen=True)
class SiteOptions:
    """Options of the command.

    Args:
        output: The file to write.
        command: The command as the user gave it.
        partitions: The partition to describe, or those to compare; empty if there is only one.
        gpu_types: The GPU type, or those to compare; empty if each partition has only one.
        account: The account that pays; None for the default one.
        constraint: Features that nodes must have, joined by ``&``; empty for none.
        force: Replace a file that the user may have written.
    """

    output: Path
    command: str = ""
    partitions: Sequence[str] = ()
    gpu_types: Sequence[str] = ()
    account: str | None = None
    constraint: str = ""
    force: bool = False


@dataclass(frozen=True)
class Place:
    """One kind of nodes of a partition.

    Args:
        partition: Slurm's facts of it.
        gpu_type: The type of its GPUs, empty if Slurm has none; None if a device is a CPU process.
        devices: Devices of each node.
        nodes: Nodes of this kind.
        excluded: Other nodes on which Slurm could place its jobs.
        account: Accounting's entry for the account that pays; None if unknown.
        other_accounts: Accounts that could pay, too.
        extra: Further options of sbatch.
        refusal: Slurm's refusal of a job of whole nodes, without the QOS that ``extra`` may name.
        refused: The options of that job if Slurm takes it with no QOS of the user.
    """

    cluster: Cluster
    partition: Facts
    gpu_type: str | None
    devices: int
    nodes: Sequence[Node]
    excluded: Sequence[Node]
    account: Association | None
    other_accounts: Sequence[str]
    extra: Sequence[str] = ()
    refusal: str = ""
    refused: str = ""

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition["PartitionName"]

    @property
    def hardware(self) -> str:
        """The hardware of a node in words."""
        return hardware(self.nodes[0])

    @property
    def is_part_of_gpu(self) -> bool:
        """Whether a device is a MIG part of a GPU."""
        return bool(PART_OF_GPU.search(self.gpu_type or ""))

    @property
    def gres(self) -> str:
        """All GPUs of a node in a request."""
        return ":".join(filter(None, ["gpu", self.gpu_type, str(self.devices)]))

    @property
    def cpus(self) -> int:
        """CPUs of a node that a job may request."""
        return min(self.nodes[0].cpus, number(self.partition, "MaxCPUsPerNode") or self.nodes[0].cpus)

    @property
    def memory_mb(self) -> int | None:
        """Memory of every node that a job may request; None if that of a node is unknown."""
        known = [node.memory_mb for node in self.nodes if node.memory_mb is not None]
        if len(known) < len(self.nodes):
            return None
        limits = [
            (number(facts, key) or 0) * factor
            for facts in (self.partition, self.cluster.config)
            for key, factor in (("MaxMemPerNode", 1), ("MaxMemPerCPU", self.cpus))
        ]
        return min(filter(None, [*known, *limits]))

    @property
    def fewest_nodes(self) -> int:
        """Nodes that a job must request."""
        return number(self.partition, "MinNodes") or 1

    @property
    def most_nodes(self) -> int:
        """Nodes that a job may request."""
        return min(len(self.nodes), number(self.partition, "MaxNodes") or len(self.nodes))

    @property
    def longest(self) -> str:
        """The time limit as Slurm writes it."""
        return self.partition.get("MaxTime", "UNLIMITED")

    @property
    def whole_nodes(self) -> str:
        """The setting that gives a job its nodes to itself; empty if nodes are shared."""
        shared = self.partition.get("OverSubscribe", self.partition.get("Shared", ""))
        if shared.startswith("EXCLUSIVE"):
            return f"OverSubscribe={shared}"
        linear = self.cluster.config.get("SelectType") == "select/linear"
        return "SelectType=select/linear" if linear else ""

    @property
    def splitting_features(self) -> list[str]:
        """Features of some of these nodes that not all nodes of the partition have, those of GPUs first."""
        found = self.nodes[0].features - self._shared_features
        return sorted(found, key=lambda name: ("gpu" not in name.lower(), name))

    @property
    def _shared_features(self) -> frozenset[str]:
        return frozenset.intersection(*(node.features for node in self.cluster.nodes_of(self.name)))

    def kinds(self, nodes: Sequence[Node]) -> str:
        """Return the kinds of some nodes in words, with the features that split the partition."""
        shared = self._shared_features
        found = Counter((hardware(node), ",".join(sorted(node.features - shared))) for node in nodes)
        listed = [
            f"{count_devices(number, 'node')} with {kind}{f', features {features}' if features else ''}"
            for (kind, features), number in found.most_common(MOST_KINDS)
        ]
        more = [f"{len(found) - MOST_KINDS} more kinds"] if len(found) > MOST_KINDS else []
        return "; ".join([*listed, *more])


def places_of(cluster: Cluster, options: SiteOptions) -> list[Place]:
    """Return each kind of nodes that the user has chosen, the default one first.

    Raises:
        ClusterError: The user has to choose.
    """
    return [
        place
        for name in _partitions(cluster, options.partitions)
        for place in _places(cluster, cluster.partitions[name], options)
    ]


def _partitions(cluster: Cluster, chosen: Sequence[str]) -> list[str]:
    state = {name: facts.get("State", "UP") for name, facts in cluster.partitions.items()}
    usable = [name for name in state if state[name] == "UP" and cluster.nodes_of(name)]
    if not chosen:
        with_gpus = [name for name in usable if any(node.gpus for node in cluster.nodes_of(name))]
        candidates = with_gpus or usable
        if len(candidates) != 1:
            listed = "".join(f"\n  {_partition_line(name, cluster)}" for name in candidates)
            raise ClusterError(
                f"there are {len(candidates)} partitions to choose from. Add one to the command, as "
                f"--partition NAME, or those to compare, as --partition ONE,OTHER.{listed}"
            )
        return candidates
    for name in chosen:
        if name not in state:
            raise ClusterError(f"there is no partition {name!r}. {did_you_mean(name, list(state))}")
        if name not in usable:
            why = f"is {state[name]}" if state[name] != "UP" else "has no nodes now"
            raise ClusterError(f"partition {name} {why}. Choose another one, or try again later.")
    return list(dict.fromkeys(chosen))


def _partition_line(name: str, cluster: Cluster) -> str:
    facts, nodes = cluster.partitions[name], cluster.nodes_of(name)
    kinds = " or ".join(kind for kind, _ in Counter(map(hardware, nodes)).most_common(3))
    default = "; the default" if facts.get("Default") == "YES" else ""
    limit = facts.get("MaxTime", "UNLIMITED").replace("UNLIMITED", "no limit")
    return f"{name}: {count_devices(len(nodes), 'node')} with {kinds}; {limit}{default}"


def _places(cluster: Cluster, partition: Facts, options: SiteOptions) -> Iterator[Place]:
    """Yield each kind of nodes of a partition that the user has chosen."""
    name = partition["PartitionName"]
    needed = frozenset(filter(None, options.constraint.split("&")))
    nodes = [node for node in cluster.nodes_of(name) if needed <= node.features]
    if not nodes:
        raise ClusterError(
            f"no node of partition {name} has the features {options.constraint}. Choose others."
        )
    account, others = _account(cluster, partition, options.account)
    for gpu_type in _gpu_types(name, nodes, options.gpu_types):
        devices = {node.name: node.cpus if gpu_type is None else node.gpus.get(gpu_type, 0) for node in nodes}
        having = [node for node in nodes if devices[node.name]]
        kinds = Counter((devices[node.name], node.cpus) for node in having)
        kind = max(kinds, key=lambda each: (kinds[each], *each))
        alike = [node for node in having if (devices[node.name], node.cpus) == kind]
        memories = [node.memory_mb for node in alike if node.memory_mb is not None]
        least = ALIKE * median(memories) if memories else 0
        kept = [node for node in alike if node.memory_mb is None or node.memory_mb >= least]
        # a request that names a type reaches no others; one without a type reaches all GPUs
        reached = having if gpu_type else [node for node in nodes if gpu_type is None or node.gpus]
        excluded = [node for node in reached if node not in kept]
        yield Place(cluster, partition, gpu_type, kind[0], kept, excluded, account, others)


def _gpu_types(name: str, nodes: Sequence[Node], chosen: Sequence[str]) -> list[str | None]:
    """Return the GPU types to describe; None for nodes without GPUs.

    Raises:
        ClusterError: The user has to choose.
    """
    types = Counter(kind for node in nodes for kind in node.gpus)
    if found := [kind for kind in dict.fromkeys(chosen) if kind in types]:
        return [*found]
    if chosen:
        raise ClusterError(
            f"partition {name} has no GPUs of type {', '.join(chosen)}. "
            f"{did_you_mean(chosen[0], list(types)) if types else 'Slurm knows no GPUs there.'}"
        )
    whole = [kind for kind in types if not PART_OF_GPU.search(kind)] or list(types)
    if len(whole) > 1:
        listed = "".join(
            f"\n  {kind or '(no type)'}: {count_devices(types[kind], 'node')}" for kind in sorted(whole)
        )
        raise ClusterError(
            f"partition {name} has {len(whole)} GPU types, and a run must not mix them. Add one to the "
            f"command, as --gpu-type NAME, or those to compare, as --gpu-type ONE,OTHER.{listed}"
        )
    return [*whole] or [None]


def _account(
    cluster: Cluster, partition: Facts, chosen: str | None
) -> tuple[Association | None, Sequence[str]]:
    """Return the account that pays, which is the user's choice, the default or the only one, and the others.

    Raises:
        ClusterError: It cannot be used in the partition, or the user has to choose.
    """
    accounts, name = cluster.accounts, partition["PartitionName"]
    if accounts.unknown:
        return None if chosen is None else Association(chosen), ()
    allowed = partition.get("AllowAccounts", "ALL")
    denied = names(partition.get("DenyAccounts", ""))
    usable = {
        account: row
        for account, row in accounts.usable_in(name).items()
        if account not in denied and (allowed == "ALL" or account in names(allowed))
    }
    yours = f"Yours are {', '.join(usable)}." if usable else "Ask the site."
    # Slurm keeps names of accounts in small letters
    wanted = accounts.default if chosen is None else chosen if chosen in usable else chosen.lower()
    if chosen is None and wanted not in usable and len(usable) == 1:
        (wanted,) = usable
    if wanted in usable:
        return usable[wanted], [account for account in usable if account != wanted]
    if chosen is not None:
        raise ClusterError(f"account {chosen} cannot be used in partition {name}. {yours}")
    if not usable:
        raise ClusterError(f"none of your accounts can be used in partition {name}. {yours}")
    raise ClusterError(
        f"your default account {wanted or '(unknown)'} cannot be used in partition {name}. Add one to the "
        f"command, as --account NAME. {yours}"
    )


def hardware(node: Node) -> str:
    """Return the hardware of a node in words."""
    gpus = [f"{count} {kind or 'GPUs'}" for kind, count in sorted(node.gpus.items())]
    memory = [f"{node.memory_mb // 1000} GB"] if node.memory_mb else []
    return ", ".join([*gpus, f"{node.cpus} CPUs", *memory])
