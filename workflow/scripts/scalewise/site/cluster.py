"""Ask Slurm's commands for partitions, nodes and the user's accounts.

The text of ``scontrol --oneliner`` and ``sacctmgr --parsable2`` has the same form from Slurm 20.11 to 25.11:
new versions only add keys. ``--json`` changes with the version of its data parser and needs a plugin.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from scalewise.config.errors import UserError
from scalewise.config.slurm import duration_seconds
from scalewise.site.commands import ask

_NONE = {"", "(null)", "N/A", "None", "NONE", "UNLIMITED", "INFINITE", "unlimited"}


class ClusterError(UserError):
    """The site cannot be described; the text names the command or the choice, and the fix."""


@dataclass(frozen=True)
class Node:
    """A compute node.

    Args:
        cpus: CPUs that jobs may use, without those that are reserved for the system.
        memory_mb: Memory that jobs may request; None if Slurm was not told.
        gpus: Number of GPUs by type; the type is empty if Slurm has none.
    """

    name: str
    cpus: int
    memory_mb: int | None
    gpus: Mapping[str, int]
    features: frozenset[str]
    partitions: Sequence[str]


@dataclass(frozen=True)
class Partition:
    """A partition; a limit that does not exist is None.

    Args:
        whole_nodes: The setting that gives a job its nodes to itself; empty if nodes are shared.
        accounts: Accounts that may use it; None for all.
        allowed_qos: QOS that its jobs may have; None for all.
    """

    name: str
    state: str
    is_default: bool
    longest_seconds: int | None
    min_nodes: int
    max_nodes: int | None
    max_cpus_per_node: int | None
    max_memory_mb: int | None
    max_memory_mb_per_cpu: int | None
    whole_nodes: str
    needs_reservation: bool
    accounts: frozenset[str] | None
    denied_accounts: frozenset[str]
    allowed_qos: frozenset[str] | None
    denied_qos: frozenset[str]

    def takes_account(self, name: str) -> bool:
        """Return whether jobs of an account may use it."""
        return name not in self.denied_accounts and (self.accounts is None or name in self.accounts)

    def takes_qos(self, name: str) -> bool:
        """Return whether its jobs may have a QOS."""
        return name not in self.denied_qos and (self.allowed_qos is None or name in self.allowed_qos)


@dataclass(frozen=True)
class Association:
    """An entry of accounting for the user, an account and a partition on this cluster.

    Args:
        partition: Empty if it holds for every partition.
        default_qos: The QOS of a job that names none; empty if unknown.
    """

    account: str
    partition: str = ""
    qos: Sequence[str] = ()
    default_qos: str = ""


@dataclass(frozen=True)
class Accounts:
    """The user's accounts.

    Args:
        associations: One for each account, and for each account and partition that has one of its own.
        default: The account of a job that names none; empty if unknown.
        unknown: The reason if they are unknown; empty otherwise.
    """

    associations: Sequence[Association] = ()
    default: str = ""
    unknown: str = ""

    def usable_in(self, partition: str) -> dict[str, Association]:
        """Return the association of each account that holds in a partition: its own, or that of all."""
        found = {each.account: each for each in self.associations if not each.partition}
        return found | {each.account: each for each in self.associations if each.partition == partition}


@dataclass(frozen=True)
class Cluster:
    """Slurm's report on a cluster and its user."""

    version: str
    name: str
    partitions: Sequence[Partition]
    nodes: Sequence[Node]
    accounts: Accounts

    def nodes_of(self, partition: str) -> list[Node]:
        """Return the nodes of a partition."""
        return [node for node in self.nodes if partition in node.partitions]


def read_cluster(partitions: Sequence[str] = ()) -> Cluster:
    """Ask Slurm.

    Args:
        partitions: Those that are queried by name in addition: ``scontrol`` shows hidden ones only then.

    Raises:
        ClusterError: A command failed without which nothing can be said.
    """
    config = parse_config(_required("scontrol", "show", "config"))
    version = ask("sinfo", "--version").text or f"slurm {config.get('SLURM_VERSION', '')}".strip()
    lines = _required("scontrol", "--oneliner", "show", "partition").splitlines()
    shown = {record(line).get("PartitionName") for line in lines}
    for name in dict.fromkeys(partitions):
        if name not in shown:
            lines += ask("scontrol", "--oneliner", "show", "partition", name).text.splitlines()
    nodes = _required("scontrol", "--oneliner", "show", "node").splitlines()
    return Cluster(
        version,
        config.get("ClusterName", ""),
        list(parse_partitions(lines, config)),
        list(parse_nodes(nodes)),
        read_accounts(config),
    )


def _required(*command: str) -> str:
    answer = ask(*command)
    if not answer.ok or not answer.text:
        failure = answer.failure if not answer.ok else f"`{answer.command}` printed nothing"
        raise ClusterError(
            f"{failure}. Try the command yourself; if it fails there, too, ask the site, or fill in "
            "profiles/slurm/site.yaml by hand."
        )
    return answer.text


