"""Check the values of an experiment against each other and against the site."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scalewise.config.catalog.datasets import DATASETS, DatasetFacts, dataset_facts
from scalewise.config.catalog.models import ModelFacts, known_models, model_facts
from scalewise.config.errors import Place, Problem, RefusedValueError, did_you_mean
from scalewise.config.experiment import (
    EXPERIMENT_NAME,
    LIMITS,
    MAX_EXPERIMENT_NAME,
    AnyExperiment,
    Experiment,
    ProgramExperiment,
)
from scalewise.config.program import ARGUMENT, ProgramSettings
from scalewise.config.settings import Settings
from scalewise.config.shape import Shape, shape_for
from scalewise.config.site import Site
from scalewise.plan.checks.allocation import check_allocations, check_launch
from scalewise.plan.checks.batch import BATCH_KEY, check_batch
from scalewise.plan.checks.options import Where, check_images, check_options
from scalewise.plan.checks.program import check_program_series
from scalewise.plan.runs.runs import (
    Options,
    Point,
    combinations,
    excluded,
    is_same_value,
    option_label,
    series_label,
    settings_of,
)

MAX_NAME_BYTES = 255
"""Longest file name on the file systems in use."""

MAX_RUNS = 100_000
"""Most runs of an experiment: planning visits each, and more are likely a mistake in the sweep."""

RESERVED_NAMES = {
    "partial": "the tables of `cli.py report`",
    "preflight": "the results of preflights",
}
"""Folders that the workflow uses below results/, and their content."""


def check_names(names: Iterable[str]) -> Iterator[Problem]:
    """Refuse experiment names that cannot be folder names, or that differ by case only."""
    spellings: dict[str, str] = {}
    for name in names:
        place: Place = ("experiments", name)
        if not name:
            yield Problem(place, "has an experiment with an empty name", "Name it.", "experiments")
        elif not re.fullmatch(EXPERIMENT_NAME, name) or name.endswith("\n"):
            plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_") or "study"
            yield Problem(
                place,
                f"has an experiment named {name!r}, which cannot be a folder name everywhere",
                "Use letters, digits, - and _, and begin with a letter or digit: "
                f"{plain[:MAX_EXPERIMENT_NAME]!r}.",
                "experiments",
            )
        elif len(name) > MAX_EXPERIMENT_NAME:
            yield Problem(
                place,
                f"has a name of {len(name)} characters, but at most {MAX_EXPERIMENT_NAME} are possible",
                "Shorten it, and put the words into title.",
            )
        elif name.lower() in RESERVED_NAMES:
            yield Problem(
                place,
                f"has the name of the folder results/{name.lower()}, which holds "
                f"{RESERVED_NAMES[name.lower()]}",
                f"Rename it, such as {name}-study.",
            )
        elif name.lower() in spellings:
            yield Problem(
                place,
                f"differs from {spellings[name.lower()]} only by case, and some file systems ignore case",
                "Rename one of the two.",
            )
        spellings.setdefault(name.lower(), name)


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
    problems = list(_check_sweep(place, experiment, entry))
    shapes, topology_problems = check_devices(place, experiment.device_counts, site)
    problems += topology_problems
    problems += _check_whole_run(place, experiment)
    problems += _check_trainings(place, experiment)
    if too_many := list(_check_runs(place, experiment)):
        return shapes, problems + too_many
    problems += _check_exclude(place, experiment)
    problems += _check_accept(place, experiment)
    problems += _check_series(place, experiment, entry, shapes, site)
    problems += check_allocations(place, experiment, site)
    # options multiply runs, and one mistake then shows in many of them
    return shapes, list(dict.fromkeys(problems))


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
            same, fix = f"is {devices!r}, the same {shape} as {twin!r}", "Keep one of the two."
            if shapes[twin] != shape:
                same = f"is {devices!r}, as many devices as {twin!r} in the shape {shapes[twin]}"
                fix = "Give each of the two shapes its own experiment."
            problems.append(Problem(here, same, fix))
        shapes[devices] = shape
    return shapes, problems


def _check_sweep(place: Place, experiment: AnyExperiment, entry: Mapping[str, Any]) -> Iterator[Problem]:
    swept = experiment.swept
    arguments = entry.get("argument", {}) if isinstance(experiment, ProgramExperiment) else {}
    fixed_values = {**entry, **{f"{ARGUMENT}{name}": value for name, value in arguments.items()}}
    for key, values in swept.items():
        if _has_twins(key, values):
            yield Problem(
                (*place, "sweep", key),
                f"is {values}, in which two values have the same name in a run",
                "Remove the repeated one.",
            )
        if key in fixed_values:
            yield Problem(
                (*place, *key.split(".")),
                f"is {fixed_values[key]!r}, but sweep.{key} gives it the values {values}",
                "Keep one of the two.",
            )
    kept = BATCH_KEY[experiment.scaling]
    other = next(key for key in BATCH_KEY.values() if key != kept)
    if kept not in swept and getattr(experiment, kept) is None:
        yield Problem(
            (*place, kept),
            f"is missing, and scaling is {experiment.scaling}",
            f"Add `{kept}: 256`.",
        )
    if other in entry or other in swept:
        where = (*place, "sweep", other) if other in swept else (*place, other)
        value = swept.get(other, entry.get(other))
        yield Problem(
            where,
            f"is {value!r}, but {experiment.scaling} scaling keeps {kept}",
            f"Remove {other}, or choose the other scaling.",
        )


def _has_twins(key: str, values: Sequence[Any]) -> bool:
    """Whether two values of a swept key have the same name in a run, ignoring case."""
    return len({option_label(key, value).lower() for value in values}) < len(values)


def _check_whole_run(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse limits of whole runs, and a target accuracy, if steps ends each run early."""
    steps = experiment.steps
    if steps is None:
        return
    for key in LIMITS:
        limit = getattr(experiment.decision, key)
        if limit is not None:
            yield Problem(
                (*place, "decision", key),
                f"is {limit:g}, a limit of a whole run, but steps ({steps}) ends every run before that: how "
                "long a whole one takes is unknown",
                "Remove steps, or decide by min_efficiency.",
            )
    if isinstance(experiment, Experiment) and experiment.target is not None:
        yield Problem(
            (*place, "target"),
            f"is accuracy {experiment.target.accuracy:g}, but steps ({steps}) ends the training before "
            "anything is evaluated",
            "Keep one of the two.",
        )


