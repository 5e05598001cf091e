"""Read partitions, nodes, configuration and accounting as Slurm's commands print them.

The text of ``scontrol --oneliner`` and ``sacctmgr --parsable2`` has the same form from Slurm 22.05 to 25.11:
new versions only add keys. ``--json`` changes with the version of its data parser and needs a plugin.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from scalewise.config.slurm import duration_seconds
from scalewise.site.commands import Answer, ask

_NONE = {"", "(null)", "N/A", "None", "NONE", "UNLIMITED", "INFINITE", "unlimited"}
_PART = re.compile(r"(^|[-_.])\d+g\.\d+gb\b")
"""A MIG profile at the end of a GPU type, such as ``a100_1g.5gb``."""


class ClusterError(Exception):
    """Slurm could not be asked; the text names the command, how it ended, and the fix."""


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
    features: Sequence[str] = ()
    partitions: Sequence[str] = ()
    arch: str = ""
    is_up: bool = True


@dataclass(frozen=True)
class Partition:
    """A partition.

    Args:
        longest_seconds: Time limit of its jobs; None without one.
        max_nodes: Most nodes of a job; None without a limit.
        whole_nodes: The setting that gives a job its nodes to itself; empty if nodes are shared.
        gives_way: PreemptMode of jobs that end for jobs of another partition; empty if they do not.
        weights: TRESBillingWeights; empty without any.
        accounts: Accounts that may use it; None for all.
        allowed_qos: QOS that its jobs may have; None for all.
    """

    name: str
    state: str = "UP"
    is_default: bool = False
    longest_seconds: int | None = None
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    max_memory_mb: int | None = None
    max_memory_mb_per_cpu: int | None = None
    whole_nodes: str = ""
    only_own_jobs: bool = False
    gives_way: str = ""
    weights: str = ""
    qos: str = ""
    accounts: frozenset[str] | None = None
    denied_accounts: frozenset[str] = frozenset()
    allowed_qos: frozenset[str] | None = None
    denied_qos: frozenset[str] = frozenset()
    needs_reservation: bool = False
    is_for_root: bool = False

    def takes_qos(self, name: str) -> bool:
        """Return whether its jobs may have a QOS."""
        return name not in self.denied_qos and (self.allowed_qos is None or name in self.allowed_qos)

    def refusal(self, accounts: Sequence[str] | None) -> str:
        """Return why a user with these accounts cannot send jobs to it; empty if that is possible.

        Args:
            accounts: None if unknown.
        """
        if self.state != "UP":
            return f"is {self.state}"
        if self.is_for_root:
            return "takes jobs of root only"
        if self.needs_reservation:
            return "takes jobs in a reservation only"
        if accounts and not self.allowed(accounts):
            return "is closed to your accounts"
        return ""

    def allowed(self, accounts: Sequence[str]) -> list[str]:
        """Return those accounts that may use it."""
        return [
            name
            for name in accounts
            if name not in self.denied_accounts and (self.accounts is None or name in self.accounts)
        ]


@dataclass(frozen=True)
class Association:
    """An account of the user.

    Args:
        partitions: Partitions it is limited to; empty for all.
        default_qos: The QOS of a job that names none; empty if unknown.
    """

    account: str
    qos: Sequence[str] = ()
    default_qos: str = ""
    partitions: Sequence[str] = ()


@dataclass(frozen=True)
class Qos:
    """Limits of a quality of service.

    Args:
        longest_seconds: Time limit of a job; None without one.
        most: Most of a resource that one job or one user may hold, by its name in Slurm.
        submitted: Most jobs of a user in the queue; None without a limit.
    """

    longest_seconds: int | None = None
    most: Mapping[str, int] = field(default_factory=dict)
    submitted: int | None = None


@dataclass(frozen=True)
class Cluster:
    """Slurm's report on a cluster and one of its users.

    Args:
        version: Slurm's, as ``slurm 22.05.8``.
        config: ``scontrol show config``.
        associations: The user's accounts; None if accounting gave no answer.
        no_accounts: The reason if there are none.
        default_account: The account of a job that names none; empty if unknown.
    """

    version: str
    config: Mapping[str, str]
    partitions: Sequence[Partition]
    nodes: Sequence[Node]
    associations: Sequence[Association] | None
    no_accounts: str = ""
    default_account: str = ""
    qos: Mapping[str, Qos] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The cluster's name in Slurm."""
        return self.config.get("ClusterName", "")

    @property
    def accounts(self) -> list[str] | None:
        """The names of the user's accounts; None if unknown."""
        return None if self.associations is None else [each.account for each in self.associations]

    @property
    def has_accounting(self) -> bool:
        """Whether jobs are accounted for in a database."""
        return self.config.get("AccountingStorageType", "") == "accounting_storage/slurmdbd"

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
    associations, why, default = _accounts(config)
    return Cluster(
        version,
        config,
        list(parse_partitions(lines, config)),
        list(parse_nodes(nodes)),
        associations,
        why,
        default,
        _qos() if associations else {},
    )


def _required(*command: str) -> str:
    answer = ask(*command)
    if not answer.ok or not answer.text:
        failure = answer.failure if not answer.ok else f"`{answer.command}` printed nothing"
        raise ClusterError(
            f"{failure}. Try the command yourself; if it fails there, too, ask the site, or copy a file of "
            "profiles/sites and fill it in."
        )
    return answer.text


