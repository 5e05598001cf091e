"""Check an experiment: what would waste device-hours, hang or measure the wrong thing, before anything runs.

What torch, Slurm or Python report themselves at the start of a run is not checked here.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from scalewise.config.errors import Place, Problem, did_you_mean
from scalewise.config.experiment import LIMITS, AnyExperiment, ProgramExperiment
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape, count_devices, shape_for
from scalewise.config.site import Site
from scalewise.plan.checks.program import check_program
from scalewise.plan.checks.training import BATCH_KEY, Series, check_batch_divides, check_builtin
from scalewise.plan.runs.allocation import LEAST_SECONDS, trained_seconds
from scalewise.plan.runs.runs import combinations, excluded, excludes, series_label, settings_of

MAX_LABEL = 190
"""Longest name of a series: with its devices, partition and repeat, a run's name has at most 255 bytes."""


def check_case(place: Place, names: Iterable[str]) -> Iterator[Problem]:
    """Refuse names of folders that differ only by case, which some file systems ignore."""
    spellings: dict[str, str] = {}
    for name in names:
        if (other := spellings.setdefault(name.lower(), name)) != name:
            text = f"is {other} where a file system ignores case. Rename one of the two."
            yield Problem((*place, name), text)


def choose_sites(
    place: Place, experiment: AnyExperiment, sites: Mapping[str, Site]
) -> tuple[list[Site], list[Problem]]:
    """Return where an experiment runs, and the mistakes in its choice of partitions."""
    first, *_ = sites
    names = list(sites) if experiment.partitions == "all" else experiment.partitions or [first]
    problems = []
    for index, name in enumerate(names):
        if name not in sites:
            text = f"is {name!r}, no partition of the site file. {did_you_mean(name, filter(None, sites))}"
            problems.append(Problem((*place, "partitions", index), text))
    return [sites[name] for name in dict.fromkeys(names) if name in sites] or [sites[first]], problems


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
        except ValueError as error:
            problems.append(Problem(here, str(error)))
            continue
        if any(shape.world_size == other.world_size for other in shapes.values()):
            text = f"is {devices!r}, a number of devices that another entry has. Make two experiments."
            problems.append(Problem(here, text))
        shapes[devices] = shape
    return shapes, problems


def check_choice(place: Place, experiment: AnyExperiment, sites: Iterable[Site]) -> Iterator[Problem]:
    """Refuse device counts that no site has, a choice by one repeat, and a budget without a choice."""
    up_to = experiment.devices.up_to
    if up_to is None:
        if experiment.budget is not None:
            text = (
                "limits a study that measures every device count of its list. Write `devices: {up_to: 64}`."
            )
            yield Problem((*place, "budget"), text)
        return
    if experiment.repeats.max < 2:
        text = "is 1, but devices are chosen by how far runs scatter. Use 3 or more."
        yield Problem((*place, "repeats"), text)
    if up_to > (most := max(site.most_devices for site in sites)):
        text = f"is {up_to}, but a run may take at most {most} devices here."
        yield Problem((*place, "devices", "up_to"), text)


def check_experiment(
    place: Place, experiment: AnyExperiment, entry: Mapping[str, Any], site: Site
) -> tuple[dict[int | str, Shape], list[Problem]]:
    """Return the shapes of the device counts, and the mistakes between values.

    Args:
        place: The experiment's place.
        experiment: The experiment, with valid values.
        entry: The keys and values of the experiment in the file, without ``defaults``.
        site: Facts of the machine.
    """
    if (up_to := experiment.devices.up_to) is not None and len(experiment.devices.counts) < 2:
        text = f"is {up_to}, which leaves no two counts that fill nodes and divide the batch. Write a list."
        return {}, [Problem((*place, "devices", "up_to"), text)]
    shapes, problems = check_devices(place, experiment.devices.counts, site)
    problems += _check_batch_key(place, experiment, entry)
    problems += _check_whole_run(place, experiment)
    problems += _check_exclude(place, experiment)
    problems += _check_limits(place, experiment, site)
    problems += _check_series(place, experiment, shapes, site)
    return shapes, problems


