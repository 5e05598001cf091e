"""Choose what of a cluster a site file describes: partitions, one kind of nodes of each, and the account."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from scalewise.config.errors import UserError, did_you_mean
from scalewise.config.shape import count_devices
from scalewise.site.cluster import (
    Accounts,
    Facts,
    Node,
    names,
    read_accounts,
    read_config,
    read_nodes,
    read_partitions,
)
from scalewise.site.commands import missing_commands

ALIKE = 0.95
"""Nodes of one order differ by a little memory; one with less than this part of the usual is another kind."""
PART_OF_GPU = re.compile(r"mig|(^|[-_.])\d+g[-_.]?\d+gb", re.IGNORECASE)
"""Types with a MIG profile, such as ``a100_1g.5gb``: described only if there is nothing else."""
MOST_KINDS = 8
"""Most kinds of nodes in one list."""


@dataclass(frozen=True)
class Place:
    """What a site file describes of a partition: its most frequent kind of nodes with a GPU type.

    Args:
        partition: Slurm's facts of it.
        config: The cluster's settings.
        gpu_type: The type of its GPUs, empty if Slurm has none; None if a device is a CPU process.
        nodes: The described nodes.
        excluded: Other nodes on which Slurm could place jobs.
        constraint: Features that the user requires, joined by ``&``.
        usual_features: Those of all nodes of the partition.
        payer: Accounting's row of the account that pays; empty if unknown.
        paid_by: Why this account, or why it is unknown.
    """

    partition: Facts
    config: Facts
    gpu_type: str | None
    nodes: Sequence[Node]
    excluded: Sequence[Node]
    constraint: str
    usual_features: frozenset[str]
    payer: Facts
    paid_by: str

    @property
    def name(self) -> str:
        """The partition's name."""
        return self.partition["PartitionName"]

    def kinds(self, nodes: Iterable[Node]) -> str:
        """Return a line for each kind of some nodes, with the features that split the partition."""
        split = ((str(node), " ".join(sorted(node.features - self.usual_features))) for node in nodes)
        lines = [
            f"\n  {count_devices(count, 'node')} with {kind}{f', features {features}' if features else ''}"
            for (kind, features), count in Counter(split).most_common()
        ]
        return "".join([*lines[:MOST_KINDS], "\n  and others" if lines[MOST_KINDS:] else ""])


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
    config, facts, nodes = read_config(), read_partitions(partitions), read_nodes()
    accounts, places = read_accounts(config), []
    for name, members in _partitions(facts, nodes, partitions).items():
        usual = frozenset.intersection(*(node.features for node in members))
        candidates = [node for node in members if {*filter(None, constraint.split("&"))} <= node.features]
        if not candidates:
            raise UserError(f"no node of partition {name} has the features {constraint}. Choose others.")
        payer = _payer(facts[name], accounts, account)
        places += [
            Place(facts[name], config, each, *_most_frequent(candidates, each), constraint, usual, *payer)
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
        if name not in usable:
            known = did_you_mean(name, usable)
            raise UserError(f"there is no partition {name!r} that is UP and has nodes. {known}")
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
    kinds = " or ".join(kind for kind, _ in Counter(map(str, nodes)).most_common(3))
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
    whole = [kind for kind in types if not PART_OF_GPU.search(kind)] or [*types]
    if len(whole) <= 1:
        return whole or [None]
    listed = "".join(
        f"\n  {kind or '(no type)'}: {count_devices(types[kind], 'node')}" for kind in sorted(whole)
    )
    raise UserError(
        f"partition {name} has {len(whole)} GPU types, and a run must not mix them. Add one to the command, "
        f"as --gpu-type NAME, or those to compare, as --gpu-type ONE,OTHER.{listed}"
    )


def _most_frequent(nodes: Sequence[Node], gpu_type: str | None) -> tuple[list[Node], list[Node]]:
    """Return the nodes of the most frequent kind, and others on which Slurm could place its jobs.

    Nodes of a kind have equal devices and CPUs, and about the same memory. A request without a type reaches
    all GPUs.
    """
    reached = [
        node for node in nodes if gpu_type is None or gpu_type in node.gpus or (gpu_type == "" and node.gpus)
    ]
    kinds = defaultdict(list)
    for node in reached:
        if gpu_type is None or gpu_type in node.gpus:
            kinds[node.gpus.get(gpu_type or "", 0), node.cpus].append(node)
    alike = max(kinds.items(), key=lambda kind: (len(kind[1]), kind[0]))[1]
    least = ALIKE * median(node.memory_mb for node in alike)
    described = [node for node in alike if node.memory_mb >= least]
    return described, [node for node in reached if node not in described]


def _payer(partition: Facts, accounts: Accounts, chosen: str | None) -> tuple[Facts, str]:
    """Return the row of the account that pays, the chosen, the default or the only one, and why it does."""
    if accounts.unknown:
        return {"account": chosen} if chosen else {}, accounts.unknown
    name = partition["PartitionName"]
    # accounting keeps names of accounts in small letters
    allowed = names(partition.get("AllowAccounts", "ALL").lower())
    denied = names(partition.get("DenyAccounts", "").lower())
    yours = {each: row for each, row in accounts.usable_in(name).items() if each not in denied}
    named = {each for each in yours if "all" in allowed or each in allowed}
    # new versions of Slurm also take subaccounts of those: the test of a job shows it
    usable = {each: row for each, row in yours.items() if chosen or not named or each in named}
    payer = accounts.default if chosen is None else chosen if chosen in usable else chosen.lower()
    if chosen is None and payer not in usable and len(usable) == 1:
        (payer,) = usable
    if payer not in usable:
        which = f"account {chosen}" if chosen else f"your default account {payer or '(unknown)'}"
        choice = (
            f"Choose by --account: {', '.join(usable)}." if usable else "None of yours can: ask the site."
        )
        raise UserError(f"{which} cannot be used in partition {name}. {choice}")
    why = "your default" if payer == accounts.default else "not your default"
    why += "" if payer in named else f"; {name} does not allow it by name"
    others = ", ".join(account for account in usable if account != payer)
    return usable[payer], f"{why}{f'; also yours: {others} (--account NAME)' if others else ''}"
