"""What a run asks of the machine, in Snakemake's terms. None of it defines a result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from scalewise.plan.config import Experiment

MB_PER_GB = 1000


class Wildcards(Protocol):
    """What Snakemake gives to a function of a resource."""

    experiment: str


Resource = int | Callable[[Wildcards], int]


def runtime(experiments: Mapping[str, Experiment]) -> Resource:
    """Minutes after which a run is ended."""
    return _by_experiment({name: spec.runtime_minutes for name, spec in experiments.items()})


def memory(experiments: Mapping[str, Experiment]) -> Resource:
    """Megabytes per node; 0 asks for none."""
    return _by_experiment(
        {name: round((spec.memory_gb or 0) * MB_PER_GB) for name, spec in experiments.items()}
    )


def _by_experiment(values: Mapping[str, int]) -> Resource:
    """One number where all agree: Snakemake calls a function four times a job, a second per 10,000."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return lambda wildcards: values[wildcards.experiment]
