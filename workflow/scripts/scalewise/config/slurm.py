"""Facts of a Slurm cluster: options of its jobs, and those that a user may not set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from scalewise.config.errors import reject
from scalewise.config.settings import Count, StrictModel

_PLACEHOLDER = re.compile(r"[<>]|XXX|\byour[_-]|CHANGE[_-]?ME")
_WALLTIME = re.compile(r"([0-9]{1,4}-([01]?[0-9]|2[0-3])|[0-9]{1,2}):[0-5][0-9]:[0-5][0-9]")
_DURATION = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=.+)?")

NO_GPU_REQUEST = "none"
"""The value of ``gpu_type`` with which jobs request no GPUs."""

_SHAPE = "set devices in the experiment"
_CPUS = "set cpus_per_device in the experiment"
_GPUS = "set devices in the experiment, and gpu_type in the site file"
_MEMORY = "set memory_gb in the experiment, or memory_gb_per_node in the site file"
_PLUGIN = "the executor plugin sets it"

MANAGED_BY_SBATCH = {
    "account": "set slurm.account",
    "partition": "set slurm.partition",
    "exclusive": "set slurm.exclusive",
    "signal": "the run sets it",
    "time": "set runtime_minutes in the experiment",
    **dict.fromkeys(("cluster", "clusters"), "set the variable SLURM_CLUSTERS before snakemake"),
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "tasks-per-node"), _SHAPE),
    **dict.fromkeys(("cpus-per-task", "cpus-per-gpu"), _CPUS),
    **dict.fromkeys(("gres", "gpus", "gpus-per-node", "gpus-per-task"), _GPUS),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), _MEMORY),
    **dict.fromkeys(("job-name", "comment", "output", "error", "parsable", "wrap", "export"), _PLUGIN),
    **dict.fromkeys(("export-file", "workdir", "chdir", "requeue", "no-requeue"), _PLUGIN),
    **dict.fromkeys(("array", "het-group", "wait", "hold", "test-only"), "a run is one job"),
    **dict.fromkeys(("oversubscribe", "share"), "set slurm.exclusive"),
}
"""Options of sbatch that follow from the run, another key or the executor plugin, and what to do instead."""

RESOURCES_OF_OPTIONS = ("qos", "constraint")
"""Options in ``extra`` that the executor plugin takes as resources of these names only."""


def check_placeholder(value: str) -> str:
    """Refuse a placeholder of a template."""
    if _PLACEHOLDER.search(value):
        raise reject(
            f"is {value!r}, a placeholder",
            "Write your own, leave the key out, or have `python workflow/scripts/cli.py site` write the "
            "file. On one machine use --profile profiles/local.",
        )
    return value


def matches(pattern: str, problem: str, fix: str) -> AfterValidator:
    """Accept text if a pattern matches all of it.

    Args:
        pattern: A regular expression.
        problem: A clause on other text.
        fix: A sentence on what to write.
    """

    def check(value: str) -> str:
        check_placeholder(value)
        if not re.fullmatch(pattern, value):
            raise reject(f"is {value!r}, {problem}", fix)
        return value

    return AfterValidator(check)


def _walltime(value: str) -> str:
    if not _WALLTIME.fullmatch(value):
        raise reject(
            f"is {value!r}, and Slurm reads that as another time",
            'Write hours, minutes and seconds, "24:00:00", or days before them, "2-00:00:00".',
        )
    if (duration_seconds(value) or 0) < 60:
        raise reject(f"is {value!r}, under a minute", 'Write the longest job, such as "24:00:00".')
    return value


def duration_seconds(text: str) -> int | None:
    """Return the seconds of Slurm's ``D-HH:MM:SS``, ``HH:MM:SS`` or ``MM:SS``; None for a word."""
    parts = _DURATION.fullmatch(text)
    if parts is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in parts.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _plain_to_plugin(value: str) -> str:
    """Refuse text in which the executor plugin would find one of its options: it searches all of the text."""
    if "-J" in value or re.search(r"-[DAopencCtN](\s|$)", value) or re.search(r"[=\s]--", value):
        raise reject(
            f"is {value!r}, which the executor plugin takes for one of its options", "Use other words."
        )
    return value


