"""Jobs that measure the all-reduces for a study's predictions, each once for a site."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Site, cpu_model
from scalewise.plan.jobs.launch import RankLaunch
from scalewise.plan.planned_study import PlannedExperiment, Study
from scalewise.plan.runs.all_reduce_shapes import MINUTES, shapes_to_measure
from scalewise.plan.runs.allocation import START_UP_MINUTES, Allocation, allocate
from scalewise.plan.runs.run_definition import RunDefinition, canonical_json

RANKS_RESULT = "all_reduce.json"
"""File of the measurement that ranks write into the attempt's folder."""


@dataclass(frozen=True)
class PlannedAllReduce:
    """The measurement of one shape, on the site or one of its partitions."""

    ranks: RankLaunch
    allocation: Allocation
    site: Site


@dataclass(frozen=True)
class AllReducePlan:
    """The all-reduce measurements that a study may need.

    Args:
        jobs: One for each site and shape, by ``slurm-1a2b3c4d/2x4``.
        needed: Each predicted experiment's name, with the measurements that its prediction needs.
    """

    jobs: Mapping[str, PlannedAllReduce]
    needed: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, study: Study, site_file: object = None) -> AllReducePlan:
        """Collect the measurements of a study's predictions.

        Args:
            study: The configuration, checked.
            site_file: Path of the site's file; None for this machine as it is.
        """
        jobs: dict[str, PlannedAllReduce] = {}
        needed: dict[str, list[str]] = {}
        for name, planned in study.experiments.items():
            if not planned.is_predicted:
                continue
            site, needed[name] = planned.site, []
            for shape in shapes_to_measure(planned.runs, planned.projected, site):
                key = f"{site_id(site, site_file)}/{shape}"
                needed[name].append(key)
                if key not in jobs:
                    run = _run_of(planned, shape, site)
                    allocation = _short(allocate(run, planned.experiment, site), site)
                    jobs[key] = PlannedAllReduce(RankLaunch.for_run(run), allocation, site)
        return cls(jobs, needed)

    def files(self, experiment: str) -> list[str]:
        """Return the files of measurements that an experiment's prediction uses."""
        return [f"resources/collectives/{name}.json" for name in self.needed[experiment]]


def has_steps_to_project_from(planned: PlannedExperiment) -> bool:
    """Return whether an experiment measures steps on several nodes and projects them to more such nodes."""
    return planned.is_predicted and any(
        1 < few.nodes < many.nodes and few.devices_per_node == many.devices_per_node
        for few in {run.shape for run in planned.runs}
        for many in planned.projected
    )


def site_id(site: Site, site_file: object = None) -> str:
    """Return a short, stable name for a site's measurements: its file's name and a hash of its facts.

    A cluster's name contains no host, as a study may move between login nodes. A machine's depends on its
    host name and processor, so that a copied folder does not bring measurements of another machine.

    Args:
        site: Facts of the machine or cluster.
        site_file: Path of the site's file; None for this machine as it is.
    """
    # a machine's measurements are the same with its profile and without
    path = Path("machine") if site_file is None or site.slurm is None else Path(str(site_file))
    # profiles/slurm/site.yaml: the folder differs between sites, the file's name does not
    word = path.parent.name if path.stem == "site" and path.parent.name else path.stem
    word = re.sub(r"[^A-Za-z0-9_-]+", "-", word).strip("-")[:40] or "site"
    digest = hashlib.sha256(canonical_json(_deciding_facts(site)).encode()).hexdigest()[:8]
    return f"{word}-{digest}"


def _deciding_facts(site: Site) -> dict[str, object]:
    facts, slurm = site.facts, site.slurm
    machine: dict[str, object] = {
        "accelerator": site.accelerator,
        "devices_per_node": site.devices_per_node,
        "network_interface": facts.network_interface,
        "container": facts.container.model_dump() if facts.container else None,
        "python": facts.python,
        # it may load modules, and choose a network
        "prelude": facts.prelude,
    }
    if facts.visible_devices is not None:
        machine["visible_devices"] = facts.visible_devices
    if slurm is None:
        return machine | {"host": platform.node(), "cpus": site.cpus_per_node, "processor": cpu_model()}
    keys = ("partition", "constraint", "gpu_type", "exclusive", "extra", "srun_extra")
    return machine | {key: getattr(slurm, key) for key in keys}


def _run_of(planned: PlannedExperiment, shape: Shape, site: Site) -> RunDefinition:
    """Return the first run of a shape; without one, the largest run with this shape."""
    for run in planned.runs:
        if run.shape == shape:
            return run
    largest = max(planned.runs, key=lambda run: run.shape.world_size)
    cpus = min(largest.settings.cpus_per_device, site.cpus_per_node // shape.devices_per_node)
    settings = largest.settings.model_copy(update={"cpus_per_device": cpus})
    return largest.model_copy(update={"shape": shape, "settings": settings})


def _short(allocation: Allocation, site: Site) -> Allocation:
    """Return a run's allocation with the time limit of a measurement."""
    minutes = MINUTES + START_UP_MINUTES
    if site.longest_minutes is not None:
        minutes = min(minutes, site.longest_minutes)
    # measure while enough time is left to end the ranks; in a job too short for that, measure for half of it
    limit = max(min(MINUTES * 60, minutes * 60 - START_UP_MINUTES * 30), minutes * 30)
    limits = replace(allocation.limits, limit_seconds=limit)
    return replace(allocation, minutes=minutes, limits=limits, signal_seconds=0)
