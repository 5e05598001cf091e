"""Check an experiment: what would waste device-hours, hang or measure the wrong thing, before anything runs.

What torch, Slurm or Python report themselves at the start of a run is not checked here.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewise.config.catalog import dataset_facts, normalises_over_batch
from scalewise.config.errors import Place, Problem, did_you_mean
from scalewise.config.experiment import LIMITS, AnyExperiment, Experiment, ProgramExperiment
from scalewise.config.program import (
    ARGUMENT,
    BATCH_NAMES,
    FOLDER,
    NODE_NAMES,
    PLANNED,
    RANK_NAMES,
    RUN_NAMES,
    AnySettings,
    ProgramSettings,
    is_file,
    module_of,
    program_files,
)
from scalewise.config.settings import Settings, plain_path
from scalewise.config.shape import Shape, count_devices, shape_for
from scalewise.config.site import Site
from scalewise.config.templates import names_in
from scalewise.plan.allocation import LEAST_SECONDS, trained_seconds
from scalewise.plan.runs import (
    Options,
    batch_per_device,
    combinations,
    excluded,
    excludes,
    global_batch,
    series_label,
    settings_of,
)

BATCH_KEY = {"strong": "global_batch_size", "weak": "batch_size_per_device"}
"""The batch size that each scaling keeps."""

FSDP_CANNOT_USE = ("gradient_as_bucket_view", "bucket_cap_mb", "communication_hook", "channels_last")
"""Options of DistributedDataParallel only, and a layout that FSDP2 does not keep."""

SCHEDULES_WITH_AN_END = ("cosine", "onecycle")
"""Schedules of the length of the run; the others have no end."""

MIN_SAMPLES_PER_RANK = 2
"""Batch normalisation needs two values in a forward pass."""

RESERVED_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which ranks find each other."""

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start ranks."""

MAX_LABEL = 190
"""Longest name of a series: with its devices, partition and repeat, a run's name has at most 255 bytes."""


@dataclass(frozen=True)
class Series:
    """The runs of an experiment that differ in device count and repeat only.

    Args:
        place: The experiment's place.
        options: Swept keys, with their values.
        settings: The experiment's training with these values.
        shapes: One for each device count.
    """

    place: Place
    experiment: AnyExperiment
    options: Options
    settings: AnySettings
    shapes: Sequence[Shape]
    site: Site

    def at(self, key: str) -> Place:
        """Return the place of a key: in the experiment or, with several values, in its sweep."""
        return (*self.place, "sweep", key) if key in dict(self.options) else (*self.place, key)

    @property
    def world_sizes(self) -> list[int]:
        """Device counts."""
        return [shape.world_size for shape in self.shapes]


# --- an experiment as a whole ----------------------------------------------------------------------------


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


# --- a series of it --------------------------------------------------------------------------------------


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
        yield from _check_batch_divides(series)
        if isinstance(series.settings, Settings):
            yield from _check_builtin(series, series.settings)
        else:
            yield from _check_program(series, series.settings)


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


