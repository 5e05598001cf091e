"""Ports at which processes accept connections, by the kernel's tables."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

LISTENS = "0A"
"""How the kernel spells the state of a socket that accepts connections."""


def listening(pid: int) -> set[str]:
    """The addresses that a process accepts connections at, in its own network namespace."""
    process = Path(f"/proc/{pid}")
    try:
        held = set()
        for one in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # it has been closed since
                held.add(str(one.readlink()))
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in (process / "net" / table).read_text().splitlines()[1:]
        ]
    except OSError:
        return set()  # it has ended
    return {row[1] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in held}
