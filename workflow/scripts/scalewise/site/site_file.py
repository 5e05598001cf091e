"""Write places of a cluster into a site file: each value with the source of its fact."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from scalewise.config.errors import UserError, one_line
from scalewise.config.shape import count_devices
from scalewise.config.slurm import duration_seconds
from scalewise.plan.allocation import sbatch_options
from scalewise.plan.plan_file import Value
from scalewise.records import write_text
from scalewise.site.cluster import names, number
from scalewise.site.commands import WHAT_IS_MISSING, ask, try_job
from scalewise.site.places import PART_OF_GPU, Place

SITE_FILE = Path("profiles/slurm/site.yaml")
TEST_MINUTES = 10

Row = tuple[str, object, str]
"""A key of the site file, its value and the value's source; without a value, the key is a comment."""
Section = tuple[list[Row], list[Row], list[str]]
"""Facts of nodes, facts of their jobs, and what the user should check or choose."""


def write_site_file(places: Sequence[Place], path: Path, checkout: Path, *, force: bool = False) -> list[str]:
    """Write the file; return lines for the terminal.

    Args:
        places: What it describes, the default one first.
        path: The file to write.
        checkout: Scalewise's folder.
        force: Replace a file that the user may have written.

    Raises:
        UserError: There is such a file, or the file cannot be written.
    """
    if path.is_file() and not force and "account: <account>" not in path.read_text(errors="replace"):
        raise UserError(f"{path} exists. Add --force to replace it, or --output to write another file.")
    sections: dict[str, Section] = {}
    for place in places:
        several = sum(each.name == place.name for each in places) > 1
        name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{place.name}-{place.gpu_type}" if several else place.name)
        name = name.lstrip("-_")[:32]
        is_used = name.lower() in map(str.lower, sections)
        sections[f"{name[:29]}-{len(sections)}" if is_used else name] = describe(place)
    cluster = places[0].config.get("ClusterName", "(no name)")
    schema = os.path.relpath(checkout / "workflow/schemas/site.schema.json", path.absolute().parent)
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Cluster {cluster}, {datetime.now(UTC).date()}, by python workflow/scripts/cli.py site",
        "# Behind a value is its source in Slurm. All keys: config/README.md",
        "",
    ]
    if len(places) == 1:
        ((of_nodes, of_jobs, remarks),) = sections.values()
        lines += [*_lines(of_nodes, ""), "", "slurm:", *_lines(of_jobs, "  "), *_comments(remarks, "  ")]
    else:
        lines += ["partitions:"]
        for name, (of_nodes, of_jobs, remarks) in sections.items():
            lines += [f'  "{name}":', *_lines(of_nodes + of_jobs, "    "), *_comments(remarks, "    ")]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "\n".join([*lines, ""]))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}). Name another --output.") from None
    use = "" if path.resolve() == (checkout / SITE_FILE).resolve() else f" --config site={path}"
    described = f"partitions {', '.join(sections)}. `partitions: all` in an experiment compares them"
    payers = [f"Account {place.payer.get('account', 'unknown')}: {place.paid_by}." for place in places]
    remarks = [remark for _, _, remarks in sections.values() for remark in remarks]
    return [
        *dict.fromkeys([*payers, *remarks]),
        f"{path} describes {described if len(places) > 1 else f'partition {places[0].name}'}. Next:",
        f"  snakemake -n --profile profiles/slurm{use}",
        f"  snakemake preflight --profile profiles/slurm{use}",
    ]


