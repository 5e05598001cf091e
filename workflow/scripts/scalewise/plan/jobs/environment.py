"""What the rules' shell commands find in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scalewise.plan.catalog.datasets import CHECKSUMS_VARIABLE, MIRROR_VARIABLE
from scalewise.plan.config.site import Site
from scalewise.plan.jobs import launch
from scalewise.plan.jobs.preflight import ENVIRONMENT_VARIABLE, Preflight


def rule_environment(
    script: str, origin: str, labels: str, preflight: Preflight, site: Site, environ: Mapping[str, str]
) -> dict[str, str]:
    """What a command needs but no result depends on.

    It stands here and not in ``params``, so that moving the checkout or changing a title makes
    nothing again.

    Args:
        script: an entry script, where Snakemake has put it.
        origin: where Snakemake took it from, a path or an address.
        labels: titles and descriptions, as JSON.
        preflight: what a preflight is to look at.
        site: facts of the machine or cluster.
        environ: the environment as it is.

    Returns:
        variables to set. ``python`` becomes the interpreter that runs Snakemake, unless Snakemake
        activates an environment of its own in front of it.
    """
    proxies = site.facts.proxies.model_dump(exclude_none=True) if site.facts.proxies else {}
    # where files come from changes nothing in them: their checksums say what they must be
    downloads = {MIRROR_VARIABLE: site.facts.data_mirror, CHECKSUMS_VARIABLE: site.facts.data_checksums}
    return {
        **{name: place for name, place in downloads.items() if place is not None},
        **{f"{scheme}_proxy": address for scheme, address in proxies.items()},
        launch.ENVIRONMENT_VARIABLE: launch.Start.on(site).model_dump_json(),
        ENVIRONMENT_VARIABLE: preflight.model_dump_json(),
        "SCALEWISE_SCRIPTS": str(Path(script).parent),
        "SCALEWISE_LABELS": labels,
        "SCALEWISE_COMMIT": source_version(origin),
        "PATH": os.pathsep.join(filter(None, [str(Path(sys.executable).parent), environ.get("PATH")])),
    }


def source_version(origin: str) -> str:
    """Commit of the checkout, with ``-dirty`` where its scripts differ; an address speaks for itself.

    Empty for a folder that is no checkout.
    """
    folder = Path(origin).parent
    if not folder.is_dir():
        return origin
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        # the scripts alone: an edited configuration is not changed code
        changed = _git(folder, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
