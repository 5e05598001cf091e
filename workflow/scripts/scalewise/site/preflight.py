"""The preflight of a study: its largest run, and findings about the site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from scalewise.config.catalog.datasets import prepared_path
from scalewise.config.shape import ShapeText
from scalewise.config.slurm import Slurm
from scalewise.plan.launch import RankLaunch
from scalewise.plan.planned_study import Study
from scalewise.plan.runs.allocation import PLACE_RESOURCES, sbatch_options


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


def unknown(text: str, fix: str = "") -> Finding:
    """Make the finding of a check that has no answer."""
    return Finding(state="unknown", text=text, fix=fix)


class Findings(BaseModel):
    """All findings of a preflight."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    findings: list[Finding]


def with_resources(options: Sequence[str], resources: Mapping[str, object]) -> list[str]:
    """Return options of sbatch with resources of a profile in place of the site's.

    Args:
        options: Options as ``--name=value``.
        resources: Resources of the executor plugin by name; others are left alone.
    """
    names = {name: option for option, name in PLACE_RESOURCES.items()} | {"mem_mb": "mem", "runtime": "time"}
    changed = {names[name]: value for name, value in resources.items() if name in names}
    kept = [word for word in options if word.removeprefix("--").partition("=")[0] not in changed]
    return [*(f"--{option}={value}" for option, value in changed.items()), *kept]


class Request(BaseModel):
    """A run's shape and its options of sbatch."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    shape: ShapeText
    options: list[str]


class Preflight(RankLaunch):
    """Facts that a preflight checks: the site's, and the largest run of the study.

    Args:
        slurm: Facts of the cluster; None for one machine.
        options: Options of sbatch for the largest run, with the time of the longest one.
        smallest: The request of the smallest run; None if all have the same shape.
        datasets: Paths of the prepared files that every rank must be able to read.
    """

    slurm: Slurm | None
    options: list[str]
    smallest: Request | None = None
    datasets: list[str]

    def on_profile(self, resources: Mapping[str, object]) -> Preflight:
        """Return the preflight of runs whose resources a profile replaces."""
        smallest = self.smallest
        if smallest is not None:
            smallest = smallest.model_copy(update={"options": with_resources(smallest.options, resources)})
        return self.model_copy(
            update={"options": with_resources(self.options, resources), "smallest": smallest}
        )

    @classmethod
    def of(cls, study: Study, partition: str) -> Preflight:
        """Describe the largest run of a study on a partition."""
        keys = [key for key in study.runs if study.experiments[key[0]].site.partition == partition]
        ordered = sorted(
            keys, key=lambda key: (study.runs[key].shape.world_size, study.runs[key].settings.cpus_per_device)
        )
        smallest, largest = ordered[0], ordered[-1]
        minutes = max(study.allocations[key].minutes for key in keys)
        options, fewest = (sbatch_options(study.allocations[key].resources) for key in (largest, smallest))
        request = Request(shape=study.runs[smallest].shape, options=fewest)
        return cls(
            **dict(RankLaunch.for_run(study.runs[largest])),
            slurm=study.partitions[partition].slurm,
            options=[*(word for word in options if not word.startswith("--time=")), f"--time={minutes}"],
            smallest=request if request.shape != study.runs[largest].shape else None,
            datasets=[str(prepared_path(dataset)) for dataset in study.datasets],
        )
