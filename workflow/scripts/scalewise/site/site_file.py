"""Write places of a cluster into a site file: each value with the source of its fact."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from scalewise.config.errors import UserError, one_line
from scalewise.config.shape import count_devices
from scalewise.config.slurm import duration_seconds
from scalewise.records import write_text
from scalewise.site.cluster import NO_ACCOUNTING, names, number
from scalewise.site.commands import ask
from scalewise.site.places import Place, is_part_of_gpu

SITE_FILE = Path("profiles/slurm/site.yaml")
TEST_MINUTES = 10
WIDTH = 80

Row = tuple[str, object, str]
"""A key of the site file, its value and the value's source; without a value, a remark on the key."""
Section = tuple[list[Row], list[Row], list[str]]
"""Facts of nodes, facts of their jobs, and what the user should check or choose."""


def write_site_file(
    places: Sequence[Place], path: Path, checkout: Path, *, command: str = "", force: bool = False
) -> list[str]:
    """Write the file; return lines for the terminal.

    Args:
        places: What it describes, the default one first.
        path: The file to write.
        checkout: Scalewise's folder.
        command: The command as the user gave it.
        force: Replace a file that the user may have written.

    Raises:
        UserError: There is such a file, or the file cannot be written.
    """
    if path.exists() and not force and "account: <account>" not in path.read_text(errors="replace"):
        raise UserError(f"{path} exists. Add --force to replace it, or --output to write another file.")
    sections: dict[str, Section] = {}
    for place in places:
        several = sum(each.name == place.name for each in places) > 1
        name = re.sub(r"[^A-Za-z0-9_-]", "-", f"{place.name}-{place.gpu_type}" if several else place.name)
        name = name.lstrip("_-")[:29]
        sections[f"{name}-{len(sections)}" if name in sections else name] = describe(place)
    schema = os.path.relpath(checkout / "workflow/schemas/site.schema.json", path.absolute().parent)
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Cluster {places[0].config.get('ClusterName', '(no name)')}, {datetime.now(UTC).date()}, by",
        f"#   {one_line(command)}",
        "# Behind a value is its source in Slurm. All keys: config/README.md. Test it by",
        "#   snakemake preflight --profile profiles/slurm",
        "",
    ]
    if len(places) == 1:
        ((of_nodes, of_jobs, remarks),) = sections.values()
        lines += [*_lines(of_nodes, ""), "", "slurm:", *_lines(of_jobs, "  "), *_wrapped(remarks, "  # ")]
    else:
        lines += [f'default_partition: "{next(iter(sections))}"', "partitions:"]
        for name, (of_nodes, of_jobs, remarks) in sections.items():
            lines += [f'  "{name}":', *_lines(of_nodes + of_jobs, "    "), *_wrapped(remarks, "    # ")]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "\n".join([*lines, ""]))
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}). Name another --output.") from None
    use = "" if path.resolve() == (checkout / SITE_FILE).resolve() else f" --config site={path}"
    described = f"partitions {', '.join(sections)}. `partitions: all` in an experiment compares them"
    return [
        *_wrapped(dict.fromkeys(remark for _, _, remarks in sections.values() for remark in remarks)),
        f"{path} describes {described if len(places) > 1 else f'partition {places[0].name}'}. Next:",
        f"  snakemake -n --profile profiles/slurm{use}",
        f"  snakemake preflight --profile profiles/slurm{use}",
    ]


