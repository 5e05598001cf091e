"""Choose the partition, the account and the nodes that a site file describes, or list the candidates."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scalewise.config.errors import did_you_mean
from scalewise.config.shape import count_devices
from scalewise.site.reported import Association, Cluster, Node, Partition, is_part_of_gpu

SHORT_SECONDS = 3 * 3600
"""A partition for tests has a time limit of at most this."""

ALL = "all"
"""The user's choice of all partitions, or of all GPU types."""

_GPU_FEATURE = re.compile(
    r"(gpu[_-]?)?([ahvpb][1-9]\d{1,2}|gh200|gb200|l4|l40s?|t4|k80|mi\d{3}[ax]?|rtx\w*)([_-]?\d+gb?)?|hbm\d+gb?|gpu\d+gb?",
    re.IGNORECASE,
)
"""A node feature that names a GPU or its memory."""


class ChoiceError(Exception):
    """A choice that the user has to make; the text lists the candidates and the option."""


@dataclass(frozen=True)
class Choice:
    """A part of a cluster, for a site file.

    Args:
        accounts: The user's accounts that may use the partition; empty if unknown.
        account: One of them; None if unknown, and Slurm chooses.
        qos: A QOS that the partition takes; None if the account's default one is right.
        gpu_type: The type of the GPUs; None without GPUs, empty if Slurm has none.
        devices: Devices of a node.
        nodes: Nodes of that kind.
        others: Nodes of the partition of other kinds, which no choice describes.
        features: Sets of features that name different GPUs among these nodes, with their numbers of nodes.
        constraint: The set of features that these nodes have, such as ``a100&hbm80g``, if only that
            distinguishes their GPUs from others of the type; else empty.
        test_partition: A partition of short jobs on the same kind of node; None without one.
    """

    partition: Partition
    accounts: Sequence[str]
    account: Association | None
    qos: str | None
    gpu_type: str | None
    devices: int
    nodes: Sequence[Node]
    others: Sequence[Node] = ()
    features: Sequence[str] = ()
    test_partition: Partition | None = None
    constraint: str = ""

    def nodes_in(self, cluster: Cluster, partition: Partition) -> list[Node]:
        """Return the nodes of the chosen kind that a partition has."""
        nodes = cluster.nodes_of(partition.name)
        if self.gpu_type is None:
            return [node for node in nodes if node.cpus == self.devices]
        return [
            node
            for node in nodes
            if node.gpus.get(self.gpu_type) == self.devices
            and (not self.constraint or gpu_features(node) == self.constraint)
        ]


def choose(
    cluster: Cluster,
    partitions: Sequence[str] = (),
    account: str | None = None,
    gpu_types: Sequence[str] = (),
) -> list[Choice]:
    """Choose what a site file describes: one partition, or several to compare, the default one first.

    Args:
        cluster: Slurm's report.
        partitions: The user's choice, if any; or ``all``.
        account: The user's choice, if any.
        gpu_types: The user's choice, if any; or ``all``.

    Raises:
        ChoiceError: The user has to choose, or a choice does not exist.
    """
    chosen = _partitions(cluster, partitions)
    several = len(chosen) > 1 or _means_all(cluster, partitions)
    kinds = [(each, kind) for each in chosen for kind in _kinds(cluster, each, gpu_types, several=several)]
    missing = [name for name in gpu_types if name != ALL and name not in {kind.gpu_type for _, kind in kinds}]
    if missing and len(chosen) > 1:
        known = {kind for each in chosen for node in cluster.nodes_of(each.name) for kind in node.gpus}
        raise ChoiceError(
            f"no partition of these has GPUs of type {missing[0]!r}. {did_you_mean(missing[0], known)}"
        )
    choices = [_choice(cluster, each, account, kind) for each, kind in kinds]
    without = [each.partition.name for each in choices if each.gpu_type is None]
    if 0 < len(without) < len(choices):
        raise ChoiceError(
            f"partition {without[0]} has no GPUs that Slurm knows, and others of these partitions have some. "
            "Remove it from the command."
        )
    described = {(each.partition.name, node.name) for each in choices for node in each.nodes}
    return [
        replace(each, others=[n for n in each.others if (each.partition.name, n.name) not in described])
        for each in choices
    ]


@dataclass(frozen=True)
class _Kind:
    """GPUs of a partition that are described separately.

    Args:
        gpu_type: Their type in Slurm; None for the only one of the partition.
        constraint: Features that only their nodes have; empty if the type is enough.
    """

    gpu_type: str | None = None
    constraint: str = ""


