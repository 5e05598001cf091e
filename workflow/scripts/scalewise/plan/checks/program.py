"""Check a user's program: its files, the words that it gets, its batch and its environment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scalewise.config.catalog.program_files import module_of, program_files
from scalewise.config.errors import Place, Problem, did_you_mean
from scalewise.config.paths import invalid_command, kind_of
from scalewise.config.program import (
    ARGUMENT,
    BATCH_NAMES,
    CUSTOM_NAME,
    FOLDER,
    NODE_NAMES,
    PLANNED,
    RANK_NAMES,
    RUN_NAMES,
    ProgramSettings,
)
from scalewise.config.shape import count_devices
from scalewise.config.templates import in_braces, names_in
from scalewise.plan.checks.training import BATCH_KEY, Series, check_batch_divides
from scalewise.plan.runs.runs import global_batch

RESERVED_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which ranks find each other."""

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start ranks."""

NO_NUMBERS = (FOLDER, "master_address")
"""Names in braces whose values are no whole numbers."""


def check_program(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse values with which a series of a program cannot run, or would measure something else."""
    yield from _check_files(series, settings)
    yield from _check_environment(series, settings)
    yield from _check_start(series, settings)
    wrong_words = list(_check_words(series, settings))
    yield from wrong_words
    if wrong_words:
        return  # a misspelled name is not reported as missing, too
    names = names_of(settings.templates)
    for name in settings.argument:
        key = f"{ARGUMENT}{name}"
        if key not in names | names_of(map(str, settings.prepare)):
            here = series.at(key) if key in dict(series.options) else (*series.at("argument"), name)
            yield _does_not_get(here, settings, key)
    for key in (*BATCH_NAMES, "accumulation_steps", "seed"):
        if key in dict(series.options) and not names & (set(BATCH_NAMES) if key in BATCH_NAMES else {key}):
            yield _does_not_get(series.at(key), settings, key)
    if settings.resumes and FOLDER not in names:
        yield _does_not_get(series.at("resumes"), settings, FOLDER)
    yield from _check_batch(series, settings, names)


def names_of(words: Iterable[str]) -> set[str]:
    """Return the names in braces of all words, which are valid templates."""
    return {name for word in words for name in names_in(word)}


def _does_not_get(place: Place, settings: ProgramSettings, name: str) -> Problem:
    text = f"has no effect: neither arguments nor environment of {settings.program} has {{{name}}}"
    return Problem(place, text, f'Add it, such as ["--{name.replace("_", "-")}", "{{{name}}}"].')


