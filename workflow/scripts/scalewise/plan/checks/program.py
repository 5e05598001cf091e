"""Check a user's program, its keys and its environment before anything runs."""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scalewise.config.catalog.program_files import module_of
from scalewise.config.errors import Place, Problem
from scalewise.config.experiment import Experiment, ProgramExperiment
from scalewise.config.paths import invalid_command, kind_of
from scalewise.config.program import BATCH_NAMES, CUSTOM_NAME, FOLDER, PLANNED, ProgramSettings
from scalewise.config.shape import Shape, count_devices
from scalewise.config.site import Site
from scalewise.plan.checks.batch import check_batch_divides
from scalewise.plan.checks.options import Where, as_yaml, check_most_steps, check_seed
from scalewise.plan.checks.program_file import find_writes, refused_program
from scalewise.plan.checks.program_words import check_words, known_names, meant_names, word_cautions
from scalewise.plan.runs.runs import global_batch

BUILTIN_KEYS = frozenset(Experiment.model_fields) - frozenset(ProgramExperiment.model_fields)
"""Keys of the built-in training, which do not concern a program."""

PROGRAM_KEYS = frozenset(ProgramExperiment.model_fields) - frozenset(Experiment.model_fields)

RESERVED_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which ranks find each other."""

LAUNCHERS = frozenset(
    {
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate.commands.launch",
        "deepspeed.launcher.runner",
    }
)
"""Modules that start ranks."""

_FIXES = {
    "target": "Use `metric: {pattern: ..., at_most: ...}`, which reads the program's own output.",
    "rendezvous": "Remove it: a program's ranks find each other by MASTER_ADDR and MASTER_PORT.",
    "epochs": "Remove it, or give it to the program in `arguments`; `steps` ends the measurement.",
    "keep_checkpoints": "Remove it: a program writes its own checkpoints.",
}


def check_builtin_keys(place: Place, program: object, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse options of the built-in training in an experiment with a program.

    Args:
        place: The experiment's place.
        program: The program, which may stand in ``defaults``.
        entry: The keys and values of the experiment in the file, without ``defaults``.
    """
    for key in entry:
        if key in BUILTIN_KEYS or key == "keep_checkpoints":
            yield Problem(
                (*place, key),
                f"is {as_yaml(entry[key])}, an option of the built-in training, but {program!r} trains here",
                _FIXES.get(key, "Remove it, or give it to the program in `arguments`."),
            )


