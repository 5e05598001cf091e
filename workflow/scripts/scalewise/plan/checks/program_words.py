"""Check the words that a program gets: names and arithmetic in braces, and characters of a shell."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from scalewise.config.errors import Place, Problem, key_path, name_all
from scalewise.config.experiment import ProgramExperiment
from scalewise.config.program import (
    ARGUMENT,
    CUSTOM_NAME,
    FOLDER,
    NODE_NAMES,
    RANK_NAMES,
    RUN_NAMES,
    ProgramSettings,
)
from scalewise.config.shape import Shape, count_devices
from scalewise.config.templates import fill_in, in_braces, names_in
from scalewise.plan.checks.options import Where
from scalewise.plan.runs.runs import batch_per_device, global_batch

QUOTED = re.compile(r"^(['\"]).*\1$", re.DOTALL)
"""A word in quotes beyond those of YAML: a shell would remove them."""

BREAKS = re.compile(r"[\n\r\x00]")
"""Characters that no word may hold: most often from a YAML block that was meant as one line."""

OPTION_WITH_VALUE = re.compile(r"--?[A-Za-z][\w-]*\s+\S")
"""Two words in one, such as ``--lr 0.1``: a shell would divide them."""

VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
"""A variable as a shell would replace it."""

NO_NUMBERS = (FOLDER, "master_address")
"""Names in braces whose values are no whole numbers."""

BRACES_FIX = "Use names, whole numbers, + - * // and parentheses, as in {global_batch_size * 1024}."
"""Forms that braces may enclose, as the fix of a word with others."""

_TORCH_NAMES = {"world_size": "devices", "local_world_size": "devices_per_node"}
"""Torch's names of some of Scalewise's."""


def check_words(
    where: Where, experiment: ProgramExperiment, settings: ProgramSettings, shapes: Sequence[Shape]
) -> Iterator[Problem]:
    """Refuse words that the program would get in another form than intended.

    Args:
        where: Gives the place of a key of the series.
        experiment: The experiment that the series is part of.
        settings: One series' training.
        shapes: Shapes of its device counts.
    """
    argument_names = [f"{ARGUMENT}{name}" for name in settings.argument]
    node_names = [*RUN_NAMES, *NODE_NAMES, *argument_names]
    rank_names = [*node_names, *RANK_NAMES] if settings.starts == "ranks" else node_names
    texts: list[tuple[Place, object, Sequence[str]]] = [
        *(((*where("arguments"), index), word, node_names) for index, word in enumerate(settings.arguments)),
        *(((*where("environment"), name), word, rank_names) for name, word in settings.environment.items()),
        *(((*where("prepare"), index), word, argument_names) for index, word in enumerate(settings.prepare)),
    ]
    used: set[str] = set()
    for here, word, names in texts:
        found = list(_check_word(here, str(word), names, settings))
        yield from found or _check_division(here, str(word), settings, shapes)
        # a misspelled name is not reported as unused, too
        used |= {near for name in known_names([str(word)]) for near in _nearest(name, names) or [name]}
    for name, value in settings.argument.items():
        here = where(f"{ARGUMENT}{name}")
        here = here if "sweep" in here[2:] else (*where("argument"), name)
        if not re.fullmatch(CUSTOM_NAME, name):
            yield Problem(here, "is not a name", "Use letters, digits and _, as in {argument.lr}.")
        elif f"{ARGUMENT}{name}" not in used:
            values = experiment.swept.get(f"{ARGUMENT}{name}", value)
            yield Problem(
                here,
                f"is {values!r}, but neither arguments nor environment has {{{ARGUMENT}{name}}}",
                f'Add it where the program takes it, such as ["--{name}", "{{{ARGUMENT}{name}}}"].',
            )
        yield from _check_characters(here, str(value))


def known_names(words: Iterable[str]) -> set[str]:
    """Return the names in braces of all words that are templates."""
    names: set[str] = set()
    for word in words:
        try:
            names |= set(names_in(word))
        except ValueError:
            continue
    return names


def meant_names(settings: ProgramSettings) -> set[str]:
    """Return the names that the program gets; misspelled ones corrected, as each has an error already."""
    return {near for name in known_names(settings.templates) for near in _nearest(name, RUN_NAMES) or [name]}


def word_cautions(name: str, experiment: ProgramExperiment) -> Iterator[str]:
    """Warn of words that a shell would replace, and that the program gets as they are.

    Args:
        name: The experiment's name.
        experiment: The experiment, checked.
    """
    words: list[tuple[Place, object]] = [
        *((("arguments", index), word) for index, word in enumerate(experiment.arguments)),
        *((("prepare", index), word) for index, word in enumerate(experiment.prepare)),
        *((("environment", key), word) for key, word in experiment.environment.items()),
        *((("argument", key), word) for key, word in experiment.argument.items()),
        *(((f"sweep.{key}",), word) for key in experiment.swept for word in experiment.swept[key]),
    ]
    for place, word in words:
        if found := _shell_part(str(word)):
            subject = key_path(("experiments", name, *place))
            inner = found.removeprefix("${").removesuffix("}")
            meant = f" Write {{{inner}}} for the value." if inner in (*RUN_NAMES, *RANK_NAMES) else ""
            yield f"{subject} has {found}, which no shell replaces: the program gets it as it is.{meant}"


def _shell_part(word: str) -> str:
    """Return the part of a word that a shell would replace; empty if there is none."""
    if word.startswith("~/"):
        return "~/"
    for found in VARIABLE.finditer(word):
        variable = found[1] or found[2]
        if (
            variable.isupper()
            or variable in os.environ
            or (found[1] and variable in (*RUN_NAMES, *RANK_NAMES))
        ):
            return found[0]
    return ""


def _check_word(here: Place, word: str, known: Sequence[str], settings: ProgramSettings) -> Iterator[Problem]:
    if OPTION_WITH_VALUE.match(word) and "environment" not in here[2:]:
        option, value = word.split(maxsplit=1)
        yield Problem(here, f"is {word!r}, two words in one", f'Write "{option}", "{value}".')
    yield from _check_characters(here, word)
    try:
        braces = in_braces(word)
    except ValueError as error:
        yield Problem(
            here,
            f"is {word!r}, in which {error} is neither a name nor arithmetic of whole numbers",
            f"{BRACES_FIX} Write {{{{ and }}}} for braces that the program is to get.",
        )
        return
    for inner, names in braces:
        if unknown := [name for name in names if name not in known]:
            # a hyphen in a name is no subtraction of two unknown ones
            name = inner if re.fullmatch(r"[\w.]+(-[\w.]+)+", inner) else unknown[0]
            yield _unknown_name(here, name, known)
        elif names != [inner]:
            yield from _check_numbers(here, inner, names, settings)


def _check_numbers(
    here: Place, inner: str, names: Sequence[str], settings: ProgramSettings
) -> Iterator[Problem]:
    values = _argument_values(settings)
    for name in names:
        if name in NO_NUMBERS or not isinstance(values.get(name, 0), int):
            value = f" ({values[name]!r})" if name in values else ""
            yield Problem(
                here,
                f"computes {{{inner}}}, but {name}{value} is no whole number",
                f"Take {name} out of the arithmetic, as {{{name}}} in separate braces.",
            )
            return


def _check_division(
    here: Place, word: str, settings: ProgramSettings, shapes: Sequence[Shape]
) -> Iterator[Problem]:
    """Refuse a division by zero in the first repeat, on the first rank of a run."""
    kept = settings.global_batch_size if settings.scaling == "strong" else settings.batch_size_per_device
    if "//" not in word or kept is None:
        return
    for shape in shapes:
        values: dict[str, object] = {
            "devices": shape.world_size,
            "devices_per_node": shape.devices_per_node,
            "nodes": shape.nodes,
            "batch_size_per_device": batch_per_device(settings, shape.world_size),
            "global_batch_size": global_batch(settings, shape.world_size),
            "accumulation_steps": settings.accumulation_steps,
            "seed": settings.seed,
            "master_port": 1,
            **dict.fromkeys((FOLDER, "master_address"), ""),
            **dict.fromkeys(("rank", "local_rank", "node_rank"), 0),
            **_argument_values(settings),
        }
        try:
            fill_in(word, values)
        except ZeroDivisionError:
            yield Problem(
                here,
                f"is {word!r}, which divides by zero on {count_devices(shape.world_size)}",
                "Correct the divisor, or measure other device counts.",
            )
            return


def _argument_values(settings: ProgramSettings) -> dict[str, object]:
    return {f"{ARGUMENT}{name}": value for name, value in settings.argument.items()}


def _nearest(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that may be meant, both batch sizes for ``batchsize``; empty if there are none."""
    if (argument := f"{ARGUMENT}{name}") in known:
        return [argument]
    if _TORCH_NAMES.get(name) in known:
        return [_TORCH_NAMES[name]]
    letters = re.sub("[_-]", "", name).lower()
    holding = [each for each in known if len(letters) > 3 and letters in each.replace("_", "")]
    return holding if len(holding) in (1, 2) else difflib.get_close_matches(name, known, n=1)