def _accounts(config: Mapping[str, str]) -> tuple[list[Association] | None, str, str]:
    """Return the user's accounts, or why they are unknown, and the default one."""
    if config.get("AccountingStorageType", "") != "accounting_storage/slurmdbd":
        return None, "this cluster keeps no accounting", ""
    user, cluster = getpass.getuser(), config.get("ClusterName", "")
    show = ("sacctmgr", "--noheader", "--parsable2", "show")
    answer = ask(
        *show,
        "associations",
        f"user={user}",
        *([f"cluster={cluster}"] if cluster else []),
        "format=account,partition,qos,defaultqos",
    )
    if not answer.ok:
        return None, answer.failure, ""
    found = parse_associations(answer)
    if not found:
        return None, f"accounting knows no account of {user} on this cluster", ""
    default = ask(*show, "user", user, "format=defaultaccount").text.splitlines()
    return found, "", default[0].strip() if default else ""


def _qos() -> dict[str, Qos]:
    fields = "format=name,maxwall,maxtres,maxtrespu,maxsubmitjobspu"
    answer = ask("sacctmgr", "--noheader", "--parsable2", "show", "qos", fields)
    return parse_qos(answer.text.splitlines()) if answer.ok else {}


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


def is_part_of_gpu(kind: str) -> bool:
    """Return whether a GPU type is a part of a GPU (MIG)."""
    return _PART.search(kind) is not None


def parse_nodes(lines: Sequence[str]) -> Iterator[Node]:
    """Yield the nodes of ``scontrol --oneliner show node``; FUTURE ones do not exist yet."""
    for line in lines:
        facts = record(line)
        states = set(re.split(r"[+*~#!%$@^-]", facts.get("State", "")))
        if not facts.get("NodeName") or "FUTURE" in states:
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
            _list(facts.get("ActiveFeatures")),
            _list(facts.get("Partitions")),
            facts.get("Arch", ""),
            not states & {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "NOT_RESPONDING", "UNKNOWN"},
        )


def parse_partitions(lines: Sequence[str], config: Mapping[str, str]) -> Iterator[Partition]:
    """Yield the partitions of ``scontrol --oneliner show partition``."""
    records = [facts for line in lines if (facts := record(line)).get("PartitionName")]
    tiers = [_number(facts.get("PriorityTier")) or 0 for facts in records]
    preempts = config.get("PreemptType", "preempt/none") != "preempt/none"
    linear = config.get("SelectType", "") == "select/linear"
    for facts, tier in zip(records, tiers, strict=True):
        shared = facts.get("OverSubscribe", facts.get("Shared", ""))
        whole = f"OverSubscribe={shared}" if shared.startswith("EXCLUSIVE") else ""
        mode = facts.get("PreemptMode", "OFF")
        yield Partition(
            facts["PartitionName"],
            facts.get("State", "UP"),
            facts.get("Default") == "YES",
            _seconds(facts.get("MaxTime")),
            _number(facts.get("MaxNodes")),
            _number(facts.get("MaxCPUsPerNode")),
            _number(facts.get("MaxMemPerNode")),
            _number(facts.get("MaxMemPerCPU")),
            whole or ("SelectType=select/linear" if linear else ""),
            facts.get("ExclusiveUser") == "YES",
            mode if preempts and mode != "OFF" and tier < max(tiers) else "",
            facts.get("TRESBillingWeights", ""),
            "" if facts.get("QoS", "N/A") in _NONE else facts["QoS"],
            _names(facts.get("AllowAccounts")),
            _names(facts.get("DenyAccounts")) or frozenset(),
            _names(facts.get("AllowQos")),
            _names(facts.get("DenyQos")) or frozenset(),
            facts.get("ReqResv") == "YES",
            facts.get("RootOnly") == "YES",
        )


def parse_associations(answer: Answer) -> list[Association]:
    """Return the accounts of ``sacctmgr --parsable2 show associations``, each once."""
    found: dict[str, Association] = {}
    for line in answer.text.splitlines():
        account, partition, qos, default, *_ = [*line.split("|"), "", "", ""]
        if not account:
            continue
        before = found.get(account, Association(account))
        found[account] = Association(
            account,
            list(dict.fromkeys([*before.qos, *_list(qos)])),
            before.default_qos or default,
            [*before.partitions, *_list(partition)],
        )
    return list(found.values())


def parse_qos(lines: Sequence[str]) -> dict[str, Qos]:
    """Return the limits of ``sacctmgr --parsable2 show qos``; of two limits the lower one counts."""
    found = {}
    for line in lines:
        name, wall, of_job, of_user, submitted, *_ = [*line.split("|"), "", "", "", ""]
        most: dict[str, int] = {}
        for entry in _list(f"{of_job},{of_user}".strip(",")):
            resource, _, count = entry.rpartition("=")
            if count.isdigit():
                most[resource] = min(int(count), most.get(resource, int(count)))
        if name:
            found[name] = Qos(_seconds(wall), most, _number(submitted))
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _seconds(text: str | None) -> int | None:
    return None if text is None or text in _NONE else duration_seconds(text)


def _list(text: str | None) -> list[str]:
    return [] if text is None or text in _NONE else [part for part in text.split(",") if part]


def _names(text: str | None) -> frozenset[str] | None:
    """Return the names of a list that may also say ALL; None for that."""
    return None if text is None or text == "ALL" or text in _NONE else frozenset(text.split(","))
