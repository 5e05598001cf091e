"""Check a study that chooses its device counts: there is a choice, and the budget covers the first runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scalewise.config.errors import Place, Problem
from scalewise.config.experiment import AnyExperiment
from scalewise.config.shape import Shape, count_devices
from scalewise.config.site import Site
from scalewise.plan.formatting import counts_listed
from scalewise.plan.runs.device_counts import (
    MOST_CANDIDATES,
    counts_that_divide_batches,
    counts_that_fill_nodes,
)


def check_choice(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse device counts that leave nothing to choose, and keys that only a choice needs.

    Args:
        place: The experiment's place.
        experiment: The experiment as the user wrote it, with valid values.
        site: Facts of the machine or cluster.
    """
    if not experiment.chooses_devices:
        if experiment.budget is not None:
            yield Problem(
                (*place, "budget"),
                "limits a study that measures every device count of its list",
                "Write `devices: {among: [1, 2, 4]}`, so that the study chooses among them, or remove "
                "budget.",
            )
        return
    if experiment.max_repeats < 2:
        yield Problem(
            (*place, "repeats"),
            f"is {experiment.max_repeats}, but devices are chosen by how far runs scatter, and a single run "
            "does not show that",
            "Use 3 or more, or write the devices as a list.",
        )
    up_to, among = experiment.devices.up_to, experiment.devices.among
    here: Place = (*place, "devices", "up_to")
    if up_to is None:
        return
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
    filled = counts_that_fill_nodes(up_to, site)
    counts = counts_that_divide_batches(filled, experiment)
    if len(counts) < 2:
        left = f"leaves {counts or 'none'} to choose among"
        why = "" if counts == filled else f": global_batch_size is not divisible by others of {filled}"
        yield Problem(here, f"is {up_to}, which {left}{why}", "Write the devices as a list.")


def check_budget(
    place: Place, experiment: AnyExperiment, first: Sequence[tuple[Shape, int]], partitions: int = 1
) -> Iterator[Problem]:
    """Refuse a budget that does not cover the first runs at their full runtime.

    Args:
        place: The experiment's place.
        experiment: An experiment that chooses its device counts.
        first: The shape of each run before the first round, and the devices that it is billed for.
        partitions: Number of partitions that share the budget in equal parts.
    """
    budget = experiment.budget
    if budget is None:
        return
    hours_per_minute = sum(billed for _, billed in first) / 60
    hours = hours_per_minute * experiment.runtime_minutes
    if budget.device_hours >= partitions * hours:
        return
    fewest = sorted({shape.world_size for shape, _ in first})
    part = f", {budget.device_hours / partitions:.3g} for each of {partitions} partitions" * (partitions > 1)
    text = (
        f"is {budget.device_hours:g}{part}, but the first {len(first)} runs, on "
        f"{counts_listed(fewest, 'device')}, may take {hours:.3g} device-hours by runtime_minutes "
        f"({experiment.runtime_minutes})"
    )
    fixes = [f"Use {partitions * hours:.3g} or more"]
    minutes = math.floor(budget.device_hours / partitions / hours_per_minute)
    if minutes > 0:
        fixes.append(f"a runtime_minutes of {minutes} or less")
    yield Problem((*place, "budget", "device_hours"), text, f"{', or '.join(fixes)}.")
