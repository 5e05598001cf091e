"""Check an experiment: what would waste device-hours, hang or measure the wrong thing, before anything runs.

What torch, Slurm or Python report themselves at the start of a run is not checked here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
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
from scalewise.plan.runs.runs import (
    Point,
    combinations,
    excluded,
    excludes,
    partition_of,
    series_label,
    settings_of,
)

MAX_NAME_BYTES = 255
"""Longest file name on the file systems in use."""

MAX_RUNS = 1000
"""Most runs of a study: more are likely a mistake in the sweep."""

PARTIAL = "partial"
"""Folder below results/ that is no experiment's."""


def check_names(names: Iterable[str]) -> Iterator[Problem]:
    """Refuse experiment names that cannot be folder names, or that differ by case only."""
    spellings: dict[str, str] = {}
    for name in names:
        place: Place = ("experiments", name)
        if not re.fullmatch(EXPERIMENT_NAME, name) or name.endswith("\n") or len(name) > MAX_EXPERIMENT_NAME:
            text = f"has an experiment named {name!r}, which cannot be a folder's name everywhere"
            fix = f"Use at most {MAX_EXPERIMENT_NAME} letters, digits, - and _; begin with a letter or digit."
            yield Problem(place, text, fix, "experiments")
        elif name.lower() == PARTIAL:
            yield Problem(place, "has the name of a folder below results/ with other content", "Rename it.")
        elif name.lower() in spellings:
            text = f"differs from {spellings[name.lower()]} only by case, and some file systems ignore case"
            yield Problem(place, text, "Rename one of the two.")
        spellings.setdefault(name.lower(), name)


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
            problems.append(Problem(here, error.text, error.fix))
            continue
        twin = next((other for other, it in shapes.items() if it.world_size == shape.world_size), None)
        if twin is not None:
            text = f"is {devices!r}, as many devices as {twin!r}"
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
    if not experiment.chooses_devices:
        if experiment.budget is not None:
            text = "limits a study that measures every device count of its list"
            yield Problem((*place, "budget"), text, "Write `devices: {up_to: 64}`, or remove budget.")
        return
    if experiment.max_repeats < 2:
        text = f"is {experiment.max_repeats}, but devices are chosen by how far runs scatter"
        yield Problem((*place, "repeats"), text, "Use 3 or more, or write the devices as a list.")
    up_to = experiment.devices.up_to
    if up_to is None:
        return
    here: Place = (*place, "devices", "up_to")
    if up_to > site.most_devices:
        nodes = count_devices(site.max_nodes, "node")
        text = f"is {up_to}, but a run may take {nodes} of {count_devices(site.devices_per_node)} here"
        yield Problem(here, text, f"Use at most {site.most_devices}.")
    filled = counts_that_fill_nodes(up_to, site)
    counts = counts_that_divide_batches(filled, experiment)
    if len(counts) < 2:
        why = "" if counts == filled else f": global_batch_size is not divisible by others of {filled}"
        text = f"is {up_to}, which leaves {counts or 'none'} to choose from{why}"
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
        fix = f"Use {needed:.3g} or more, or fewer runtime_minutes."
        yield Problem((*place, "budget", "device_hours"), text, fix)


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
    problems += _check_sweep(place, experiment, entry)
    problems += _check_whole_run(place, experiment)
    if too_many := list(_check_runs(place, experiment)):
        return shapes, problems + too_many
    problems += _check_exclude(place, experiment)
    problems += _check_series(place, experiment, shapes, site)
    problems += check_allocations(place, experiment, site)
    # options multiply runs, and one mistake then shows in many of them
    return shapes, list(dict.fromkeys(problems))


