"""Choose what of a cluster a site file describes: partitions, one kind of nodes of each, and the account."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from scalewise.config.errors import UserError, did_you_mean
from scalewise.config.shape import count_devices
from scalewise.site import cluster
from scalewise.site.cluster import Accounts, Facts, Node, names, number
from scalewise.site.commands import missing_commands

ALIKE = 0.95
"""Nodes of one order differ by a little memory; one with less than this part of the usual is another kind."""
MOST_KINDS = 8
"""Most kinds of nodes in one list."""


@dataclass(frozen=True)
class Place:
    """What a site file describes of a partition: its most frequent kind of nodes with a GPU type.

    Args:
        partition: Slurm's facts of it.
        config: The cluster's settings.
        gpu_type: The type of its GPUs, empty if Slurm has none; None if a device is a CPU process.
        candidates: Nodes with the features that the user requires.
        constraint: These features.
        usual_features: Those of all nodes of the partition.
        payer: Accounting's row of the account that pays; empty if unknown.
        others: Accounts that could pay, too.
        accounts: The user's.
    """

    partition: Facts
    config: Facts
    gpu_type: str | None
    candidates: Sequence[Node]
    constraint: str
    usual_features: frozenset[str]
    payer: Facts
    others: Sequence[str]
    accounts: Accounts

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition["PartitionName"]

    @cached_property
    def nodes(self) -> Sequence[Node]:
        """The nodes of the most frequent kind: with equal devices and CPUs, and about the same memory."""
        kinds = Counter(
            (self._devices_of(node), node.cpus) for node in self.candidates if self._devices_of(node)
        )
        kind = max(kinds, key=lambda each: (kinds[each], *each))
        alike = [node for node in self.candidates if (self._devices_of(node), node.cpus) == kind]
        least = ALIKE * median(node.memory_mb for node in alike)
        return [node for node in alike if node.memory_mb >= least]

    @property
    def excluded(self) -> list[Node]:
        """Other nodes on which Slurm could place jobs: a request without a type reaches all GPUs."""
        reached = (
            node for node in self.candidates if self._devices_of(node) or (self.gpu_type == "" and node.gpus)
        )
        return [node for node in reached if node not in self.nodes]

    def _devices_of(self, node: Node) -> int:
        return node.cpus if self.gpu_type is None else node.gpus.get(self.gpu_type, 0)

    @property
    def cpus(self) -> int:
        """CPUs of a node that a job may request."""
        return min(self.nodes[0].cpus, number(self.partition, "MaxCPUsPerNode") or self.nodes[0].cpus)

    @property
    def devices(self) -> int:
        """Devices of a node; a CPU process has one CPU."""
        return self.cpus if self.gpu_type is None else self._devices_of(self.nodes[0])

    @property
    def memory_mb(self) -> int:
        """Memory of each node that a job may request; 0 if unknown."""
        known = min(node.memory_mb for node in self.nodes)
        limits = [
            number(facts, key) * factor
            for facts in (self.partition, self.config)
            for key, factor in (("MaxMemPerNode", 1), ("MaxMemPerCPU", self.cpus))
        ]
        return known and min(filter(None, [known, *limits]))

    @property
    def gres(self) -> str:
        """All GPUs of a node in a request; empty without GPUs."""
        parts = ["gpu", self.gpu_type, str(self.devices)]
        return "" if self.gpu_type is None else ":".join(filter(None, parts))

    def kinds(self, nodes: Sequence[Node]) -> str:
        """Return a line for each kind of some nodes, with the features that split the partition."""
        found = Counter(
            (hardware(node), " ".join(sorted(node.features - self.usual_features))) for node in nodes
        )
        lines = [
            f"\n  {count_devices(number, 'node')} with {kind}{f', features {features}' if features else ''}"
            for (kind, features), number in found.most_common()
        ]
        more = [f"\n  {len(lines) - MOST_KINDS} more kinds"] if len(lines) > MOST_KINDS else []
        return "".join([*lines[:MOST_KINDS], *more])


def find_places(
    partitions: Sequence[str], gpu_types: Sequence[str], constraint: str, account: str | None
) -> list[Place]:
    """Ask Slurm, and return each kind of nodes that the user has chosen, the default one first.

    Args:
        partitions: The partition to describe, or those to compare; empty if there is only one.
        gpu_types: The GPU type, or those to compare; empty if each partition has only one.
        constraint: Features that nodes must have, joined by ``&``; empty for none.
        account: The account that pays; None for the default one.

    Raises:
        UserError: Slurm does not answer, or the user has to choose.
    """
    if missing := missing_commands("scontrol", "sbatch"):
        raise UserError(
            f"{', '.join(missing)} not on PATH. Go to a login node of the cluster, or load its Slurm module."
        )
    config, facts, nodes = cluster.read_config(), cluster.read_partitions(partitions), cluster.read_nodes()
    accounts, places = cluster.read_accounts(config), []
    for name, members in _partitions(facts, nodes, partitions).items():
        usual_features = frozenset.intersection(*(node.features for node in members))
        candidates = [node for node in members if {*filter(None, constraint.split("&"))} <= node.features]
        if not candidates:
            raise UserError(f"no node of partition {name} has the features {constraint}. Choose others.")
        payer, others = _payer(facts[name], accounts, account)
        places += [
            Place(facts[name], config, each, candidates, constraint, usual_features, payer, others, accounts)
            for each in _gpu_types(name, candidates, gpu_types)
        ]
    return places


def _partitions(
    facts: Mapping[str, Facts], nodes: Sequence[Node], chosen: Sequence[str]
) -> dict[str, list[Node]]:
    """Return the nodes of each chosen partition, or of the only one that has GPUs."""
    found = {name: [node for node in nodes if name in node.partitions] for name in facts}
    usable = {name: each for name, each in found.items() if each and facts[name].get("State", "UP") == "UP"}
    for name in chosen:
        if name not in found:
            raise UserError(f"there is no partition {name!r}. {did_you_mean(name, found)}")
        if name not in usable:
            state = f"is {facts[name].get('State')} and has {count_devices(len(found[name]), 'node')}"
            raise UserError(f"partition {name} {state}. Choose another one, or try again later.")
    if chosen:
        return {name: usable[name] for name in chosen}
    usable = {name: each for name, each in usable.items() if any(node.gpus for node in each)} or usable
    if len(usable) == 1:
        return usable
    listed = "".join(f"\n  {_partition_line(facts[name], each)}" for name, each in usable.items())
    raise UserError(
        f"there are {len(usable)} partitions to choose from. Add one to the command, as --partition NAME, or "
        f"those to compare, as --partition ONE,OTHER.{listed or ' Ask the site: none is UP and has nodes.'}"
    )


def _partition_line(facts: Facts, nodes: Sequence[Node]) -> str:
    kinds = " or ".join(kind for kind, _ in Counter(map(hardware, nodes)).most_common(3))
    default = "; the default" if facts.get("Default") == "YES" else ""
    limit = facts.get("MaxTime", "UNLIMITED").replace("UNLIMITED", "no limit")
    return f"{facts['PartitionName']}: {count_devices(len(nodes), 'node')} with {kinds}; {limit}{default}"


def _gpu_types(name: str, nodes: Sequence[Node], chosen: Sequence[str]) -> Sequence[str | None]:
    """Return the GPU types to describe; None for nodes without GPUs."""
    types = Counter(kind for node in nodes for kind in node.gpus)
    if chosen:
        if found := [kind for kind in dict.fromkeys(chosen) if kind in types]:
            return found
        known = did_you_mean(chosen[0], types) if types else "Slurm knows no GPUs there."
        raise UserError(f"partition {name} has no GPUs of type {', '.join(chosen)}. {known}")
    whole = [kind for kind in types if not is_part_of_gpu(kind)] or list(types)
    if len(whole) <= 1:
        return whole or [None]
    listed = "".join(
        f"\n  {kind or '(no type)'}: {count_devices(types[kind], 'node')}" for kind in sorted(whole)
    )
    raise UserError(
        f"partition {name} has {len(whole)} GPU types, and a run must not mix them. Add one to the command, "
        f"as --gpu-type NAME, or those to compare, as --gpu-type ONE,OTHER.{listed}"
    )


def is_part_of_gpu(gpu_type: str | None) -> bool:
    """Return whether a type ends with a MIG profile, such as ``a100_1g.5gb``."""
    return bool(re.search(r"(^|[-_.])\d+g\.\d+gb\b", gpu_type or ""))


def _payer(partition: Facts, accounts: Accounts, chosen: str | None) -> tuple[Facts, list[str]]:
    """Return the row of the account that pays, the chosen, the default or the only one, and the others."""
    if accounts.unknown:
        return {"account": chosen} if chosen else {}, []
    name, allowed = partition["PartitionName"], partition.get("AllowAccounts", "ALL")
    denied = names(partition.get("DenyAccounts", ""))
    usable = {
        account: row
        for account, row in accounts.usable_in(name).items()
        if account not in denied and (allowed == "ALL" or account in names(allowed))
    }
    # Slurm keeps names of accounts in small letters
    payer = accounts.default if chosen is None else chosen if chosen in usable else chosen.lower()
    if chosen is None and payer not in usable and len(usable) == 1:
        (payer,) = usable
    if payer not in usable:
        which = f"account {chosen}" if chosen else f"your default account {payer or '(unknown)'}"
        choice = (
            f"Choose by --account: {', '.join(usable)}." if usable else "None of yours can: ask the site."
        )
        raise UserError(f"{which} cannot be used in partition {name}. {choice}")
    return usable[payer], [account for account in usable if account != payer]


def hardware(node: Node) -> str:
    """Return the hardware of a node in words."""
    gpus = [f"{count} {kind or 'GPUs'}" for kind, count in sorted(node.gpus.items())]
    memory = [f"{node.memory_mb // 1000} GB"] if node.memory_mb else []
    return ", ".join([*gpus, f"{node.cpus} CPUs", *memory])
