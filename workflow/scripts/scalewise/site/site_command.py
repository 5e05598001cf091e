"""Write the site file of the cluster that this machine belongs to."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import ValidationError

from scalewise.config.errors import key_path, problems_of
from scalewise.config.site import SiteFile
from scalewise.records import replaced_whole
from scalewise.site.choices import choose, left_out_of_all
from scalewise.site.commands import missing_commands
from scalewise.site.facts import Machine, fast_interfaces
from scalewise.site.reported import ClusterError, read_cluster
from scalewise.site.requests import find_gpu_request
from scalewise.site.site_text import holds_placeholders, write_site_text

SITE_FILE = Path("profiles/slurm/site.yaml")
_LEFT_OUT = (
    "--partition all leaves out {}: other partitions have these nodes, too, or their jobs come first. To "
    "compare them, list all partitions by name."
)


@dataclass(frozen=True)
class SiteOptions:
    """Options of the command.

    Args:
        partitions: The partition to describe, or those to compare, or ``all``; empty if there is only one.
        account: The account that pays; None if there is only one.
        gpu_types: The GPU type, or those to compare, or ``all``; empty if the partition has only one.
        output: The file to write.
        force: Replace a file that the user may have written.
        command: The command as the user gave it.
    """

    partitions: Sequence[str]
    account: str | None
    gpu_types: Sequence[str]
    output: Path
    force: bool
    command: str


def write_site_file(options: SiteOptions, checkout: Path) -> list[str]:
    """Ask Slurm, choose, and write the file; return lines for the terminal.

    Args:
        options: The user's.
        checkout: Scalewise's folder.

    Raises:
        ClusterError: Slurm cannot be asked.
        ChoiceError: The user has to choose.
    """
    if missing := missing_commands("scontrol", "sbatch"):
        raise ClusterError(
            f"{', '.join(missing)} not on PATH. Go to a login node of the cluster, or load its Slurm module."
        )
    path = options.output
    if path.exists() and not options.force and not holds_placeholders(path):
        raise ClusterError(f"{path} exists. Add --force to replace it, or --output to write another file.")
    cluster = read_cluster(options.partitions)
    choices = choose(cluster, options.partitions, options.account, options.gpu_types)
    requests = [None if each.gpu_type is None else find_gpu_request(each) for each in choices]
    schema = os.path.relpath(checkout / "workflow" / "schemas" / "site.schema.json", path.absolute().parent)
    machine = Machine(platform.machine(), fast_interfaces())
    site = write_site_text(
        cluster, choices, requests, machine, options.command, schema, datetime.now(UTC).date()
    )
    values = yaml.safe_load(site.text)
    try:
        SiteFile.model_validate(values)
    except ValidationError as error:
        listed = "; ".join(
            f"{key_path(problem.place)} {problem.text}"
            for problem in problems_of(error, (), SiteFile, values)
        )
        raise ClusterError(
            f"Slurm reports what no site file can hold: {listed}. Copy a file of profiles/sites, and fill "
            "it in."
        ) from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_whole(path) as temporary:
            temporary.write_text(site.text, encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"{path} cannot be written ({error.strerror}). Name another --output.") from None
    use = "" if path.resolve() == (checkout / SITE_FILE).resolve() else f" --config site={path}"
    left_out = left_out_of_all(cluster, options.partitions, choices)
    return [
        *([_LEFT_OUT.format(", ".join(left_out))] if left_out else []),
        *site.remarks,
        f"{path} {site.summary} Next:",
        f"  snakemake -n --profile profiles/slurm{use}",
        f"  snakemake preflight --profile profiles/slurm{use}",
    ]
