"""Check that the machine or cluster can give a run what it requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from scalewise.config.errors import Place, Problem
from scalewise.config.experiment import AnyExperiment
from scalewise.config.program import AnySettings
from scalewise.config.settings import LauncherName
from scalewise.config.shape import Shape, count_devices
from scalewise.config.site import AUTO_KEYS, Site, SiteFile, installed_gpus
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
    if facts.visible_devices is not None:
        yield from _check_visible_devices(facts, facts.visible_devices)
    if None not in (facts.price_per_device_hour, facts.billing_per_device_hour):
        yield Problem(
            ("billing_per_device_hour",),
            f"is {facts.billing_per_device_hour:g}, and price_per_device_hour is "
            f"{facts.price_per_device_hour:g}",
            "Keep one of the two.",
        )
    if facts.slurm is None:
        return
    for key in AUTO_KEYS:
        if getattr(facts, key) == "auto":
            yield Problem(
                (key,),
                "is auto, which looks at this machine, but the runs go to Slurm's nodes",
                f"Write what a compute node has, such as `{key}: {'cuda' if key == 'accelerator' else 4}`.",
            )
    slurm = facts.slurm
    if slurm.gpu_type is not None and slurm.gpu_request == "none":
        yield Problem(
            ("slurm", "gpu_type"),
            f"is {slurm.gpu_type!r}, but gpu_request is none",
            "Remove one of the two.",
        )
    if slurm.use_test_partition and slurm.test_partition is None:
        yield Problem(
            ("slurm", "use_test_partition"),
            "is true, and no test_partition is given",
            "Add `test_partition:` with name, longest_walltime and max_nodes, or remove it.",
        )
    if (tests := slurm.test_partition) is not None and tests.name is None and tests.qos is None:
        yield Problem(("slurm", "test_partition"), "has neither name nor qos", "Add one of them.")
    if slurm.mail_type and slurm.mail_user is None:
        yield Problem(("slurm", "mail_type"), "is given without mail_user", "Add `mail_user:`, or remove it.")
    if slurm.memory == "none" and facts.memory_gb_per_node is not None:
        yield Problem(
            ("memory_gb_per_node",),
            f"is {facts.memory_gb_per_node:g}, but slurm.memory is none, so no job requests memory",
            "Remove one of the two.",
        )


def _check_visible_devices(facts: SiteFile, devices: Sequence[int]) -> Iterator[Problem]:
    here = ("visible_devices",)
    if facts.slurm is not None:
        yield Problem(
            here,
            f"is {devices}, but Slurm chooses a job's GPUs",
            "Remove it, and set gpu_type or constraint.",
        )
    elif facts.accelerator == "cpu":
        fix = "Write `accelerator: cuda`, or remove it."
        yield Problem(here, f"is {devices}, but accelerator is cpu", fix)
    elif len(set(devices)) < len(devices):
        yield Problem(here, f"is {devices}, in which a GPU is repeated", "Name each once.")
    elif 0 < (gpus := installed_gpus()) <= max(devices):
        text = f"is {devices}, but this machine has {count_devices(gpus, 'GPU')}, numbered from 0"
        yield Problem(here, text, f"Use 0 to {gpus - 1}." if gpus > 1 else "Use 0.")
    elif facts.devices_per_node not in ("auto", len(devices)):
        yield Problem(
            ("devices_per_node",),
            f"is {facts.devices_per_node}, but visible_devices names {len(devices)}",
            "Remove devices_per_node.",
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
    limit = site.facts.max_cpus_per_device
    if limit is not None and settings.cpus_per_device > limit:
        yield Problem(
            where("cpus_per_device"),
            f"({settings.cpus_per_device}) is over the {limit} that this site gives with a device",
            f"Use at most {limit}.",
        )
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


def check_allocations(
    place: Place, experiment: AnyExperiment, shapes: Mapping[int | str, Shape], site: Site
) -> Iterator[Problem]:
    """Refuse time, memory or parts of nodes that the scheduler would not give to an experiment."""
    yield from _check_time(place, experiment, site)
    yield from _check_memory(place, experiment, site)
    for index, devices in enumerate(experiment.device_counts):
        if (shape := shapes.get(devices)) is not None:
            yield from check_whole_nodes((*place, "devices", index), devices, shape, site)


def check_whole_nodes(here: Place, devices: int | str, shape: Shape, site: Site) -> Iterator[Problem]:
    """Refuse a part of a node if the site gives whole nodes only.

    Args:
        here: Place of the device count.
        devices: The count as the configuration gives it.
        shape: Nodes and devices per node of the count.
        site: Facts of the machine or cluster.
    """
    if site.slurm is None or site.slurm.partial_nodes != "refused":
        return
    if shape.devices_per_node != site.devices_per_node:
        yield Problem(
            here,
            f"is {devices!r}, part of a node of {count_devices(site.devices_per_node)}, and this site gives "
            "whole nodes only",
            f"Use multiples of {site.devices_per_node}.",
        )


def _check_time(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse a runtime of several jobs if none of them leaves time to train."""
    longest, slurm = site.longest_minutes, site.slurm
    if longest is None or slurm is None or experiment.runtime_minutes <= longest:
        return
    over = (
        f"({experiment.runtime_minutes}) is over the {longest} minutes that a job may take here "
        f"({slurm.longest_walltime}), and "
    )
    here = (*place, "runtime_minutes")
    if not slurm.signal_seconds:
        yield Problem(
            here,
            f"{over}without a signal before a job's end (slurm.signal_seconds: 0) no run takes several",
            f"Use at most {longest}, or set signal_seconds to 60 in the site file.",
        )
    elif (left := trained_seconds(longest, slurm.signal_seconds)) < LEAST_SECONDS:
        yield Problem(
            here,
            f"{over}start and signal (slurm.signal_seconds: {slurm.signal_seconds}) leave "
            f"{max(left, 0)} of a job's {longest * 60} seconds to train in",
            f"Use at most {longest}, or lower signal_seconds or correct longest_walltime in the site file.",
        )


def _check_memory(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    requested, node_memory = experiment.memory_gb, site.facts.memory_gb_per_node
    if requested is None:
        return
    here = (*place, "memory_gb")
    if site.slurm is not None and site.slurm.memory == "none":
        yield Problem(
            here,
            f"is {requested:g}, but jobs may not request memory at this site (slurm.memory: none)",
            "Remove it.",
        )
    elif node_memory is not None and requested > node_memory:
        text = f"({requested:g}) is over the {node_memory:g} GB of a node"
        yield Problem(here, text, f"Use at most {node_memory:g}.")
