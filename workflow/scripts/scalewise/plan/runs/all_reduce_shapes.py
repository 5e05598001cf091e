"""The shapes whose all-reduce a prediction is made from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Site
from scalewise.plan.runs.run_definition import RunDefinition

MINUTES = 5
"""Time limit of one measurement."""
MEASURED_NODES = (1, 2, 4)
"""Larger shapes are predicted from these: a measurement must not cost a large job. Two nodes alone are no
safe base, because they can be slower than four."""


def shapes_to_measure(runs: Sequence[RunDefinition], projected: Iterable[Shape], site: Site) -> list[Shape]:
    """The shapes whose all-reduce a prediction is made from, smallest first.

    Every shape of up to four nodes is measured itself. A larger one is predicted from one, two and four of
    its nodes; where a run may take fewer than four, from as many as it may. None where there is no 1-device
    run, from which alone a prediction can start.

    Args:
        runs: Every run of an experiment.
        projected: Shapes that are predicted and not run.
        site: Facts of the machine or cluster.
    """
    own = {
        run.shape
        for run in runs
        # what other runs send is not modelled: no prediction could use the measurement
        if isinstance(run.settings, ProgramSettings) or run.settings.parallelism == "ddp"
    }
    if Shape(1, 1) not in own:
        return []
    wanted: set[Shape] = set()
    most = min(MEASURED_NODES[-1], site.max_nodes)
    for shape in own | set(projected):
        nodes = {shape.nodes} if shape.nodes <= most else {min(number, most) for number in MEASURED_NODES}
        wanted |= {Shape(number, shape.devices_per_node) for number in nodes}
    return sorted(
        shape
        for shape in wanted
        if shape.world_size > 1
        and shape.nodes <= site.max_nodes
        and (shape in own or _can_start(shape, site))
    )


def _can_start(shape: Shape, site: Site) -> bool:
    """Whether a site can start ranks on a shape that no run has: on other nodes, a scheduler does."""
    return shape.devices_per_node <= site.cpus_per_node and (shape.nodes == 1 or site.slurm is not None)


def most_device_hours(runs: Sequence[RunDefinition], projected: Iterable[Shape], site: Site) -> float:
    """Device-hours, as billed, that the measurements for a prediction may take by their limit."""
    return (
        sum(site.billed_devices(shape) for shape in shapes_to_measure(runs, projected, site)) * MINUTES / 60
    )
