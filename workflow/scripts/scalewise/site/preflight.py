"""The preflight of a study: its largest run, and findings about the site."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from scalewise.config.catalog.datasets import prepared_path
from scalewise.config.shape import ShapeText
from scalewise.config.site import NotFound, Site
from scalewise.config.slurm import Slurm
from scalewise.plan.launch import RankLaunch
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import Allocation, placement
from scalewise.plan.runs.run_definition import RunDefinition

HELLO_MINUTES = 5


class Finding(BaseModel):
    """The result of one check.

    Args:
        state: ``ok``, ``bad``, or ``unknown`` if the check has no answer.
        text: The result, as a clause.
        fix: An instruction, as a sentence; empty if nothing is wrong.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    state: Literal["ok", "bad", "unknown"]
    text: str
    fix: str = ""

    def __str__(self) -> str:
        mark = {"ok": "ok     ", "bad": "NOT OK ", "unknown": "?      "}[self.state]
        return f"{mark} {self.text}{f'. {self.fix}' if self.fix else ''}"


def ok(text: str) -> Finding:
    """Make a finding that needs no fix."""
    return Finding(state="ok", text=text)


def bad(text: str, fix: str) -> Finding:
    """Make a finding that must be fixed before a study can run."""
    return Finding(state="bad", text=text, fix=fix)


def unknown(text: str) -> Finding:
    """Make the finding of a check that has no answer."""
    return Finding(state="unknown", text=text)


class Findings(BaseModel):
    """Findings of a step of the preflight, for the last one."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    findings: list[Finding]

    @property
    def bad(self) -> bool:
        """Whether anything must be fixed first."""
        return any(finding.state == "bad" for finding in self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


class PartOfNode(BaseModel):
    """A run that leaves a part of a node free, and its arguments of sbatch."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    shape: ShapeText
    options: list[str]


class Preflight(RankLaunch):
    """Facts that a preflight checks: the site's, and the largest run of the study.

    Args:
        slurm: Facts of the cluster; None for one machine.
        options: Arguments of sbatch for the largest run.
        part: The largest run on a part of a node; None without one, or if it is the largest run.
        cpus_per_node: CPUs that the largest run takes on each node.
        memory_mb_per_node: MB that the largest run requests on each node; 0 for none.
        longest_minutes: Minutes that the longest job of the study requests.
        datasets: Paths of the prepared files that every rank must be able to read.
        not_found: Facts that the site command did not find.
    """

    slurm: Slurm | None
    options: list[str]
    part: PartOfNode | None = None
    cpus_per_node: int
    memory_mb_per_node: int
    longest_minutes: int
    datasets: list[str]
    not_found: list[NotFound] = Field(default_factory=list)

    @classmethod
    def of(cls, study: Study, partition: str) -> Preflight:
        """Describe the largest run of a study on a partition."""
        site, (run, allocation) = study.partitions[partition], largest(study, partition)
        parts = [
            key
            for key in _runs_on(study, partition)
            if study.allocations[key].leaves_free and study.runs[key].shape != run.shape
        ]
        part = max(parts, key=lambda key: study.runs[key].shape.world_size, default=None)
        minutes = (study.allocations[key].minutes for key in _runs_on(study, partition))
        return cls(
            **dict(RankLaunch.for_run(run)),
            slurm=site.slurm,
            options=sbatch_options(allocation, site),
            part=None
            if part is None
            else PartOfNode(
                shape=study.runs[part].shape, options=sbatch_options(study.allocations[part], site)
            ),
            cpus_per_node=allocation.tasks_per_node * allocation.cpus_per_task,
            memory_mb_per_node=allocation.memory_mb,
            longest_minutes=max(minutes),
            datasets=[str(prepared_path(dataset)) for dataset in study.datasets],
            not_found=site.facts.not_found,
        )


def sbatch_options(allocation: Allocation, site: Site) -> list[str]:
    """Return all options of sbatch for a run, as words."""
    place = (f"--{option}={value}" for option, value in placement(allocation, site).items())
    return [*place, *shlex.split(allocation.sbatch_args())]


def largest(study: Study, partition: str) -> tuple[RunDefinition, Allocation]:
    """Return a partition's run with the most devices, and then CPUs, and its allocation."""
    key = max(
        _runs_on(study, partition),
        key=lambda key: (study.runs[key].shape.world_size, study.allocations[key].cpus_per_task),
    )
    return study.runs[key], study.allocations[key]


def _runs_on(study: Study, partition: str) -> list[tuple[str, str]]:
    return [key for key in study.runs if study.experiments[key[0]].site.partition == partition]


def hello_allocation(study: Study, partition: str) -> Allocation:
    """Return the allocation of the hello job: that of the largest run of a partition, for a few minutes."""
    _, allocation = largest(study, partition)
    limit = HELLO_MINUTES * 60
    # without a signal: it has nothing to save
    limits = replace(allocation.limits, limit_seconds=limit)
    return replace(allocation, minutes=HELLO_MINUTES + 1, limits=limits, signal_seconds=0)
