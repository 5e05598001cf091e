"""What is proved before anything expensive: the largest allocation, and lines that say what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.plan.config.site import SiteFile
from scalewise.plan.config.slurm import Slurm
from scalewise.plan.runs.allocation import Allocation
from scalewise.plan.runs.runs import Run
from scalewise.plan.study import Study
from scalewise.records import LauncherName

HELLO_MINUTES = 5
ENVIRONMENT_VARIABLE = "SCALEWISE_PREFLIGHT"


class Line(BaseModel):
    """One thing that was looked at.

    Args:
        state: ``ok``, ``bad``, or ``unknown`` where nobody could say.
        what: was found.
        cure: what to do; empty where it is ok.
    """

    model_config = ConfigDict(frozen=True)

    state: Literal["ok", "bad", "unknown"]
    what: str
    cure: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "bad": "NOT OK ", "unknown": "?      "}[self.state]
        return f"{mark} {self.what}{f'. {self.cure}' if self.cure else ''}"


def ok(what: str) -> Line:
    """Nothing to do."""
    return Line(state="ok", what=what)


def bad(what: str, cure: str) -> Line:
    """To be mended before a study can run."""
    return Line(state="bad", what=what, cure=cure)


def unknown(what: str) -> Line:
    """Not to be found out from here."""
    return Line(state="unknown", what=what)


class Lines(BaseModel):
    """What was found, in order."""

    model_config = ConfigDict(frozen=True)

    lines: list[Line]

    @property
    def bad(self) -> bool:
        """Whether anything must be mended first."""
        return any(line.state == "bad" for line in self.lines)

    def __str__(self) -> str:
        return "\n".join(map(str, self.lines))


class Preflight(BaseModel):
    """What is to be looked at.

    Args:
        facts: of the site.
        shape: the study's largest.
        accelerator: ``cuda`` or ``cpu``.
        cpus_per_device: of that run.
        launcher: of that run.
        rendezvous: of that run.
        options: that sbatch gets for it.
        cpus_per_node: that it needs.
        memory_mb_per_node: that it needs.
        longest_minutes: of all jobs of the study.
        datasets: prepared files.
    """

    model_config = ConfigDict(frozen=True)

    facts: SiteFile
    shape: str
    accelerator: Literal["cpu", "cuda"]
    cpus_per_device: int
    launcher: LauncherName
    rendezvous: Literal["tcp", "file"]
    options: list[str]
    cpus_per_node: int
    memory_mb_per_node: int
    longest_minutes: int
    datasets: list[str]

    @classmethod
    def of(cls, study: Study, datasets: Sequence[str]) -> Preflight:
        """Of a study, by its largest run."""
        run, allocation = largest(study)
        return cls(
            facts=study.site.facts,
            shape=str(run.shape),
            accelerator=study.site.accelerator,
            cpus_per_device=run.settings.cpus_per_device,
            launcher=run.launcher,
            rendezvous=run.settings.rendezvous,
            options=[*_place(study.site.slurm), *shlex.split(allocation.options())],
            cpus_per_node=allocation.tasks_per_node * allocation.cpus_per_task,
            memory_mb_per_node=allocation.memory_mb,
            longest_minutes=max(asked.minutes for asked in study.allocations.values()),
            datasets=list(datasets),
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
    return replace(allocation, minutes=HELLO_MINUTES + 1, limit_seconds=limit)


def _place(slurm: Slurm | None) -> list[str]:
    if slurm is None:
        return []
    keys = ("account", "partition", "qos", "constraint")
    return [f"--{key}={value}" for key in keys if (value := getattr(slurm, key)) is not None]
