"""Device counts that a study chooses among: what a site makes of ``up_to``, and what cannot be a choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scalewise.plan.config.errors import Place, Problem
from scalewise.plan.config.experiment import AnyExperiment, Devices
from scalewise.plan.config.shape import count_devices
from scalewise.plan.config.site import Site
from scalewise.plan.runs.run_definition import RunDefinition
from scalewise.plan.runs.runs import combinations, settings_of

MOST_CANDIDATES = 1000
"""Counts of whole nodes: the chances of all are looked at in every round."""


def resolve_choice(experiment: AnyExperiment, site: Site) -> AnyExperiment:
    """Return the experiment with the device counts that ``up_to`` means on a site."""
    devices = experiment.devices
    if devices.up_to is None or devices.among is not None:
        return experiment
    filled, counts = _counts_up_to(devices.up_to, experiment, site)
    # two or more, or refused
    chosen = Devices.model_construct(up_to=devices.up_to, among=[*(counts or filled or [1])])
    return experiment.model_copy(update={"devices": chosen})


def check_choice(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse device counts that leave nothing to choose, and keys that only a choice needs.

    Args:
        place: The experiment's place.
        experiment: Values that are each valid alone, as the user wrote them.
        site: Facts of the machine or cluster.
    """
    yield from _check_has_choice(place, experiment)
    yield from _check_repeats(place, experiment)
    up_to, among = experiment.devices.up_to, experiment.devices.among
    if up_to is None:
        return
    here: Place = (*place, "devices", "up_to")
    if among is not None:
        text = f"is {up_to}, and devices.among also names {len(among)} device counts"
        yield Problem(here, text, "Keep one of the two.")
        return
    node, most = site.devices_per_node, site.most_devices
    if up_to > most:
        nodes = count_devices(site.max_nodes, "node")
        text = f"is {up_to}, but a run may take {nodes} of {count_devices(node)} here"
        yield Problem(here, text, f"Use at most {most}.")
    if (whole := min(up_to, most) // node) > MOST_CANDIDATES:
        text = (
            f"is {up_to}, which makes {whole:,} counts of whole nodes to choose among, but at most "
            f"{MOST_CANDIDATES:,} are possible"
        )
        yield Problem(here, text, "Write the counts: {among: [1, 2, 4, 8]}.")
    filled, counts = _counts_up_to(up_to, experiment, site)
    if len(counts) < 2:
        left = f"leaves {counts or 'none'} to choose among"
        why = "" if counts == filled else f": global_batch_size is not divisible by others of {filled}"
        yield Problem(here, f"is {up_to}, which {left}{why}", "Write the devices as a list.")


def _counts_up_to(most: int, experiment: AnyExperiment, site: Site) -> tuple[list[int], list[int]]:
    """Return the counts up to one that fill nodes, and those of them that divide the experiment's batch."""
    reach = min(most, site.most_devices)
    if reach // site.devices_per_node > MOST_CANDIDATES:
        reach = site.devices_per_node  # refused
    filled = counts_that_fill_nodes(reach, site)
    return filled, [count for count in filled if _divides_batches(experiment, count)]


def counts_that_fill_nodes(most: int, site: Site) -> list[int]:
    """Device counts that leave no device of a node over: those that divide a node evenly, and whole nodes.

    Args:
        most: The largest of them.
        site: Says how many devices a node has, and whether a part of one is given.
    """
    node = site.devices_per_node
    only_whole = site.slurm is not None and site.slurm.partial_nodes == "refused"
    parts = [] if only_whole else [part for part in range(1, node) if node % part == 0]
    return [count for count in (*parts, *range(node, most + 1, node)) if count <= most]


def _divides_batches(experiment: AnyExperiment, devices: int) -> bool:
    """Whether the batch that strong scaling keeps can be divided among so many, in every series."""
    for options in combinations(experiment):
        settings = settings_of(experiment, options)
        batch = settings.global_batch_size
        over = devices * settings.accumulation_steps
        if settings.scaling == "strong" and batch is not None and batch % over:
            return False
    return True


def _check_repeats(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    if experiment.chooses_devices and experiment.max_repeats < 2:
        yield Problem(
            (*place, "repeats"),
            f"is {experiment.max_repeats}, but devices are chosen by how far runs scatter, and a single run "
            "does not show that",
            "Use 3 or more, or write the devices as a list.",
        )


def check_budget(
    place: Place, experiment: AnyExperiment, first: Sequence[RunDefinition], predicting: float, site: Site
) -> Iterator[Problem]:
    """Refuse a budget into which the first runs do not fit, with all the time that they may take.

    Args:
        place: The experiment's place.
        experiment: An experiment whose device counts are named.
        first: Runs that are made before anything is judged.
        predicting: Device-hours that the measurements for its prediction may take.
        site: Facts of the machine or cluster.
    """
    budget = experiment.budget
    if budget is None:
        return
    a_minute = sum(site.billed_devices(run.shape) for run in first) / 60
    least = a_minute * experiment.runtime_minutes + predicting
    if budget.device_hours >= least:
        return
    text = (
        f"is {budget.device_hours:g}, but the first {len(first)} runs, on "
        f"{count_devices(min(run.shape.world_size for run in first))}, may take "
        f"{a_minute * experiment.runtime_minutes:.3g} device-hours by runtime_minutes "
        f"({experiment.runtime_minutes})"
    )
    fixes = [f"Use {least:.3g} or more"]
    minutes = math.floor((budget.device_hours - predicting) / a_minute)
    if minutes > 0:
        fixes.append(f"a runtime_minutes of {minutes} or less")
    if predicting:
        text += f", and the all-reduces that its prediction needs {predicting:.3g}"
        fixes.append("predict: false")
    yield Problem((*place, "budget", "device_hours"), text, f"{', or '.join(fixes)}.")


def _check_has_choice(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    if experiment.budget is not None and not experiment.chooses_devices:
        yield Problem(
            (*place, "budget"),
            "limits a study that measures every device count of its list",
            "Write `devices: {among: [1, 2, 4]}`, so that the study chooses among them, or remove budget.",
        )