def _check_trainings(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    """Refuse a number of trainings if the time of one on each device count will be unknown."""
    of_program = isinstance(experiment, ProgramExperiment)
    has_target = isinstance(experiment, ProgramExperiment) and experiment.metric is not None
    if experiment.trainings is None or experiment.samples_per_training is not None or has_target:
        return
    here: Place = (*place, "trainings")
    length = "Add samples_per_training, the samples of one training in all its epochs"
    if experiment.steps is not None:
        yield Problem(
            here,
            f"is {experiment.trainings}, but steps ({experiment.steps}) ends every run: how long one "
            "training takes is unknown",
            f"{length}, or remove steps.",
        )
    elif of_program and experiment.scaling == "weak":
        yield Problem(
            here,
            f"is {experiment.trainings}, but scaling is weak: a program may train on more data on more "
            "devices, and the time for the same work is unknown",
            f"{length}.",
        )


def _check_runs(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    series = math.prod(len(values) for values in experiment.swept.values())
    runs = series * len(experiment.device_counts) * experiment.max_repeats
    if runs > MAX_RUNS:
        yield Problem(
            (*place, "sweep" if series > 1 else "devices"),
            f"makes {runs:,} runs: {series:,} series on {len(experiment.device_counts)} device counts, "
            f"{experiment.max_repeats} repeats; at most {MAX_RUNS:,} are planned",
            "Sweep fewer values together, or write several experiments.",
        )


def _check_exclude(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    possible = experiment.swept | {"devices": list(experiment.device_counts)}
    if {} in experiment.exclude:
        here: Place = (*place, "exclude", experiment.exclude.index({}))
        yield Problem(here, "is empty and would exclude every run", "Remove it.")
        return
    for index, entry in enumerate(experiment.exclude):
        here = (*place, "exclude", index)
        for key, value in entry.items():
            if key not in possible:
                yield Problem((*here, key), "is neither a swept key nor devices", did_you_mean(key, possible))
            elif not any(is_same_value(value, candidate) for candidate in possible[key]):
                yield Problem(
                    (*here, key),
                    f"is {value!r}, which is not among {possible[key]}",
                    "Use one of them.",
                )
    left = any(
        not excluded(experiment, options, devices)
        for options in combinations(experiment)
        for devices in experiment.device_counts
    )
    if experiment.exclude and not left:
        yield Problem((*place, "exclude"), "leaves no run", "Exclude less.")


def _check_accept(place: Place, experiment: AnyExperiment) -> Iterator[Problem]:
    for index, key in enumerate(experiment.decision.accept):
        if key not in experiment.swept:
            here: Place = (*place, "decision", "accept", index)
            yield Problem(here, f"is {key!r}, which is not swept", did_you_mean(key, experiment.swept))


def _check_series(
    place: Place,
    experiment: AnyExperiment,
    entry: Mapping[str, Any],
    shapes: Mapping[int | str, Shape],
    site: Site,
) -> Iterator[Problem]:
    stated_keys = {*entry, *experiment.swept}
    has_twins = any(_has_twins(*swept) for swept in experiment.swept.items())
    options_by_label: dict[str, Options] = {}
    for options in combinations(experiment):
        series_shapes = [
            shape for devices, shape in shapes.items() if not excluded(experiment, options, devices)
        ]
        if not series_shapes:
            continue
        settings = settings_of(experiment, options)
        where = Where(place, options)
        yield from _check_names_of_runs(place, experiment, options)
        twin = options_by_label.setdefault(series_label(options).lower(), options)
        if twin != options and not has_twins:
            yield Problem(
                (*place, "sweep"),
                f"makes two series of the same name, {dict(twin)} and {dict(options)}",
                "Rename a file, or write an experiment for each.",
            )
        yield from check_launch(where, settings, series_shapes, site)
        if isinstance(experiment, ProgramExperiment):
            assert isinstance(settings, ProgramSettings)
            yield from check_program_series(where, experiment, settings, series_shapes, site)
        else:
            assert isinstance(settings, Settings)
            yield from check_options(where, experiment, settings, site, stated_keys)
            world_sizes = [shape.world_size for shape in series_shapes]
            yield from _check_workload(where, settings, world_sizes)


def _check_workload(
    where: Where,
    settings: Settings,
    world_sizes: list[int],
) -> Iterator[Problem]:
    """Refuse an unknown dataset or model, and options that do not fit the dataset's images."""
    facts = _dataset(where("dataset"), settings.dataset, settings.image_size)
    model = _model(where("model"), settings.model)
    yield from (fact for fact in (facts, model) if isinstance(fact, Problem))
    if isinstance(facts, Problem):
        return
    if isinstance(model, Problem):
        model = ModelFacts(batch_norm=False, min_pixels=1)  # nothing is required of an unknown model
    else:
        yield from _check_fit(where, settings, facts, model)
        yield from check_images(where, settings, facts)
    yield from check_batch(where, settings, facts, model, world_sizes)


def check_model_names(place: Place, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse unknown models of an experiment with other keys so wrong that nothing else can be checked.

    Args:
        place: The experiment's place.
        values: Keys and values as they were read, of any type.
    """
    sweep = values.get("sweep")
    swept = sweep.get("model") if isinstance(sweep, dict) else None
    for here, names in (((*place, "model"), [values.get("model")]), ((*place, "sweep", "model"), swept)):
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and isinstance(found := _model(here, name), Problem):
                yield found


def _dataset(here: Place, name: str, image_size: int | None) -> DatasetFacts | Problem:
    try:
        return dataset_facts(name, image_size)
    except KeyError:
        return _unknown_name(here, name, [*DATASETS, "synthetic-3x32x32"], "on your own data")
    except RefusedValueError as error:
        return Problem(here, error.text, error.fix)


def _model(here: Place, name: str) -> ModelFacts | Problem:
    try:
        return model_facts(name)
    except KeyError:
        return _unknown_name(here, name, known_models(), "your own model")
    except RefusedValueError as error:
        return Problem(here, error.text, error.fix)


def _unknown_name(here: Place, name: str, known: Iterable[str], subject: str) -> Problem:
    if re.search(r"[/\\~$]|\.(npz|npy|safetensors|pt|py)\b", name):
        fix = f"Train {subject} with a program (`program:`), as docs/own-training.md shows."
        return Problem(here, f"is {name!r}, a path", fix)
    return Problem(here, f"is {name!r}, which is not known", did_you_mean(name, known))


def _check_names_of_runs(place: Place, experiment: AnyExperiment, options: Options) -> Iterator[Problem]:
    widest = max(experiment.device_counts, key=lambda devices: len(str(devices)))
    longest = Point(widest, options).run_name(experiment.max_repeats)
    if len(longest.encode()) > MAX_NAME_BYTES:
        yield Problem(
            (*place, "sweep"),
            f"makes run names of {len(longest.encode())} bytes ({longest[:40]}...), but file systems "
            f"take {MAX_NAME_BYTES}",
            "Sweep fewer keys, or shorter values.",
        )


def _check_fit(where: Where, settings: Settings, facts: DatasetFacts, model: ModelFacts) -> Iterator[Problem]:
    pixels = min(facts.height, facts.width)
    if pixels >= model.min_pixels:
        return
    if settings.image_size is not None:
        yield Problem(
            where("image_size"),
            f"({pixels}) is below the {model.min_pixels} pixels that {settings.model!r} needs",
            f"Use {model.min_pixels} or more.",
        )
    else:
        yield Problem(
            where("model"),
            f"is {settings.model!r}, which needs {model.min_pixels} pixels, but {settings.dataset} has "
            f"{pixels}",
            f"Use another model, or add `image_size: {model.min_pixels}`.",
        )
