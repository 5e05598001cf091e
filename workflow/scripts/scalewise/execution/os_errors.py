"""Explain errors of the file system to the user."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors for which the free space matters."""


def explain_os_error(label: str, folder: Path, error: OSError) -> str:
    """Return a message with the path or else the folder, the system's error, the free space and the fix."""
    if error.errno == errno.ENOENT and not folder.exists():
        return f"{label} failed: {folder} was removed while it ran. Give the same command to run it again."
    path = Path(str(error.filename or folder))
    reason = error.strerror or str(error)
    fixes = {
        errno.ENOSPC: "Make room there",
        errno.EDQUOT: "Your quota is used up: make room there",
        errno.EFBIG: "The limit of a file's size (ulimit -f) is too low for it: raise it",
        **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Make it writable, or use another folder"),
    }
    fix = fixes.get(error.errno or 0, "Fix this")
    room = f" ({free_bytes(path):,} bytes are free there)" if error.errno in _SPACE_ERRORS else ""
    return (
        f"{label} failed: {path}: {reason}{room}. {fix}, and give the same command again. Other runs and "
        "complete checkpoints are not affected."
    )


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write at a path; 0 if unknown."""
    for place in (path, *path.absolute().parents):
        with suppress(OSError):
            return shutil.disk_usage(place).free
    return 0
