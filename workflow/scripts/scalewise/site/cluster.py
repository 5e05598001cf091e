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
from scalewise.site.commands import ask

TRIES = 2
Facts = Mapping[str, str]
"""Keys and values as Slurm writes them."""


class ClusterError(UserError):
    """The site cannot be described; the text names the command or the choice, and the fix."""


@dataclass(frozen=True)
class Node:
    """A compute node.

    Args:
        cpus: CPUs that jobs may use, without those that are reserved for the system.
        memory_mb: Memory that jobs may request; None if Slurm does not know it.
        gpus: Number of GPUs by type; the type is empty if Slurm has none.
    """

    name: str
    cpus: int
    memory_mb: int | None
    gpus: Mapping[str, int]
    features: frozenset[str]
    partitions: Sequence[str]


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
    config: Facts
    partitions: Mapping[str, Facts]
    nodes: Sequence[Node]
    accounts: Accounts

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.config.get("ClusterName", "(no name)")

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
    show = ("scontrol", "--oneliner", "show")
    found = list(map(record, _required(*show, "partition").splitlines()))
    for name in {*partitions} - {each.get("PartitionName") for each in found}:
        found += map(record, ask(*show, "partition", name).text.splitlines())
    return Cluster(
        ask("sinfo", "--version").text or "Slurm",
        config,
        {each["PartitionName"]: each for each in found if "PartitionName" in each},
        list(parse_nodes(_required(*show, "node"))),
        read_accounts(config),
    )


def _required(*command: str) -> str:
    answer = ask(*command, tries=TRIES)
    if not answer.ok or not answer.text:
        failure = f"`{answer.command}` printed nothing" if answer.ok else answer.failure
        raise ClusterError(
            f"{failure}. Try the command yourself; if it fails there, too, ask the site, or fill in "
            "profiles/slurm/site.yaml by hand."
        )
    return answer.text


def read_accounts(config: Facts) -> Accounts:
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
    answer = ask(*show, "associations", f"user={user}", *here, fields, tries=TRIES)
    if not answer.ok:
        return Accounts(unknown=answer.failure)
    rows = ([*line.split("|"), "", "", ""][:4] for line in answer.text.splitlines())
    found = [
        Association(account, partition, names(qos), default) for account, partition, qos, default in rows
    ]
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
    pairs = (word.partition("=") for word in line.split() if "=" in word)
    return {key: value for key, _, value in reversed(list(pairs))}


def parse_config(text: str) -> dict[str, str]:
    """Return the keys and values of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_nodes(text: str) -> Iterator[Node]:
    """Yield the nodes of ``scontrol --oneliner show node``; FUTURE ones do not exist yet."""
    for facts in map(record, text.splitlines()):
        if not facts.get("NodeName") or "FUTURE" in re.split(r"[+*~#!%$@^-]", facts.get("State", "")):
            continue
        memory = (number(facts, "RealMemory") or 0) - (number(facts, "MemSpecLimit") or 0)
        reserved = (number(facts, "CoreSpecCount") or 0) * (number(facts, "ThreadsPerCore") or 1)
        yield Node(
            facts["NodeName"],
            max(number(facts, "CPUEfctv") or (number(facts, "CPUTot") or 0) - reserved, 1),
            memory if memory > 1 else None,  # 1 MB is the default of a node without RealMemory
            parse_gpus(facts.get("Gres", "")),
            frozenset(names(facts.get("ActiveFeatures", ""))),
            names(facts.get("Partitions", "")),
        )


def parse_gpus(gres: str) -> dict[str, int]:
    """Return the GPUs by type of a node's ``Gres``, such as ``gpu:h100:4(S:0-1),nvme:1``."""
    found: dict[str, int] = {}
    for entry in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *kind, count = entry.split(":") if ":" in entry else (entry, "")
        if name == "gpu" and count.isdigit() and int(count):
            found[":".join(kind)] = found.get(":".join(kind), 0) + int(count)
    return found


def number(facts: Facts, key: str) -> int | None:
    """Return a number; None for a word such as UNLIMITED, or if the key is missing."""
    value = facts.get(key, "")
    return int(value) if value.isdigit() else None


def names(text: str) -> list[str]:
    """Return the names of a list; none for ``(null)``."""
    return [name for name in text.split(",") if name and name not in ("(null)", "N/A")]
