"""A checkout on a machine whose PATH is known: with Slurm's commands, or without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.stand_ins import system_programs
from tests.workflow.conftest import ROOT, Outcome

ACCOUNT = "proj123"
PARTITION = "gpu"
PLACEHOLDERS = {"<account>": ACCOUNT, "<partition>": PARTITION, "<netid>": "abc123"}
"""Of the shipped site files, with what a user writes instead."""


def filled_in(site: Path) -> str:
    """Return the text of a shipped site file without placeholders."""
    text = site.read_text(encoding="utf-8")
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return text


@dataclass(frozen=True)
class LoginNode:
    """A checkout on a machine.

    Args:
        folder: the checkout.
        programs: all of PATH.
    """

    folder: Path
    programs: Path

    @classmethod
    def at(cls, place: Path) -> LoginNode:
        """With the shipped configuration, profiles and rules, and without Slurm."""
        folder = place / "checkout"
        for part in ("config", "profiles", "workflow"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(folder, system_programs(place / "programs"))

    def write(self, name: str, text: str) -> None:
        """A file of the checkout."""
        (self.folder / name).write_text(text, encoding="utf-8")

    def fill_in(self, site: str) -> None:
        """Give a site file an account, a partition and a user's name."""
        self.write(site, filled_in(self.folder / site))

    def snakemake(self, *arguments: str, profile: str = "profiles/slurm", **environment: str) -> Outcome:
        """Run snakemake there as a user does."""
        outside = {
            name: value
            for name, value in os.environ.items()
            if not re.match("SLURM_|SBATCH_|SRUN_|SINFO_|SNAKEMAKE_", name)
        }
        snakemake = str(Path(sys.executable).with_name("snakemake"))
        done = subprocess.run(
            [snakemake, "--profile", profile, *arguments],
            cwd=self.folder,
            env=outside | {"PATH": str(self.programs)} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout)
