"""Read a YAML file with the line of every key, and with what the parsed values do not show.

Snakemake passes a parsed dictionary, in which the last of two equal keys has replaced the first, so the file
is read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from scalewise.config.errors import Place, Problem, shown

MAX_INTEGER = 2**63 - 1
"""Largest whole number that every program and file here can hold."""


@dataclass
class Source:
    """One configuration file.

    Args:
        name: The file as the user named it.
        lines: 1-based line of every place in the file.
        problems: Mistakes that the parsed values do not show.
        fatal: Problems with which the file cannot be read.
        values: Content of the file, as YAML parses it; None if it cannot be read.
    """

    name: str
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    fatal: list[Problem] = field(default_factory=list)
    values: Any = None

    def origin(self, place: Place) -> str:
        """``file:line`` of the place, or of the nearest key above it."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}:{self.lines.get(place, 1)}"


class _Loader(yaml.SafeLoader):
    """Names the line of a value that is none of its type, such as 2001-99-99."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, LookupError) as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error


def read_source(path: Path, hint: str = "Begin with `experiments:`.") -> Source:
    """Read a YAML file: its content and its line numbers; never raises on bad YAML.

    Args:
        path: A study's or a site's file.
        hint: The fix of a file that is not a mapping: how such a file begins.
    """
    source = Source(str(path))
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem=f"The file is not a mapping of keys to values. {hint}")
        _collect(source, root, ())
        # YAML puts merged keys into the nodes
        source.values = _Loader("").construct_document(root)
    except RecursionError:
        source.fatal.append(Problem((), "The file is nested hundreds of levels deep, or in itself"))
    except (OSError, yaml.YAMLError, ValueError, OverflowError) as error:
        source.lines[()] = _line_of(error, path)
        problem, context = getattr(error, "problem", None), getattr(error, "context", None)
        reason = ", ".join(filter(None, (problem, context))) or str(error)
        source.fatal.append(Problem((), " ".join(reason.split()).rstrip(".")))
    source.problems += source.fatal
    return source


def _line_of(error: Exception, path: Path) -> int:
    """Return the line in which a file cannot be read."""
    if (mark := getattr(error, "problem_mark", None)) is not None:
        return int(mark.line) + 1
    if isinstance(error, UnicodeDecodeError):
        return error.object.count(b"\n", 0, error.start) + 1
    if isinstance(error, yaml.reader.ReaderError):
        return path.read_text(encoding="utf-8").count("\n", 0, error.position) + 1
    return 1


def _collect(source: Source, node: yaml.Node, place: Place) -> None:
    """Record the lines of a node and of all nodes below it, and keys that are repeated or no text."""
    source.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect(source, item, (*place, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*place, str(key.value))
            if here in source.lines:
                text = f"is written twice, in lines {source.lines[here]} and {key.start_mark.line + 1}"
                source.problems.append(Problem(here, text, "Keep one of the two."))
            source.lines[here] = key.start_mark.line + 1
            if (kind := key.tag.rpartition(":")[2]) not in ("str", "int", "merge"):
                text = f"is a key that YAML reads as {kind}, not as text"
                source.problems.append(Problem(here, text, "Put it in quotes."))
            _collect(source, value, here)


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
        problems.append(Problem(place, "has no value", "Give it one, or remove the key."))
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        problems.append(Problem(place, f"Input should be at most {MAX_INTEGER} (is {shown(value)})"))
        return None
    return value
