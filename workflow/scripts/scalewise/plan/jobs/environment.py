"""The environment of the rules' shell commands, and files that it names."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from scalewise.plan.catalog.datasets import CHECKSUMS_VARIABLE, MIRROR_VARIABLE
from scalewise.plan.config.errors import StudyError
from scalewise.plan.config.site import Site
from scalewise.plan.jobs import launch
from scalewise.plan.jobs.preflight import ENVIRONMENT_VARIABLE, Preflight
from scalewise.records import write_text

HANDED_OVER = Path(".snakemake/scalewise")
"""Folder of the files that carry to commands what may be too long for their arguments and environment."""


def hand_over(text: str, folder: Path = HANDED_OVER) -> Path:
    """Write a text to a file that is named by its content, and return its absolute path.

    Linux takes 128 kB an argument or variable, and a study's titles and definitions have no end. Every
    job that parses the workflow comes here: the file appears whole under its name, is left alone where it
    is there, and a study that is planned beside a running one has a file of its own.

    Raises:
        StudyError: The file cannot be written.
    """
    data = text.encode()
    path = folder.absolute() / f"{hashlib.sha256(data).hexdigest()[:16]}.json"
    try:
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    except OSError as error:
        raise StudyError(
            [f"{path}: cannot be written ({error.strerror}). Make room or change permissions there."]
        ) from error
    return path


def rule_environment(
    scripts: Path, study: Path, preflight: Preflight, site: Site, environ: Mapping[str, str]
) -> dict[str, str]:
    """Set the variables that a command needs but no result depends on.

    It stands here and not in ``params``, so that moving the checkout or changing a title makes
    nothing again.

    Args:
        scripts: Folder of the entry scripts.
        study: File with ``Study.report_facts``.
        preflight: The checks that a preflight makes.
        site: Facts of the machine or cluster.
        environ: The environment as it is.

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
        launch.ENVIRONMENT_VARIABLE: launch.SiteLaunch.of(site).model_dump_json(),
        ENVIRONMENT_VARIABLE: preflight.model_dump_json(),
        "SCALEWISE_SCRIPTS": str(scripts),
        "SCALEWISE_STUDY": str(study),
        "SCALEWISE_COMMIT": source_version(scripts),
        "PATH": os.pathsep.join(filter(None, [str(Path(sys.executable).parent), environ.get("PATH")])),
    }


def source_version(scripts: Path) -> str:
    """Return the checkout's commit, ``-dirty`` if its scripts differ; empty for a folder that is none."""
    try:
        commit = _git(scripts, "rev-parse", "HEAD")
        # the scripts alone: an edited configuration is not changed code
        changed = _git(scripts, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