def _check_batch_key(place: Place, experiment: AnyExperiment, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse a missing batch size, and one that the scaling does not keep."""
    swept, kept = experiment.swept, BATCH_KEY[experiment.scaling]
    (other,) = set(BATCH_KEY.values()) - {kept}
    if None in (values := swept.get(kept, [getattr(experiment, kept)])):
        here = (*place, "sweep", kept, values.index(None)) if kept in swept else (*place, kept)
        text = f"is missing, and scaling is {experiment.scaling}. Add `{kept}: 256`."
        yield Problem(here, text)
    if other in entry or other in swept:
        here = (*place, "sweep", other) if other in swept else (*place, other)
        value = swept.get(other, entry.get(other))
        text = f"is {value!r}, but {experiment.scaling} scaling keeps {kept}. Remove one of the two."
        yield Problem(here, text)


def _check_whole_run(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse what needs whole runs, or their time, if ``steps`` ends each run before."""
    of_whole: dict[Place, Any] = {("decision", key): getattr(experiment.decision, key) for key in LIMITS}
    for key in ("metric", "target", "stop_at_accuracy", "save_model"):
        of_whole[key,] = getattr(experiment, key, None)
        of_whole["sweep", key] = experiment.swept.get(key)
    for keys, value in of_whole.items():
        if value and experiment.steps is not None:
            text = (
                f"({value}) concerns whole trainings, but steps is {experiment.steps}. Keep one of the two."
            )
            yield Problem((*place, *keys), text)
    own_data = isinstance(experiment, ProgramExperiment) and experiment.scaling == "weak"
    is_whole = experiment.samples_per_training is not None or of_whole["metric",] is not None
    if experiment.trainings is not None and not is_whole and (experiment.steps is not None or own_data):
        text = f"is {experiment.trainings}, but the length of one is unknown. Add samples_per_training."
        yield Problem((*place, "trainings"), text)


def _check_exclude(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse entries that match no run, and those that leave none."""
    possible = list(itertools.product(combinations(experiment), experiment.devices.counts))
    for index, entry in enumerate(experiment.exclude):
        if not any(excludes(entry, options, devices) for options, devices in possible):
            text = f"is {entry}, which matches no run. Name swept keys or devices, and values of them."
            yield Problem((*place, "exclude", index), text)
    if all(excluded(experiment, options, devices) for options, devices in possible):
        yield Problem((*place, "exclude"), "leaves no run.")


def _check_limits(place: Place, experiment: AnyExperiment, site: Site) -> Iterator[Problem]:
    """Refuse time that leaves no job time to train, and memory that no node has."""
    longest, minutes = site.longest_minutes, experiment.runtime_minutes
    if longest is not None and minutes > longest and trained_seconds(longest) < LEAST_SECONDS:
        text = (
            f"({minutes}) takes several jobs of {longest} minutes (longest_walltime), too short to train in"
        )
        yield Problem((*place, "runtime_minutes"), f"{text}. Use at most {longest}.")
    requested, most = experiment.memory_gb, site.facts.memory_gb_per_node
    if requested is not None and most is not None and requested > most:
        text = f"({requested:g}) is over the {most:g} GB of a node. Use at most {most:g}."
        yield Problem((*place, "memory_gb"), text)


def _check_series(
    place: Place, experiment: AnyExperiment, shapes: Mapping[int | str, Shape], site: Site
) -> Iterator[Problem]:
    """Check each series, and that their runs have folders."""
    labels = Counter(series_label(options).lower() for options in combinations(experiment))
    if twice := [label for label, series in labels.items() if series > 1]:
        text = f"makes {labels[twice[0]]} series of the name {twice[0]}. Remove a repeated value."
        yield Problem((*place, "sweep"), text)
    # each count and repeat adds a few characters
    if max(map(len, labels)) > MAX_LABEL:
        text = f"makes names of more than {MAX_LABEL} characters. Sweep fewer keys, or shorter values."
        yield Problem((*place, "sweep"), text)
    for options in combinations(experiment):
        of_series = [shape for devices, shape in shapes.items() if not excluded(experiment, options, devices)]
        if not of_series:
            continue
        series = Series(place, experiment, options, settings_of(experiment, options), of_series, site)
        if getattr(series.settings, BATCH_KEY[experiment.scaling]) is None:
            continue  # its absence has a mistake
        yield from _check_launch(series)
        yield from check_batch_divides(series)
        if isinstance(series.settings, Settings):
            yield from check_builtin(series, series.settings)
        else:
            yield from check_program(series, series.settings)


def _check_launch(series: Series) -> Iterator[Problem]:
    """Refuse a launcher or CPUs that the nodes do not have."""
    site, settings = series.site, series.settings
    launcher = settings.launcher or site.launcher
    if launcher == ("srun" if site.slurm is None else "popen"):
        where = "one machine" if site.slurm is None else "Slurm"
        origin = "" if settings.launcher else " by the site file"
        text = f"is {launcher}{origin}, which cannot start ranks on {where}. Use torchrun or spawn."
        yield Problem(series.at("launcher"), text)
    devices = max(shape.devices_per_node for shape in series.shapes)
    needed = devices * settings.cpus_per_device
    if needed > site.cpus_per_node:
        most = site.cpus_per_node // devices
        text = (
            f"({settings.cpus_per_device}) takes {needed} CPUs for {count_devices(devices)} of a node, which "
            f"has {site.cpus_per_node}. Use {f'at most {most}, or ' if most else ''}fewer devices."
        )
        yield Problem(series.at("cpus_per_device"), text)
