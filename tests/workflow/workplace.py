"""Folders in which real Snakemake runs the real workflow, and what its commands print."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.machine import processes_in
from tests.paths import ROOT, SNAKEFILE
from tests.prepared_digits import place_digits_of_study
from tests.stand_ins import system_programs
from tests.waiting import wait_until

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
    proposal: {centre: ncar}
    sweep:
      gradient_as_bucket_view: [false]
  weak:
    scaling: weak
    batch_size_per_device: 128
    repeats: 1
    learning_rate: 0.05
"""


ON_PARTITIONS = """\
experiments:
  digits:
    dataset: digits
    model: linear
    global_batch_size: 256
    epochs: 3
    devices: [1]
    partitions: all
    repeats: 2
    runtime_minutes: 2
"""
"""A study on two partitions of one machine."""

PARTITIONS = """\
accelerator: cpu
cpus_per_node: 2
devices_per_node: 1
partitions:
  one: {price_per_device_hour: 1}
  other: {price_per_device_hour: 50}
"""
"""Facts of a site for it."""


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


@dataclass(frozen=True)
class Running:
    """Snakemake at work, as a shell would have started it: it and all that it starts are one group."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "snakemake.txt").read_text(encoding="utf-8")

    def wait_until(
        self, reached: Callable[[], object], missing: str, longest_pause_seconds: float = 0.3
    ) -> None:
        """Wait for something to happen while Snakemake runs."""
        ended = self.process.poll
        wait_until(
            reached,
            missing,
            ended=lambda: None if ended() is None else self.output,
            longest_pause_seconds=longest_pause_seconds,
        )

    def end(self) -> int:
        """Wait for the end of Snakemake, and return its exit code."""
        ended = self.process.poll
        wait_until(lambda: ended() is not None, lambda: f"Snakemake has not ended:\n{self.output}", 900)
        return self.process.returncode

    def logs(self) -> str:
        found = ""
        for path in self.folder.glob("results/*/runs/*/*.log"):
            with suppress(FileNotFoundError):  # snakemake takes that of another try away
                found += path.read_text(encoding="utf-8")
        return found

    def left_over(self) -> list[str]:
        """What still runs in the folder, once ranks that look for themselves have had the time to."""
        with suppress(TimeoutError):
            wait_until(lambda: not processes_in(self.folder), "processes are left", 90)
        return [name for name, _ in processes_in(self.folder)]


@contextmanager
def running(folder: Path, python: Path, config: str, *arguments: str, site: str = SITE) -> Iterator[Running]:
    """A study in the folder, all of this interpreter, for the length of a with statement."""
    place_digits_of_study(folder)
    (folder / "study.yaml").write_text(config, encoding="utf-8")
    (folder / "site.yaml").write_text(f"{site}python: {python}\n", encoding="utf-8")
    command = [str(python.with_name("snakemake")), "-s", str(SNAKEFILE)]
    command += ["--configfile", "study.yaml", "--config", "site=site.yaml", "--cores", "2", *arguments]
    with (folder / "snakemake.txt").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PATH": path_with(python), "SCALEWISE_MACHINE_LOCK": str(folder / "lock")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Running(process, folder)
    finally:
        for _, left in processes_in(folder):
            with suppress(psutil.Error):
                left.kill()
        process.wait()


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
        for profile in (place / "checkout" / "profiles").glob("*/config.yaml"):
            # Snakemake's own log names every job
            profile.write_text(profile.read_text().replace("logger:\n  - rich\n", ""))
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
