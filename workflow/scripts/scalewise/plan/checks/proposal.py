"""Check what a computing-time proposal is to hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scalewise.plan.config.centre import Centre, Requirement
from scalewise.plan.config.errors import Place, Problem
from scalewise.plan.config.shape import Shape, count_devices
from scalewise.plan.formatting import counts_listed


def doublings(requirement: Requirement, shapes: Iterable[Shape]) -> list[tuple[Shape, Shape]]:
    """Return the pairs of shapes of which the second has twice the nodes, or devices, of the first.

    Nodes are compared with equally many devices on each.
    """
    known = sorted(shapes, key=lambda shape: shape.world_size)
    of_nodes = requirement.per == "doubling_of_nodes"
    return [
        (fewer, more)
        for fewer in known
        for more in known
        if more.world_size == 2 * fewer.world_size
        and not (of_nodes and fewer.devices_per_node != more.devices_per_node)
    ]


def requirement_warnings(name: str, centre: Centre, shapes: Iterable[Shape]) -> Iterator[str]:
    """Warn that no two device counts are a doubling, on which a centre has a requirement.

    Args:
        name: The experiment's key.
        centre: The centre of its proposal.
        shapes: Shapes of its device counts.
    """
    required, known = centre.requirement, list(shapes)
    if required is None or doublings(required, known):
        return
    counts = counts_listed((shape.world_size for shape in known), "device")
    what = "devices" if required.per == "doubling_of_devices" else "nodes"
    yield (
        f"experiments.{name}.proposal: {centre.name} requires an efficiency of {required.efficiency:g} for "
        f"each doubling of {what}, and {counts} have none: the proposal will have no verdict. Add a count to "
        "devices."
    )


def check_requirement(
    place: Place, requirement: Requirement | None, shapes: Iterable[Shape]
) -> Iterator[Problem]:
    """Refuse a requirement on doublings if no two of the device counts are one.

    Args:
        place: The experiment's place.
        requirement: The experiment's own; what a centre requires may be measured later.
        shapes: Shapes of the experiment's device counts.
    """
    known = sorted(shapes, key=lambda shape: shape.world_size)
    if requirement is None or not known or doublings(requirement, known):
        return
    counts = counts_listed((shape.world_size for shape in known), "device")
    largest = known[-1]
    twice = count_devices(2 * largest.world_size)
    if requirement.per == "doubling_of_devices":
        text = f"is a doubling of devices, but there are {counts}: none is twice another"
        fix = f"Add {twice} to devices."
    else:
        nodes = counts_listed({shape.nodes for shape in known}, "node")
        text = f"is a doubling of nodes, but {counts} take {nodes}: none is twice another"
        fix = f"Add {twice} ({count_devices(2 * largest.nodes, 'node')}) to devices"
        fix += ", or write `per: doubling_of_devices`."
    yield Problem((*place, "requirement", "per"), text, fix)
