"""Device counts of ``up_to``, which follow from an experiment and its site."""

from __future__ import annotations

from collections.abc import Sequence

from scalewise.config.experiment import AnyExperiment, Devices
from scalewise.config.site import Site
from scalewise.plan.runs.runs import combinations, settings_of

MOST_CANDIDATES = 1000
"""Most counts of whole nodes: every round computes the chances of all."""


def resolve_choice(experiment: AnyExperiment, site: Site) -> AnyExperiment:
    """Return the experiment with the device counts that ``up_to`` means on a site."""
    up_to = experiment.devices.up_to
    if up_to is None:
        return experiment
    filled = counts_that_fill_nodes(up_to, site)
    # check_choice refuses fewer than two
    counts = counts_that_divide_batches(filled, experiment) or filled or [1]
    return experiment.model_copy(update={"devices": Devices(up_to=up_to, counts=[*counts])})


def counts_that_fill_nodes(most: int, site: Site) -> list[int]:
    """Return the device counts that leave no device of a node unused: even parts of a node, and whole nodes.

    Args:
        most: The largest of them.
        site: Facts of the machine or cluster.
    """
    node, largest = site.devices_per_node, min(most, site.most_devices)
    parts = [part for part in range(1, node) if node % part == 0]
    whole = range(node, largest + 1, node)[:MOST_CANDIDATES]
    return [count for count in (*parts, *whole) if count <= largest]


def counts_that_divide_batches(counts: Sequence[int], experiment: AnyExperiment) -> list[int]:
    """Return the counts that divide the batch size of strong scaling in every series."""
    if experiment.scaling != "strong":
        return list(counts)
    series = [settings_of(experiment, options) for options in combinations(experiment)]
    return [
        count
        for count in counts
        if all((each.global_batch_size or 0) % (count * each.accumulation_steps) == 0 for each in series)
    ]
