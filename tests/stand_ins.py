"""Programs on PATH that stand in for others, and a PATH that holds nothing unforeseen."""

import shutil
from collections.abc import Mapping
from pathlib import Path

SYSTEM_PROGRAMS = ("bash", "cat", "env", "git", "sh", "tee", "which")
"""What snakemake and the rules call themselves."""


def stand_ins(folder: Path, scripts: Mapping[str, str], interpreter: str = "/bin/sh") -> Path:
    """Write a program for each script.

    Args:
        folder: for PATH.
        scripts: by the programs' names.
        interpreter: of the scripts.
    """
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        program = folder / name
        program.write_text(f"#!{interpreter}\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
    return folder


def system_programs(folder: Path) -> Path:
    """Link the few programs of the system that are needed, in a folder without Slurm."""
    folder.mkdir(exist_ok=True)
    for name in SYSTEM_PROGRAMS:
        found = shutil.which(name)
        assert found is not None, f"the tests need {name} on PATH"
        (folder / name).symlink_to(found)
    return folder
