"""Origin of a number as far as the host tells it: commit, kernel, CPU. Needs no torch."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scalewise.records import Environment

COMMIT = "SCALEWISE_COMMIT"
"""Variable with the commit of the code, from a job for its ranks: their container may not have git."""


def source_version(scripts: Path) -> str:
    """Return the checkout's commit, ``-dirty`` if its scripts differ; empty for a folder that is none.

    Args:
        scripts: Folder of the entry scripts; an edited configuration is not changed code.
    """
    try:
        commit = _git(scripts, "rev-parse", "HEAD")
        changed = _git(scripts, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def commit() -> str | None:
    """Return the commit that the job has given its ranks; None outside a checkout."""
    return os.environ.get(COMMIT) or None


def operating_system() -> str:
    """Kernel and machine, such as ``Linux 6.1.0 x86_64``."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def merge_environments(ranks: Sequence[Environment]) -> list[Environment]:
    """Every different environment of the ranks once, with all hosts that have it.

    Args:
        ranks: One for each rank, in rank order.
    """
    merged: list[Environment] = []
    for alike in ranks:
        for index, found in enumerate(merged):
            if found.model_copy(update={"hosts": alike.hosts}) == alike:
                hosts = list(dict.fromkeys([*found.hosts, *alike.hosts]))
                merged[index] = found.model_copy(update={"hosts": hosts})
                break
        else:
            merged.append(alike)
    return merged
