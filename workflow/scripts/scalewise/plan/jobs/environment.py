"""The environment of the rules' shell commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def rule_environment(scripts: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that every rule's command needs but no result depends on.

    They are not in ``params``, so moving the checkout makes nothing again.

    Args:
        scripts: Folder of the entry scripts.
        environ: The environment as it is.

    Returns:
        variables to set. ``python`` becomes the interpreter that runs Snakemake, unless Snakemake
        activates an environment of its own in front of it.
    """
    return {
        "SCALEWISE_SCRIPTS": str(scripts),
        # a job's own: the checkout may have changed since the study began
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