def _check_sweep(place: Place, experiment: AnyExperiment, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse repeated or contradictory values, and a batch size that the scaling does not keep."""
    swept = experiment.swept
    fixed = {**entry, **{f"{ARGUMENT}{name}": value for name, value in entry.get("argument", {}).items()}}
    for key, values in swept.items():
        if key in fixed:
            text = f"is {fixed[key]!r}, but sweep.{key} gives it the values {values}"
            yield Problem((*place, *key.split(".")), text, "Keep one of the two.")
    kept = BATCH_KEY[experiment.scaling]
    other = next(key for key in BATCH_KEY.values() if key != kept)
    if kept not in swept and getattr(experiment, kept) is None:
        yield Problem(
            (*place, kept), f"is missing, and scaling is {experiment.scaling}", f"Add `{kept}: 256`."
        )
    if other in entry or other in swept:
        here = (*place, "sweep", other) if other in swept else (*place, other)
        text = f"is {swept.get(other, entry.get(other))!r}, but {experiment.scaling} scaling keeps {kept}"
        yield Problem(here, text, f"Remove {other}, or choose the other scaling.")


def _check_whole_run(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse what needs whole runs, or their time, if ``steps`` ends each run before."""
    of_program = isinstance(experiment, ProgramExperiment)
    metric = experiment.metric if isinstance(experiment, ProgramExperiment) else None
    if experiment.steps is not None:
        ends = f"steps ({experiment.steps}) ends every run before that"
        for key in LIMITS:
            if (limit := getattr(experiment.decision, key)) is not None:
                text = f"is {limit:g}, a limit of a whole run, but {ends}"
                yield Problem((*place, "decision", key), text, "Remove steps, or decide by min_efficiency.")
        needs_all = ("metric",) if of_program else ("target", "stop_at_accuracy", "save_model")
        for key in needs_all:
            if getattr(experiment, key) or key in experiment.swept:
                here = (*place, "sweep", key) if key in experiment.swept else (*place, key)
                yield Problem(here, f"concerns the end of a training, but {ends}", "Keep one of the two.")
    if experiment.trainings is None or experiment.samples_per_training is not None or metric is not None:
        return
    if experiment.steps is not None or (of_program and experiment.scaling == "weak"):
        why = "steps ends every run" if experiment.steps else "with weak scaling, runs differ in their data"
        text = f"is {experiment.trainings}, but how long one training takes is unknown: {why}"
        yield Problem((*place, "trainings"), text, "Add samples_per_training, in all epochs of one training.")


def _check_runs(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    series = math.prod(len(values) for values in experiment.swept.values())
    runs = series * len(experiment.device_counts) * experiment.max_repeats
    if runs > MAX_RUNS:
        text = (
            f"makes {runs:,} runs: {series:,} series on {len(experiment.device_counts)} device counts, "
            f"{experiment.max_repeats} repeats; at most {MAX_RUNS:,} are planned"
        )
        yield Problem((*place, "sweep" if series > 1 else "devices"), text, "Sweep or measure less.")


def _check_exclude(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse entries that match no run, and those that leave none."""
    possible = list(itertools.product(combinations(experiment), experiment.device_counts))
    for index, entry in enumerate(experiment.exclude):
        if not any(excludes(entry, options, devices) for options, devices in possible):
            text = f"is {entry}, which matches no run"
            yield Problem((*place, "exclude", index), text, "Name swept keys or devices, and values of them.")
    if possible and all(excluded(experiment, options, devices) for options, devices in possible):
        yield Problem((*place, "exclude"), "leaves no run", "Exclude less.")


def _check_series(
    place: Place, experiment: AnyExperiment, shapes: Mapping[int | str, Shape], site: Site
) -> Iterator[Problem]:
    labels = Counter(series_label(options).lower() for options in combinations(experiment))
    label, number = labels.most_common(1)[0]
    if number > 1:
        text = f"makes {number} series of the name {label}"
        yield Problem((*place, "sweep"), text, "Remove a repeated value, or rename one.")
    for options in combinations(experiment):
        of_series = [shape for devices, shape in shapes.items() if not excluded(experiment, options, devices)]
        if not of_series:
            continue
        series = Series(place, experiment, options, settings_of(experiment, options), of_series, site)
        widest = max(experiment.device_counts, key=lambda devices: len(str(devices)))
        longest = Point(widest, options, partition_of(experiment)).run_name(experiment.max_repeats)
        if len(longest.encode()) > MAX_NAME_BYTES:
            text = f"makes names of {len(longest.encode())} bytes, and file systems take {MAX_NAME_BYTES}"
            yield Problem((*place, "sweep"), text, "Sweep fewer keys, or shorter values.")
        yield from check_launch(series.at, series.settings, of_series, site)
        yield from check_batch_divides(series)
        if isinstance(series.settings, Settings):
            yield from check_builtin(series, series.settings)
        else:
            yield from check_program(series, series.settings)
