"""Describe the origin of a number without torch: commit of the code, operating system, hosts."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from scalewise.records import Environment

COMMIT = "SCALEWISE_COMMIT"
"""Variable with the commit of the code, which a job sets for its ranks: their container may lack git."""


def source_version(scripts: Path) -> str:
    """Return the commit of the checkout, with ``-dirty`` if its scripts differ; empty without a checkout.

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
    """Return the commit that the job has set for its ranks; None outside a checkout."""
    return os.environ.get(COMMIT) or None


def operating_system() -> str:
    """Return kernel and machine, such as ``Linux 6.1.0 x86_64``."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def merge_environments(ranks: Sequence[Environment]) -> list[Environment]:
    """Return every different environment of the ranks once, with all hosts that have it.

    Args:
        ranks: One for each rank, in rank order.
    """
    merged: list[Environment] = []
    for rank in ranks:
        for index, environment in enumerate(merged):
            if environment.model_copy(update={"hosts": rank.hosts}) == rank:
                hosts = list(dict.fromkeys([*environment.hosts, *rank.hosts]))
                merged[index] = environment.model_copy(update={"hosts": hosts})
                break
        else:
            merged.append(rank)
    return merged
