"""Ask Slurm for partitions, nodes and the user's accounts, and read its text.

The text of ``scontrol --oneliner`` and ``sacctmgr --parsable2`` has the same form from Slurm 20.11 to 25.11:
new versions only add keys. ``--json`` changes with the version of its data parser and needs a plugin.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from scalewise.config.errors import UserError
from scalewise.site.commands import ask

Facts = Mapping[str, str]
"""Keys and values as Slurm writes them."""
ALL = {"SCONTROL_ALL": "1"}
"""Shows hidden partitions to a normal user, too, and which nodes they have."""


@dataclass(frozen=True)
class Node:
    """A compute node.

    Args:
        cpus: CPUs that jobs may use, without those that are reserved for the system.
        memory_mb: Memory that jobs may request; 0 if Slurm does not know it.
        gpus: Number of GPUs by type; the type is empty if Slurm has none.
    """

    name: str
    cpus: int
    memory_mb: int
    gpus: Mapping[str, int]
    features: frozenset[str]
    partitions: Sequence[str]

    def __str__(self) -> str:
        gpus = [f"{count} {kind or 'GPUs'}" for kind, count in sorted(self.gpus.items())]
        memory = [f"{self.memory_mb // 1000} GB"] if self.memory_mb else []
        return ", ".join([*gpus, f"{self.cpus} CPUs", *memory])


def read_config() -> Facts:
    """Return the cluster's settings."""
    return parse_config(_show("config"))


def read_partitions(named: Sequence[str] = ()) -> dict[str, Facts]:
    """Return the partitions by name; a hidden one is shown only if it is named."""
    found = list(map(record, _show("partition", "--oneliner").splitlines()))
    for name in {*named} - {each.get("PartitionName") for each in found}:
        hidden = ask("scontrol", "--oneliner", "show", "partition", name, environ=ALL)
        found += map(record, hidden.text.splitlines())
    return {each["PartitionName"]: each for each in found if "PartitionName" in each}


def read_nodes() -> list[Node]:
    """Return all nodes; FUTURE ones do not exist yet."""
    found = map(record, _show("node", "--oneliner").splitlines())
    return [
        parse_node(each)
        for each in found
        if "NodeName" in each and not each.get("State", "").startswith("FUTURE")
    ]


def _show(kind: str, *form: str) -> str:
    answer = ask("scontrol", *form, "show", kind, tries=2, environ=ALL if kind == "node" else {})
    if not answer.text:
        raise UserError(
            f"{answer.failure}. Try the command yourself; if it fails there, too, ask the site, or fill in "
            "profiles/slurm/site.yaml by hand."
        )
    return answer.text


@dataclass(frozen=True)
class Accounts:
    """The user's accounts.

    Args:
        rows: Accounting's for each account, and for each account and partition that has another one:
            account, partition, qos and defaultqos.
        default: The account of a job that names none; empty if unknown.
        unknown: The reason if there are no rows.
    """

    rows: Sequence[Facts] = ()
    default: str = ""
    unknown: str = ""

    def usable_in(self, partition: str) -> dict[str, Facts]:
        """Return each account's row that holds in a partition, its own or that of all; empty for any one."""
        rows = [row for row in self.rows if not partition or row["partition"] in ("", partition)]
        return {row["account"]: row for row in sorted(rows, key=itemgetter("partition"))}


def read_accounts(config: Facts) -> Accounts:
    """Ask accounting for the user's accounts on this cluster; the database may hold those of others."""
    if config.get("AccountingStorageType", "accounting_storage/slurmdbd") != "accounting_storage/slurmdbd":
        return Accounts(unknown="this cluster keeps no accounting")
    user, cluster = getpass.getuser(), config.get("ClusterName", "")
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    here = [f"cluster={cluster}"] if cluster else []
    fields = ("account", "partition", "qos", "defaultqos")
    answer = ask(*show, "associations", f"user={user}", *here, f"format={','.join(fields)}", tries=2)
    if not answer.ok:
        return Accounts(unknown=answer.failure)
    lines = (line.split("|") for line in answer.text.splitlines())
    rows = [dict(zip(fields, line, strict=True)) for line in lines if len(line) == len(fields)]
    if not rows:
        return Accounts(unknown=f"accounting knows no account of {user} on this cluster; ask the site")
    # withassoc: the default account of this cluster, and not that of another one
    default = ask(*show, "user", user, "withassoc", *here, "format=defaultaccount").text.partition("\n")[0]
    return Accounts(rows, default.strip())


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
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_node(facts: Facts) -> Node:
    """Read a line of ``scontrol show node``."""
    memory = number(facts, "RealMemory") - number(facts, "MemSpecLimit")
    reserved = number(facts, "CoreSpecCount") * (number(facts, "ThreadsPerCore") or 1)
    return Node(
        facts["NodeName"],
        max(number(facts, "CPUEfctv") or number(facts, "CPUTot") - reserved, 1),
        memory if memory > 1 else 0,  # 1 MB is the default of a node without RealMemory
        parse_gpus(facts.get("Gres", "")),
        frozenset(names(facts.get("ActiveFeatures", ""))),
        names(facts.get("Partitions", "")),
    )


def parse_gpus(gres: str) -> dict[str, int]:
    """Return the GPUs by type of a node's ``Gres``, such as ``gpu:h100:4(S:0-1),nvme:1``."""
    found: dict[str, int] = {}
    for name, *words in (each.split(":") for each in re.sub(r"\([^)]*\)", "", gres).split(",")):
        count = int(words.pop()) if words and words[-1].isdigit() else 1
        if name == "gpu" and count:
            kind = ":".join(word for word in words if word != "no_consume")
            found[kind] = found.get(kind, 0) + count
    return found


def number(facts: Facts, key: str) -> int:
    """Return a number; 0 for a word such as UNLIMITED, or if the key is missing."""
    value = facts.get(key, "")
    return int(value) if value.isdigit() else 0


def names(text: str) -> list[str]:
    """Return the names of a list; none for ``(null)``."""
    return [name for name in text.split(",") if name and name not in ("(null)", "N/A")]