def check_program_is_named(place: Place, entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse keys of a program if none is named, before its experiment is checked as a built-in training.

    Args:
        place: The experiment's place.
        entry: The keys and values of the experiment in the file, without ``defaults``.
    """
    unknown = [key for key in entry if key not in Experiment.model_fields]
    if near := difflib.get_close_matches("program", unknown, n=1, cutoff=0.8):
        yield Problem((*place, near[0]), "is not a known key", "Did you mean 'program'?")
    elif keys := [key for key in unknown if key in PROGRAM_KEYS]:
        yield Problem(
            (*place, keys[0]),
            f"is {entry[keys[0]]!r}, a key of a program, but none is named here",
            "Add `program: train.py`, the path of your script.",
        )


def check_program_series(
    where: Where,
    experiment: ProgramExperiment,
    settings: ProgramSettings,
    shapes: Sequence[Shape],
    site: Site,
) -> Iterator[Problem]:
    """Refuse values with which a series of a program cannot run.

    Args:
        where: Gives the place of a key of the series.
        experiment: The experiment that the series is part of.
        settings: One series' training.
        shapes: Shapes of its device counts.
        site: Facts of the machine or cluster.
    """
    yield from check_seed(where, experiment, settings)
    yield from check_most_steps(where, settings)
    yield from _check_program(where, settings, site)
    yield from check_words(where, experiment, settings, shapes)
    yield from _check_environment(where, settings)
    yield from _check_effect_of_sweep(where, experiment, settings)
    yield from _check_batch(where, settings, [shape.world_size for shape in shapes])
    yield from _check_start(where, settings, site)
    yield from _check_files(where, settings)
    if settings.metric is not None and settings.steps is not None:
        yield Problem(
            where("metric"),
            f"is {settings.metric}, looked for to the training's end, but steps ({settings.steps}) ends it "
            "before",
            "Remove steps, so that the program runs to its own end, or metric.",
        )
    if settings.resumes and FOLDER not in known_names(settings.templates):
        yield Problem(
            where("resumes"),
            f"is true, but {settings.program} does not get the folder to resume from: neither arguments nor "
            "environment has {folder}",
            'Add it, such as ["--out", "{folder}"].',
        )


def _check_program(where: Where, settings: ProgramSettings, site: Site) -> Iterator[Problem]:
    contained = site.facts.container is not None
    by_this_python = not (contained or settings.python or site.facts.python)
    if refusal := refused_program(settings, by_this_python=by_this_python):
        yield Problem(where("program"), *refusal)
    runs_in = settings.working_directory
    if runs_in is not None:
        yield from _check_working_directory(where("working_directory"), runs_in)
    python, here = settings.python, where("python")
    if python is None or contained:
        return
    if refusal := invalid_command(python):
        yield Problem(here, *refusal)
    elif "/" in python and kind_of(Path(python)) != "file":
        fix = "Give the path of a Python interpreter that compute nodes see too."
        yield Problem(here, f"is {python!r}, and there is no such file here", fix)
    elif site.slurm is None and shutil.which(python) is None:
        fix = "Give the path of the Python that has the program's packages."
        yield Problem(here, f"is {python!r}, and there is no such program here", fix)


def _check_working_directory(here: Place, folder: str) -> Iterator[Problem]:
    if refusal := invalid_command(folder):
        yield Problem(here, *refusal)
    elif (kind := kind_of(Path(folder))) != "folder":
        problem = "which is not there" if kind is None else "which is no folder"
        yield Problem(here, f"is {folder!r}, {problem}", "Give the folder that the program is to run in.")


def _check_environment(where: Where, settings: ProgramSettings) -> Iterator[Problem]:
    for name, value in settings.environment.items():
        here = (*where("environment"), name)
        if not re.fullmatch(CUSTOM_NAME, name):
            yield Problem(here, "is no name of a variable", "Use letters, digits and _.")
        elif name.startswith("SCALEWISE_") or (settings.starts == "ranks" and name in RESERVED_VARIABLES):
            itself = ", or use `starts: itself`" if name in RESERVED_VARIABLES else ""
            yield Problem(
                here,
                f"is {value!r}, but Scalewise gives each rank this variable",
                f"Remove it{itself}.",
            )


def _check_effect_of_sweep(
    where: Where, experiment: ProgramExperiment, settings: ProgramSettings
) -> Iterator[Problem]:
    """Refuse a sweep over values that the program does not get: its runs would not differ."""
    names = meant_names(settings)
    for key in (*BATCH_NAMES, "accumulation_steps", "seed"):
        if key in experiment.swept and not names & (set(BATCH_NAMES) if key in BATCH_NAMES else {key}):
            yield Problem(
                where(key),
                f"is {experiment.swept[key]}, but {settings.program} does not get it: neither arguments "
                f"nor environment has {{{key}}}",
                f'Add it, such as ["--{key.replace("_", "-")}", "{{{key}}}"].',
            )


def _check_batch(where: Where, settings: ProgramSettings, world_sizes: Sequence[int]) -> Iterator[Problem]:
    gets_batch_size = bool(meant_names(settings) & set(BATCH_NAMES))
    if settings.scaling == "strong" and not gets_batch_size and not settings.batch_is_own:
        yield Problem(
            where("scaling"),
            f"is strong, but {settings.program} does not get the batch size: neither arguments nor "
            "environment has {batch_size_per_device} or {global_batch_size}",
            'Add it, such as ["--batch-size", "{batch_size_per_device}"]. If the program has a fixed '
            "global batch, write `global_batch_size: own` and "
            f"`samples_per_step: {settings.global_batch_size or 512}`; if each device has a fixed one, use "
            "`scaling: weak`.",
        )
    if indivisible := list(check_batch_divides(where, settings, world_sizes)):
        yield from indivisible
        return
    stated = settings.stated_samples
    if stated is None or (settings.scaling == "weak" and settings.global_batch_size is not None):
        return
    for world_size in world_sizes:
        planned = global_batch(settings, world_size)
        if planned != stated:
            yield Problem(
                where("samples_per_step"),
                f"is {stated}, but the batch sizes make {planned} samples of a step on "
                f"{count_devices(world_size)}",
                f"Write {planned} or `samples_per_step: {PLANNED}`, or correct the batch size."
                if len(world_sizes) == 1
                else f"Write `samples_per_step: {PLANNED}`, or correct the batch size.",
            )
            return


def _check_start(where: Where, settings: ProgramSettings, site: Site) -> Iterator[Problem]:
    launcher = settings.launcher or site.launcher
    if settings.starts == "itself":
        return
    if launcher == "spawn":
        other = "srun or torchrun" if site.slurm is not None else "popen or torchrun"
        named = where("launcher") if settings.launcher is not None else where("program")
        yield Problem(
            named,
            f"is to be started by torch.multiprocessing.spawn (launcher: spawn"
            f"{'' if settings.launcher else ', of the site'}), which cannot run a file as it is",
            f"Use launcher {other}. A program that calls spawn itself takes `starts: itself`.",
        )
    if module_of(settings.program) in LAUNCHERS:
        yield Problem(
            where("program"),
            f"is {settings.program!r}, which starts ranks, but `starts: ranks` has Scalewise start them",
            "Name the script that it starts, or use `starts: itself`.",
        )


def _check_files(where: Where, settings: ProgramSettings) -> Iterator[Problem]:
    named = [
        (key, index, name) for key in ("files", "inputs") for index, name in enumerate(getattr(settings, key))
    ]
    for key, index, name in named:
        here, kind = (*where(key), index), kind_of(Path(name))
        if refusal := invalid_command(name):
            yield Problem(here, *refusal)
        elif key == "files" and kind == "folder":
            yield Problem(
                here,
                f"is {name!r}, which is a folder",
                "Name the files in it. A folder of data belongs under `inputs`.",
            )
        elif kind == "folder" and Path.cwd().is_relative_to(Path(name).resolve()):
            yield Problem(
                here,
                f"is {name!r}, which holds results/, too: every run would change it",
                "Name only the folders of the data.",
            )
        elif not settings.prepare and kind is None:
            # prepare may create a missing path
            yield Problem(
                here, f"is {name!r}, which is not there", "Give a path from the folder snakemake runs in."
            )


def program_warnings(name: str, experiment: ProgramExperiment, checkout: Path | None = None) -> Iterator[str]:
    """Warn of values that are possible but rarely intended.

    Args:
        name: The experiment's name.
        experiment: The experiment, checked.
        checkout: Scalewise's folder; None if unknown.
    """
    yield from word_cautions(name, experiment)
    if FOLDER not in known_names(experiment.templates):
        calls = list(dict.fromkeys(find_writes(experiment)))
        if Path(experiment.working_directory or "").resolve() == checkout:
            known = f" ({', '.join(calls[:3])})" if calls else ""
            yield (
                f"experiments.{name}: {experiment.program} runs in Scalewise's folder, and writes its "
                f"relative paths there{known}. Name its own folder in working_directory, or give it "
                "{folder} in arguments or environment."
            )
        elif calls:
            yield (
                f"experiments.{name}: {experiment.program} writes files ({', '.join(calls[:3])}), without "
                "{folder}: its runs share one place, and may resume from each other's files. "
                "Give it {folder} in arguments or environment, which is another folder for each run."
            )
    if experiment.steps is None and experiment.metric is None and experiment.runtime_minutes < 60:
        yield (
            f"experiments.{name} has neither steps nor metric: {experiment.program} runs to its own end, at "
            f"most {experiment.runtime_minutes} minutes (runtime_minutes). `steps: 200` measures as well."
        )
