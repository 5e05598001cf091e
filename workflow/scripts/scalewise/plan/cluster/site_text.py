"""Write a site file: each line with the fact's source, and a list of what was not found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from scalewise.plan.cluster.choices import Choice, describe, walltime
from scalewise.plan.cluster.reported import Cluster, Partition, Qos, is_part_of_gpu
from scalewise.plan.cluster.requests import GpuRequest
from scalewise.plan.config.errors import one_line
from scalewise.plan.config.shape import count_devices
from scalewise.plan.config.site import NOT_FOUND, NotFound

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


@dataclass
class SiteText:
    """The lines of a site file, and remarks for the terminal."""

    command: str
    schema: str
    lines: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    not_found: dict[NotFound, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def add(self, key: str, value: object, source: str, indent: int = 0) -> None:
        """Add a key with the source of its value."""
        self.values[key] = value
        self.lines.append(_with_comment(f"{' ' * indent}{key}: {_scalar(value)}", source))

    def comment(self, text: str, indent: int = 0) -> None:
        """Add a line that is only a comment."""
        self.lines.append(f"{' ' * indent}# {one_line(text)}")

    def __str__(self) -> str:
        return "\n".join(self.lines) + "\n"


def write_site_text(
    cluster: Cluster,
    choice: Choice,
    request: GpuRequest | None,
    machine: Machine,
    command: str,
    schema: str,
    today: date,
) -> SiteText:
    """Describe a cluster as a site file.

    Args:
        cluster: Slurm's report.
        choice: Partition, account and nodes.
        request: The form of requests for GPUs; None without GPUs.
        machine: This machine.
        command: The command that the user gave.
        schema: Path of the schema, from the file's folder.
        today: The date for the heading.
    """
    text = SiteText(command, schema)
    partition = choice.partition
    text.lines += [
        f"# yaml-language-server: $schema={schema}",
        f"# Cluster {cluster.name or '(no name)'}, partition {partition.name}: {cluster.version}, {today}.",
        f"# Written by: {one_line(command)}",
        "# The comment of a line names its source. All keys: config/README.md. Test it by",
        "#   snakemake preflight --profile profiles/slurm",
        "",
    ]
    _nodes(text, cluster, choice)
    text.lines += ["", "slurm:"]
    _job(text, cluster, choice, request)
    _network(text, choice, machine)
    _open_facts(text)
    return text


def _nodes(text: SiteText, cluster: Cluster, choice: Choice) -> None:
    number, partition = len(choice.nodes), choice.partition
    least = "" if number == 1 else f", the least of {number} nodes"
    if choice.gpu_type is None:
        text.add("accelerator", "cpu", "no Gres=gpu on these nodes (scontrol show node)")
        text.add("devices_per_node", choice.devices, "a device is a CPU process: one a CPU")
        text.remarks.append(
            f"Partition {partition.name} has no GPUs: a device is a CPU process on this site."
        )
    else:
        kind = f"{choice.gpu_type}:" if choice.gpu_type else ""
        text.add("accelerator", "cuda", "Gres=gpu (scontrol show node)")
        text.add(
            "devices_per_node",
            choice.devices,
            f"Gres=gpu:{kind}{choice.devices} of {count_devices(number, 'node')}",
        )
        if is_part_of_gpu(choice.gpu_type):
            text.comment("parts of GPUs (MIG): no peer-to-peer transfer between them, and a process sees one")
            text.remarks.append(
                f"{choice.gpu_type} is a part of a GPU (MIG). Parts have no peer-to-peer transfer: training "
                "on several of them does not show how training on GPUs scales."
            )
    for other in choice.others:
        text.comment(f"left out: {other}")
        text.remarks.append(
            f"Left out of {partition.name}: {other}. The site file describes {describe(choice.nodes)}."
        )
    cpus = min(node.cpus for node in choice.nodes)
    source = f"CPUEfctv or CPUTot{least} (scontrol show node)"
    if partition.max_cpus_per_node is not None and partition.max_cpus_per_node < cpus:
        cpus, source = partition.max_cpus_per_node, "MaxCPUsPerNode (scontrol show partition)"
    text.add("cpus_per_node", cpus, source)
    if choice.gpu_type is not None:
        text.add("max_cpus_per_device", max(cpus // choice.devices, 1), f"{cpus} / {choice.devices}")
    _memory(text, cluster, choice, cpus, least)
    nodes, source = _max_nodes(cluster, choice, partition)
    text.add("max_nodes", nodes, source)
    gpus = _gpu_limit(cluster, choice, partition)
    if gpus is not None and gpus < choice.devices:
        text.comment(f"a job may have {gpus} of the GPUs of a node (sacctmgr show qos)")
        most = count_devices(gpus, "GPU")
        text.remarks.append(f"A job in {partition.name} may have at most {most} (sacctmgr show qos).")


def _gpu_limit(cluster: Cluster, choice: Choice, partition: Partition) -> int | None:
    """Return the most GPUs that a job may have by its QOS; None without GPUs or a limit."""
    if choice.gpu_type is None:
        return None
    found = (qos.most.get("gres/gpu") for qos in _qos_of(cluster, choice, partition).values())
    return min((gpus for gpus in found if gpus is not None), default=None)


def _memory(text: SiteText, cluster: Cluster, choice: Choice, cpus: int, least: str) -> None:
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
    text.add("memory_gb_per_node", gigabytes, f"{memory} MB: {source}")


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


def _job(text: SiteText, cluster: Cluster, choice: Choice, request: GpuRequest | None) -> None:
    partition, account = choice.partition, choice.account
    if account is not None:
        others = [name for name in choice.accounts if name != account.account]
        also = f"; also yours: {', '.join(others)}" if others else ""
        text.add("account", account.account, f"sacctmgr show associations{also}", 2)
    elif cluster.has_accounting:
        text.not_found["account"] = cluster.no_accounts
    else:
        text.comment(f"no account: {cluster.no_accounts} (AccountingStorageType, scontrol show config)", 2)
    notes = [
        *(["the default"] if partition.is_default else []),
        *([f"it gives way to others: PreemptMode={partition.gives_way}"] if partition.gives_way else []),
    ]
    text.add("partition", partition.name, "; ".join(["scontrol show partition", *notes]), 2)
    if choice.qos is not None and account is not None:
        allowed = [name for name in account.qos if partition.takes_qos(name) and name != choice.qos]
        also = f"; or {', '.join(allowed)}" if allowed else ""
        text.add("qos", choice.qos, f"AllowQos (scontrol show partition){also}", 2)
    elif account is not None and account.qos:
        default = f"; without the key {account.default_qos}" if account.default_qos else ""
        text.comment(f"qos: one of {', '.join(account.qos)}{default} (sacctmgr show associations)", 2)
    for features in choice.features[:1]:
        every = ", ".join(choice.features)
        text.comment(f"constraint: {features.partition(' ')[0]}  # these nodes differ: {every}", 2)
        text.not_found["constraint"] = f"the features of these nodes name different GPUs: {every}"
    _gpus(text, choice, request)
    seconds, source = _walltime(cluster, choice, partition)
    if seconds is None:
        text.comment(f"longest_walltime: no limit ({source}, scontrol show partition)", 2)
    else:
        text.add("longest_walltime", walltime(seconds), source, 2)
    _partial_nodes(text, choice, request)
    _billing(text, cluster, choice)
    if (plugins := cluster.config.get("JobSubmitPlugins", "(null)")) not in ("(null)", ""):
        text.comment(
            f"the site checks or changes requests (JobSubmitPlugins={plugins}, scontrol show config)", 2
        )
    _tests(text, cluster, choice)


def _gpus(text: SiteText, choice: Choice, request: GpuRequest | None) -> None:
    if request is None:
        return
    if request.option:
        text.add("gpu_request", request.form, f"sbatch --test-only accepts {request.option}", 2)
    else:
        text.add("gpu_request", request.form, "NOT CONFIRMED, see not_found", 2)
        text.not_found["gpu_request"] = f"sbatch --test-only was refused: {request.refusal}"
    if choice.gpu_type and request.typed:
        text.add("gpu_type", choice.gpu_type, "Gres (scontrol show node)", 2)
    elif choice.gpu_type:
        text.comment(f"no gpu_type: Slurm refuses requests that name {choice.gpu_type}", 2)


def _partial_nodes(text: SiteText, choice: Choice, request: GpuRequest | None) -> None:
    partition = choice.partition
    if partition.whole_nodes:
        text.add(
            "partial_nodes", "billed-whole", f"{partition.whole_nodes}: a job has its nodes to itself", 2
        )
    elif request is not None and request.partial is False:
        text.add("partial_nodes", "refused", "sbatch --test-only refuses one GPU", 2)
    else:
        own = ", only your own jobs share a node (ExclusiveUser=YES)" if partition.only_own_jobs else ""
        text.add("partial_nodes", "allowed", f"no OverSubscribe=EXCLUSIVE (scontrol show partition){own}", 2)


def _billing(text: SiteText, cluster: Cluster, choice: Choice) -> None:
    weights = choice.partition.weights
    if not weights:
        text.comment("billing an hour: one unit a CPU (no TRESBillingWeights, scontrol show partition)", 2)
        return
    largest = "MAX_TRES" in cluster.config.get("PriorityFlags", "").upper()
    rule = "the largest of these counts" if largest else "their sum counts"
    text.comment(f"billing an hour: {weights} (TRESBillingWeights); {rule}", 2)
    cpus, memory = text.values["cpus_per_node"], text.values.get("memory_gb_per_node")
    gpus = 0 if choice.gpu_type is None else choice.devices
    node = {"cpu": cpus, "gres/gpu": gpus, f"gres/gpu:{choice.gpu_type}": gpus}
    if memory is not None:
        node["mem"] = memory * 1000
    units = billed_units(weights, node, largest=largest)
    if units is not None:
        device, of_one = "CPU" if choice.gpu_type is None else "GPU", f"{units / choice.devices:.4g}"
        text.comment(
            f"so {of_one} units for one {device} with its share of a node; for totals in these units", 2
        )
        text.comment(f"write in the experiment:  proposal: {{unit_factor: {of_one}}}", 2)


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


def _tests(text: SiteText, cluster: Cluster, choice: Choice) -> None:
    tests = choice.test_partition
    if tests is None or tests.longest_seconds is None:
        text.comment(
            "no test_partition: no other partition with these nodes has a limit of 3 hours or less", 2
        )
        return
    seconds, source = _walltime(cluster, choice, tests)
    nodes, nodes_source = _max_nodes(cluster, choice, tests)
    text.lines.append(
        _with_comment("  test_partition:", "the shortest limit among partitions with these nodes")
    )
    text.add("name", tests.name, "scontrol show partition", 4)
    text.add("longest_walltime", walltime(seconds), source, 4)
    text.add("max_nodes", nodes, nodes_source, 4)
    gpus = _gpu_limit(cluster, choice, tests)
    if gpus and gpus < nodes * choice.devices:
        text.add("max_devices", gpus, "GPU limit of its QOS (sacctmgr show qos)", 4)
    text.add("use_test_partition", False, "true: runs that fit are sent there", 2)
    submitted = [
        qos.submitted for qos in _qos_of(cluster, choice, tests).values() if qos.submitted is not None
    ]
    if submitted:
        jobs = min(submitted)
        text.comment(f"its QOS queues {jobs} jobs of yours at once (sacctmgr show qos): add --jobs {jobs}", 2)


def _network(text: SiteText, choice: Choice, machine: Machine) -> None:
    here = f"; this login node has {', '.join(machine.interfaces)}" if machine.interfaces else ""
    if len(choice.nodes) > 1:
        text.not_found["network_interface"] = f"only a job on compute nodes shows theirs{here}"
    text.not_found["internet"] = "only a job on compute nodes shows whether they reach it"
    archs = {node.arch for node in choice.nodes if node.arch}
    if machine.arch and archs and machine.arch not in archs:
        arch = "/".join(sorted(archs))
        remark = (
            f"Compute nodes are {arch}, this machine is {machine.arch}, and each job runs the Python that "
            f"runs snakemake: install Scalewise and start snakemake on a machine that is {arch}."
        )
        text.lines += [""]
        text.comment(remark)
        text.remarks.append(remark)


def _open_facts(text: SiteText) -> None:
    if not text.not_found:
        return
    text.lines += [
        "",
        "# NOT FOUND. `snakemake preflight` names these, its job shows the network. Delete what is settled.",
        "not_found:",
    ]
    for name, reason in text.not_found.items():
        text.lines.append(_with_comment(f"  - {name}", reason))
        text.remarks.append(f"Not found: {name}. {reason[:1].upper()}{reason[1:]}. {NOT_FOUND[name]}")


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


def holds_placeholders(path: Path) -> bool:
    """Return whether a site file is the shipped one, with account and partition not filled in."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return False
    slurm = values.get("slurm") if isinstance(values, dict) else None
    return isinstance(slurm, dict) and (slurm.get("account"), slurm.get("partition")) == (
        "<account>",
        "<partition>",
    )


def _with_comment(text: str, comment: str) -> str:
    return f"{text.ljust(COMMENTS_AT - 2)}  # {one_line(comment)}"


def _scalar(value: object) -> str:
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
