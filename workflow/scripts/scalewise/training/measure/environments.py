"""Origin of a number as far as the host tells it: commit, kernel, CPU. Needs no torch."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

from scalewise.records import Environment


def commit() -> str | None:
    """The workflow's commit, as the rules' environment gives it; None outside a checkout."""
    return os.environ.get("SCALEWISE_COMMIT") or None


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
