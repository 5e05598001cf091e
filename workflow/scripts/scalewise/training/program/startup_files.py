"""The folder on PYTHONPATH that brings the probe into every Python process of a user's program."""

from __future__ import annotations

from pathlib import Path

PROBE = Path(__file__).resolve().parent / "probe"


def write_startup(folder: Path) -> None:
    """Write the ``sitecustomize.py`` that the interpreter runs as it starts; it changes no environment.

    It is the source of ``probe/startup.py`` with a call at its end: a process that never imports torch
    loads no other file of the probe.

    Args:
        folder: Made if it is not there; it then goes first on PYTHONPATH.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = (PROBE / "startup.py").read_text(encoding="utf-8")
    call = f"\n\nbegin({str(PROBE)!r}, {str(folder.resolve())!r})\n"
    (folder / "sitecustomize.py").write_text(source + call, encoding="utf-8")