def _check_batch_divides(series: Series) -> Iterator[Problem]:
    """Refuse a batch size that is not divisible by each device count; the fix names the nearest that are."""
    settings, batch = series.settings, series.settings.global_batch_size
    if settings.scaling != "strong" or batch is None:
        return
    parts = [size * settings.accumulation_steps for size in series.world_sizes]
    if indivisible := next((part for part in parts if batch % part), None):
        common = math.lcm(*parts)
        near = [each for each in (batch // common * common, batch // common * common + common) if each]
        micro = f" x accumulation_steps ({settings.accumulation_steps})" * (settings.accumulation_steps > 1)
        text = f"({batch}) is not divisible by {indivisible}, the number of devices{micro}."
        yield Problem(series.at("global_batch_size"), f"{text} Use {' or '.join(map(str, near))}.")


# --- the built-in training -------------------------------------------------------------------------------


def _check_builtin(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse what the built-in training would ignore, or could not train."""
    yield from _check_options(series, settings)
    facts: dict[str, Any] = {}
    for key, look_up in (("dataset", dataset_facts), ("model", normalises_over_batch)):
        try:
            facts[key] = look_up(getattr(settings, key))
        except ValueError as error:
            yield Problem(series.at(key), str(error))
    key = BATCH_KEY[settings.scaling]
    if "dataset" not in facts or getattr(settings, key) is None or any(_check_batch_divides(series)):
        return
    images = facts["dataset"].train_samples
    batches = {size: global_batch(settings, size) for size in series.world_sizes}
    largest, most = max(batches.values()), max(batches)
    each = batch_per_device(settings, most)
    if largest > images:
        text = f"({getattr(settings, key)}) makes a batch of {largest}, over the dataset's {images} images."
        yield Problem(series.at(key), text)
    elif facts.get("model") and each < MIN_SAMPLES_PER_RANK:
        text = (
            f"({getattr(settings, key)}) leaves {each} sample on each of {count_devices(most)}. "
            f"{settings.model} normalises over the batch: use at least {MIN_SAMPLES_PER_RANK} for each."
        )
        yield Problem(series.at(key), text)
    else:
        # what does not fill a batch is left out of an epoch
        yield from _check_length(series, settings, images // largest)


def _check_length(series: Series, settings: Settings, steps: int) -> Iterator[Problem]:
    """Refuse a warm-up that leaves no step to measure, and steps beyond the end of a schedule.

    Args:
        series: The series.
        settings: The training of the series.
        steps: Steps of an epoch on the device count with the fewest.
    """
    all_steps = settings.epochs * steps
    epochs = f"{settings.epochs} epochs of {steps} steps"
    if settings.compile and not settings.warmup_steps:
        text = "(0) would measure the first step, in which the model is compiled. Use 1 or more."
        yield Problem(series.at("warmup_steps"), text)
    elif settings.steps is None and settings.warmup_steps >= all_steps:
        text = f"({settings.warmup_steps}) leaves no step of the run to measure ({epochs})."
        yield Problem(series.at("warmup_steps"), text)
    # torch's onecycle would raise there, and its cosine rise again
    if settings.schedule in SCHEDULES_WITH_AN_END and (settings.last_step or 0) > all_steps:
        text = f"is {settings.schedule}, which ends with the epochs, before step {settings.last_step}"
        yield Problem(series.at("schedule"), f"{text} ({epochs}). Use more epochs.")


def _check_options(series: Series, settings: Settings) -> Iterator[Problem]:
    """Refuse options that torch ignores, or that cannot work together or on the devices of the site."""
    on_cpus, is_fsdp = series.site.accelerator == "cpu", settings.parallelism == "fsdp"
    # fp16 runs at 0.03 times the speed of fp32 there
    no_gpu = "but the devices here are CPU processes (`accelerator` of the site file)"
    # CUDA graphs would overwrite gradients, and replay weights at addresses that have changed
    graphs = settings.compile == "reduce-overhead"
    combined = f"but accumulation_steps is {settings.accumulation_steps}. Use compile: true."
    rows = [
        ("precision", on_cpus and settings.precision in ("tf32", "fp16"), f"{no_gpu}. Use bf16 or fp32."),
        ("compile", graphs and settings.accumulation_steps > 1, combined),
        ("compile", graphs and is_fsdp, "but parallelism is fsdp. Use compile: true."),
    ]
    for key in FSDP_CANNOT_USE:
        is_set = getattr(settings, key) != Settings.model_fields[key].default
        rows.append(
            (key, is_fsdp and is_set, "which parallelism: fsdp cannot use. Exclude the two together.")
        )
    target = series.experiment.target if isinstance(series.experiment, Experiment) else None
    stop = settings.stop_at_accuracy
    if target is not None and stop is not None:
        too_early = f"which ends the training before target.accuracy ({target.accuracy:g}) is reached."
        rows.append(("stop_at_accuracy", stop < target.accuracy, too_early))
    for key, is_wrong, text in rows:
        if is_wrong:
            yield Problem(series.at(key), f"is {getattr(settings, key)}, {text}")


# --- a user's program ------------------------------------------------------------------------------------


def _check_program(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse values with which a series of a program cannot run, or would measure something else."""
    yield from _check_files(series, settings)
    if settings.starts == "ranks":
        yield from _check_start(series, settings)
    wrong_words = list(_check_words(series, settings))
    yield from wrong_words
    if not wrong_words:  # a misspelled name is not reported as missing, too
        yield from _check_effects(series, settings)
        yield from _check_samples(series, settings)


def _check_files(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse programs and paths that are not there, and folders that hold the results."""
    at, program, folder, python = series.at, settings.program, settings.working_directory, settings.python
    is_elsewhere = python is None or "/" not in python or series.site.facts.container is not None
    paths: list[tuple[Place, object, bool]] = [
        (at("program"), program, module_of(program) is not None or is_file(program)),
        (at("working_directory"), folder, folder is None or os.path.isdir(folder)),  # noqa: PTH112
        (at("python"), python, is_elsewhere or is_file(str(python))),
    ]
    for index, path in enumerate(settings.files):
        here = (*at("files"), index)
        # prepare may create a missing path
        paths.append((here, path, bool(settings.prepare) or os.path.exists(path)))  # noqa: PTH110
        if Path.cwd().is_relative_to(os.path.realpath(path)):
            yield Problem(here, f"is {path!r}, which holds results/, too: every run would change it.")
    for place, value, is_there in paths:
        if not is_there:
            fix = " Its arguments stand under `arguments`." if value == program and " " in program else ""
            yield Problem(place, f"is {value!r}, but there is no such file or folder.{fix}")
    for path in map(str, program_files(settings)):
        try:
            plain_path(path)  # Snakemake names a module's file in the command line of a job
        except ValueError as error:
            yield Problem(at("program"), str(error))


def _check_start(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse ranks that would start ranks, and variables that ranks get from Scalewise."""
    if (settings.launcher or series.site.launcher) == "spawn":
        text = "is spawn, which cannot start a file. Use `starts: itself` if the program calls spawn."
        yield Problem(series.at("launcher"), text)
    if module_of(settings.program) in LAUNCHERS:
        text = f"is {settings.program!r}, which starts ranks. Name the script, or use `starts: itself`."
        yield Problem(series.at("program"), text)
    for name in RESERVED_VARIABLES:
        if (value := settings.environment.get(name)) is not None:
            text = f"is {value!r}, but each rank gets this variable from Scalewise. Remove it."
            yield Problem((*series.at("environment"), name), text)


def _check_words(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse unknown names in braces, and anything else in braces."""
    of_user = [f"{ARGUMENT}{name}" for name in settings.argument]
    of_node = [*RUN_NAMES, *NODE_NAMES, *of_user]
    of_rank = [*of_node, *RANK_NAMES] if settings.starts == "ranks" else of_node
    for key, words, known in (
        ("arguments", dict(enumerate(settings.arguments)), of_node),
        ("environment", settings.environment, of_rank),
        ("prepare", dict(enumerate(settings.prepare)), of_user),
    ):
        for index, word in words.items():
            place = (*series.at(key), index)
            try:
                unknown = [name for name in names_in(str(word)) if name not in known]
            except ValueError as error:
                text = f"is {word!r}, in which {error} is no name in braces. Write {{{{ and }}}} for braces."
                yield Problem(place, text)
                continue
            if unknown:
                near = did_you_mean(unknown[0], known)
                yield Problem(place, f"names {{{unknown[0]}}}, which is not known here. {near}")


def _check_effects(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse values that the program does not get, and a batch that would grow with the devices."""
    names, options = settings.names, dict(series.options)
    of_prepare = {name for word in settings.prepare for name in names_in(str(word))}
    has_batch = not names.isdisjoint(BATCH_NAMES)
    expected: dict[str, Place] = {}
    for name in settings.argument:
        if (key := f"{ARGUMENT}{name}") not in of_prepare:
            expected[key] = series.at(key) if key in options else (*series.at("argument"), name)
    for key in (*BATCH_NAMES, "accumulation_steps", "seed"):
        if key in options and not (key in BATCH_NAMES and has_batch):
            expected[key] = series.at(key)
    if settings.resumes:
        expected[FOLDER] = series.at("resumes")
    for name, place in expected.items():
        if name not in names:
            text = f"has no effect: neither arguments nor environment of {settings.program} has {{{name}}}."
            yield Problem(place, text)
    if settings.scaling == "strong" and not has_batch and not settings.batch_is_own:
        text = (
            f"is strong, but {settings.program} does not get {{batch_size_per_device}}. Add it to arguments. "
            "If the program has a fixed global batch, write "
            f"`samples_per_step: {settings.global_batch_size}`; if each device has one, `scaling: weak`."
        )
        yield Problem(series.at("scaling"), text)


def _check_samples(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse samples of a step that contradict the batch size."""
    stated, kept = settings.stated_samples, getattr(settings, BATCH_KEY[settings.scaling])
    if stated is None or kept is None or any(_check_batch_divides(series)):
        return
    planned = {global_batch(settings, size) for size in series.world_sizes}
    if wrong := sorted(planned - {stated}):
        text = f"is {stated}, but the batch sizes make {wrong[0]} samples of a step."
        yield Problem(series.at("samples_per_step"), f"{text} Write `samples_per_step: {PLANNED}`.")
