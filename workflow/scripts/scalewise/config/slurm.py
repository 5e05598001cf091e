"""Facts of a Slurm cluster: options of its jobs, and those that a user may not set."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from scalewise.config.settings import StrictModel

_PLACEHOLDER = re.compile(r"[<>]|XXX|\byour[_-]|CHANGE[_-]?ME")
_DURATION = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
_OF_PLUGIN = re.compile(r"-J|-[DAopencCtN]\s|[=\s]--")
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=.+)?")

NO_GPU_REQUEST = "none"
"""The value of ``gpu_type`` with which jobs request no GPUs."""

MANAGED_BY_SBATCH = {
    *("account", "partition", "cluster", "clusters", "exclusive", "oversubscribe", "share", "time", "signal"),
    *("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "tasks-per-node"),
    *("cpus-per-task", "cpus-per-gpu", "mem", "mem-per-cpu", "mem-per-gpu"),
    *("gres", "gpus", "gpus-per-node", "gpus-per-task", "array", "het-group", "wait", "hold", "test-only"),
    *("job-name", "comment", "output", "error", "parsable", "wrap", "export", "export-file"),
    *("workdir", "chdir", "requeue", "no-requeue"),
}
"""Options of sbatch that follow from the run, from another key or from the executor plugin."""

RESOURCES_OF_OPTIONS = ("qos", "constraint")
"""Options in ``extra`` that the executor plugin takes as resources of these names only."""


def _no_placeholder(value: object) -> object:
    if isinstance(value, str) and _PLACEHOLDER.search(value):
        fix = "Write your own, or have `python workflow/scripts/cli.py site` write the file."
        raise ValueError(f"is {value!r}, a placeholder. {fix}")
    return value


Filled = BeforeValidator(_no_placeholder)
"""Refuses a placeholder of a template."""


def duration_seconds(text: str) -> int | None:
    """Return the seconds of Slurm's ``D-HH:MM:SS``, ``HH:MM:SS`` or ``MM:SS``; None for a word."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _sbatch_option(value: str) -> str:
    """Refuse what is no long option, and one that contradicts what a run requests itself."""
    match = _OPTION.fullmatch(value)
    if match is None or (match[1] in RESOURCES_OF_OPTIONS and match[2] is None):
        raise ValueError(f'is {value!r}, not one long option. Write "--name=value".')
    # Slurm accepts abbreviated options
    if any(option.startswith(match[1]) for option in MANAGED_BY_SBATCH):
        raise ValueError(
            f"is {value!r}, but --{match[1]} follows from the run and from the other keys. Remove it."
        )
    # the plugin searches all of the text, at the first submission
    if match[1] not in RESOURCES_OF_OPTIONS and _OF_PLUGIN.search(value):
        raise ValueError(f"is {value!r}, which the executor plugin takes for one of its options.")
    return value


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$"), Filled]
SbatchOption = Annotated[str, AfterValidator(_sbatch_option), Filled]
Walltime = Annotated[str, Field(pattern=r"^([0-9]{1,4}-)?[0-9]{1,4}:[0-5][0-9]:[0-5][0-9]$")]
"""Hours, minutes and seconds, or days before them: of two numbers Slurm takes the first for minutes."""


class Slurm(StrictModel):
    """Options and limits of a cluster's jobs; a site without this key has no Slurm."""

    account: Name | None = None
    """The account that pays. Default: Slurm's for you."""
    partition: Name | None = None
    """The partition with the devices; several: see `partitions`. Default: the cluster's."""
    gpu_type: Name | None = None
    """Type in the request for GPUs, --gres=gpu:h100:4; hyphens are fine. Default: no type. none: jobs request
    no GPUs, for clusters whose nodes have no Gres."""
    longest_walltime: Walltime | None = None
    """Time limit of the partition, "24:00:00" or "2-00:00:00". A longer run resumes in further jobs; each
    gets SIGUSR1 60 s before its end."""
    exclusive: bool | None = None
    """Request whole nodes, which no other job shares. true: for all runs, and an answer's device-hours count
    whole nodes. false: for none; runs that leave a part of a node free then run one at a time. Default: for
    runs that leave a part of a node free. The study's device-hours then count whole nodes, those of an answer
    the used devices."""
    extra: list[SbatchOption] = Field(default_factory=list)
    """Further options of sbatch, each as "--name=value": --qos, --constraint, --exclude, --reservation,
    --licenses, --mail-user and the like."""

    def requests_gpus(self, accelerator: str) -> bool:
        """Return whether jobs request GPUs: for devices that are GPUs, or if a type is named."""
        return self.gpu_type != NO_GPU_REQUEST and (accelerator == "cuda" or self.gpu_type is not None)
