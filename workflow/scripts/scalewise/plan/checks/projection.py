"""Check device counts that are predicted beyond those that are measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scalewise.plan.checks.allocation import check_whole_nodes
from scalewise.plan.config.errors import Place, Problem, RefusedValueError
from scalewise.plan.config.experiment import AnyExperiment
from scalewise.plan.config.shape import fill
from scalewise.plan.config.site import Site


def check_projection(
    place: Place, experiment: AnyExperiment, entry: Mapping[str, Any], site: Site
) -> Iterator[Problem]:
    """Refuse projected device counts that the site cannot allocate, or that another key contradicts.

    Args:
        place: The experiment's place.
        experiment: The experiment, with valid values.
        entry: The keys and values of the experiment in the file, without ``defaults``.
        site: Facts of the machine or cluster.
    """
    if experiment.project is None:
        return
    if not experiment.predict and ("project" in entry or "predict" not in entry):
        yield Problem(
            (*place, "project"),
            f"requests a prediction on {experiment.project.devices} devices, but predict is false",
            "Remove one of the two.",
        )
    for index, devices in enumerate(experiment.project.devices):
        here = (*place, "project", "devices", index)
        if devices in experiment.project.devices[:index]:
            yield Problem(here, f"is {devices}, which is in the list twice", "Keep one of the two.")
        try:
            shape = fill(devices, site.devices_per_node, may_force=False)
        except RefusedValueError as error:
            yield Problem(here, error.text, error.fix)
        else:
            yield from check_whole_nodes(here, devices, shape, site)