def _sbatch_option(value: str) -> str:
    """Refuse what is no long option, and one that contradicts what a run requests itself."""
    check_placeholder(value)
    match = _OPTION.fullmatch(value)
    if match is None:
        raise reject(f"is {value!r}, not one long option", 'Write each option of sbatch as "--name=value".')
    name = match[1]
    # Slurm accepts abbreviated options
    if known := next((each for each in MANAGED_BY_SBATCH if each.startswith(name)), None):
        instead = MANAGED_BY_SBATCH[name if name in MANAGED_BY_SBATCH else known]
        text = f"is {value!r}, but --{name} follows from the run and from the other keys"
        raise reject(text, f"Remove it: {instead}.")
    if name in RESOURCES_OF_OPTIONS and match[2] is None:
        raise reject(f"is {value!r}, without a value", f'Write "--{name}=VALUE".')
    return _plain_to_plugin(value)


Name = Annotated[
    str,
    matches(
        r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*",
        "which is no name Slurm uses",
        "Use letters, digits and _ . @ + -; to compare several partitions, list each below `partitions:`.",
    ),
]
SbatchOption = Annotated[str, AfterValidator(_sbatch_option)]
Minutes = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Walltime = Annotated[str, AfterValidator(_walltime)]


def minutes_for(devices: int, known: Mapping[int, float]) -> float:
    """Return the wait for a number of devices: that of the next larger known count, else of the largest."""
    counts = sorted(known)
    return known[next((count for count in counts if count >= devices), counts[-1])]


class Slurm(StrictModel):
    """Options and limits of a cluster's jobs; a site without this key has no Slurm."""

    account: Name | None = Field(None, description="The account that pays. Default: Slurm's for you.")
    partition: Name | None = Field(
        None, description="The partition with the devices. Default: the cluster's."
    )
    gpu_type: Name | None = Field(
        None,
        description="Type in the request for GPUs, --gres=gpu:h100:4; hyphens are fine. Default: no type. "
        "none: jobs request no GPUs, for clusters whose nodes have no Gres.",
    )
    longest_walltime: Walltime | None = Field(
        None,
        description='Time limit of the partition, "24:00:00" or "2-00:00:00". A longer run resumes in '
        "further jobs; each gets SIGUSR1 60 s before its end.",
    )
    queue_minutes: Annotated[dict[Count, Minutes], Field(min_length=1)] | None = Field(
        None,
        description="Usual wait in the queue by number of devices, such as {1: 5, 8: 60}; between two "
        "device counts the larger one's applies, beyond the largest the largest one's. Counts for a "
        "deadline, and is shown with the decision. Changing it trains nothing again. Default: the median "
        "wait of the study's jobs, by Slurm's accounting.",
    )
    exclusive: bool | None = Field(
        None,
        description="Request whole nodes, which no other job shares. true: for all runs, and an answer's "
        "device-hours count whole nodes. false: for none; runs that leave a part of a node free then run "
        "one at a time. Default: for runs that leave a part of a node free. The study's device-hours then "
        "count whole nodes, those of an answer the used devices.",
    )
    extra: list[SbatchOption] = Field(
        default_factory=list,
        description='Further options of sbatch, each as "--name=value": --qos, --constraint, --exclude, '
        "--reservation, --licenses, --mail-user and the like.",
    )

    def requests_gpus(self, accelerator: str) -> bool:
        """Return whether jobs request GPUs: for devices that are GPUs, or if a type is named."""
        return self.gpu_type != NO_GPU_REQUEST and (accelerator == "cuda" or self.gpu_type is not None)

    def wait_minutes(self, devices: int) -> float | None:
        """Return the usual wait in the queue for a number of devices; None if unknown."""
        return minutes_for(devices, self.queue_minutes) if self.queue_minutes else None