def _check_files(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse programs and paths that are not there, or that the command line of a job cannot hold."""
    at, contained = series.at, series.site.facts.container is not None
    module, python, folder = module_of(settings.program), settings.python, settings.working_directory
    paths: list[tuple[Place, str, str]] = []
    if module is None:
        paths.append((at("program"), settings.program, "file"))
    if folder is not None:
        paths.append((at("working_directory"), folder, "folder"))
    if python is not None and not contained:
        paths.append((at("python"), python, "file" if "/" in python else ""))
    # prepare may create a missing path
    kind = "" if settings.prepare else "any"
    paths += [((*at("files"), index), path, kind) for index, path in enumerate(settings.files)]
    for place, path, kind in paths:
        found = kind_of(Path(path))
        if refusal := invalid_command(path):
            yield Problem(place, *refusal)
        elif kind and (found is None or kind not in ("any", found)):
            what = "there is no such file or folder" if found is None else f"it is a {found}"
            fix = "Name only the file; its arguments stand under `arguments`." if " " in path else ""
            yield Problem(
                place,
                f"is {path!r}, but {what}",
                fix or "Give a path from the folder that snakemake runs in.",
            )
        elif "files" in place and found == "folder" and Path.cwd().is_relative_to(Path(path).resolve()):
            text = f"is {path!r}, which holds results/, too: every run would change it"
            yield Problem(place, text, "Name only the folders of the data.")
    for path in map(str, program_files(settings)):
        # Snakemake names it in the command line of a job
        if path != settings.program and (refusal := invalid_command(path)):
            yield Problem(at("program"), f"is {settings.program!r}, whose file {refusal[0]}", refusal[1])


def _check_words(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse unknown names in braces, arithmetic that is none, and values of the user that no word has."""
    at = series.at
    of_user = [f"{ARGUMENT}{name}" for name in settings.argument]
    of_node = [*RUN_NAMES, *NODE_NAMES, *of_user]
    of_rank = [*of_node, *RANK_NAMES] if settings.starts == "ranks" else of_node
    texts: list[tuple[Place, object, Sequence[str]]] = [
        *(((*at("arguments"), index), word, of_node) for index, word in enumerate(settings.arguments)),
        *(((*at("environment"), name), word, of_rank) for name, word in settings.environment.items()),
        *(((*at("prepare"), index), word, of_user) for index, word in enumerate(settings.prepare)),
    ]
    values = {f"{ARGUMENT}{name}": value for name, value in settings.argument.items()}
    for place, word, known in texts:
        try:
            braces = in_braces(str(word))
        except ValueError as error:
            text = f"is {word!r}, in which {error} is neither a name nor arithmetic of whole numbers"
            yield Problem(place, text, "Write {{ and }} for braces that the program is to get.")
            continue
        for inner, names in braces:
            if unknown := [name for name in names if name not in known]:
                text = f"names {{{unknown[0]}}}, which is not known here"
                yield Problem(place, text, did_you_mean(unknown[0], known))
            elif names != [inner] and any(
                name in NO_NUMBERS or not isinstance(values.get(name, 0), int) for name in names
            ):
                yield Problem(place, f"computes {{{inner}}}, in which not every name is a whole number")


def _check_environment(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    for name, value in settings.environment.items():
        here = (*series.at("environment"), name)
        if not re.fullmatch(CUSTOM_NAME, name):
            yield Problem(here, "is no name of a variable", "Use letters, digits and _.")
        elif name.startswith("SCALEWISE_") or (settings.starts == "ranks" and name in RESERVED_VARIABLES):
            yield Problem(here, f"is {value!r}, but Scalewise gives each rank this variable", "Remove it.")


def _check_start(series: Series, settings: ProgramSettings) -> Iterator[Problem]:
    """Refuse ranks that would start ranks."""
    if settings.starts == "itself":
        return
    if (settings.launcher or series.site.launcher) == "spawn":
        key = "launcher" if settings.launcher else "program"
        text = f"is {getattr(settings, key)!r}, but launcher: spawn cannot start a file"
        yield Problem(series.at(key), text, "Use another launcher, or `starts: itself` if it calls spawn.")
    if module_of(settings.program) in LAUNCHERS:
        text = f"is {settings.program!r}, which starts ranks, but Scalewise starts them"
        yield Problem(series.at("program"), text, "Name the script, or use `starts: itself`.")


def _check_batch(series: Series, settings: ProgramSettings, names: set[str]) -> Iterator[Problem]:
    """Refuse a batch size that the program does not get, and samples that contradict it."""
    gets_batch_size = bool(names & set(BATCH_NAMES))
    if settings.scaling == "strong" and not gets_batch_size and not settings.batch_is_own:
        batch = settings.global_batch_size
        text = (
            f"is strong, but {settings.program} does not get the batch size: neither arguments nor "
            "environment has {batch_size_per_device} or {global_batch_size}"
        )
        fix = (
            'Add it, such as ["--batch-size", "{batch_size_per_device}"]. If the program has a fixed '
            f"global batch, add `samples_per_step: {batch}`; if each device has one, use `scaling: weak`."
        )
        yield Problem(series.at("scaling"), text, fix)
    stated, kept = settings.stated_samples, getattr(settings, BATCH_KEY[settings.scaling])
    if stated is None or kept is None or any(check_batch_divides(series)):
        return
    for size in series.world_sizes:
        if (planned := global_batch(settings, size)) != stated:
            text = (
                f"is {stated}, but the batch sizes make {planned} samples of a step on {count_devices(size)}"
            )
            yield Problem(series.at("samples_per_step"), text, f"Write `samples_per_step: {PLANNED}`.")
            return
