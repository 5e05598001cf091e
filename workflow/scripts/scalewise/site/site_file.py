"""Describe partitions of a cluster as a site file: each line with the source of its fact."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import ValidationError

from scalewise.config.errors import key_path, one_line, problems_of
from scalewise.config.shape import count_devices
from scalewise.config.site import SiteFile
from scalewise.records import replaced_whole
from scalewise.site.cluster import Cluster, ClusterError, Node, read_cluster
from scalewise.site.commands import ask, missing_commands
from scalewise.site.places import PART_OF_GPU, Place, SiteOptions, hardware, places_of, walltime

SITE_FILE = Path("profiles/slurm/site.yaml")
COMMENTS_AT = 34
MOST_KINDS = 8
"""Most kinds of nodes in one remark."""
TEST_MINUTES = 10


def write_site_file(options: SiteOptions, checkout: Path) -> list[str]:
    """Ask Slurm and write the file; return lines for the terminal.

    Args:
        options: The user's.
        checkout: Scalewise's folder.

    Raises:
        ClusterError: Slurm cannot be asked, or the user has to choose.
    """
    if missing := missing_commands("scontrol", "sbatch"):
        raise ClusterError(
            f"{', '.join(missing)} not on PATH. Go to a login node of the cluster, or load its Slurm module."
        )
    path = options.output
    if path.exists() and not options.force and not holds_placeholders(path):
        raise ClusterError(f"{path} exists. Add --force to replace it, or --output to write another file.")
    cluster = read_cluster(options.partitions)
    places = places_of(cluster, options)
    for place in places:
        _describe(place, cluster, options)
    schema = os.path.relpath(checkout / "workflow" / "schemas" / "site.schema.json", path.absolute().parent)
    names = _names(places)
    text = _text(cluster, places, names, options.command, schema)
    _check(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{path} cannot be written ({error.strerror}). Name another --output.") from None
    use = "" if path.resolve() == (checkout / SITE_FILE).resolve() else f" --config site={path}"
    compared = " `partitions: all` in an experiment compares them." if len(places) > 1 else ""
    return [
        *dict.fromkeys(remark for place in places for remark in place.remarks),
        f"{path} describes partition{'s' if len(places) > 1 else ''} {', '.join(names)}.{compared} Next:",
        f"  snakemake -n --profile profiles/slurm{use}",
        f"  snakemake preflight --profile profiles/slurm{use}",
    ]


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


# ---- the facts


def _describe(place: Place, cluster: Cluster, options: SiteOptions) -> None:
    partition, count = place.partition, count_devices(len(place.nodes), "node")
    if place.gpu_type is None:
        _add(place.site, "accelerator", "cpu", "no Gres=gpu on these nodes (scontrol show node)")
        _add(place.site, "devices_per_node", place.devices, "a device is a CPU process: one a CPU")
        place.remarks.append(
            f"Partition {partition.name} has no GPUs: a device is a CPU process on this site."
        )
    else:
        kind = f"{place.gpu_type}:" if place.gpu_type else ""
        _add(place.site, "accelerator", "cuda", "Gres=gpu (scontrol show node)")
        _add(place.site, "devices_per_node", place.devices, f"Gres=gpu:{kind}{place.devices} of {count}")
        if PART_OF_GPU.search(place.gpu_type):
            place.remarks.append(
                f"{place.gpu_type} is a part of a GPU (MIG). Parts have no peer-to-peer transfer: training "
                "on several of them does not show how training on GPUs scales."
            )
    cpus, source = place.nodes[0].cpus, "CPUEfctv or CPUTot (scontrol show node)"
    if partition.max_cpus_per_node is not None and partition.max_cpus_per_node < cpus:
        cpus, source = partition.max_cpus_per_node, "MaxCPUsPerNode (scontrol show partition)"
    _add(place.site, "cpus_per_node", cpus, source)
    memory = _memory(place, cpus)
    if memory is None:
        place.site.append("# memory_gb_per_node: RealMemory is not set (scontrol show node)")
        place.remarks.append("The memory of these nodes is unknown: set memory_gb_per_node if jobs need it.")
    else:
        gigabytes = memory // 1000 if memory >= 1000 else memory / 1000
        _add(
            place.site, "memory_gb_per_node", gigabytes, f"{memory} MB: RealMemory, or the partition's limit"
        )
    limits = {f"{count} of this kind": len(place.nodes)}
    if partition.max_nodes is not None:
        limits["MaxNodes (scontrol show partition)"] = partition.max_nodes
    source, most = min(limits.items(), key=lambda pair: pair[1])
    _add(place.site, "max_nodes", max(most, 1), source)
    if partition.min_nodes > 1:
        text = f"MinNodes={partition.min_nodes}: Slurm refuses runs of fewer nodes in {partition.name}"
        place.site.append(f"# {text}")
        place.remarks.append(
            f"{text}, such as those of one node. Plan device counts from "
            f"{partition.min_nodes * place.devices}, or use another partition."
        )
    extra = _job(place, cluster, options.constraint)
    _test(place, cpus, memory or 0, extra)


def _memory(place: Place, cpus: int) -> int | None:
    known = [node.memory_mb for node in place.nodes if node.memory_mb is not None]
    if len(known) < len(place.nodes):
        return None
    per_cpu = place.partition.max_memory_mb_per_cpu
    limits = (min(known), place.partition.max_memory_mb, per_cpu and per_cpu * cpus)
    return min(limit for limit in limits if limit)


def _job(place: Place, cluster: Cluster, constraint: str) -> list[str]:
    """Add the facts below ``slurm:``, and return the further options of sbatch."""
    partition, account, lines = place.partition, place.account, place.slurm
    if account is None:
        lines.append(f"# account: {cluster.accounts.unknown}")
        if cluster.accounts.unknown != "this cluster keeps no accounting":
            place.remarks.append(
                f"The account was not found: {cluster.accounts.unknown}. Ask the site for yours, and set "
                "slurm.account."
            )
    else:
        usable = cluster.accounts.usable_in(partition.name)
        others = [name for name in usable if name != account.account and partition.takes_account(name)]
        also = f"; also yours: {', '.join(others)}" if others else ""
        default = "your default" if account.account == cluster.accounts.default else "not your default"
        _add(lines, "account", account.account, f"sacctmgr show associations: {default}{also}")
        if others:
            place.remarks.append(
                f"Account {account.account} pays in {partition.name}. Also yours: {', '.join(others)} "
                "(--account NAME)."
            )
    _add(lines, "partition", partition.name, "scontrol show partition")
    if place.gpu_type:
        _add(lines, "gpu_type", place.gpu_type, "Gres (scontrol show node)")
    if partition.longest_seconds is None:
        lines.append("# longest_walltime: MaxTime=UNLIMITED (scontrol show partition)")
    else:
        _add(
            lines,
            "longest_walltime",
            walltime(partition.longest_seconds),
            "MaxTime (scontrol show partition)",
        )
    if partition.whole_nodes:
        _add(lines, "exclusive", True, f"{partition.whole_nodes}: a job has its nodes to itself")
    else:
        lines.append(
            "# exclusive: false  # a run on a part of a node holds the whole node; this turns it off"
        )
    if partition.needs_reservation:
        place.remarks.append(
            f"Partition {partition.name} takes jobs in a reservation only: add --reservation=NAME to "
            "slurm.extra."
        )
    extra = [f"--constraint={constraint}"] if constraint else []
    extra += _qos(place)
    if place.excluded:
        extra.append(f"--exclude={compressed([node.name for node in place.excluded])}")
    if extra:
        _add(lines, "extra", extra, "further options of sbatch")
    _features(place, cluster)
    return extra


def _qos(place: Place) -> list[str]:
    """Return the option for a QOS that jobs must name, and add a line with the user's."""
    account, partition = place.account, place.partition
    if account is None or not account.qos:
        return []
    allowed = [name for name in account.qos if partition.takes_qos(name)]
    default = f"{account.default_qos} by default; " if account.default_qos else ""
    place.slurm.append(
        f"# QOS: {default}yours are {', '.join(account.qos)}. The preflight meets their limits. Choose by "
        'extra: ["--qos=NAME"]'
    )
    if not allowed:
        place.remarks.append(
            f"Partition {partition.name} takes none of the QOS of account {account.account}: "
            f"{', '.join(account.qos)}. Ask the site."
        )
        return []
    must = (
        partition.allowed_qos is not None if not account.default_qos else account.default_qos not in allowed
    )
    return [f"--qos={allowed[0]}"] if must else []