def describe(place: Place) -> Section:
    """Describe a place as rows of the site file, with remarks."""
    facts, name, nodes, gpu_type = place.partition, place.name, place.nodes, place.gpu_type
    cpus = min(nodes[0].cpus, number(facts, "MaxCPUsPerNode") or nodes[0].cpus)
    devices = cpus if gpu_type is None else nodes[0].gpus[gpu_type]
    gres = "" if gpu_type is None else ":".join(filter(None, ["gpu", gpu_type, str(devices)]))
    # of the two, Slurm has one; the partition's replaces the cluster's
    of_partition, of_cluster = (
        number(each, "MaxMemPerNode") or number(each, "MaxMemPerCPU") * cpus for each in (facts, place.config)
    )
    memory = min(node.memory_mb for node in nodes)
    memory = min(memory, of_partition or of_cluster or memory)
    longest, fewest = facts.get("MaxTime", "UNLIMITED"), number(facts, "MinNodes") or 1
    shared, select = facts.get("OverSubscribe", ""), place.config.get("SelectType", "")
    whole = shared.startswith("EXCLUSIVE") or select == "select/linear"
    account, qos = place.payer.get("account", ""), names(place.payer.get("qos", ""))
    max_nodes = min(len(nodes), number(facts, "MaxNodes") or len(nodes))
    extra = [f"--constraint={place.constraint}"] if place.constraint else []
    if place.excluded:
        listed = ",".join(sorted(node.name for node in place.excluded))
        extra.append(f"--exclude={ask('scontrol', 'show', 'hostlistsorted', listed).text or listed}")
    tasks = devices if gres else 1
    request: dict[str, Value] = {
        "slurm_account": account,
        "slurm_partition": name,
        "nodes": fewest,
        "slurm_extra": shlex.join([f"--ntasks-per-node={tasks}", *extra]),
        "cpus_per_task": max(cpus // tasks, 1),
        "gres": gres,
        "mem_mb": memory,
        "runtime": min(TEST_MINUTES, (duration_seconds(longest) or 3600) // 60 or 1),
    }
    needed_qos, refusal = find_qos(sbatch_options(request), qos)
    extra += needed_qos
    of_nodes: list[Row] = [
        ("accelerator", "cuda" if gres else "cpu", "Gres (scontrol show node); cpu if there are no GPUs"),
        ("devices_per_node", devices, f"Gres={gres}" if gres else "CPU processes"),
        ("cpus_per_node", cpus, "CPUEfctv or CPUTot, at most MaxCPUsPerNode"),
        (
            "memory_gb_per_node",
            memory // 1000 or None,
            "RealMemory, at most MaxMemPerNode; set it if unknown",
        ),
        ("max_nodes", max_nodes, f"{count_devices(len(nodes), 'node')} of this kind, at most MaxNodes"),
    ]
    of_jobs: list[Row] = [
        ("account", account or None, place.paid_by),
        ("QOS", None, f"yours: {', '.join(qos)}; default: {place.payer.get('defaultqos', '')}"),
        ("partition", name, "scontrol show partition"),
        ("gpu_type", gpu_type or None, "Gres"),
        ("longest_walltime", longest if ":" in longest else None, f"MaxTime={longest}"),
        ("exclusive", whole or None, f"OverSubscribe={shared}, SelectType={select}"),
        ("extra", extra or None, "further options of sbatch"),
    ]
    remarks = {
        f"{gpu_type} is a part of a GPU (MIG). Parts have no peer-to-peer transfer: training on several of "
        "them does not show how training on GPUs scales.": PART_OF_GPU.search(gpu_type or ""),
        f"MinNodes={fewest}: Slurm refuses runs of fewer nodes in {name}, such as those of one node. Plan "
        f"device counts from {fewest * devices}, or use another partition.": fewest > 1,
        f"Excluded from {name} (--exclude in slurm.extra):{place.kinds(place.excluded)}": place.excluded,
        f"The described nodes of {name} differ in their features. If a feature names other GPUs, give this "
        f"command --constraint FEATURE:{place.kinds(nodes)}": len({node.features for node in nodes}) > 1,
        f"Slurm takes jobs only with {' '.join(needed_qos)} (in slurm.extra). Without: {refusal}": needed_qos,
        f"Slurm refuses a job of whole nodes: {refusal}. {WHAT_IS_MISSING}": refusal and not needed_qos,
    }
    return of_nodes, of_jobs, [text for text, holds in remarks.items() if holds]


def find_qos(options: Sequence[str], yours: Sequence[str]) -> tuple[list[str], str]:
    """Let Slurm test a job; return the QOS that it needs, if any, and the refusal without."""
    refusal = ""
    for qos in ([], *([f"--qos={name}"] for name in yours)):
        answer = try_job([*options, *qos])
        if answer.ok:
            return qos, refusal
        refusal = refusal or one_line(answer.error)
    return [], refusal


def _lines(rows: Iterable[Row], indent: str) -> Iterator[str]:
    """Yield a line of YAML for each row, its source as a comment."""
    for key, value, source in rows:
        text = f"# {key}"
        if value is not None:
            text = yaml.safe_dump({key: value}, default_flow_style=True, width=10**6).strip()[1:-1]
        yield f"{indent + text:<34}  # {one_line(source)}"


def _comments(texts: Iterable[str], indent: str = "") -> Iterator[str]:
    """Yield the lines of some texts as comments."""
    for line in "\n".join(texts).splitlines():
        yield f"{indent}# {one_line(line)}"
