"""Proof before anything expensive: the largest allocation, and lines that say what to do."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.plan.catalog.datasets import prepared_path
from scalewise.plan.config.slurm import Slurm
from scalewise.plan.jobs.launch import RankLaunch
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.runs import Run
from scalewise.plan.study import Study

HELLO_MINUTES = 5


class Line(BaseModel):
    """One thing that was looked at.

    Args:
        state: ``ok``, ``bad``, or ``unknown`` where nobody could say.
        what: The finding, as a clause.
        fix: A sentence that says how to mend it; empty where there is nothing to mend.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    state: Literal["ok", "bad", "unknown"]
    what: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "bad": "NOT OK ", "unknown": "?      "}[self.state]
        return f"{mark} {self.what}{f'. {self.fix}' if self.fix else ''}"


def ok(what: str) -> Line:
    """A finding that needs nothing."""
    return Line(state="ok", what=what)


def bad(what: str, fix: str) -> Line:
    """A finding that must be mended before a study can run."""
    return Line(state="bad", what=what, fix=fix)


def unknown(what: str) -> Line:
    """A question that cannot be answered from here."""
    return Line(state="unknown", what=what)


class Lines(BaseModel):
    """The findings, in order."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    lines: list[Line]

    @property
    def bad(self) -> bool:
        """Whether anything must be mended first."""
        return any(line.state == "bad" for line in self.lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


class Preflight(RankLaunch):
    """Everything that a preflight checks: the site's facts, and the largest run of the study.

    Args:
        slurm: Facts of the cluster; None for one machine.
        options: Arguments of sbatch for the largest run.
        cpus_per_node: CPUs that the largest run takes on each node.
        memory_mb_per_node: MB that the largest run takes on each node; 0 asks for none.
        longest_minutes: Minutes that the longest job of the study asks for.
        datasets: Paths of the prepared files that every rank must be able to read.
    """

    slurm: Slurm | None
    options: list[str]
    cpus_per_node: int
    memory_mb_per_node: int
    longest_minutes: int
    datasets: list[str]

    @classmethod
    def of(cls, study: Study) -> Preflight:
        """Describe the largest run of a study."""
        run, allocation = largest(study)
        return cls(
            slurm=study.site.slurm,
            shape=str(run.shape),
            accelerator=study.site.accelerator,
            cpus_per_device=run.settings.cpus_per_device,
            launcher=run.launcher,
            rendezvous=run.settings.rendezvous,
            options=[*_place(study.site.slurm), *shlex.split(allocation.sbatch_args())],
            cpus_per_node=allocation.tasks_per_node * allocation.cpus_per_task,
            memory_mb_per_node=allocation.memory_mb,
            longest_minutes=max(asked.minutes for asked in study.allocations.values()),
            datasets=[str(prepared_path(dataset)) for dataset in study.datasets],
        )


def largest(study: Study) -> tuple[Run, Allocation]:
    """The run with the most devices, and then CPUs; its allocation."""
    key = max(
        study.runs, key=lambda key: (study.runs[key].shape.world_size, study.allocations[key].cpus_per_task)
    )
    return study.runs[key], study.allocations[key]


def hello_allocation(study: Study) -> Allocation:
    """The allocation of the hello job: the largest run's, for minutes."""
    _, allocation = largest(study)
    limit = HELLO_MINUTES * 60
    # it has nothing to save before its end
    return replace(allocation, minutes=HELLO_MINUTES + 1, limit_seconds=limit, signal_seconds=0)


def _place(slurm: Slurm | None) -> list[str]:
    if slurm is None:
        return []
    keys = ("account", "partition", "qos", "constraint")
    return [f"--{key}={value}" for key in keys if (value := getattr(slurm, key)) is not None]