def _features(place: Place, cluster: Cluster) -> None:
    """Name the nodes that are excluded, and the features that split the others, for the user to choose."""
    nodes = cluster.nodes_of(place.partition.name)
    shared = frozenset.intersection(*(node.features for node in nodes))

    def kinds(nodes: Sequence[Node]) -> list[str]:
        found = Counter((hardware(node), ",".join(sorted(node.features - shared))) for node in nodes)
        return [
            f"{count_devices(number, 'node')} with {hardware}{f', features {features}' if features else ''}"
            for (hardware, features), number in found.most_common(MOST_KINDS)
        ] + [f"{len(found) - MOST_KINDS} more kinds" for _ in found if len(found) > MOST_KINDS][:1]

    if place.excluded:
        listed = kinds(place.excluded)
        place.slurm.extend(f"# excluded: {each}" for each in listed)
        place.remarks.append(
            f"Excluded from {place.partition.name} (--exclude in slurm.extra): {'; '.join(listed)}. The site "
            f"file describes {hardware(place.nodes[0])}."
        )
    if len({node.features for node in place.nodes}) > 1:
        listed = kinds(place.nodes)
        place.slurm.extend(f"# these nodes differ: {each}" for each in listed)
        example = min(
            place.nodes[0].features - shared,
            key=lambda feature: ("gpu" not in feature.lower(), feature),
            default="FEATURE",
        )
        place.remarks.append(
            f"The described nodes of {place.partition.name} differ in their features: {'; '.join(listed)}. "
            "If a feature names other GPUs, choose: give this command --constraint FEATURE, or write such as "
            f'slurm.extra: ["--constraint={example}"].'
        )