def _choice(cluster: Cluster, chosen: Partition, account: str | None, kind: _Kind) -> Choice:
    gpu_type, devices, nodes, others = _nodes(cluster, chosen, kind)
    accounts = _accounts_of(cluster, chosen)
    association = _account(cluster, chosen, accounts, account)
    return Choice(
        chosen,
        accounts,
        association,
        _qos(chosen, association),
        gpu_type,
        devices,
        nodes,
        others,
        _features_in_words(nodes) if gpu_type is not None else (),
        _test_partition(cluster, chosen, nodes, kind.constraint),
        kind.constraint,
    )


# ---- partition


def _partitions(cluster: Cluster, names: Sequence[str]) -> list[Partition]:
    if _means_all(cluster, names):
        return _all_different(cluster)
    if names:
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ChoiceError(f"partition {name} is listed twice. Name it once.")
        return [_partition(cluster, name) for name in names]
    accounts = cluster.accounts
    candidates = _some_candidates(cluster)
    if len(candidates) > 1:
        own = f"\nYour accounts:\n{_accounts(cluster, accounts)}" if accounts and len(accounts) > 1 else ""
        first, second, *_ = [each.name for each in candidates]
        of_all = f", or --partition {ALL}" if _means_all(cluster, [ALL]) else ""
        raise ChoiceError(
            f"there are {len(candidates)} partitions to choose from. Add one to the command, such as "
            f"--partition {first}. To compare some: --partition {first},{second}{of_all}.\n"
            f"{_table(cluster, accounts)}{own}"
        )
    return candidates


def _means_all(cluster: Cluster, names: Sequence[str]) -> bool:
    """Return whether the user chose all partitions, and not one of the name ``all``."""
    return list(names) == [ALL] and all(each.name != ALL for each in cluster.partitions)


def _partition(cluster: Cluster, name: str) -> Partition:
    found = next((each for each in cluster.partitions if each.name == name), None)
    if found is None:
        names = [each.name for each in cluster.partitions]
        raise ChoiceError(f"there is no partition {name!r}. {did_you_mean(name, names)}")
    if refusal := found.refusal(cluster.accounts):
        listed = _table(cluster, cluster.accounts)
        raise ChoiceError(f"partition {name} {refusal}. Choose another one.\n{listed}")
    return found


def _all_different(cluster: Cluster) -> list[Partition]:
    """Return the partitions that differ in their nodes, the cluster's default first.

    Left out is a partition whose jobs end for jobs of another one, and one whose nodes are all in another
    one that takes jobs as long: both would measure the same GPUs twice.

    Raises:
        ChoiceError: The user may use none.
    """
    candidates = _some_candidates(cluster)
    staying = [each for each in candidates if not each.gives_way] or candidates
    nodes = {each.name: {node.name for node in cluster.nodes_of(each.name)} for each in staying}
    kept: list[Partition] = []
    longest_first = sorted(
        staying, key=lambda each: (-_longest(each), -len(nodes[each.name]), not each.is_default)
    )
    for each in longest_first:
        if not any(nodes[each.name] <= nodes[other.name] for other in kept):
            kept.append(each)
    return sorted(kept, key=lambda each: (not each.is_default, candidates.index(each)))


def left_out_of_all(cluster: Cluster, partitions: Sequence[str], choices: Sequence[Choice]) -> list[str]:
    """Return the partitions that the user may use, and that a choice of all does not describe."""
    if not _means_all(cluster, partitions):
        return []
    described = {each.partition.name for each in choices}
    return [each.name for each in _candidates(cluster, cluster.accounts) if each.name not in described]


def _longest(partition: Partition) -> float:
    return math.inf if partition.longest_seconds is None else partition.longest_seconds


def _some_candidates(cluster: Cluster) -> list[Partition]:
    if candidates := _candidates(cluster, cluster.accounts):
        return candidates
    raise ChoiceError("no partition takes jobs of yours now. Ask the site, or try again later.")


def _candidates(cluster: Cluster, accounts: Sequence[str] | None) -> list[Partition]:
    """Return the partitions that the user may use: those with GPUs, or all if there are none."""
    usable = [
        each for each in cluster.partitions if not each.refusal(accounts) and cluster.nodes_of(each.name)
    ]
    with_gpus = [each for each in usable if any(node.gpus for node in cluster.nodes_of(each.name))]
    return with_gpus or usable


