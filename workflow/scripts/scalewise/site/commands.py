"""Run Slurm's commands, each with a time limit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

LIMIT_SECONDS = 60
"""Most time of one command; a busy controller answers within seconds."""
RETRY_SECONDS = 2.0
SUBMISSION_COMMANDS = ("sbatch", "squeue", "scancel")
"""Slurm's commands without which no job can be sent and watched."""
WHAT_IS_MISSING = 'Correct the site file, or add a missing option to slurm.extra, such as "--qos=NAME".'
"""The fix of a job that Slurm refuses."""

_HIDING = re.compile(
    r"(SQUEUE|SINFO|SACCT|SCANCEL)_(?!ALL$|FEDERATION$|SIB$|SIBLING$|CTLD$|HURRY$|VERBOSE$)[A-Z0-9_]+"
)
"""Variables that narrow what Slurm's commands show or cancel; those that only widen it are kept."""
_REQUESTED = re.compile(
    "SBATCH_(ARRAY_INX|CORE_SPEC|CPUS_PER_GPU|DEPENDENCY|ERROR|EXCLUSIVE|GPUS|GPUS_PER_(NODE|SOCKET|TASK)"
    "|GRES|OVERCOMMIT|THREAD_SPEC|TRES_PER_TASK|WAIT)"
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
    requested = sorted(filter(_REQUESTED.fullmatch, environ))
    for name in [*requested, *filter(_HIDING.fullmatch, environ)]:
        del environ[name]
    return requested


@dataclass(frozen=True)
class Answer:
    """The answer of a command.

    Args:
        command: The command, as a shell takes it.
        ok: Whether it ended with exit status 0.
        text: Standard output.
        error: Standard error on one line; without any after a failure, the reason.
    """

    command: str
    ok: bool
    text: str
    error: str

    @property
    def failure(self) -> str:
        """The command and its error, as a clause."""
        return f"`{self.command}` failed: {self.error or 'it printed nothing'}"


def ask(
    *command: str,
    seconds: float = LIMIT_SECONDS,
    tries: int = 1,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> Answer:
    """Run a command and return its answer, also if it fails.

    Args:
        command: Program and arguments; no shell splits them.
        seconds: Time limit of a try.
        tries: Most tries of a command that fails, such as one that a busy controller has not answered.
        environ: Further environment variables.
    """
    # SINFO_PARTITION hides the partitions from the executor plugin, not from these questions
    inherited = {name: value for name, value in os.environ.items() if name != "SINFO_PARTITION"}
    text, error, code = "", "", 1
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
        text, error, code = done.stdout.strip(), " ".join(done.stderr.split()), done.returncode
    except subprocess.TimeoutExpired:
        error = f"no answer within {seconds:g} s"
    except OSError as failed:
        error = str(failed)
    if code and tries > 1:
        time.sleep(RETRY_SECONDS)
        return ask(*command, seconds=seconds, tries=tries - 1, environ=environ)
    return Answer(shlex.join(command), not code, text, error if error or not code else f"exit status {code}")


def try_job(options: Sequence[str]) -> Answer:
    """Let Slurm test a request; no job is sent."""
    return ask("sbatch", "--test-only", *options, "--wrap=true")


def missing_commands(*names: str) -> list[str]:
    """Return the commands that are not on PATH."""
    return [name for name in names if shutil.which(name) is None]
