"""Check an experiment: what would waste device-hours, hang or measure the wrong thing, before anything runs.

What torch, Slurm or Python report themselves at the start of a run is not checked here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scalewise.config.errors import Place, Problem, RefusedValueError
from scalewise.config.experiment import (
    EXPERIMENT_NAME,
    LIMITS,
    MAX_EXPERIMENT_NAME,
    AnyExperiment,
    ProgramExperiment,
)
from scalewise.config.program import ARGUMENT
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape, count_devices, shape_for
from scalewise.config.site import Site
from scalewise.plan.checks.allocation import check_allocations, check_launch
from scalewise.plan.checks.program import check_program
from scalewise.plan.checks.training import BATCH_KEY, Series, check_batch_divides, check_builtin
from scalewise.plan.runs.rounds import counts_that_divide_batches, counts_that_fill_nodes
from scalewise.plan.runs.runs import combinations, excluded, excludes, series_label, settings_of

MAX_LABEL = 190
"""Longest name of a series: with its devices, partition and repeat, a run's name has at most 255 bytes."""

MAX_RUNS = 1000
"""Most runs of a study: more are likely a mistake in the sweep."""

PARTIAL = "partial"
"""A folder below results/ that is no experiment's."""


def check_names(names: Iterable[str]) -> Iterator[Problem]:
    """Refuse experiment names that cannot be folder names, or that differ by case only."""
    spellings = {PARTIAL: f"the folder results/{PARTIAL}"}
    for name in names:
        place: Place = ("experiments", name)
        if not re.fullmatch(EXPERIMENT_NAME, name) or name.endswith("\n") or len(name) > MAX_EXPERIMENT_NAME:
            fix = f"Use at most {MAX_EXPERIMENT_NAME} letters, digits, - and _; begin with a letter or digit."
            yield Problem(place, f"is named {name!r}, which cannot be a folder's name everywhere", fix)
        elif (other := spellings.setdefault(name.lower(), name)) != name:
            text = f"is {other} where a file system ignores case"
            yield Problem(place, text, "Rename one of the two.")


def check_devices(
    place: Place, counts: Iterable[int | str], site: Site
) -> tuple[dict[int | str, Shape], list[Problem]]:
    """Return the shape of each device count, and the problems of impossible and repeated ones.

    Args:
        place: The experiment's place.
        counts: Entries of ``devices``.
        site: Facts of the machine.
    """
    shapes: dict[int | str, Shape] = {}
    problems = []
    for index, devices in enumerate(counts):
        here = (*place, "devices", index)
        try:
            shape = shape_for(devices, devices_per_node=site.devices_per_node, max_nodes=site.max_nodes)
        except RefusedValueError as error:
            problems.append(error.at(here))
            continue
        if any(shape.world_size == other.world_size for other in shapes.values()):
            text = f"is {devices!r}, a number of devices that another entry has"
            problems.append(Problem(here, text, "Give each shape of one count its own experiment."))
        shapes[devices] = shape
    return shapes, problems


