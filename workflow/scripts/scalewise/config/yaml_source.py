"""Configuration files as YAML: the line of each key, and mistakes that the parsed values do not show.

Snakemake passes a parsed dictionary, in which the last of two equal keys has replaced the first, so the file
is read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from scalewise.config.errors import Place, Problem, StudyError, shown

MAX_INTEGER = 2**63 - 1
"""Largest whole number that every program and file here can hold."""


@dataclass
class Source:
    """One configuration file.

    Args:
        name: The file as the user named it.
        lines: 1-based line of every place in the file.
        problems: Keys that are written twice, or are no text.
        values: Content of the file, as YAML parses it.
    """

    name: str
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    values: Any = None


def read_source(path: Path) -> Source:
    """Read a YAML file.

    Raises:
        StudyError: The file is missing, or not a mapping in YAML; it names the line.
    """
    source, text = Source(str(path)), ""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem="the file is not a mapping of keys to values")
        _collect(source, root, ())
        source.values = yaml.SafeLoader("").construct_document(root)
    except (OSError, yaml.YAMLError, ValueError, OverflowError, LookupError, RecursionError) as error:
        mark, position = getattr(error, "problem_mark", None), getattr(error, "position", 0)
        line = 1 + (text.count("\n", 0, position) if mark is None else mark.line)
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise StudyError([Problem((), f"{reason}.").render(f"{path}:{line}")]) from error
    return source


def _collect(source: Source, node: yaml.Node, place: Place) -> None:
    """Record the lines of a node and of all nodes below it, and keys that are repeated or no text."""
    source.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect(source, item, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            kind, line = key.tag.rpartition(":")[2], key.start_mark.line + 1
            if kind == "merge":
                continue
            # as the values have it
            here = (*place, key.value if kind == "str" else str(_constructed(key)))
            if here in source.lines:
                text = f"is written twice, in lines {source.lines[here]} and {line}. Keep one of the two."
                source.problems.append(Problem(here, text))
            elif kind not in ("str", "int"):
                text = f"is {key.value!r}, a key that YAML reads as {kind}, not as text. Put it in quotes."
                source.problems.append(Problem(here, text))
            source.lines[here] = line
            _collect(source, value, here)
        # keys of the mapping itself replace merged ones
        for value in (value for key, value in node.value if key.tag.endswith(":merge")):
            for mapping in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = Source(source.name, problems=source.problems)
                _collect(merged, mapping, place)
                source.lines = merged.lines | source.lines
    else:
        _constructed(node)


def _constructed(node: yaml.Node) -> Any:
    """Return the value of a node; raise an error with its line."""
    try:
        return yaml.SafeLoader("").construct_object(node, deep=True)
    except (ValueError, OverflowError, LookupError, AttributeError) as error:  # of Python's own types
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error


def to_plain(value: Any, place: Place, problems: list[Problem]) -> Any:
    """Replace the loader's types by ordinary dicts and lists.

    Args:
        value: Values as Snakemake or YAML reads them.
        place: The place of the value.
        problems: Receives what no model refuses: keys and elements without a value, which are not the same as
            a missing key, and numbers that no record can hold.
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, (*place, str(key)), problems) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, (*place, index), problems) for index, item in enumerate(value)]
    if value is None:
        problems.append(Problem(place, "has no value. Give it one, or remove the key."))
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        problems.append(Problem(place, f"Input should be at most {MAX_INTEGER} (is {shown(value)})."))
        return None
    return value


def stop_at(
    problems: Iterable[Problem], sources: Sequence[Source], command: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """End with every mistake, if there is one; of several at one place, with the first.

    Args:
        problems: The mistakes.
        sources: The files of the configuration.
        command: Keys and values that the command gives, which replace those of the files.

    Raises:
        StudyError: Names file, line, key and value of each.
    """
    first: dict[Place, Problem] = {}
    for problem in problems:
        first.setdefault(problem.place, problem)
    if first:
        raise StudyError([each.render(_origin(place, sources, command)) for place, each in first.items()])


def _origin(place: Place, sources: Sequence[Source], command: Mapping[str, Any]) -> str:
    """Return file and line of a place or of the nearest key above it, or ``--config`` for the command."""
    given: Any = command
    for part in place:
        given = given.get(part) if isinstance(given, Mapping) else given
    if place and given is not None:
        return "--config"
    for length in range(len(place), -1, -1):
        for source in reversed(sources):
            if (line := source.lines.get(place[:length])) is not None:
                return f"{source.name}:{line}"
    return "config"
