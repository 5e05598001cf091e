"""Device counts that are predicted beyond those that are measured: their shapes, and what cannot be one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from scalewise.plan.config.errors import Place, Problem
from scalewise.plan.config.experiment import Experiment
from scalewise.plan.config.settings import Settings
from scalewise.plan.config.shape import Shape, count_devices
from scalewise.plan.config.site import Site


def projected_shapes(experiment: Experiment, planned: Iterable[Shape], site: Site) -> list[Shape]:
    """The shapes of ``project.devices``, fewest devices first; counts that runs have are left out.

    A projection may take more nodes than a run.

    Args:
        experiment: checked.
        planned: shapes of its runs.
        site: facts of the machine or cluster.
    """
    if experiment.project is None:
        return []
    taken = {shape.world_size for shape in planned}
    counts = sorted({devices for devices in experiment.project.devices if devices not in taken})
    return [_fill(devices, site) for devices in counts]


def _fill(devices: int, site: Site) -> Shape:
    per_node = min(devices, site.devices_per_node)
    return Shape(devices // per_node, per_node)


def check_projection(
    place: Place, experiment: Experiment, own: Mapping[str, Any], site: Site
) -> Iterator[Problem]:
    """What the site, or another key, makes of the projected device counts.

    Args:
        place: of the experiment.
        experiment: its values, each valid by itself.
        own: the keys it has itself, apart from those of ``defaults``.
        site: facts of the machine or cluster.
    """
    if experiment.project is None:
        return
    if not experiment.predict and ("project" in own or "predict" not in own):
        yield Problem(
            (*place, "project"),
            f"asks for a prediction on {experiment.project.devices} devices, but predict is false",
            "Remove one of the two.",
        )
    for index, devices in enumerate(experiment.project.devices):
        here = (*place, "project", "devices", index)
        if devices in experiment.project.devices[:index]:
            yield Problem(here, f"is {devices}, which stands there twice", "Keep one of the two.")
        yield from _check_nodes(here, devices, site)


def _check_nodes(here: Place, devices: int, site: Site) -> Iterator[Problem]:
    per_node = site.devices_per_node
    rest = devices % per_node
    if devices > per_node and rest:
        yield Problem(
            here,
            f"is {devices}, which leaves a node partly empty at {per_node} devices per node",
            f"Use {devices - rest} or {devices - rest + per_node}.",
        )
    elif rest and site.slurm is not None and site.slurm.partial_nodes == "refused":
        yield Problem(
            here,
            f"is {devices}, part of a node of {count_devices(per_node)}, and this site gives whole nodes "
            "only",
            f"Use multiples of {per_node}.",
        )


def check_projected_batch(
    where: Callable[[str], Place],
    experiment: Experiment,
    settings: Settings,
    train_samples: int,
    devices_per_node: int,
) -> Iterator[Problem]:
    """Device counts on which a series could not be trained as it is, so that a prediction means nothing.

    Args:
        where: the place of a key of the series.
        experiment: with the counts.
        settings: of the series.
        train_samples: of its dataset.
        devices_per_node: of the site.
    """
    if experiment.project is None:
        return
    for index, devices in enumerate(experiment.project.devices):
        here = (*where("project"), "devices", index)
        if settings.scaling == "strong":
            yield from _check_strong(here, devices, settings, train_samples, devices_per_node)
        else:
            yield from _check_weak(here, devices, settings, train_samples)


def _check_strong(
    here: Place, devices: int, settings: Settings, train_samples: int, per_node: int
) -> Iterator[Problem]:
    batch, passes = settings.global_batch_size, settings.accumulation_steps
    # a batch over the dataset is refused by itself, and could have divisors without end
    if batch is None or batch > train_samples or batch % (devices * passes) == 0:
        return
    counts = [] if batch % passes else _divisors(batch // passes)
    possible = [count for count in counts if count <= per_node or count % per_node == 0]
    near = [max((c for c in possible if c < devices), default=None)]
    near.append(min((c for c in possible if c > devices), default=None))
    usable = " or ".join(str(count) for count in near if count is not None)
    parts = f"the world size ({devices})"
    if passes > 1:
        parts = f"{devices * passes}: {parts} times accumulation_steps ({passes})"
    yield Problem(
        here,
        f"is {devices}, but global_batch_size ({batch}) is not divisible by {parts}",
        f"Use {usable}, or change global_batch_size." if usable else "Change global_batch_size.",
    )


def _divisors(number: int) -> list[int]:
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return [*small, *(number // divisor for divisor in small)]


def _check_weak(here: Place, devices: int, settings: Settings, train_samples: int) -> Iterator[Problem]:
    batch, passes = settings.batch_size_per_device, settings.accumulation_steps
    if batch is None or batch * passes * devices <= train_samples:
        return
    most = train_samples // (batch * passes)
    accumulated = f" over {passes} passes" if passes > 1 else ""
    yield Problem(
        here,
        f"is {devices}, on which batch_size_per_device ({batch}) makes a global batch of "
        f"{batch * passes * devices}{accumulated}, but {settings.dataset} has {train_samples} training "
        "samples",
        f"Use at most {most}, or a smaller batch." if most else "Use a smaller batch.",
    )
