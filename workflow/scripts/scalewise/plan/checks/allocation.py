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


def _refused_launcher(launcher: LauncherName | None, slurm: Slurm | None) -> tuple[str, str] | None:
    """Return why a launcher cannot be used, and the fix; None if it can."""
    if launcher == "srun" and slurm is None:
        return "is srun, which needs Slurm, and the site has no `slurm:`", "Use popen, torchrun or spawn."
    if launcher == "popen" and slurm is not None:
        text = "is popen, which starts ranks on one machine only, and the site has `slurm:`"
        return text, "Use srun, torchrun or spawn."
    return None


def check_facts(facts: SiteFile) -> Iterator[Problem]:
    """Refuse facts of a site that contradict each other."""
    if refusal := _refused_launcher(facts.launcher, facts.slurm):
        yield Problem(("launcher",), *refusal)
    if facts.slurm is None:
        return
    for key in AUTO_KEYS:
        if getattr(facts, key) == "auto":
            yield Problem(
                (key,),
                "is auto, which looks at this machine, but the runs go to Slurm's nodes",
                f"Write what a compute node has, such as `{key}: {'cuda' if key == 'accelerator' else 4}`.",
            )


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
    if refusal := _refused_launcher(settings.launcher, site.slurm):
        yield Problem(where("launcher"), *refusal)
    devices = max(shape.devices_per_node for shape in shapes)
    needed = devices * settings.cpus_per_device
    if needed > site.cpus_per_node:
        possible = site.cpus_per_node // devices
        yield Problem(
            where("cpus_per_device"),
            f"({settings.cpus_per_device}) on each of {count_devices(devices)} of a node takes {needed} "
            f"CPUs, but a node has {site.cpus_per_node}",
            f"Use at most {possible}, or fewer devices." if possible else "Use fewer devices.",
        )


def check_allocations(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse time or memory that the scheduler would not give to an experiment."""
    yield from _check_time(place, experiment, site)
    yield from _check_memory(place, experiment, site)


def _check_time(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse a runtime of several jobs if none of them leaves time to train."""
    longest, slurm = site.longest_minutes, site.slurm
    if longest is None or slurm is None or experiment.runtime_minutes <= longest:
        return
    if (left := trained_seconds(longest)) < LEAST_SECONDS:
        yield Problem(
            (*place, "runtime_minutes"),
            f"({experiment.runtime_minutes}) is over the {longest} minutes that a job may take here "
            f"({slurm.longest_walltime}), and start and signal leave {max(left, 0)} of a job's "
            f"{longest * 60} seconds to train in",
            f"Use at most {longest}, or correct longest_walltime in the site file.",
        )


def _check_memory(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    requested, node_memory = experiment.memory_gb, site.facts.memory_gb_per_node
    if requested is None:
        return
    here = (*place, "memory_gb")
    if node_memory is not None and requested > node_memory:
        text = f"({requested:g}) is over the {node_memory:g} GB of a node"
        yield Problem(here, text, f"Use at most {node_memory:g}.")
