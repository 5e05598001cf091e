"""Describe a part of a cluster as facts of a site file, each with its source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scalewise.config.errors import one_line
from scalewise.config.shape import count_devices
from scalewise.config.site import NotFound
from scalewise.site.choices import Choice, describe, walltime
from scalewise.site.reported import Cluster, Partition, Qos, is_part_of_gpu
from scalewise.site.requests import GpuRequest

COMMENTS_AT = 34
FAST_INTERFACE = re.compile(r"(ib|hsn|bond|opa)\w*")


@dataclass(frozen=True)
class Machine:
    """This machine, a login node.

    Args:
        arch: The processor's architecture.
        interfaces: Fast network interfaces.
    """

    arch: str = ""
    interfaces: Sequence[str] = ()


@dataclass(frozen=True)
class Fact:
    """A line of a site file.

    Args:
        key: Empty for a line that is only a comment.
        value: The key's value; facts for a mapping.
        source: The value's source, or the comment.
    """

    key: str
    value: object
    source: str

    def lines(self, indent: int) -> Iterator[str]:
        """Yield the line, and those of a mapping below it."""
        space = " " * indent
        if not self.key:
            yield f"{space}# {one_line(self.source)}"
        elif isinstance(self.value, Facts):
            yield with_comment(f"{space}{self.key}:", self.source)
            yield from self.value.lines(indent + 2)
        else:
            yield with_comment(f"{space}{self.key}: {write_scalar(self.value)}", self.source)


class Facts(list[Fact]):
    """Lines of a part of a site file."""

    def add(self, key: str, value: object, source: str) -> None:
        """Add a key with the source of its value."""
        self.append(Fact(key, value, source))

    def comment(self, text: str) -> None:
        """Add a line that is only a comment."""
        self.append(Fact("", None, text))

    def value(self, key: str) -> Any:
        """Return the value of a key; None without it."""
        return next((fact.value for fact in self if fact.key == key), None)

    def lines(self, indent: int = 0) -> list[str]:
        """Return the lines of all facts."""
        return [line for fact in self for line in fact.lines(indent)]


@dataclass
class Described:
    """The facts of one choice.

    Args:
        site: Facts of the nodes.
        slurm: Facts of the jobs.
        remarks: Lines for the terminal.
        warnings: Lines for the terminal and for the end of the file.
        not_found: The reason for each fact that was not found.
    """

    choice: Choice
    site: Facts = field(default_factory=Facts)
    slurm: Facts = field(default_factory=Facts)
    remarks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    not_found: dict[NotFound, str] = field(default_factory=dict)


def describe_choice(
    cluster: Cluster, choice: Choice, request: GpuRequest | None, machine: Machine, *, compared: bool
) -> Described:
    """Describe one choice, with the source of each fact.

    Args:
        cluster: Slurm's report.
        choice: Partition, account and nodes.
        request: The form of requests for GPUs; None without GPUs.
        machine: This machine.
        compared: Whether the site file has other partitions, too; their costs are then added together.
    """
    text = Described(choice)
    _nodes(text, cluster, choice)
    _job(text, cluster, choice, request, compared=compared)
    _network(text, choice, machine)
    return text


# ---- several partitions


def _nodes(text: Described, cluster: Cluster, choice: Choice) -> None:
    number, partition = len(choice.nodes), choice.partition
    least = "" if number == 1 else f", the least of {number} nodes"
    if choice.gpu_type is None:
        text.site.add("accelerator", "cpu", "no Gres=gpu on these nodes (scontrol show node)")
        text.site.add("devices_per_node", choice.devices, "a device is a CPU process: one a CPU")
        text.remarks.append(
            f"Partition {partition.name} has no GPUs: a device is a CPU process on this site."
        )
    else:
        kind = f"{choice.gpu_type}:" if choice.gpu_type else ""
        text.site.add("accelerator", "cuda", "Gres=gpu (scontrol show node)")
        text.site.add(
            "devices_per_node",
            choice.devices,
            f"Gres=gpu:{kind}{choice.devices} of {count_devices(number, 'node')}",
        )
        if is_part_of_gpu(choice.gpu_type):
            text.site.comment(
                "parts of GPUs (MIG): no peer-to-peer transfer between them, and a process sees one"
            )
            text.remarks.append(
                f"{choice.gpu_type} is a part of a GPU (MIG). Parts have no peer-to-peer transfer: training "
                "on several of them does not show how training on GPUs scales."
            )
    if choice.others:
        other = f"{count_devices(len(choice.others), 'node')} with {describe(choice.others)}"
        text.site.comment(f"left out: {other}")
        text.remarks.append(
            f"Left out of {partition.name}: {other}. The site file describes {describe(choice.nodes)}."
        )
    cpus = min(node.cpus for node in choice.nodes)
    source = f"CPUEfctv or CPUTot{least} (scontrol show node)"
    if partition.max_cpus_per_node is not None and partition.max_cpus_per_node < cpus:
        cpus, source = partition.max_cpus_per_node, "MaxCPUsPerNode (scontrol show partition)"
    text.site.add("cpus_per_node", cpus, source)
    if choice.gpu_type is not None:
        text.site.add("max_cpus_per_device", max(cpus // choice.devices, 1), f"{cpus} / {choice.devices}")
    _memory(text, cluster, choice, cpus, least)
    nodes, source = _max_nodes(cluster, choice, partition)
    text.site.add("max_nodes", nodes, source)
    gpus = _gpu_limit(cluster, choice, partition)
    if gpus is not None and gpus < choice.devices:
        text.site.comment(f"a job may have {gpus} of the GPUs of a node (sacctmgr show qos)")
        most = count_devices(gpus, "GPU")
        text.remarks.append(f"A job in {partition.name} may have at most {most} (sacctmgr show qos).")


def _gpu_limit(cluster: Cluster, choice: Choice, partition: Partition) -> int | None:
    """Return the most GPUs that a job may have by its QOS; None without GPUs or a limit."""
    if choice.gpu_type is None:
        return None
    found = (qos.most.get("gres/gpu") for qos in _qos_of(cluster, choice, partition).values())
    return min((gpus for gpus in found if gpus is not None), default=None)


def _memory(text: Described, cluster: Cluster, choice: Choice, cpus: int, least: str) -> None:
    known = [node.memory_mb for node in choice.nodes if node.memory_mb is not None]
    if len(known) < len(choice.nodes):
        text.not_found["memory_gb_per_node"] = "RealMemory is not set (scontrol show node)"
        return
    partition = choice.partition
    limits = {
        f"RealMemory - MemSpecLimit{least} (scontrol show node)": min(known),
        "MaxMemPerNode (scontrol show partition)": partition.max_memory_mb,
        "MaxMemPerCPU (scontrol show partition)": _times(partition.max_memory_mb_per_cpu, cpus),
        "MaxMemPerNode (scontrol show config)": _whole(cluster.config.get("MaxMemPerNode")),
        "MaxMemPerCPU (scontrol show config)": _times(_whole(cluster.config.get("MaxMemPerCPU")), cpus),
    }
    source, memory = min(
        ((source, limit) for source, limit in limits.items() if limit), key=lambda pair: pair[1]
    )
    gigabytes = memory // 1000 if memory >= 1000 else memory / 1000
    text.site.add("memory_gb_per_node", gigabytes, f"{memory} MB: {source}")


def _max_nodes(cluster: Cluster, choice: Choice, partition: Partition) -> tuple[int, str]:
    """Return the most nodes of a job, and the source."""
    nodes_of_kind = choice.nodes_in(cluster, partition)
    down = sum(not node.is_up for node in nodes_of_kind)
    present = f"nodes of this kind{f', {down} of them down now' if down else ''} (scontrol show node)"
    limits = {present: len(nodes_of_kind)}
    if partition.max_nodes is not None:
        limits["MaxNodes (scontrol show partition)"] = partition.max_nodes
    for name, qos in _qos_of(cluster, choice, partition).items():
        if (nodes := qos.most.get("node")) is not None:
            limits[f"node limit of QOS {name} (sacctmgr show qos)"] = nodes
        if choice.gpu_type is not None and (gpus := qos.most.get("gres/gpu")) is not None:
            limits[f"{count_devices(gpus, 'GPU')}, the limit of QOS {name} (sacctmgr show qos)"] = (
                gpus // choice.devices
            )
    source, nodes = min(limits.items(), key=lambda pair: pair[1])
    return max(nodes, 1), source


def _qos_of(cluster: Cluster, choice: Choice, partition: Partition) -> Mapping[str, Qos]:
    """Return the QOS whose limits hold for a job: the partition's, and the job's own."""
    names = (partition.qos, choice.qos or (choice.account.default_qos if choice.account else ""))
    return {name: cluster.qos[name] for name in names if name in cluster.qos}


def _walltime(cluster: Cluster, choice: Choice, partition: Partition) -> tuple[int | None, str]:
    limits = {} if partition.longest_seconds is None else {"MaxTime": partition.longest_seconds}
    for name, qos in _qos_of(cluster, choice, partition).items():
        if qos.longest_seconds is not None:
            limits[f"MaxWall of QOS {name} (sacctmgr show qos)"] = qos.longest_seconds
    if not limits:
        return None, "MaxTime=UNLIMITED"
    source, seconds = min(limits.items(), key=lambda pair: pair[1])
    return seconds, "MaxTime (scontrol show partition)" if source == "MaxTime" else source


def _job(
    text: Described, cluster: Cluster, choice: Choice, request: GpuRequest | None, *, compared: bool
) -> None:
    partition, account = choice.partition, choice.account
    if account is not None:
        others = [name for name in choice.accounts if name != account.account]
        also = f"; also yours: {', '.join(others)}" if others else ""
        text.slurm.add("account", account.account, f"sacctmgr show associations{also}")
    elif cluster.has_accounting:
        text.not_found["account"] = cluster.no_accounts
    else:
        text.slurm.comment(f"no account: {cluster.no_accounts} (AccountingStorageType, scontrol show config)")
    notes = [
        *(["the default"] if partition.is_default else []),
        *([f"it gives way to others: PreemptMode={partition.gives_way}"] if partition.gives_way else []),
    ]
    text.slurm.add("partition", partition.name, "; ".join(["scontrol show partition", *notes]))
    if choice.qos is not None and account is not None:
        allowed = [name for name in account.qos if partition.takes_qos(name) and name != choice.qos]
        also = f"; or {', '.join(allowed)}" if allowed else ""
        text.slurm.add("qos", choice.qos, f"AllowQos (scontrol show partition){also}")
    elif account is not None and account.qos:
        default = f"; without the key {account.default_qos}" if account.default_qos else ""
        text.slurm.comment(f"qos: one of {', '.join(account.qos)}{default} (sacctmgr show associations)")
    if choice.constraint:
        source = "ActiveFeatures (scontrol show node): other nodes of the partition have other GPUs"
        text.slurm.add("constraint", choice.constraint, source)
    for features in choice.features[:1]:
        every = ", ".join(choice.features)
        text.slurm.comment(f"constraint: {features.partition(' ')[0]}  # these nodes differ: {every}")
        text.not_found["constraint"] = f"the features of these nodes name different GPUs: {every}"
    _gpus(text, choice, request)
    seconds, source = _walltime(cluster, choice, partition)
    if seconds is None:
        text.slurm.comment(f"longest_walltime: no limit ({source}, scontrol show partition)")
    else:
        text.slurm.add("longest_walltime", walltime(seconds), source)
    _partial_nodes(text, cluster, choice, request)
    if not compared:
        _billing(text, cluster, choice)
    if (plugins := cluster.config.get("JobSubmitPlugins", "(null)")) not in ("(null)", ""):
        text.slurm.comment(
            f"the site checks or changes requests (JobSubmitPlugins={plugins}, scontrol show config)",
        )
    _tests(text, cluster, choice)


def _gpus(text: Described, choice: Choice, request: GpuRequest | None) -> None:
    if request is None:
        return
    if request.option:
        text.slurm.add("gpu_request", request.form, f"sbatch --test-only accepts {request.option}")
    else:
        text.slurm.add("gpu_request", request.form, "NOT CONFIRMED, see not_found")
        text.not_found["gpu_request"] = f"sbatch --test-only was refused: {request.refusal}"
    if choice.gpu_type and request.typed:
        text.slurm.add("gpu_type", choice.gpu_type, "Gres (scontrol show node)")
    elif choice.gpu_type:
        text.slurm.comment(f"no gpu_type: Slurm refuses requests that name {choice.gpu_type}")


def _partial_nodes(text: Described, cluster: Cluster, choice: Choice, request: GpuRequest | None) -> None:
    partition = choice.partition
    if partition.whole_nodes:
        text.slurm.add(
            "partial_nodes",
            "billed-whole",
            f"{partition.whole_nodes}: a job has its nodes to itself",
        )
    elif request is not None and request.partial is False:
        text.slurm.add("partial_nodes", "refused", "sbatch --test-only refuses one GPU")
    else:
        own = ", only your own jobs share a node (ExclusiveUser=YES)" if partition.only_own_jobs else ""
        text.slurm.add(
            "partial_nodes", "allowed", f"no OverSubscribe=EXCLUSIVE (scontrol show partition){own}"
        )
        gpus = _gpu_limit(cluster, choice, partition)
        if gpus is not None and gpus < choice.devices:
            most = count_devices(gpus, "GPU")
            text.slurm.add("exclusive", False, f"a job may have {most}, less than a node (sacctmgr show qos)")
        else:
            text.slurm.comment(
                "exclusive: false  # a run on a part of a node holds the whole node; this line turns that off"
            )


def _billing(text: Described, cluster: Cluster, choice: Choice) -> None:
    weights = choice.partition.weights
    if not weights:
        text.slurm.comment("billing an hour: one unit a CPU (no TRESBillingWeights, scontrol show partition)")
        return
    text.slurm.comment(f"billing an hour: {weights} (TRESBillingWeights); {billing_rule(cluster)}")
    units = units_per_device(text, cluster)
    if units is not None:
        device = "CPU" if choice.gpu_type is None else "GPU"
        text.slurm.comment(
            f"so {units:.4g} units for one {device} with its share of a node; for totals in these units"
        )
        text.slurm.comment(f"write in the experiment:  proposal: {{unit_factor: {units:.4g}}}")


def billing_rule(cluster: Cluster) -> str:
    """Return how the weights of several resources become one number, as a clause."""
    return "the largest of these counts" if _largest_counts(cluster) else "their sum counts"


def _largest_counts(cluster: Cluster) -> bool:
    return "MAX_TRES" in cluster.config.get("PriorityFlags", "").upper()


def units_per_device(text: Described, cluster: Cluster) -> float | None:
    """Return the units that a device and its share of a node cost an hour; None if unknown.

    Without weights Slurm bills one unit for each CPU (slurm.conf, "TRESBillingWeights").
    """
    choice = text.choice
    cpus, memory = text.site.value("cpus_per_node"), text.site.value("memory_gb_per_node")
    gpus = 0 if choice.gpu_type is None else choice.devices
    node = {"cpu": cpus, "gres/gpu": gpus, f"gres/gpu:{choice.gpu_type}": gpus}
    if memory is not None:
        node["mem"] = memory * 1000
    weights = choice.partition.weights or "CPU=1"
    units = billed_units(weights, node, largest=_largest_counts(cluster))
    return None if units is None else units / choice.devices


def billed_units(weights: str, resources: Mapping[str, float], *, largest: bool) -> float | None:
    """Return the units that Slurm bills for an hour of these resources; None if it weighs others, too.

    Source: slurm.conf, "TRESBillingWeights": a weight of memory is per MB, or per the unit behind it.

    Args:
        weights: Text such as ``CPU=1.0,Mem=0.25G,GRES/gpu=15.0``.
        resources: Amounts by lower-case name, memory in MB.
        largest: Whether the largest resource counts (PriorityFlags=MAX_TRES), or the sum.
    """
    billed = []
    for weight in weights.split(","):
        name, _, value = weight.strip().lower().partition("=")
        parts = re.fullmatch(r"([0-9.]+)([kmgtp]?)", value)
        if parts is None or name not in resources:
            return None
        per = 1024.0 ** ("kmgtp".index(parts[2]) - 1) if parts[2] else 1.0
        billed.append(float(parts[1]) * resources[name] / per)
    return max(billed) if largest else sum(billed)


def _tests(text: Described, cluster: Cluster, choice: Choice) -> None:
    tests = choice.test_partition
    if tests is None or tests.longest_seconds is None:
        text.slurm.comment(
            "no test_partition: no other partition with these nodes has a limit of 3 hours or less",
        )
        return
    seconds, source = _walltime(cluster, choice, tests)
    nodes, nodes_source = _max_nodes(cluster, choice, tests)
    limits = Facts()
    limits.add("name", tests.name, "scontrol show partition")
    limits.add("longest_walltime", walltime(seconds), source)
    limits.add("max_nodes", nodes, nodes_source)
    gpus = _gpu_limit(cluster, choice, tests)
    if gpus and gpus < nodes * choice.devices:
        limits.add("max_devices", gpus, "GPU limit of its QOS (sacctmgr show qos)")
    text.slurm.add("test_partition", limits, "the shortest limit among partitions with these nodes")
    text.slurm.add("use_test_partition", False, "true: runs that fit are sent there")
    submitted = [
        qos.submitted for qos in _qos_of(cluster, choice, tests).values() if qos.submitted is not None
    ]
    if submitted:
        jobs = min(submitted)
        text.slurm.comment(
            f"its QOS queues {jobs} jobs of yours at once (sacctmgr show qos): add --jobs {jobs}"
        )


def _network(text: Described, choice: Choice, machine: Machine) -> None:
    here = f"; this login node has {', '.join(machine.interfaces)}" if machine.interfaces else ""
    if len(choice.nodes) > 1:
        text.not_found["network_interface"] = f"only a job on compute nodes shows theirs{here}"
    text.not_found["internet"] = "only a job on compute nodes shows whether they reach it"
    archs = {node.arch for node in choice.nodes if node.arch}
    if machine.arch and archs and machine.arch not in archs:
        arch = "/".join(sorted(archs))
        text.warnings.append(
            f"Compute nodes are {arch}, this machine is {machine.arch}, and each job runs the Python that "
            f"runs snakemake: install Scalewise and start snakemake on a machine that is {arch}."
        )


def fast_interfaces(folder: Path = Path("/sys/class/net")) -> list[str]:
    """Return this machine's interfaces that are up and whose names are those of fast networks."""
    return sorted(path.name for path in _interfaces(folder) if FAST_INTERFACE.fullmatch(path.name))


def _interfaces(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir() if folder.exists() else ():
        try:
            if (path / "operstate").read_text(encoding="ascii").strip() == "up":
                yield path
        except OSError:
            continue


def with_comment(text: str, comment: str) -> str:
    """Return a line with its comment, which begins at a fixed column if there is room."""
    return f"{text.ljust(COMMENTS_AT - 2)}  # {one_line(comment)}"


def write_scalar(value: object) -> str:
    """Write a value so that YAML reads the same one."""
    if isinstance(value, str):
        return value if _is_plain(value) and ":" not in value else json.dumps(value)
    return json.dumps(value)


def _is_plain(text: str) -> bool:
    try:
        return bool(yaml.safe_load(f"k: {text} # c") == {"k": text})
    except yaml.YAMLError:
        return False


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _times(megabytes: int | None, cpus: int) -> int | None:
    return None if megabytes is None else megabytes * cpus
