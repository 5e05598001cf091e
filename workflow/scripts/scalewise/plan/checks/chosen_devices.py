"""Device counts that a study chooses among: what a site makes of ``up_to``, and what cannot be a choice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scalewise.plan.config.errors import Place, Problem
from scalewise.plan.config.experiment import AnyExperiment, Devices
from scalewise.plan.config.shape import count_devices
from scalewise.plan.config.site import Site
from scalewise.plan.runs.runs import Run, combinations, settings_of

MOST_CANDIDATES = 1000
"""Counts of whole nodes: the chances of all are looked at in every round."""


def resolve_choice(
    place: Place, experiment: AnyExperiment, site: Site
) -> tuple[AnyExperiment, list[Problem]]:
    """The experiment with the counts that fill nodes in the place of ``up_to``, and what is wrong with them.

    Args:
        place: The experiment's place.
        experiment: Values that are each valid alone.
        site: Facts of the machine or cluster.
    """
    problems = [*_check_has_choice(place, experiment), *_check_repeats(place, experiment)]
    devices = experiment.devices
    if devices.up_to is None:
        return experiment, problems
    here: Place = (*place, "devices", "up_to")
    if devices.among is not None:
        problems.append(
            Problem(
                here,
                f"is {devices.up_to}, and devices.among also names {len(devices.among)} device counts",
                "Keep one of the two.",
            )
        )
        return experiment, problems
    most = site.max_nodes * site.devices_per_node
    if devices.up_to > most:
        nodes = count_devices(site.max_nodes, "node")
        problems.append(
            Problem(
                here,
                f"is {devices.up_to}, but a run may take {nodes} of "
                f"{count_devices(site.devices_per_node)} here",
                f"Use at most {most}.",
            )
        )
    reach = min(devices.up_to, most)
    if reach // site.devices_per_node > MOST_CANDIDATES:
        problems.append(
            Problem(
                here,
                f"is {devices.up_to}, which makes {reach // site.devices_per_node:,} counts of whole nodes "
                f"to choose among, but at most {MOST_CANDIDATES:,} are possible",
                "Write the counts: {among: [1, 2, 4, 8]}.",
            )
        )
        reach = site.devices_per_node
    filled = counts_that_fill_nodes(reach, site)
    counts = [count for count in filled if _divides_batches(experiment, count)]
    if len(counts) < 2:
        left = f"leaves {counts or 'none'} to choose among"
        why = "" if counts == filled else f": global_batch_size is not divisible by others of {filled}"
        problems.append(
            Problem(here, f"is {devices.up_to}, which {left}{why}", "Write the devices as a list.")
        )
    # two or more, or refused
    chosen = Devices.model_construct(up_to=devices.up_to, among=list(counts or filled or [1]))
    return experiment.model_copy(update={"devices": chosen}), problems


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
    place: Place, experiment: AnyExperiment, first: Sequence[Run], predicting: float, site: Site
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
    what = (
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
        what += f", and the all-reduces that its prediction needs {predicting:.3g}"
        fixes.append("predict: false")
    yield Problem((*place, "budget", "device_hours"), what, f"{', or '.join(fixes)}.")


def _check_has_choice(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    if experiment.budget is not None and not experiment.chooses_devices:
        yield Problem(
            (*place, "budget"),
            "limits a study that measures every device count of its list",
            "Write `devices: {among: [1, 2, 4]}`, so that the study chooses among them, or remove budget.",
        )
