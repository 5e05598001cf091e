"""Write a site file: each line with the fact's source, and a list of what was not found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import yaml

from scalewise.config.errors import one_line
from scalewise.config.site import NOT_FOUND, NotFound
from scalewise.site.choices import Choice
from scalewise.site.facts import (
    Described,
    Facts,
    Machine,
    billing_rule,
    describe_choice,
    units_per_device,
    with_comment,
    write_scalar,
)
from scalewise.site.reported import Cluster
from scalewise.site.requests import GpuRequest

_HEADING = (
    "# NOT FOUND. `snakemake preflight` names these, its job shows the network. Delete what is settled."
)


@dataclass(frozen=True)
class SiteText:
    """A site file.

    Args:
        text: Content of the file.
        summary: Sentences on its content, without the subject.
        remarks: Lines for the terminal.
    """

    text: str
    summary: str
    remarks: Sequence[str]


def write_site_text(
    cluster: Cluster,
    choices: Sequence[Choice],
    requests: Sequence[GpuRequest | None],
    machine: Machine,
    command: str,
    schema: str,
    today: date,
) -> SiteText:
    """Describe a cluster as a site file, with ``partitions`` if there are several choices.

    Args:
        cluster: Slurm's report.
        choices: Partition, account and nodes of each place to compare, the default one first.
        requests: The form of requests for GPUs at each; None without GPUs.
        machine: This machine.
        command: The command that the user gave.
        schema: Path of the schema, from the file's folder.
        today: The date for the heading.
    """
    described = [
        describe_choice(cluster, choice, request, machine, compared=len(choices) > 1)
        for choice, request in zip(choices, requests, strict=True)
    ]
    of_slurm = list(dict.fromkeys(choice.partition.name for choice in choices))
    partitions = f"partition{'s' if len(of_slurm) > 1 else ''} {', '.join(of_slurm)}"
    names = _names(choices)
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Cluster {cluster.name or '(no name)'}, {partitions}: {cluster.version}, {today}.",
        f"# Written by: {one_line(command)}",
        "# The comment of a line names its source. All keys: config/README.md. Test it by",
        "#   snakemake preflight --profile profiles/slurm",
        "",
    ]
    if len(described) == 1:
        (only,) = described
        lines += [*only.site.lines(), "", "slurm:", *only.slurm.lines(2)]
        summary = f"describes {partitions}."
    else:
        _bill(described, cluster)
        lines += _compared(names, described)
        listed = f"{len(names)} partitions: {', '.join(names)}"
        summary = f"describes {listed}. `partitions: all` in an experiment compares them."
    for warning in dict.fromkeys(warning for each in described for warning in each.warnings):
        lines += ["", f"# {one_line(warning)}"]
    not_found = _not_found(names, described)
    lines += _open_facts(not_found)
    remarks = dict.fromkeys(remark for each in described for remark in (*each.remarks, *each.warnings))
    open_remarks = [
        f"Not found: {name}. {reason[:1].upper()}{reason[1:]}. {NOT_FOUND[name]}"
        for name, reason in not_found.items()
    ]
    return SiteText("\n".join(lines) + "\n", summary, [*remarks, *open_remarks])


def _names(choices: Sequence[Choice]) -> list[str]:
    """Return a name for each choice that the site file can hold, and a folder's name."""
    of_partition = Counter(choice.partition.name for choice in choices)
    names: list[str] = []
    for choice in choices:
        partition = choice.partition.name
        gpus = choice.constraint or choice.gpu_type
        name = f"{partition}-{gpus}" if of_partition[partition] > 1 else partition
        name = re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("_-")
        unique, number = name[:32], 1
        while unique in names:
            number += 1
            unique = f"{name[:28]}-{number}"
        names.append(unique)
    return names


def _compared(names: Sequence[str], described: Sequence[Described]) -> list[str]:
    """Return the lines of a site file with partitions: first the facts and sources that all of them share."""
    site, slurm = (_shared([each.site for each in described]), _shared([each.slurm for each in described]))
    lines = ["# The same in all partitions:", *site.lines(), ""]
    if slurm:
        # a key without a value is a mistake in a site file
        keys = any(fact.key for fact in slurm)
        lines += [*(["slurm:"] if keys else []), *slurm.lines(2 if keys else 0), ""]
    lines += [
        with_comment(f"default_partition: {write_scalar(names[0])}", "for experiments that name none"),
        "partitions:",
    ]
    for name, each in zip(names, described, strict=True):
        rest = Facts(fact for fact in (*each.site, *each.slurm) if fact not in (*site, *slurm))
        lines += [f"  {write_scalar(name)}:", *rest.lines(4)]
    return lines


def _shared(parts: Sequence[Facts]) -> Facts:
    """Return the lines that all parts have, with the same source."""
    first, *others = parts
    return Facts(fact for fact in first if all(fact in other for other in others))


def _bill(described: Sequence[Described], cluster: Cluster) -> None:
    """Add the units that a device costs to each partition, if they are known of all.

    They are facts of the site: partitions of equal costs share the line, and ``slurm:`` has no such key.
    """
    if not any(each.choice.partition.weights for each in described):
        for each in described:
            each.site.comment("no billing_per_device_hour: no TRESBillingWeights (scontrol show partition)")
        return
    units = [units_per_device(each, cluster) for each in described]
    unknown = [each.choice.partition for each, found in zip(described, units, strict=True) if found is None]
    for each, found in zip(described, units, strict=True):
        weights = each.choice.partition.weights
        source = f"TRESBillingWeights={weights}" if weights else "no TRESBillingWeights: one unit a CPU"
        if unknown or found is None:
            each.site.comment(
                f"no billing_per_device_hour: {unknown[0].name} has weights of other resources "
                f"(TRESBillingWeights={unknown[0].weights}). Here {source}"
            )
        else:
            rule = f"; {billing_rule(cluster)}" if "," in weights else ""
            each.site.add("billing_per_device_hour", _rounded(found), f"{source}{rule}")
    if unknown:
        described[0].remarks.append(
            f"The costs of these partitions are unknown: {unknown[0].name} bills other resources, too "
            f"({unknown[0].weights}). If you know them, set price_per_device_hour in each partition."
        )


def _rounded(number: float) -> float:
    """Return a number with four digits, a whole one without a point."""
    short = float(f"{number:.4g}")
    return int(short) if short.is_integer() else short


def _not_found(names: Sequence[str], described: Sequence[Described]) -> dict[NotFound, str]:
    """Return the reason for each fact that was not found, with the partitions if it is known of others."""
    found: dict[NotFound, str] = {}
    for fact in dict.fromkeys(fact for each in described for fact in each.not_found):
        partitions: dict[str, list[str]] = {}
        for name, each in zip(names, described, strict=True):
            if fact in each.not_found:
                partitions.setdefault(each.not_found[fact], []).append(name)
        found[fact] = "; ".join(
            reason if len(where) == len(names) else f"on {', '.join(where)} {reason}"
            for reason, where in partitions.items()
        )
    return found


def _open_facts(not_found: Mapping[NotFound, str]) -> list[str]:
    if not not_found:
        return []
    listed = [with_comment(f"  - {name}", reason) for name, reason in not_found.items()]
    return ["", _HEADING, "not_found:", *listed]


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
