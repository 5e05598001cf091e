"""Explain errors of the file system to the user."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

FIXES = {
    errno.ENOSPC: "Free space there; a quota may also be spent although space is free.",
    errno.EDQUOT: "Your quota there is spent: delete files, or ask for more.",
    errno.EFBIG: "A file may not be so large here: raise `ulimit -f`.",
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make it writable, or use another folder."),
}

_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors for which the free space matters."""


def explain_os_error(label: str, folder: Path, error: OSError) -> str:
    """Return a message of what failed, with the path or else the folder, the reason and the fix."""
    if error.errno == errno.ENOENT and not folder.exists():
        return f"{label} failed: {folder} was removed while it ran. Give the same command to run it again."
    return (
        f"{label} failed: {describe_write_error(error, folder)} Then give the same command again. Other runs "
        "and complete checkpoints are not affected."
    )


def describe_write_error(error: OSError, path: Path, needed_bytes: int = 0) -> str:
    """Return the path, the system's reason, the free space if it matters, and the fix.

    Args:
        error: The error of the system.
        path: Named if the error names none.
        needed_bytes: Size of what was to be written; 0 if unknown.
    """
    path = Path(str(error.filename or path))
    room = ""
    if error.errno in _SPACE_ERRORS:
        free = f"{free_bytes(path):,}"
        room = f" ({needed_bytes:,} bytes needed, {free} free)" if needed_bytes else f" ({free} bytes free)"
    fix = FIXES.get(error.errno or 0, "Check the file system there.")
    return f"{path}: {error.strerror or error}{room}. {fix}"


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