def _table(cluster: Cluster, accounts: Sequence[str] | None) -> str:
    """Return a line for each partition: what it offers, and whether the user may use it."""
    rows = [("partition", "nodes", "of a node", "longest job", "")]
    for each in _candidates(cluster, accounts):
        nodes = cluster.nodes_of(each.name)
        notes = [
            *(["the default"] if each.is_default else []),
            *([f"whole nodes ({each.whole_nodes})"] if each.whole_nodes else []),
            *([f"gives way to others (PreemptMode={each.gives_way})"] if each.gives_way else []),
            *([f"billing {each.weights}"] if each.weights else []),
            *([f"QOS {each.qos}"] if each.qos else []),
            *([f"accounts {', '.join(sorted(each.accounts))}"] if each.accounts is not None else []),
        ]
        rows.append(
            (each.name, str(len(nodes)), describe(nodes), walltime(each.longest_seconds), "; ".join(notes))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def describe(nodes: Sequence[Node]) -> str:
    """Return the hardware of nodes in words, the most frequent kinds first."""
    kinds = Counter(
        (tuple(sorted(node.gpus.items())), node.cpus, node.memory_mb) for node in nodes
    ).most_common()
    words = [
        ", ".join(
            [
                *(f"{count} {kind or 'GPUs'}" for kind, count in gpus),
                f"{cpus} CPUs",
                *([f"{memory // 1000} GB"] if memory else []),
            ]
        )
        + (f" ({count_devices(number, 'node')})" if len(kinds) > 1 else "")
        for (gpus, cpus, memory), number in kinds
    ]
    return " or ".join([*words[:3], *(["others"] if len(words) > 3 else [])])


def walltime(seconds: int | None) -> str:
    """Return a time limit as Slurm writes it; ``no limit`` for None."""
    if seconds is None:
        return "no limit"
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def _test_partition(
    cluster: Cluster, chosen: Partition, nodes: Sequence[Node], constraint: str
) -> Partition | None:
    """Return the partition of the shortest jobs that has some of these nodes, or others like them."""
    accounts = cluster.accounts
    kinds = {(tuple(sorted(node.gpus.items())), node.cpus) for node in nodes}
    short = [
        (each.longest_seconds, each)
        for each in cluster.partitions
        if each.name != chosen.name
        and each.longest_seconds is not None
        and each.longest_seconds <= SHORT_SECONDS
        and (chosen.longest_seconds is None or each.longest_seconds < chosen.longest_seconds)
        and not each.refusal(accounts)
        and not each.gives_way
        and any(
            (tuple(sorted(node.gpus.items())), node.cpus) in kinds
            and (not constraint or gpu_features(node) == constraint)
            for node in cluster.nodes_of(each.name)
        )
    ]
    return min(short, key=lambda pair: pair[0])[1] if short else None


# ---- account


def _accounts_of(cluster: Cluster, partition: Partition) -> list[str]:
    own = [
        each.account
        for each in cluster.associations or ()
        if not each.partitions or partition.name in each.partitions
    ]
    return partition.allowed(own)


def _account(
    cluster: Cluster, partition: Partition, allowed: Sequence[str], name: str | None
) -> Association | None:
    if cluster.associations is None:
        return None if name is None else Association(name)
    by_name = {each.account: each for each in cluster.associations}
    if name is not None:
        # Slurm keeps names of accounts in small letters
        if (found := by_name.get(name) or by_name.get(name.lower())) is None or found.account not in allowed:
            why = "is not yours" if found is None else f"cannot use partition {partition.name}"
            raise ChoiceError(f"account {name} {why}. Choose one of these.\n{_accounts(cluster, allowed)}")
        return found
    if not allowed:
        raise ChoiceError(f"none of your accounts can use partition {partition.name}. Ask the site.")
    if len(allowed) > 1:
        raise ChoiceError(
            f"you have {len(allowed)} accounts for partition {partition.name}. Add one to the command, such "
            f"as --account {allowed[0]}.\n{_accounts(cluster, allowed)}"
        )
    return by_name[allowed[0]]


def _qos(partition: Partition, account: Association | None) -> str | None:
    if (
        account is None
        or not account.qos
        or (account.default_qos and partition.takes_qos(account.default_qos))
    ):
        return None
    allowed = [name for name in account.qos if partition.takes_qos(name)]
    if not allowed:
        takes = ", ".join(sorted(partition.allowed_qos or ())) or "others"
        raise ChoiceError(
            f"partition {partition.name} takes jobs of QOS {takes}, and account {account.account} has "
            f"{', '.join(account.qos)}. Choose another partition or account."
        )
    return allowed[0] if partition.allowed_qos is not None or account.default_qos else None


def _accounts(cluster: Cluster, allowed: Sequence[str]) -> str:
    """Return a line for each of these accounts: its QOS, and whether it is the default."""
    lines = []
    for each in cluster.associations or ():
        if each.account in allowed:
            notes = [
                *(["the default"] if each.account == cluster.default_account else []),
                *([f"QOS {', '.join(each.qos)}"] if each.qos else []),
            ]
            lines.append(f"  {each.account}  {'; '.join(notes)}".rstrip())
    return "\n".join(lines)


# ---- nodes


def _nodes(
    cluster: Cluster, partition: Partition, wanted: _Kind
) -> tuple[str | None, int, list[Node], list[Node]]:
    """Return the GPU type, the devices of a node, the nodes of that kind, and the others."""
    nodes = cluster.nodes_of(partition.name)
    if not nodes:
        raise ChoiceError(f"partition {partition.name} has no nodes now. Choose another one.")
    types = Counter(kind for node in nodes for kind in node.gpus)
    if not types:
        if wanted.gpu_type is not None:
            raise ChoiceError(
                f"partition {partition.name} has no GPUs that Slurm knows. Leave --gpu-type out, or choose "
                "another one."
            )
        kind, of_node = None, [node.cpus for node in nodes]
    else:
        kind = _gpu_type(partition, types, nodes, wanted.gpu_type)
        of_node = [
            0 if wanted.constraint and gpu_features(node) != wanted.constraint else node.gpus.get(kind, 0)
            for node in nodes
        ]
    devices = Counter(number for number in of_node if number).most_common(1)[0][0]
    same = [node for node, number in zip(nodes, of_node, strict=True) if number == devices]
    rest = [node for node, number in zip(nodes, of_node, strict=True) if number != devices]
    return kind, devices, same, rest


def _kinds(cluster: Cluster, partition: Partition, gpu_types: Sequence[str], *, several: bool) -> list[_Kind]:
    """Return the GPUs of a partition that are described separately.

    Args:
        cluster: Slurm's report.
        partition: One of it.
        gpu_types: The user's choice of types.
        several: Whether partitions are compared, and so all of their GPU types.
    """
    nodes = cluster.nodes_of(partition.name)
    types = dict.fromkeys(kind for node in nodes for kind in node.gpus)
    if list(gpu_types) == [ALL] or (several and not gpu_types):
        # a request that names no type may get any, so nodes without one are not compared with others
        compared = [kind for kind in _whole(types) if kind] or list(types)
        return [kind for each in compared for kind in _by_features(each, nodes)] or [_Kind()]
    for index, name in enumerate(gpu_types):
        if name in gpu_types[:index]:
            raise ChoiceError(f"GPU type {name} is listed twice. Name it once.")
    # with several partitions, each is described by those of the types that it has
    found = [name for name in gpu_types if name in types]
    return [_Kind(name) for name in (found if several and found else gpu_types)] or [_Kind()]


def _by_features(gpu_type: str, nodes: Sequence[Node]) -> list[_Kind]:
    """Return a GPU type once for each set of features that names different GPUs of that type.

    Slurm's constraint requires features and cannot exclude one: a set that is part of another set cannot be
    requested without it. Its nodes are not described then, and neither are nodes without such a feature.
    """
    sets = dict.fromkeys(gpu_features(node) for node in nodes if gpu_type in node.gpus)
    of_own = [
        each
        for each in sets
        if each and not any(set(each.split("&")) < set(other.split("&")) for other in sets)
    ]
    if len(of_own) < 2:
        return [_Kind(gpu_type)]
    return [_Kind(gpu_type, each) for each in of_own]


def _whole(types: Iterable[str]) -> list[str]:
    """Return the types that are GPUs; parts of GPUs (MIG) if there are no others."""
    types = list(types)
    return [kind for kind in types if not is_part_of_gpu(kind)] or types


def _gpu_type(partition: Partition, types: Counter[str], nodes: Sequence[Node], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in types:
            raise ChoiceError(
                f"partition {partition.name} has no GPUs of type {wanted!r}. {did_you_mean(wanted, types)}"
            )
        return wanted
    candidates = _whole(types)
    if len(candidates) > 1:
        listed = "\n".join(
            f"  {kind or '(no type)'}  {count_devices(types[kind], 'node')} with "
            f"{describe([node for node in nodes if kind in node.gpus])}"
            for kind in candidates
        )
        raise ChoiceError(
            f"partition {partition.name} has {len(candidates)} GPU types, and a run must not mix them. Add "
            f"one to the command, such as --gpu-type {candidates[0]}. To compare all: --gpu-type {ALL}.\n"
            f"{listed}"
        )
    return candidates[0]


def gpu_features(node: Node) -> str:
    """Return the features that name the GPUs of a node, as a constraint of Slurm; empty without any."""
    return "&".join(sorted(each for each in node.features if _GPU_FEATURE.fullmatch(each)))


def _features_in_words(nodes: Sequence[Node]) -> list[str]:
    """Return the features that name different GPUs among these nodes; empty if all have the same ones."""
    sets = Counter(map(gpu_features, nodes))
    return [
        f"{features or 'no such feature'} ({count_devices(number, 'node')})"
        for features, number in sets.most_common()
        if len(sets) > 1
    ]
