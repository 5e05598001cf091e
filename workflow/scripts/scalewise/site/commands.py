"""Run Slurm's commands, each with a time limit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType

LIMIT_SECONDS = 60
"""Most time of one command; a busy controller answers within seconds."""


_LESS_SHOWN = re.compile(
    r"(SQUEUE|SINFO|SACCT|SCANCEL)_(?!ALL$|FEDERATION$|SIB$|SIBLING$|CTLD$|HURRY$|VERBOSE$)[A-Z0-9_]+"
)
"""Variables that narrow what Slurm's commands show or cancel; those that only widen it are kept."""

_REQUESTED = frozenset(
    f"SBATCH_{name}"
    for name in (
        *(
            "ARRAY_INX",
            "CORE_SPEC",
            "CPUS_PER_GPU",
            "DEPENDENCY",
            "ERROR",
            "EXCLUSIVE",
            "GPUS",
            "GPUS_PER_NODE",
        ),
        *("GPUS_PER_SOCKET", "GPUS_PER_TASK", "GRES", "OVERCOMMIT", "WAIT"),
    )
)
"""Variables that give a job other devices or CPUs than planned, or make sbatch do more than send one job."""


def ignore_variables(environ: MutableMapping[str, str]) -> list[str]:
    """Remove the defaults of Slurm's commands with which jobs are hidden, kept alive or not as planned.

    Variables that choose a cluster, an account, a partition or the like stay: sites and users mean them.

    Args:
        environ: The environment of this process, for all commands that it starts; changed here.

    Returns:
        The removed variables that change what jobs request.
    """
    for name in [name for name in environ if _LESS_SHOWN.fullmatch(name)]:
        del environ[name]
    requested = sorted(environ.keys() & _REQUESTED)
    for name in requested:
        del environ[name]
    return requested


@dataclass(frozen=True)
class Answer:
    """The answer of a command.

    Args:
        command: The command, as a shell takes it.
        text: Standard output.
        error: Standard error on one line, or the reason if the command could not be run or did not end.
        code: Exit status; None if the command did not start or end.
    """

    command: str
    text: str
    error: str
    code: int | None

    @property
    def ok(self) -> bool:
        """Whether it ended with exit status 0."""
        return self.code == 0

    @property
    def failure(self) -> str:
        """The command and how it ended, as a clause."""
        end = f"ended with exit status {self.code}" if self.code is not None else "did not end"
        return f"`{self.command}` {end}{f': {self.error}' if self.error else ''}"


def ask(
    *command: str, seconds: float = LIMIT_SECONDS, environ: Mapping[str, str] = MappingProxyType({})
) -> Answer:
    """Run a command and return its answer, also if it fails.

    Args:
        command: Program and arguments; no shell splits them.
        seconds: Time limit.
        environ: Further environment variables.
    """
    # SINFO_PARTITION hides the partitions from the executor plugin, not from these questions
    inherited = {name: value for name, value in os.environ.items() if name != "SINFO_PARTITION"}
    words = shlex.join(command)
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**inherited, "LC_ALL": "C", **environ},
        )
    except subprocess.TimeoutExpired:
        return Answer(words, "", f"no answer within {seconds:g} s", None)
    except OSError as error:
        return Answer(words, "", str(error), None)
    return Answer(words, done.stdout.strip(), " ".join(done.stderr.split()), done.returncode)


def missing_commands(*names: str) -> list[str]:
    """Return the commands that are not on PATH."""
    return [name for name in names if shutil.which(name) is None]
