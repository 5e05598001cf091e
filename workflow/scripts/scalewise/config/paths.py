"""Check paths of a configuration: every program here must get them unchanged."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Literal

from scalewise.config.errors import Problem

# Snakemake fills in braces and angle brackets. Its plugin for Slurm puts a job's command between double
# quotes, where a shell expands $ and backquotes; the job's shell misreads quotes and backslashes.
_CHANGED = re.compile(r"^-|[{}<>$`\\'\"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|^$")


def invalid_command(path: str) -> tuple[str, str] | None:
    """Return what is wrong with a path in the command line of a job; None if it can be used.

    Returns:
        A clause that names the value, and the fix.
    """
    if (found := _CHANGED.search(path)) is None:
        return None
    text = f"is {path!r}, which programs and shells would not take as it is ({found[0]!r})"
    return text, "Write the path of a file or folder without { } < > $ ` \\, quotes and control characters."


def kind_of(path: Path) -> Literal["file", "folder", "other"] | None:
    """Return whether a path is a file, a folder or something else; None if there is nothing."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def find_site_file(site_file: str | Path, checkout: Path | None) -> Path:
    """Find the site's file below this folder, or else below Scalewise's, which its profiles refer to.

    Args:
        site_file: The key's value.
        checkout: Scalewise's folder; None if unknown.
    """
    path = Path(site_file)
    if checkout is None or kind_of(path) is not None or kind_of(checkout / path) != "file":
        return path
    return checkout / path


def site_file_problem(site_file: object) -> Problem | None:
    """Check the key ``site`` before the file is opened; None if it is right or there is none.

    Args:
        site_file: The key's value, of any type.
    """
    if site_file is None or isinstance(site_file, Path):
        return None
    if not isinstance(site_file, str):
        return Problem(("site",), f"Input should be the path of a site file (is {site_file!r})")
    refusal = invalid_command(site_file)
    return Problem(("site",), *refusal) if refusal else None
