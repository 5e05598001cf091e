"""What the rules' shell commands find in their environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def rule_environment(scripts: Path, labels: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a command needs but no result depends on.

    It stands here and not in ``params``, so that moving the checkout or changing a title makes
    nothing again.

    Args:
        scripts: folder of the entry scripts.
        labels: titles and descriptions, as JSON.
        environ: the environment as it is.

    Returns:
        variables to set: ``python`` becomes the interpreter that runs Snakemake, unless Snakemake
        activates an environment of its own in front of it.
    """
    return {
        "SCALEWISE_SCRIPTS": str(scripts),
        "SCALEWISE_LABELS": labels,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")]),
    }
