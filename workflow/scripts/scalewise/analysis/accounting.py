"""Read what Slurm's accounting recorded of jobs: when they were submitted, could start and did start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalewise.site.commands import ask

SACCT_SECONDS = 30.0
"""Time that sacct has to answer."""

_FIELDS = ("JobIDRaw", "NodeList", "Submit", "Eligible", "Start")

NOT_STATED = "not stated: "
"""Beginning of a reason for an unknown figure."""

_NO_NODES = {"", "None assigned"}
"""NodeList of a job that never started; if it was cancelled, Slurm records the time of that as its start."""


@dataclass(frozen=True)
class JobRecord:
    """Slurm's record of one stay of a job in the queue; each requeue begins another.

    Args:
        submitted: Seconds since the epoch, as the other times.
        eligible: The job could start from then on: no begin time, dependency or hold kept it from that. None
            if it never could.
        started: None if it has not started.
    """

    job: str
    submitted: int
    eligible: int | None
    started: int | None

    @property
    def wait_seconds(self) -> int | None:
        """Time in the queue, without the time before the job could start; None if it is unknown."""
        if self.started is None or self.eligible is None:
            return None
        seconds = self.started - max(self.eligible, self.submitted)
        return seconds if seconds >= 0 else None


@dataclass(frozen=True)
class Accounting:
    """The records of the jobs of a study.

    Args:
        records: Records in the order of their submission.
        reason: Reason that there are none, as a clause; empty if Slurm answered.
    """

    records: Sequence[JobRecord] = ()
    reason: str = ""

    def of(self, job: str) -> list[JobRecord]:
        """Return the records of a job, the earliest first."""
        return [record for record in self.records if record.job == job]


def read_accounting(jobs: Iterable[str]) -> Accounting:
    """Return what Slurm recorded of jobs, from one call of sacct.

    Args:
        jobs: Their ids; without any, sacct is not called.
    """
    if not (wanted := list(dict.fromkeys(jobs))):
        return Accounting()
    answer = ask(
        # -P: whole values, however long; -D: also the stays in the queue before a requeue
        *("sacct", "-X", "-n", "-P", "-D", "-o", ",".join(_FIELDS), "-j", ",".join(wanted)),
        seconds=SACCT_SECONDS,
        # a local time is ambiguous for an hour in autumn
        environ={"SLURM_TIME_FORMAT": "%s"},
    )
    if not answer.ok:
        return Accounting(reason=f"{NOT_STATED}{answer.failure[:300]}")
    return Accounting(parse_records(answer.text))


def parse_records(text: str) -> list[JobRecord]:
    """Return the records in the output of sacct; other lines are ignored."""
    records = []
    for line in text.splitlines():
        values = line.split("|")
        if len(values) != len(_FIELDS) or not values[0].isdecimal():
            continue
        job, node_list, submit, eligible, start = values
        if (submitted := _moment(submit)) is not None:
            started = None if node_list in _NO_NODES else _moment(start)
            records.append(JobRecord(job, submitted, _moment(eligible), started))
    return sorted(records, key=lambda record: record.submitted)


def _moment(text: str) -> int | None:
    """Return seconds since the epoch; None for Unknown, None and N/A, which differ between versions."""
    return int(text) if text.isdecimal() and int(text) else None
