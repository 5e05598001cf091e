"""Folders in which real Snakemake runs the real workflow, and what its commands print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.paths import ROOT, SNAKEFILE
from tests.stand_ins import system_programs

ACCOUNT = "proj123"
PARTITION = "gpu"
PLACEHOLDERS = {"<account>": ACCOUNT, "<partition>": PARTITION, "<netid>": "abc123"}
"""Of the shipped site files, with what a user writes instead."""

SITE = """\
accelerator: cpu
devices_per_node: 2
cpus_per_node: 2
"""

TINY = """\
defaults:
  dataset: digits
  model: linear
  epochs: 2
  warmup_steps: 2
  devices: [1]
  target: {accuracy: 0.5}
experiments:
  strong:
    title: First title
    global_batch_size: 256
    repeats: 2
    learning_rate: 0.05
    tensorboard: true
    sweep:
      gradient_as_bucket_view: [false]
  weak:
    scaling: weak
    batch_size_per_device: 128
    repeats: 1
    learning_rate: 0.05
"""


@dataclass(frozen=True)
class Outcome:
    """How a Snakemake command ended."""

    code: int
    text: str

    @property
    def rules(self) -> set[str]:
        """Rules of which it runs jobs, or would run some."""
        return set(re.findall(r"^(?:local)?rule (\w+):\n", self.text, re.MULTILINE))

    @property
    def trained(self) -> set[str]:
        """Runs that it trains, or would train, as experiment/run."""
        jobs = re.findall(r"^rule train:\n(?:    .*\n)+", self.text, re.MULTILINE)
        matches = [re.search(r"wildcards: experiment=(\S+), run=(\S+)", job) for job in jobs]
        return {f"{match[1]}/{match[2]}" for match in matches if match}


def outcome_of(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Outcome:
    """Run a command to its end, without a terminal."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Outcome(done.returncode, done.stdout)


def path_with(python: Path) -> str:
    """Return PATH with the programs next to an interpreter and then those of this Python first."""
    return os.pathsep.join([str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"]])


@dataclass(frozen=True)
class Workplace:
    """A folder in which Snakemake runs the workflow of this checkout.

    Args:
        python: The interpreter of Snakemake and its commands, and of ranks where a site on CPUs names none.
    """

    folder: Path
    python: Path

    def snakemake(self, *arguments: str, config: str | None = None, site: str | None = SITE) -> Outcome:
        """Run snakemake there; the texts become its configuration and its site file."""
        command = [str(self.python), "-m", "snakemake", "-s", str(SNAKEFILE)]
        if config is not None:
            (self.folder / "study.yaml").write_text(config)
            command += ["--configfile", "study.yaml"]
        if site is not None:
            if site.startswith("accelerator: cpu\n") and "\npython: " not in site:
                site += f"python: {self.python}\n"
            (self.folder / "site.yaml").write_text(site)
            command += ["--config", "site=site.yaml"]
        return self.run([*command, "--cores", "4", *arguments])

    def run(self, command: Sequence[str]) -> Outcome:
        """Run a command there; ``snakemake`` and ``python`` are those next to the interpreter."""
        return outcome_of(command, self.folder, os.environ | {"PATH": path_with(self.python)})


def filled_in(site: Path) -> str:
    """Return the text of a shipped site file without placeholders."""
    text = site.read_text(encoding="utf-8")
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return text


def copy_checkout(folder: Path) -> None:
    """Copy the shipped configuration, profiles and rules, with what Python has compiled of them."""
    for part in ("config", "profiles", "workflow"):
        # a compiled module has another name while it is written
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.pyc.*"))


@dataclass(frozen=True)
class LoginNode:
    """A checkout on a machine.

    Args:
        folder: the checkout.
        programs: all of PATH.
        python: The interpreter of Snakemake and its commands.
    """

    folder: Path
    programs: Path
    python: Path

    @classmethod
    def at(cls, place: Path, python: Path) -> LoginNode:
        """With the shipped configuration, profiles and rules, and without Slurm."""
        copy_checkout(place / "checkout")
        return cls(place / "checkout", system_programs(place / "programs"), python)

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
        command = [str(self.python), "-m", "snakemake", "--profile", profile, *arguments]
        return outcome_of(command, self.folder, outside | {"PATH": str(self.programs)} | environment)


@dataclass(frozen=True)
class FinishedStudy:
    """A study that has run to its report."""

    workplace: Workplace
    first: Outcome

    @property
    def results(self) -> Path:
        """Its results."""
        return self.workplace.folder / "results"

    def after(self, *edits: tuple[str, str]) -> Outcome:
        """Return the dry run after edits of its configuration, each an old and a new text."""
        config = TINY
        for old, new in edits:
            assert old in config
            config = config.replace(old, new)
        outcome = self.workplace.snakemake("-n", config=config)
        assert outcome.code == 0, outcome.text
        return outcome
