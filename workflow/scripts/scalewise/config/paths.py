"""Check paths of a configuration: every program here must get them unchanged."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Literal

from scalewise.config.errors import Problem

# Snakemake fills in braces and angle brackets
_FILLED_IN = re.compile(r"[{}<>]")
_SHELL_SIGN = re.compile(r"[$`\\'\"]")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})(/|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")


def invalid_path(path: str) -> tuple[str, str] | None:
    """Return what is wrong with the text of a path; None if it can be used.

    Spaces, quotes and other shell characters are possible: no shell gets a path unquoted.

    Returns:
        A clause that names the value, and the fix.
    """
    if not path:
        return f"is {path!r}, which names nothing", "Write a path."
    if found := _FILLED_IN.search(path):
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
    """Return what is wrong with a path in the command line of a job; None if it can be used.

    Snakemake quotes it as Python does, and the executor plugin for Slurm puts the line between double quotes
    for a shell on the login node: that shell expands ``$`` and backquotes, and the job's shell misreads
    quotes and backslashes.

    Returns:
        A clause that names the value, and the fix.
    """
    if found := _SHELL_SIGN.search(path):
        if _VARIABLE.match(path):
            full = os.path.expandvars(path)
            example = f", such as {full!r}" if full != path else ""
            return f"is {path!r}, and $ is not expanded here", f"Write the full path{example}."
        return (
            f"is {path!r}, and the shell that sends jobs to Slurm may act on the {found[0]}",
            "Rename the file or folder without $ ` \\ and quotes.",
        )
    return invalid_path(path)


def explain_missing(path: str) -> str:
    """Return why there is no file at a path, as a clause for a message."""
    place = Path(path)
    try:
        if not place.is_symlink():
            return "and there is no such file"
        place.stat()
    except FileNotFoundError:
        return f"a link to {str(place.readlink())!r}, where there is nothing"
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "a link that leads to itself"
    except ValueError:
        pass
    return "and there is no such file"


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
        return Problem(("site",), f"is {site_file!r}, not a path", "Write such as profiles/local/site.yaml.")
    refusal = invalid_command(site_file)
    return Problem(("site",), *refusal) if refusal else None