def read_accounts(config: Mapping[str, str]) -> Accounts:
    """Ask accounting for the user's accounts on this cluster; the database may hold those of others.

    Args:
        config: ``scontrol show config``.
    """
    if config.get("AccountingStorageType", "accounting_storage/slurmdbd") != "accounting_storage/slurmdbd":
        return Accounts(unknown="this cluster keeps no accounting")
    user, cluster = getpass.getuser(), config.get("ClusterName", "")
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    here = [f"cluster={cluster}"] if cluster else []
    fields = "format=account,partition,qos,defaultqos"
    answer = ask(*show, "associations", f"user={user}", *here, fields)
    if not answer.ok:
        return Accounts(unknown=answer.failure)
    found = []
    for line in answer.text.splitlines():
        account, partition, qos, default, *_ = [*line.split("|"), "", "", ""]
        if account:
            found.append(Association(account, partition, _list(qos), default))
    if not found:
        return Accounts(unknown=f"accounting knows no account of {user} on this cluster")
    default_account = ask(*show, "user", user, "format=defaultaccount").text.partition("\n")[0]
    return Accounts(found, default_account.strip())


# ---- the forms of the text


def record(line: str) -> dict[str, str]:
    """Return the keys and values of a line of ``scontrol --oneliner``.

    A value with spaces, such as OS or Reason, is cut at the first. The first entry of a key counts: free
    text, which may hold any word, stands at the end.
    """
    found: dict[str, str] = {}
    for word in line.split():
        key, separator, value = word.partition("=")
        if separator:
            found.setdefault(key, value)
    return found


def parse_config(text: str) -> dict[str, str]:
    """Return the keys and values of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_gpus(gres: str) -> dict[str, int]:
    """Return the GPUs by type of a node's ``Gres``, such as ``gpu:h100:4(S:0-1),nvme:1``."""
    found: dict[str, int] = {}
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *kind, count = entry.split(":") if ":" in entry else (entry, "")
        if name == "gpu" and count.isdigit() and int(count):
            found[":".join(kind)] = found.get(":".join(kind), 0) + int(count)
    return found


def parse_nodes(lines: Sequence[str]) -> Iterator[Node]:
    """Yield the nodes of ``scontrol --oneliner show node``; FUTURE ones do not exist yet."""
    for line in lines:
        facts = record(line)
        if not facts.get("NodeName") or "FUTURE" in re.split(r"[+*~#!%$@^-]", facts.get("State", "")):
            continue
        memory = (_number(facts.get("RealMemory")) or 0) - (_number(facts.get("MemSpecLimit")) or 0)
        threads = _number(facts.get("ThreadsPerCore")) or 1
        reserved = (_number(facts.get("CoreSpecCount")) or 0) * threads
        cpus = _number(facts.get("CPUEfctv")) or (_number(facts.get("CPUTot")) or 0) - reserved
        yield Node(
            facts["NodeName"],
            max(cpus, 1),
            memory if memory > 1 else None,  # 1 MB is the default of a node without RealMemory
            parse_gpus(facts.get("Gres", "")),
            frozenset(_list(facts.get("ActiveFeatures"))),
            _list(facts.get("Partitions")),
        )


def parse_partitions(lines: Sequence[str], config: Mapping[str, str]) -> Iterator[Partition]:
    """Yield the partitions of ``scontrol --oneliner show partition``; limits of the whole cluster count."""
    linear = config.get("SelectType", "") == "select/linear"
    for facts in (record(line) for line in lines):
        if not facts.get("PartitionName"):
            continue
        shared = facts.get("OverSubscribe", facts.get("Shared", ""))
        whole = f"OverSubscribe={shared}" if shared.startswith("EXCLUSIVE") else ""

        def memory(key: str, facts: Mapping[str, str] = facts) -> int | None:
            limits = [_number(each.get(key)) for each in (facts, config)]
            return min((limit for limit in limits if limit), default=None)

        yield Partition(
            name=facts["PartitionName"],
            state=facts.get("State", "UP"),
            is_default=facts.get("Default") == "YES",
            longest_seconds=_seconds(facts.get("MaxTime")),
            min_nodes=max(_number(facts.get("MinNodes")) or 1, 1),
            max_nodes=_number(facts.get("MaxNodes")),
            max_cpus_per_node=_number(facts.get("MaxCPUsPerNode")),
            max_memory_mb=memory("MaxMemPerNode"),
            max_memory_mb_per_cpu=memory("MaxMemPerCPU"),
            whole_nodes=whole or ("SelectType=select/linear" if linear else ""),
            needs_reservation=facts.get("ReqResv") == "YES",
            accounts=_names(facts.get("AllowAccounts")),
            denied_accounts=_names(facts.get("DenyAccounts")) or frozenset(),
            allowed_qos=_names(facts.get("AllowQos")),
            denied_qos=_names(facts.get("DenyQos")) or frozenset(),
        )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _seconds(text: str | None) -> int | None:
    return None if text is None or text in _NONE else duration_seconds(text)


def _list(text: str | None) -> list[str]:
    return [] if text is None or text in _NONE else [part for part in text.split(",") if part]


def _names(text: str | None) -> frozenset[str] | None:
    """Return the names of a list that may also say ALL; None for that."""
    return None if text is None or text == "ALL" or text in _NONE else frozenset(text.split(","))
