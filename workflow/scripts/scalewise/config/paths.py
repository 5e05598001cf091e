"""Check paths of a configuration: every program here must get them unchanged."""

from __future__ import annotations

import os
import re
from pathlib import Path

from scalewise.config.errors import Problem, RefusedValueError

# Snakemake fills in braces and angle brackets. Its plugin for Slurm puts a job's command between double
# quotes, where a shell expands $ and backquotes; the job's shell misreads quotes and backslashes.
_CHANGED = re.compile(r"^-|[{}<>$`\\'\"\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]|^$")


def plain_path(path: str) -> str:
    """Return a path that may stand in the command line of a job.

    Raises:
        RefusedValueError: Programs or shells would change it.
    """
    if found := _CHANGED.search(path):
        text = f"is {path!r}, which programs and shells would not take as it is ({found[0]!r})"
        raise RefusedValueError(text, "Use a path without { } < > $ ` \\, quotes and control characters.")
    return path


def is_file(path: str | Path) -> bool:
    """Return whether there is such a file; False for what cannot be a path."""
    return os.path.isfile(path)  # noqa: PTH113  # Path.is_file raises for long names


def find_site_file(site_file: str | Path, checkout: Path | None) -> Path:
    """Find the site's file below this folder, or else below Scalewise's, which its profiles refer to.

    Args:
        site_file: The key's value.
        checkout: Scalewise's folder; None if unknown.
    """
    path = Path(site_file)
    inside = checkout / path if checkout else path
    return inside if is_file(inside) and not is_file(path) else path


def site_file_problem(site_file: object) -> Problem | None:
    """Check the key ``site`` before the file is opened; None if it is right or there is none.

    Args:
        site_file: The key's value, of any type.
    """
    if site_file is None or isinstance(site_file, Path):
        return None
    if not isinstance(site_file, str):
        return Problem(("site",), f"Input should be the path of a site file (is {site_file!r})")
    try:
        plain_path(site_file)
    except RefusedValueError as error:
        return error.at(("site",))
    return None
