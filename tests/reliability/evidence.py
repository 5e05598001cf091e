"""What marked tests have shown in one call of pytest, and on which machine; the table is made of it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

PROCESSORS = Path("/proc/cpuinfo")

Outcome = Literal["passed", "failed", "skipped", "not run"]


@dataclass(frozen=True)
class Shown:
    """What one test shows.

    Attributes:
        test: pytest's name of it, file first.
        says: What it says of the fault or the input, in its own words.
        faults: Numbers of its marks.
        inputs: Keys of its marks.
        outcome: How it ended.
        reason: Why it was skipped or not run; empty otherwise.
        figures: What it has measured or counted, as sentences.
        messages: What a user is told, word by word.
    """

    test: str
    says: str
    faults: tuple[int, ...]
    inputs: tuple[str, ...]
    outcome: Outcome = "not run"
    reason: str = ""
    figures: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The file that holds the test, from the root of the repository."""
        return self.test.partition("::")[0]


@dataclass(frozen=True)
class Evidence:
    """All marked tests of one call.

    Attributes:
        day: When it was made, as 2026-01-31.
        thorough: Whether tests repeated what they do as often as the table asks for.
        machine: What the figures depend on, by name: the processor and the versions of programs.
        tests: In the order of the call.
    """

    day: str
    thorough: bool
    machine: dict[str, str]
    tests: tuple[Shown, ...]

    @classmethod
    def of(cls, tests: Sequence[Shown]) -> Evidence:
        """Returns what `tests` have shown here and today."""
        thorough = os.environ.get("SCALEWISE_THOROUGH") == "1"
        return cls(date.today().isoformat(), thorough, this_machine(), tuple(tests))

    @classmethod
    def read(cls, file: Path) -> Evidence:
        """Returns what `write` has written.

        Raises:
            ValueError: The file holds something else.
        """
        try:
            return TypeAdapter(cls).validate_json(file.read_bytes())
        except ValidationError as error:
            raise ValueError(
                f"{file} is no evidence of a call of pytest; `pytest --reliability {file}` makes it.\n{error}"
            ) from error

    def write(self, file: Path) -> None:
        """Writes it as JSON, into a folder that is made where it is missing."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(TypeAdapter(Evidence).dump_json(self, indent=1) + b"\n")


@cache
def this_machine() -> dict[str, str]:
    """Returns what figures of this machine depend on, by name, without what identifies the machine."""
    return {
        "processor": _processor(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "GPUs": "yes" if Path("/dev/nvidiactl").exists() else "none",
        "Linux": platform.release().partition("-")[0],
        "Python": platform.python_version(),
        **{name: version(name).partition("+")[0] for name in ("torch", "snakemake")},
        "Slurm": _slurm_version(),
    }


def _processor() -> str:
    lines = PROCESSORS.read_text(encoding="utf-8").splitlines() if PROCESSORS.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] != "unknown" else platform.machine()


def _slurm_version() -> str:
    if shutil.which("slurmctld") is None:
        return "none"
    told = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, timeout=60, check=False)
    return told.stdout.strip().removeprefix("slurm-wlm ").removeprefix("slurm ") or "unknown"