def check_choice(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse device counts that leave nothing to choose, and keys that only a choice needs.

    Args:
        place: The experiment's place.
        experiment: The experiment as the user wrote it, with valid values.
        site: Facts of the machine or cluster.
    """
    up_to = experiment.devices.up_to
    if up_to is None:
        if experiment.budget is not None:
            text = "limits a study that measures every device count of its list"
            yield Problem((*place, "budget"), text, "Write `devices: {up_to: 64}`, or remove budget.")
        return
    if experiment.max_repeats < 2:
        text = f"is {experiment.max_repeats}, but devices are chosen by how far runs scatter"
        yield Problem((*place, "repeats"), text, "Use 3 or more, or write the devices as a list.")
    here: Place = (*place, "devices", "up_to")
    if up_to > site.most_devices:
        nodes = count_devices(site.max_nodes, "node")
        text = f"is {up_to}, but a run may take {nodes} of {count_devices(site.devices_per_node)} here"
        yield Problem(here, text, f"Use at most {site.most_devices}.")
    counts = counts_that_divide_batches(counts_that_fill_nodes(up_to, site), experiment)
    if len(counts) < 2:
        text = f"is {up_to}, which leaves {counts or 'none'} that fill nodes and divide the batch"
        yield Problem(here, text, "Write the devices as a list.")


def check_budget(
    place: Place, experiment: AnyExperiment, first: Sequence[int], partitions: int = 1
) -> Iterator[Problem]:
    """Refuse a budget that does not cover the first runs at their full runtime.

    Args:
        place: The experiment's place.
        experiment: An experiment that chooses its device counts.
        first: The devices that each run before the first round is billed for.
        partitions: Number of partitions that share the budget in equal parts.
    """
    budget = experiment.budget
    needed = partitions * sum(first) * experiment.runtime_minutes / 60
    if budget is not None and budget.device_hours < needed:
        text = (
            f"is {budget.device_hours:g}, but the first {partitions * len(first)} runs may take {needed:.3g} "
            f"device-hours by runtime_minutes ({experiment.runtime_minutes})"
        )
        yield Problem((*place, "budget", "device_hours"), text, f"Use {needed:.3g} or more.")


def check_experiment(
    name: str, experiment: AnyExperiment, entry: Mapping[str, Any], site: Site
) -> tuple[dict[int | str, Shape], list[Problem]]:
    """Return the shapes of the device counts, and the mistakes between values.

    Args:
        name: The experiment's name.
        experiment: The experiment, with valid values.
        entry: The keys and values of the experiment in the file, without ``defaults``.
        site: Facts of the machine.
    """
    place: Place = ("experiments", name)
    shapes, problems = check_devices(place, experiment.device_counts, site)
    problems += [*_check_sweep(place, experiment, entry), *_check_whole_run(place, experiment)]
    if too_many := list(_check_runs(place, experiment)):
        return shapes, problems + too_many
    problems += _check_exclude(place, experiment)
    problems += _check_series(place, experiment, shapes, site)
    problems += check_allocations(place, experiment, site)
    # options multiply runs, and one mistake then shows in many of them
    return shapes, list(dict.fromkeys(problems))


def _check_sweep(place: Place, experiment: AnyExperiment, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse contradictory values, and a batch size that the scaling does not keep."""
    swept = experiment.swept
    fixed = {**entry, **{f"{ARGUMENT}{name}": value for name, value in entry.get("argument", {}).items()}}
    for key in (key for key in swept if key in fixed):
        text = f"is {fixed[key]!r}, but sweep.{key} gives it the values {swept[key]}"
        yield Problem((*place, *key.split(".")), text, "Keep one of the two.")
    kept = BATCH_KEY[experiment.scaling]
    (other,) = set(BATCH_KEY.values()) - {kept}
    if kept not in swept and getattr(experiment, kept) is None:
        text = f"is missing, and scaling is {experiment.scaling}"
        yield Problem((*place, kept), text, f"Add `{kept}: 256`.")
    if other in entry or other in swept:
        here = (*place, "sweep", other) if other in swept else (*place, other)
        text = f"is {swept.get(other, entry.get(other))!r}, but {experiment.scaling} scaling keeps {kept}"
        yield Problem(here, text, f"Remove {other}, or choose the other scaling.")


def _check_whole_run(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse what needs whole runs, or their time, if ``steps`` ends each run before."""
    of_whole: dict[Place, Any] = {("decision", key): getattr(experiment.decision, key) for key in LIMITS}
    for key in ("metric", "target", "stop_at_accuracy", "save_model"):
        of_whole[key,] = getattr(experiment, key, None)
        of_whole["sweep", key] = experiment.swept.get(key)
    for keys, value in of_whole.items():
        if value and experiment.steps is not None:
            text = f"({value}) concerns whole trainings, but steps is {experiment.steps}"
            yield Problem((*place, *keys), text, "Keep one of the two.")
    own_data = isinstance(experiment, ProgramExperiment) and experiment.scaling == "weak"
    is_whole = experiment.samples_per_training is not None or of_whole["metric",] is not None
    if experiment.trainings is not None and not is_whole and (experiment.steps is not None or own_data):
        text = f"is {experiment.trainings}, but how long one training takes is unknown"
        yield Problem((*place, "trainings"), text, "Add samples_per_training, in all epochs of one training.")


def _check_runs(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    series = math.prod(len(values) for values in experiment.swept.values())
    runs = series * len(experiment.device_counts) * experiment.max_repeats
    if runs > MAX_RUNS:
        text = f"makes {runs:,} runs, {series:,} series; at most {MAX_RUNS:,} are planned"
        yield Problem((*place, "sweep" if series > 1 else "devices"), text, "Sweep or measure less.")


def _check_exclude(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse entries that match no run, and those that leave none."""
    possible = list(itertools.product(combinations(experiment), experiment.device_counts))
    for index, entry in enumerate(experiment.exclude):
        if not any(excludes(entry, options, devices) for options, devices in possible):
            text = f"is {entry}, which matches no run"
            yield Problem((*place, "exclude", index), text, "Name swept keys or devices, and values of them.")
    if possible and all(excluded(experiment, options, devices) for options, devices in possible):
        yield Problem((*place, "exclude"), "leaves no run")


def _check_series(
    place: Place, experiment: AnyExperiment, shapes: Mapping[int | str, Shape], site: Site
) -> Iterator[Problem]:
    """Check each series, and that their runs have folders."""
    labels = [series_label(options).lower() for options in combinations(experiment)]
    if twice := [label for label in labels if labels.count(label) > 1]:
        text = f"makes {twice.count(twice[0])} series of the name {twice[0]}"
        yield Problem((*place, "sweep"), text, "Remove a repeated value, or rename one.")
    # each count and repeat adds a few characters
    if (longest := max(map(len, labels))) > MAX_LABEL:
        text = f"makes names of more than {longest} characters, and file systems take {MAX_LABEL}"
        yield Problem((*place, "sweep"), text, "Sweep fewer keys, or shorter values.")
    for options in combinations(experiment):
        of_series = [shape for devices, shape in shapes.items() if not excluded(experiment, options, devices)]
        if not of_series:
            continue
        series = Series(place, experiment, options, settings_of(experiment, options), of_series, site)
        yield from check_launch(series.at, series.settings, of_series, site)
        yield from check_batch_divides(series)
        if isinstance(series.settings, Settings):
            yield from check_builtin(series, series.settings)
        else:
            yield from check_program(series, series.settings)
