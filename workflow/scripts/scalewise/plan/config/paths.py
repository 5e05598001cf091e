"""Paths that a configuration may name: those that reach every program here as they were written."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Literal

from scalewise.plan.config.errors import Problem

# braces and angle brackets: Snakemake puts wildcards and folders of its own in their place
_TAKEN = re.compile(r"[{}<>]")
_OBEYED = re.compile(r"[$`\\'\"]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")


def invalid_path(path: str) -> tuple[str, str] | None:
    """Say what is wrong with a path as text, whatever lies there; None for one that can be used.

    Spaces, quotes and what else a shell reads are fine: no shell sees a path unquoted.

    Returns:
        A clause that names the value, and the cure.
    """
    if not path:
        return f"is {path!r}, which names nothing", "Write a path."
    if found := _TAKEN.search(path):
        return (
            f"is {path!r}, and Snakemake reads {found[0]} in a path as a place to fill in",
            "Rename the file or folder without { } < and >.",
        )
    if _CONTROL.search(path):
        return (
            f"is {path!r}, with a line break or another control character",
            "Rename the file or folder without it.",
        )
    if path.startswith("-"):
        return f"is {path!r}, which commands take for an option", f"Write {'./' + path!r}."
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return f"is {path!r}, which no file name can spell", "Rename the file or folder in plain text."
    return None


def invalid_command(path: str) -> tuple[str, str] | None:
    """Say what is wrong with a path that stands in the command line of a job; None for one that can be used.

    Snakemake quotes it there as Python would, and the executor plugin for Slurm puts the line between double
    quotes for a shell of the login node: that shell obeys ``$`` and backquotes, and the job's is confused by
    quotes and backslashes.

    Returns:
        A clause that names the value, and the cure.
    """
    if found := _OBEYED.search(path):
        return (
            f"is {path!r}, and a shell may obey the {found[0]} where Snakemake sends jobs to Slurm",
            "Rename the file or folder without $ ` \\ and quotes.",
        )
    return invalid_path(path)


def kind_of(path: Path) -> Literal["file", "folder", "other"] | None:
    """The kind of what lies at a path; None for nothing, and for a name that no file system takes."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode):
        return "file"
    return "folder" if stat.S_ISDIR(mode) else "other"


def find_site_file(site_file: str | Path, checkout: Path | None) -> Path:
    """The site's file, seen from this folder, or else from Scalewise's: its profiles name theirs from there.

    Args:
        site_file: The key's value.
        checkout: Scalewise's folder; None if unknown.
    """
    path = Path(site_file)
    if checkout is None or kind_of(path) is not None or kind_of(checkout / path) != "file":
        return path
    return checkout / path


def site_file_problem(site_file: object) -> Problem | None:
    """Check the key ``site`` before the file is opened; None where nothing is wrong or no file is named.

    Args:
        site_file: The key's value, of whatever type it was read as.
    """
    if site_file is None or isinstance(site_file, Path):
        return None
    if not isinstance(site_file, str):
        return Problem(("site",), f"is {site_file!r}, not a path", "Write such as profiles/local/site.yaml.")
    refusal = invalid_command(site_file)
    return Problem(("site",), *refusal) if refusal else None
