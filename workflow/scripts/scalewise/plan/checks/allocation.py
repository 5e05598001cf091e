"""Check that the machine or cluster can give a run what it requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from scalewise.config.errors import Place, Problem
from scalewise.config.experiment import AnyExperiment
from scalewise.config.program import AnySettings
from scalewise.config.settings import LauncherName
from scalewise.config.shape import Shape, count_devices
from scalewise.config.site import AUTO_KEYS, Site, SiteFile
from scalewise.config.slurm import Slurm
from scalewise.plan.runs.allocation import LEAST_SECONDS, trained_seconds


def check_facts(facts: SiteFile) -> Iterator[Problem]:
    """Refuse facts of a site that contradict each other."""
    yield from _check_launcher(("launcher",), facts.launcher, facts.slurm)
    for key in AUTO_KEYS if facts.slurm else ():
        if getattr(facts, key) == "auto":
            text = "is auto, which looks at this machine, but the runs go to Slurm's nodes"
            example = "cuda" if key == "accelerator" else 4
            yield Problem((key,), text, f"Write what a compute node has, such as `{key}: {example}`.")


def _check_launcher(place: Place, launcher: LauncherName | None, slurm: Slurm | None) -> Iterator[Problem]:
    if (launcher == "srun" and slurm is None) or (launcher == "popen" and slurm is not None):
        where = "one machine" if slurm is None else "Slurm"
        yield Problem(place, f"is {launcher}, which cannot start ranks on {where}", "Use torchrun or spawn.")


def check_launch(
    where: Callable[[str], Place], settings: AnySettings, shapes: Iterable[Shape], site: Site
) -> Iterator[Problem]:
    """Refuse a series whose launcher or CPUs the nodes do not have.

    Args:
        where: Gives the place of a key of the series.
        settings: One series' training.
        shapes: One for each of its device counts.
        site: The nodes' facts.
    """
    yield from _check_launcher(where("launcher"), settings.launcher, site.slurm)
    devices = max(shape.devices_per_node for shape in shapes)
    needed = devices * settings.cpus_per_device
    if needed > site.cpus_per_node:
        text = (
            f"({settings.cpus_per_device}) on each of {count_devices(devices)} of a node takes {needed} "
            f"CPUs, but a node has {site.cpus_per_node}"
        )
        possible = site.cpus_per_node // devices
        fix = f"Use at most {possible}, or fewer devices." if possible else "Use fewer devices."
        yield Problem(where("cpus_per_device"), text, fix)


def check_allocations(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse time that leaves no job time to train, and memory that no node has."""
    longest, minutes = site.longest_minutes, experiment.runtime_minutes
    if longest is not None and minutes > longest and trained_seconds(longest) < LEAST_SECONDS:
        text = (
            f"({minutes}) takes several jobs of {longest} minutes (longest_walltime), too short to train in"
        )
        yield Problem((*place, "runtime_minutes"), text, f"Use at most {longest}.")
    requested, most = experiment.memory_gb, site.facts.memory_gb_per_node
    if requested is not None and most is not None and requested > most:
        text = f"({requested:g}) is over the {most:g} GB of a node"
        yield Problem((*place, "memory_gb"), text, f"Use at most {most:g}.")