def describe(place: Place) -> Section:
    """Describe a place as rows of the site file, with remarks."""
    facts, name, nodes, memory = place.partition, place.name, len(place.nodes), place.memory_mb
    gigabytes = memory // 1000 if memory >= 1000 else memory / 1000
    account, accounts, qos = place.payer.get("account"), place.accounts, names(place.payer.get("qos", ""))
    longest, fewest = facts.get("MaxTime", "UNLIMITED"), number(facts, "MinNodes") or 1
    shared, select = facts.get("OverSubscribe", ""), place.config.get("SelectType", "")
    extra = [f"--constraint={place.constraint}"] if place.constraint else []
    if place.excluded:
        listed = ",".join(sorted(node.name for node in place.excluded))
        extra.append(f"--exclude={ask('scontrol', 'show', 'hostlistsorted', listed).text or listed}")
    needed_qos, refusal = try_whole_nodes(place, extra)
    extra += needed_qos
    default = f"{'' if account == accounts.default else 'not '}your default"
    of_nodes: list[Row] = [
        ("accelerator", "cuda" if place.gres else "cpu", "Gres (scontrol show node)"),
        ("devices_per_node", place.devices, f"Gres={place.gres}" if place.gres else "CPU processes"),
        ("cpus_per_node", place.cpus, "CPUEfctv or CPUTot, at most MaxCPUsPerNode"),
        ("memory_gb_per_node", gigabytes or None, "RealMemory, at most MaxMemPerNode"),
        (
            "max_nodes",
            min(nodes, number(facts, "MaxNodes") or nodes),
            f"{count_devices(nodes, 'node')} of this kind, at most MaxNodes",
        ),
    ]
    of_jobs: list[Row] = [
        ("account", account, default if account else accounts.unknown),
        ("QOS", None, f"{place.payer['defaultqos']} by default, yours are {', '.join(qos)}" if qos else ""),
        ("partition", name, "scontrol show partition"),
        ("gpu_type", place.gpu_type or None, "Gres" if place.gpu_type else ""),
        ("longest_walltime", longest if ":" in longest else None, f"MaxTime={longest}"),
    ]
    if shared.startswith("EXCLUSIVE") or select == "select/linear":
        of_jobs.append(("exclusive", True, f"OverSubscribe={shared}, SelectType={select}"))
    if extra:
        of_jobs.append(("extra", extra, "further options of sbatch"))
    remarks = {
        f"Partition {name} has no GPUs: a device is a CPU process on this site.": not place.gres,
        f"{place.gpu_type} is a part of a GPU (MIG). Parts have no peer-to-peer transfer: training on "
        "several of them does not show how training on GPUs scales.": is_part_of_gpu(place.gpu_type),
        "The memory of these nodes is unknown: set memory_gb_per_node if jobs need it.": not memory,
        f"MinNodes={fewest}: Slurm refuses runs of fewer nodes in {name}, such as those of one node. Plan "
        f"device counts from {fewest * place.devices}, or use another partition.": fewest > 1,
        f"The account was not found: {accounts.unknown}. Ask the site for yours, and set slurm.account.": (
            not account and accounts.unknown != NO_ACCOUNTING
        ),
        f"Account {account} pays. Also yours: {', '.join(place.others)} (--account NAME).": place.others,
        f"Partition {name} takes jobs in a reservation only: add --reservation=NAME to slurm.extra.": (
            facts.get("ReqResv") == "YES"
        ),
        f"Excluded from {name} (--exclude in slurm.extra):{place.kinds(place.excluded)}": place.excluded,
        f"The described nodes of {name} differ in their features. If a feature names other GPUs, give this "
        f"command --constraint FEATURE:{place.kinds(place.nodes)}": (
            len({node.features for node in place.nodes}) > 1
        ),
        f"Slurm takes jobs only with {' '.join(needed_qos)} (in slurm.extra). Without: {refusal}": needed_qos,
        f"Slurm refuses a job of whole nodes: {refusal}. Add what is missing to slurm.extra, such as "
        '"--qos=NAME".': refusal and not needed_qos,
    }
    return of_nodes, of_jobs, [text for text, holds in remarks.items() if holds]


def try_whole_nodes(place: Place, extra: Sequence[str]) -> tuple[list[str], str]:
    """Let Slurm test a job of whole nodes; return the QOS that it needs, if any, and the refusal without."""
    tasks = place.devices if place.gres else 1
    longest = duration_seconds(place.partition.get("MaxTime", "")) or 3600
    request = {
        "account": place.payer.get("account"),
        "partition": place.name,
        "nodes": number(place.partition, "MinNodes") or 1,
        "ntasks-per-node": tasks,
        "cpus-per-task": max(place.cpus // tasks, 1),
        "gres": place.gres,
        "mem": place.memory_mb,
        "time": min(TEST_MINUTES, longest // 60 or 1),
    }
    words = [*(f"--{option}={value}" for option, value in request.items() if value), *extra]
    refusal = ""
    for qos in ([], *([f"--qos={name}"] for name in names(place.payer.get("qos", "")))):
        answer = ask("sbatch", "--test-only", *words, *qos, "--wrap=true")
        if answer.ok:
            return qos, refusal
        refusal = refusal or answer.error
        if "qos" not in refusal.lower():
            break
    return [], refusal


def _lines(rows: Iterable[Row], indent: str) -> Iterator[str]:
    """Yield a line of YAML for each row, its source as a comment; rows with neither are left out."""
    for key, value, source in rows:
        if value is not None:
            text = yaml.safe_dump({key: value}, default_flow_style=True, width=10**6).strip()[1:-1]
            yield f"{indent + text:<34}  # {source}"
        elif source:
            yield f"{indent}# {key}: {one_line(source)}"


def _wrapped(texts: Iterable[str], prefix: str = "") -> Iterator[str]:
    """Yield the lines of some texts for a terminal of 80 columns; the lines of a list stay apart."""
    wrapper = textwrap.TextWrapper(WIDTH, prefix, break_long_words=False, break_on_hyphens=False)
    for line in (line for text in texts for line in text.split("\n")):
        wrapper.subsequent_indent = prefix + "    " * line.startswith(" ")
        yield from wrapper.wrap(one_line(line))
