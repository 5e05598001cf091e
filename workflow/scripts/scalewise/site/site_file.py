"""Describe partitions of a cluster as a site file: each line with the source of its fact."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from pydantic import ValidationError

from scalewise.config.errors import one_line
from scalewise.config.shape import count_devices
from scalewise.config.site import SiteFile
from scalewise.config.slurm import duration_seconds
from scalewise.records import replaced_whole
from scalewise.site.cluster import ClusterError, read_cluster
from scalewise.site.commands import ask, missing_commands
from scalewise.site.places import Place, SiteOptions, places_of

SITE_FILE = Path("profiles/slurm/site.yaml")
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
    described = [describe(place, options.constraint) for place in places_of(cluster, options)]
    places = dict(zip(_names(described), described, strict=True))
    schema = os.path.relpath(checkout / "workflow/schemas/site.schema.json", path.absolute().parent)
    facts = {"cluster": cluster, "places": places, "schema": schema, "command": options.command}
    page: Any = _template().make_module(facts | {"date": datetime.now(UTC).date()})
    text = aligned(str(page))
    try:
        SiteFile.model_validate(yaml.safe_load(text))
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))} {each['msg']}" for each in error.errors())
        raise ClusterError(
            f"Slurm reports what no site file can hold: {found}. Fill in profiles/slurm/site.yaml by hand."
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{path} cannot be written ({error.strerror}). Name another --output.") from None
    use = "" if path.resolve() == (checkout / SITE_FILE).resolve() else f" --config site={path}"
    several, compared = (
        ("s", " `partitions: all` in an experiment compares them.") if len(places) > 1 else ("", "")
    )
    return [
        *dict.fromkeys(line for place in described for line in page.remarks(place).splitlines()),
        f"{path} describes partition{several} {', '.join(places)}.{compared} Next:",
        f"  snakemake -n --profile profiles/slurm{use}",
        f"  snakemake preflight --profile profiles/slurm{use}",
    ]


def holds_placeholders(path: Path) -> bool:
    """Return whether a site file is the shipped one, with account and partition not filled in."""
    try:
        slurm = yaml.safe_load(path.read_text(encoding="utf-8"))["slurm"]
        return (slurm["account"], slurm["partition"]) == ("<account>", "<partition>")
    except (OSError, ValueError, LookupError, TypeError, yaml.YAMLError):
        return False


# ---- the facts


def describe(place: Place, constraint: str) -> Place:
    """Add the further options of jobs, and Slurm's answer on a job of whole nodes.

    If Slurm refuses the default QOS, each QOS of the account is tried.
    """
    extra = [f"--constraint={constraint}"] if constraint else []
    if place.excluded:
        extra.append(f"--exclude={compressed([node.name for node in place.excluded])}")
    tasks = 1 if place.gpu_type is None else place.devices
    minutes = min(TEST_MINUTES, (duration_seconds(place.longest) or 3600) // 60 or 1)
    words = [
        *([f"--account={place.account.account}"] if place.account else []),
        *(f"--partition={place.name}", f"--nodes={place.fewest_nodes}", f"--ntasks-per-node={tasks}"),
        f"--cpus-per-task={max(place.cpus // tasks, 1)}",
        *([] if place.gpu_type is None else [f"--gres={place.gres}"]),
        *([f"--mem={place.memory_mb}"] if place.memory_mb else []),
        *(f"--time={minutes}", *extra),
    ]
    refusal = ""
    for qos in ([], *([f"--qos={name}"] for name in (place.account.qos if place.account else ()))):
        answer = ask("sbatch", "--test-only", *words, *qos, "--wrap=true")
        if answer.ok:
            return replace(place, extra=[*extra, *qos], refusal=refusal)
        refusal = refusal or answer.error
        if "qos" not in refusal.lower():
            break
    return replace(place, extra=extra, refusal=refusal, refused=shlex.join(words))


# ---- text


def _template() -> Template:
    environment = Environment(  # noqa: S701 - YAML, whose values are quoted by the filter
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "yaml": _scalar,
        "one_line": one_line,
        "nodes": lambda n: count_devices(n, "node"),
    }
    return environment.get_template("site.yaml.j2")


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def aligned(text: str) -> str:
    """Return YAML with the comments behind its values in one column."""
    parts = (re.fullmatch(r"( *[^#\s].*?)(  # .*)", line) or line for line in text.splitlines())
    return "".join(f"{part if isinstance(part, str) else f'{part[1]:<34}{part[2]}'}\n" for part in parts)


def _names(places: Sequence[Place]) -> list[str]:
    """Return a name for each place that the site file can hold, and a folder's name."""
    of_partition = Counter(place.name for place in places)
    names: list[str] = []
    for place in places:
        name = f"{place.name}-{place.gpu_type}" if of_partition[place.name] > 1 else place.name
        name = re.sub(r"[^A-Za-z0-9_-]", "-", name).lstrip("_-")[:32]
        names.append(name if name not in names else f"{name[:28]}-{len(names)}")
    return names


def compressed(names: Sequence[str]) -> str:
    """Return names of nodes as Slurm writes them, ``n[1-3,7],login``; a number counts at the end only."""
    numbered: dict[tuple[str, int], list[int]] = defaultdict(list)
    plain = []
    for name in sorted(names):
        if parts := re.fullmatch(r"(.*?)(\d+)", name):
            numbered[parts[1], len(parts[2])].append(int(parts[2]))
        else:
            plain.append(name)
    found = []
    for (prefix, width), numbers in numbered.items():
        # numbers that follow each other keep their distance to their place in the list
        runs = groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])
        ranges = [[f"{number:0{width}}" for _, number in run] for _, run in runs]
        shown = ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges)
        found.append(f"{prefix}{shown}" if len(numbers) == 1 else f"{prefix}[{shown}]")
    return ",".join([*found, *plain])
