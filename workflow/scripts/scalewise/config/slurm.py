"""Facts of a Slurm cluster: options of its jobs, and those that a user may not set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from scalewise.config.errors import reject
from scalewise.config.settings import Count, StrictModel

MailEvent = Literal["NONE", "BEGIN", "END", "FAIL", "REQUEUE", "ALL", "TIME_LIMIT", "TIME_LIMIT_80"]

_PLACEHOLDER = re.compile(r"[<>]|XXX|\byour[_-]|CHANGE[_-]?ME")
_WALLTIME = re.compile(r"([0-9]{1,4}-([01]?[0-9]|2[0-3])|[0-9]{1,2}):[0-5][0-9]:[0-5][0-9]")
_DURATION = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)")
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(=.+)?")

MANAGED_BY_SBATCH = frozenset(
    {
        *(
            "account",
            "partition",
            "qos",
            "reservation",
            "constraint",
            "cluster",
            "clusters",
            "time",
            "exclusive",
        ),
        *("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "tasks-per-node", "array", "het-group"),
        *("cpus-per-task", "cpus-per-gpu", "gres", "gpus", "gpus-per-node", "gpus-per-task"),
        *("mem", "mem-per-cpu", "mem-per-gpu", "job-name", "comment", "output", "error", "parsable", "wrap"),
        *("export", "export-file", "workdir", "chdir", "mail-user", "mail-type", "signal"),
        *("time", "requeue", "no-requeue", "wait", "hold", "test-only", "oversubscribe", "share"),
    }
)
"""Options of sbatch that follow from the run, from the other keys or from the executor plugin."""

MANAGED_BY_SRUN = frozenset(
    {
        *("nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "gpus", "gpus-per-task"),
        *("gres", "gpus-per-node", "tasks-per-node", "multi-prog", "pty", "het-group", "chdir"),
        *("kill-on-bad-exit", "mpi", "input", "output", "error", "export", "jobid"),
    }
)
"""Options of the srun that starts the ranks, with the same origins."""

_KEYS_OF_OPTIONS = {
    **dict.fromkeys(("gres", "gpus-per-node"), "gpu_request"),
    **dict.fromkeys(("mem", "mem-per-cpu"), "memory"),
    "signal": "signal_seconds",
}
"""Keys of the site file for options of another name."""


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


def _option_of(command: str, managed: frozenset[str]) -> AfterValidator:
    """Accept one long option of a command that does not follow from the run or from another key."""

    def check(value: str) -> str:
        check_placeholder(value)
        match = _OPTION.fullmatch(value)
        if match is None:
            fix = f'Write each option of {command} as "--name=value".'
            raise reject(f"is {value!r}, not one long option", fix)
        name = match[1]
        # Slurm accepts abbreviated options
        if any(known.startswith(name) for known in managed):
            key = _KEYS_OF_OPTIONS.get(name, name.replace("-", "_"))
            instead = f", and use the key {key}" if key in Slurm.model_fields else ""
            text = f"is {value!r}, but --{name} follows from the run and from the other keys"
            raise reject(text, f"Remove it{instead}.")
        return value

    return AfterValidator(check)


_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
Name = Annotated[str, matches(_NAME, "which is no name Slurm uses", "Use letters, digits and _ . @ + -.")]
Names = Annotated[
    str,
    matches(
        f"{_NAME}(,{_NAME})*",
        "which is no name Slurm uses",
        "Use letters, digits and _ . @ + -, and commas between.",
    ),
]
Features = Annotated[
    str,
    matches(
        r"(?!-)[A-Za-z0-9_.:@*&|,()\[\]-]+",
        "which is no expression of features",
        'Write such as "a100&hbm80g".',
    ),
]
Mail = Annotated[
    str,
    matches(
        r"[A-Za-z0-9_.+%-]+@[A-Za-z0-9.-]+", "which is no mail address", "Write one, or leave the key out."
    ),
]
SbatchOption = Annotated[str, _option_of("sbatch", MANAGED_BY_SBATCH), AfterValidator(_plain_to_plugin)]
SrunOption = Annotated[str, _option_of("srun", MANAGED_BY_SRUN)]
Minutes = Annotated[float, Field(ge=0, allow_inf_nan=False)]


Walltime = Annotated[str, AfterValidator(_walltime)]


class ShortJobs(StrictModel):
    """A partition or a QOS for tests, and the limits of its jobs."""

    name: Name | None = Field(None, description="Its name. Default: the partition of all jobs.")
    longest_walltime: Walltime = Field(description='Its time limit, such as "00:15:00".')
    max_nodes: Count = Field(description="Nodes that one job may take there.")
    max_devices: Count | None = Field(
        None, description="Devices that one job may take there. Default: those of its nodes."
    )
    qos: Name | None = Field(
        None, description="Quality of service of jobs there, such as one for tests. Default: Slurm's for you."
    )

    @property
    def label(self) -> str:
        """The name for a reader: of the partition, or else of the QOS."""
        return self.name or f"QOS {self.qos}"

    def holds(self, nodes: int, devices: int, minutes: int) -> bool:
        """Return whether a job fits its limits."""
        seconds = duration_seconds(self.longest_walltime)
        fits = nodes <= self.max_nodes and (self.max_devices is None or devices <= self.max_devices)
        return fits and seconds is not None and minutes * 60 <= seconds


def minutes_for(devices: int, known: Mapping[int, float]) -> float:
    """Return the wait for a number of devices: that of the next larger known count, else of the largest."""
    counts = sorted(known)
    return known[next((count for count in counts if count >= devices), counts[-1])]


class Slurm(StrictModel):
    """Options and limits of a cluster's jobs; a site without this key has no Slurm."""

    account: Name | None = Field(None, description="The account that pays. Default: Slurm's for you.")
    partition: Names | None = Field(
        None, description="The partition with the devices. Default: the cluster's."
    )
    qos: Name | None = Field(None, description="Quality of service.")
    constraint: Features | None = Field(None, description="Features that nodes must have.")
    reservation: Annotated[Name, AfterValidator(_plain_to_plugin)] | None = Field(
        None, description="Reservation to run in."
    )
    gpu_request: Literal["gres", "gpus-per-node", "none"] | None = Field(
        None,
        description="How GPUs are requested, per node: --gres=gpu:4, --gpus-per-node=4, or not at all. "
        "Default: gres for cuda, none for cpu.",
    )
    gpu_type: Name | None = Field(None, description="Type in that request, such as h100; hyphens are fine.")
    memory: Literal["per-node", "per-cpu", "none"] = Field(
        "per-node", description="How memory is requested: --mem, --mem-per-cpu, or not at all."
    )
    longest_walltime: Walltime | None = Field(
        None,
        description='Time limit of the partition, "24:00:00" or "2-00:00:00". Longer jobs wait forever.',
    )
    signal_seconds: Annotated[int, Field(ge=0, le=3600)] = Field(
        60,
        description="Seconds before its end at which a job gets SIGUSR1: the run ends, and goes back into "
        "the queue if it has come further. The built-in training resumes after its last whole epoch; a "
        "program that saves when it gets SIGTERM has 60 s for it. A run that one job holds ends by its own "
        "limit, two minutes before the job; the signal then comes at most 30 s ahead. 0: no signal; no run "
        "may then take longer than longest_walltime.",
    )
    queue_minutes: Annotated[dict[Count, Minutes], Field(min_length=1)] | None = Field(
        None,
        description="Usual wait in the queue by number of devices, such as {1: 5, 8: 60}; between two "
        "device counts the larger one's applies, beyond the largest the largest one's. Counts for a "
        "deadline, and is shown with the decision. Changing it trains nothing again. Default: the median "
        "wait of the study's jobs, by Slurm's accounting.",
    )
    partial_nodes: Literal["allowed", "billed-whole", "refused"] = Field(
        "allowed",
        description="Treatment of a run that leaves devices of a node unused. billed-whole: its "
        "device-hours count the whole node. refused: it is an error.",
    )
    exclusive: bool | None = Field(
        None,
        description="Request whole nodes, which no other job shares. true: for all runs. false: for none; "
        "runs that leave a part of a node free then run one at a time. Default: for runs that leave a part "
        "of a node free. The study's device-hours then count whole nodes, those of an answer the used "
        "devices.",
    )
    test_partition: ShortJobs | None = Field(
        None,
        description="A partition or QOS for short tests on such nodes. `snakemake -n` shows which runs fit.",
    )
    use_test_partition: bool = Field(
        False,
        description="Send runs that fit test_partition there. Changing it trains nothing again.",
    )
    mail_user: Annotated[Mail, AfterValidator(_plain_to_plugin)] | None = Field(
        None, description="Address to which Slurm sends mail."
    )
    mail_type: list[MailEvent] = Field(default_factory=list, description="Events for which Slurm sends mail.")
    extra: list[SbatchOption] = Field(
        default_factory=list, description='Further options of sbatch, each as "--name=value".'
    )
    srun_extra: list[SrunOption] = Field(
        default_factory=list, description="Further options of the srun that starts the ranks."
    )

    def partition_and_qos(self, nodes: int, devices: int, minutes: int) -> tuple[str | None, str | None]:
        """Return where a job goes; None for Slurm's default."""
        tests = self.test_partition
        if self.use_test_partition and tests is not None and tests.holds(nodes, devices, minutes):
            return tests.name or self.partition, tests.qos
        return self.partition, self.qos

    def wait_minutes(self, devices: int) -> float | None:
        """Return the usual wait in the queue for a number of devices; None if unknown."""
        return minutes_for(devices, self.queue_minutes) if self.queue_minutes else None