def _test(place: Place, cpus: int, memory: int, extra: Sequence[str]) -> None:
    """Ask Slurm once whether it would take a job of whole nodes, and quote its refusal."""
    partition, account = place.partition, place.account
    minutes = min(TEST_MINUTES, (partition.longest_seconds or 3600) // 60 or 1)
    tasks = 1 if place.gpu_type is None else place.devices
    kind = f"{place.gpu_type}:" if place.gpu_type else ""
    words = [
        *([f"--account={account.account}"] if account else []),
        f"--partition={partition.name}",
        f"--nodes={partition.min_nodes}",
        f"--ntasks-per-node={tasks}",
        f"--cpus-per-task={max(cpus // tasks, 1)}",
        *([f"--gres=gpu:{kind}{place.devices}"] if place.gpu_type is not None else []),
        *([f"--mem={memory}"] if memory else []),
        f"--time={minutes}",
        *extra,
    ]
    answer = ask("sbatch", "--test-only", *words, "--wrap=true")
    if answer.ok:
        return
    refusal = answer.error
    fix = "Add what is missing to slurm.extra, or correct the file."
    if re.search(r"\bqos\b", refusal, re.IGNORECASE):
        own = f" Yours are {', '.join(account.qos)}." if account and account.qos else ""
        fix = f'Add the QOS to slurm.extra, as ["--qos=NAME"].{own}'
    place.slurm.append(f"# Slurm refuses a job of {count_devices(partition.min_nodes, 'node')}: {refusal}")
    place.remarks.append(f"Slurm refuses `sbatch {shlex.join(words)}`: {refusal}. {fix}")


# ---- text


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def _add(lines: list[str], key: str, value: object, source: str) -> None:
    lines.append(f"{f'{key}: {_scalar(value)}'.ljust(COMMENTS_AT - 2)}  # {source}")


def _text(cluster: Cluster, places: Sequence[Place], names: Sequence[str], command: str, schema: str) -> str:
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Cluster {cluster.name or '(no name)'}: {cluster.version}, {datetime.now(UTC).date()}, by",
        f"#   {command}",
        "# The comment of a line names its source. All keys: config/README.md. Test it by",
        "#   snakemake preflight --profile profiles/slurm",
        "",
    ]
    if len(places) == 1:
        lines += [*places[0].site, "", "slurm:", *(f"  {line}" for line in places[0].slurm)]
    else:
        lines += [f"default_partition: {_scalar(names[0])}", "partitions:"]
        for name, place in zip(names, places, strict=True):
            lines += [f"  {_scalar(name)}:", *(f"    {line}" for line in (*place.site, *place.slurm))]
    return "".join(f"{one_line(line)}\n" for line in lines)


def _names(places: Sequence[Place]) -> list[str]:
    """Return a name for each place that the site file can hold, and a folder's name."""
    of_partition = Counter(place.partition.name for place in places)
    names: list[str] = []
    for place in places:
        partition = place.partition.name
        name = f"{partition}-{place.gpu_type}" if of_partition[partition] > 1 else partition
        name = re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("_-")[:32]
        names.append(name if name not in names else f"{name[:28]}-{len(names)}")
    return names


def _check(text: str) -> None:
    values = yaml.safe_load(text)
    try:
        SiteFile.model_validate(values)
    except ValidationError as error:
        listed = "; ".join(
            f"{key_path(problem.place)} {problem.text}"
            for problem in problems_of(error, (), SiteFile, values)
        )
        raise ClusterError(
            f"Slurm reports what no site file can hold: {listed}. Fill in profiles/slurm/site.yaml by hand."
        ) from None


def compressed(names: Sequence[str]) -> str:
    """Return names of nodes as Slurm writes them, ``n[1-3,7],login``; a number counts at the end only."""
    numbered: dict[tuple[str, int], list[int]] = {}
    plain = []
    for name in sorted(names):
        if (parts := re.fullmatch(r"(.*?)(\d+)", name)) is None:
            plain.append(name)
        else:
            numbered.setdefault((parts[1], len(parts[2])), []).append(int(parts[2]))
    found = []
    for (prefix, width), numbers in numbered.items():
        ranges: list[list[int]] = []
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        shown = ",".join(
            f"{first:0{width}}" if first == last else f"{first:0{width}}-{last:0{width}}"
            for first, last in ranges
        )
        found.append(f"{prefix}{shown}" if len(numbers) == 1 else f"{prefix}[{shown}]")
    return ",".join([*found, *plain])
