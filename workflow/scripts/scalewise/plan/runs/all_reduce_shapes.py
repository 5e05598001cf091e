"""Shapes whose all-reduce a prediction needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scalewise.plan.config.program import ProgramSettings
from scalewise.plan.config.shape import Shape
from scalewise.plan.config.site import Site
from scalewise.plan.runs.run_definition import RunDefinition

MINUTES = 5
"""Time limit of one measurement."""
MEASURED_NODES = (1, 2, 4)
"""Larger shapes are predicted from these: a measurement must not cost a large job. Two nodes are no
safe base without four, because they can be slower."""


def shapes_to_measure(runs: Sequence[RunDefinition], projected: Iterable[Shape], site: Site) -> list[Shape]:
    """Return the shapes whose all-reduce a prediction needs, smallest first.

    Every shape of up to four nodes is measured itself. A larger one is predicted from one, two and four
    nodes, or the most that a run may take. Empty without a 1-device run, as every prediction starts from one.

    Args:
        runs: Every run of an experiment.
        projected: Shapes that are predicted and not run.
        site: Facts of the machine or cluster.
    """
    run_shapes = {
        run.shape
        for run in runs
        # no model predicts the communication of other runs
        if isinstance(run.settings, ProgramSettings) or run.settings.parallelism == "ddp"
    }
    if Shape(1, 1) not in run_shapes:
        return []
    needed: set[Shape] = set()
    most = min(MEASURED_NODES[-1], site.max_nodes)
    for shape in run_shapes | set(projected):
        nodes = {shape.nodes} if shape.nodes <= most else {min(number, most) for number in MEASURED_NODES}
        needed |= {Shape(number, shape.devices_per_node) for number in nodes}
    return sorted(
        shape
        for shape in needed
        if shape.world_size > 1
        and shape.nodes <= site.max_nodes
        and (shape in run_shapes or _can_start(shape, site))
    )


def _can_start(shape: Shape, site: Site) -> bool:
    """Whether a site can start ranks on a shape that no run has; on several nodes, only a scheduler can."""
    return shape.devices_per_node <= site.cpus_per_node and (shape.nodes == 1 or site.slurm is not None)


def most_device_hours(runs: Sequence[RunDefinition], projected: Iterable[Shape], site: Site) -> float:
    """Return the most device-hours, as billed, of the measurements for a prediction."""
    return sum(site.held_devices(shape) for shape in shapes_to_measure(runs, projected, site)) * MINUTES / 60