def _unknown_name(here: Place, name: str, known: Sequence[str]) -> Problem:
    if "prepare" in here[2:] and name in (*RUN_NAMES, *NODE_NAMES, *RANK_NAMES):
        text = f"names {{{name}}}, which differs between runs, but prepare is done once for all"
        return Problem(here, text, "Write a path or a value of your own.")
    if "environment" in here[2:] and name in RANK_NAMES:
        text = f"names {{{name}}}, which is not known if `starts: itself` has the program start its ranks"
        return Problem(here, text, "Remove it, or use `starts: ranks`.")
    if name in RANK_NAMES:
        text = f"names {{{name}}}, but arguments are the same on all ranks"
        added = f'environment: {{MY_NAME: "{{{name}}}"}}'
        fix = f"Ranks have it in the variable {name.upper()}; `{added}` adds another."
        return Problem(here, text, fix)
    text = f"names {{{name}}}, which is not known"
    if near := _nearest(name, known):
        return Problem(here, text, f"Did you mean {' or '.join(f'{{{each}}}' for each in near)}?")
    plain = name.removeprefix(ARGUMENT)
    own = f"For a value of your own write `argument: {{{plain}: ...}}`, and here {{{ARGUMENT}{plain}}}."
    return Problem(here, text, f"{name_all(known)} {own}" if known else own)


def _check_characters(here: Place, word: str) -> Iterator[Problem]:
    if found := BREAKS.search(word):
        name = "a NUL" if found[0] == "\0" else "a line break"
        yield Problem(here, f"is {word!r}, with {name} in it", "Write it on one line, in quotes.")
    elif QUOTED.match(word):
        text = f"is {word!r}, with quotes that a shell would remove, but the program would get"
        yield Problem(here, text, f"Write {word[1:-1]!r}, which YAML reads as one word.")
