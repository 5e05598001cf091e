"""Check a user's program: its files, the words that it gets, its batch and its environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from scalewise.config.errors import Place, Problem, did_you_mean
from scalewise.config.program import (
    ARGUMENT,
    BATCH_NAMES,
    FOLDER,
    NODE_NAMES,
    PLANNED,
    RANK_NAMES,
    RUN_NAMES,
    ProgramSettings,
    is_file,
    module_of,
    program_files,
)
from scalewise.config.settings import plain_path
from scalewise.config.templates import names_in
from scalewise.plan.checks.training import BATCH_KEY, Series, check_batch_divides
from scalewise.plan.runs.runs import global_batch

RESERVED_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which ranks find each other."""

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start ranks."""


def check_program(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
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
    if stated is None or kept is None or any(check_batch_divides(series)):
        return
    planned = {global_batch(settings, size) for size in series.world_sizes}
    if wrong := sorted(planned - {stated}):
        text = f"is {stated}, but the batch sizes make {wrong[0]} samples of a step."
        yield Problem(series.at("samples_per_step"), f"{text} Write `samples_per_step: {PLANNED}`.")
