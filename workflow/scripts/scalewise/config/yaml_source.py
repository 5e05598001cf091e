"""Read the line numbers of a configuration and its YAML 1.1 mistakes.

Snakemake passes a parsed dictionary. In it the last of two equal keys has replaced the first, ``yes`` is
true and ``1e-3`` is text, so the file is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from scalewise.config.errors import Place, Problem, format_value
from scalewise.config.settings import DEFAULT, SWEEPABLE_WITH_DEFAULT

_TRUE_BOOLEANS = {"true", "false", "True", "False", "TRUE", "FALSE"}
_BOOL, _STR, _MERGE, _INT, _FLOAT = (
    f"tag:yaml.org,2002:{kind}" for kind in ("bool", "str", "merge", "int", "float")
)
_COUNT_KEYS = "queue_minutes"
"""The mapping of a site file, or of one of its partitions, whose keys are device counts."""
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


@dataclass
class Source:
    """One configuration file with the line of every key and the mistakes of its text.

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

    def below(self, place: Place) -> Source:
        """Return the part of the file below a place, as if it were the whole file."""
        depth = len(place)
        return Source(
            self.name,
            {each[depth:]: line for each, line in self.lines.items() if each[:depth] == place},
            [
                replace(each, place=each.place[depth:])
                for each in self.problems
                if each.place[:depth] == place
            ],
        )


_SYNTAX = (
    ("no-break space", "has a no-break space in its indentation", "Indent with plain spaces."),
    (r"'\\t'", "has a tab in its indentation", "Indent with spaces."),
    ("mapping values are not allowed here",
     'has ": " in a text without quotes, or is indented deeper than the line above',
     "Put the text in quotes, or indent both lines equally."),
    (r"expected ',' or '([]}])'", "has a list or mapping{since} without a comma or {0} here",
     "Add the missing comma or {0}."),
    ("unexpected end of stream", "ends within the quotes that begin{since}", "Add the closing quote."),
    ("character '([@`%])' that cannot start", "has a text that begins with {0}", "Put the text in quotes."),
    ("undefined alias '(.*)'", "has the text *{0}, which YAML takes for an alias", "Put the text in quotes."),
    ("another document", "begins a second document with ---", "Keep one document in a file."),
    ("expected <block end>, but found '<block mapping start>'",
     "is indented less than the key above, and more than the one over it",
     "Indent keys of one level equally."),
    ("(.*)", "is not valid YAML: {0}", "Correct the line named here or the one above."),
)  # fmt: skip
"""Pattern of an error of PyYAML; the problem in plain words; its fix."""

STUDY_HINT = "Begin with `experiments:` and indent the experiments below it."


def read_source(path: Path, hint: str = STUDY_HINT) -> Source:
    """Read a YAML file: its content, its line numbers and its spelling mistakes; never raises on bad YAML.

    Args:
        path: A study's or a site's file.
        hint: The fix of a file that is empty or not a mapping: how such a file begins.
    """
    source, text = Source(str(path)), ""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            source.fatal.append(Problem((), "is empty", hint))
        elif not isinstance(root, yaml.MappingNode):
            source.fatal.append(Problem((), "is not a mapping of keys to values at its top", hint))
        else:
            _collect(source, root, ())
            # well-formed nodes may still have invalid values
            source.values = yaml.SafeLoader("").construct_document(root)
    except OSError as error:
        source.fatal.append(Problem((), f"cannot be read ({error.strerror})", "Name a readable file."))
    except UnicodeDecodeError as error:
        source.fatal.append(_undecodable(error, source))
    except RecursionError:
        source.fatal.append(
            Problem((), "is nested hundreds of levels deep", "Look for brackets that are not closed.")
        )
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if not source.fatal:
            source.fatal.append(_syntax_problem(error, source, text))
    source.problems += [problem for problem in source.fatal if problem not in source.problems]
    return source


def part_of_study(source: Source, config: Mapping[str, Any]) -> Source | None:
    """Return the part of another workflow's file that states a study; None if it states nothing of it.

    Snakemake passes the configuration of a module by its values, without the place from which they come.

    Args:
        source: The other workflow's file.
        config: The configuration of the module.
    """
    study = {key: config[key] for key in ("defaults", "experiments") if key in config}
    places = _mappings(source.values, ())
    equal, _, place = max(
        ((_equal_values(each, study), -len(at), at) for at, each in places), default=(0, 0, ())
    )
    return source.below(place) if equal else None


def _mappings(values: Any, place: Place) -> Iterator[tuple[Place, Mapping[Any, Any]]]:
    """Yield every mapping of a file that is not in a list, with its place."""
    if isinstance(values, Mapping):
        yield place, values
        for key, value in values.items():
            yield from _mappings(value, (*place, str(key)))


def _equal_values(one: Any, other: Any) -> int:
    """Count the values that two mappings have in common, at the same keys."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return sum(_equal_values(one[key], other[key]) for key in one.keys() & other.keys())
    return int(one == other)


def _syntax_problem(error: yaml.YAMLError | ValueError | OverflowError, source: Source, text: str) -> Problem:
    """Name a mistake of YAML's syntax in plain words, and its line."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        source.lines[()] = mark.line + 1
    elif isinstance(error, ReaderError):
        source.lines[()] = text.count("\n", 0, error.position) + 1
        return Problem(
            (), f"holds the character U+{ord(text[error.position]):04X}, which YAML refuses", "Remove it."
        )
    reason = " ".join(str(getattr(error, "problem", None) or error).split())
    began = getattr(error, "context_mark", None)
    since = "" if began is None else f" in line {began.line + 1}"
    found, problem, fix = next(
        (found, problem, fix) for pattern, problem, fix in _SYNTAX if (found := re.search(pattern, reason))
    )
    return Problem((), problem.format(*found.groups(), since=since), fix.format(*found.groups()))


def _undecodable(error: UnicodeDecodeError, source: Source) -> Problem:
    source.lines[()] = error.object.count(b"\n", 0, error.start) + 1
    byte = error.object[error.start]
    return Problem((), f"holds a byte that is not UTF-8 (0x{byte:02x})", "Save the file as UTF-8.")


def _collect(source: Source, node: yaml.Node, place: Place) -> None:
    """Record the lines and the mistakes of a node and all nodes below it."""
    source.lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.ScalarNode):
        source.problems += _scalar_problems(node, place)
        if problem := _unreadable(node, place):
            source.problems.append(problem)
            source.fatal.append(problem)
        return
    if isinstance(node, yaml.MappingNode):
        _collect_keys(source, node, place)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _collect(source, item, (*place, index))


def _collect_keys(source: Source, node: yaml.MappingNode, place: Place) -> None:
    problems, lines = source.problems, source.lines
    first_lines: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.MarkedYAMLError(None, None, "a list or mapping for a key", key.start_mark)
        name = str(key.value)
        if name.startswith("\u00a0"):
            mark = key.start_mark
            raise yaml.MarkedYAMLError(None, None, "a no-break space in the indentation", mark)
        here = (*place, name)
        if name in first_lines:
            problems.append(
                Problem(
                    here,
                    f"is written twice, in lines {first_lines[name]} and {line}",
                    "Keep one of the two; YAML would silently use the last.",
                )
            )
        first_lines[name] = line
        lines[here] = line
        if key.tag not in {_STR, _MERGE} and not (_has_count_keys(place) and key.tag == _INT):
            kind = key.tag.rsplit(":", 1)[-1]
            problems.append(
                Problem(here, f"is a key that YAML reads as {kind}, not as text", "Put it in quotes.")
            )
        _collect(source, value, here)


def _has_count_keys(place: Place) -> bool:
    """Return whether the keys of a mapping are device counts, which YAML reads as numbers."""
    return place == ("slurm", _COUNT_KEYS) or (place[:1] == ("partitions",) and place[2:] == (_COUNT_KEYS,))


def _unreadable(node: yaml.ScalarNode, place: Place) -> Problem | None:
    """Find a value that cannot be read as its YAML type, such as 2001-99-99 as a date."""
    if node.tag == _STR:
        return None
    try:
        yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError, OverflowError, LookupError):
        kind = node.tag.rsplit(":", 1)[-1]
        return Problem(place, f"is {node.value!r}, which YAML cannot read as {kind}", "Put it in quotes.")
    return None


def _scalar_problems(node: yaml.ScalarNode, place: Place) -> Iterator[Problem]:
    text = str(node.value)
    if node.tag == _BOOL and text not in _TRUE_BOOLEANS:
        meaning = "true" if text.lower() in {"yes", "on", "y"} else "false"
        yield Problem(
            place,
            f"is {text}, which YAML readers take for a boolean or for text",
            f'Write {meaning}, or "{text}" in quotes if it is text.',
        )
    elif node.tag in {_INT, _FLOAT} and ":" in text:
        yield Problem(
            place, f"is {text}, which YAML takes for a number in base 60", f'Write "{text}" in quotes.'
        )
    elif node.tag == _INT and re.match("[-+]?0[0-9_xXbB]", text) and len(text) < 100:
        number = yaml.safe_load(text)
        yield Problem(
            place, f"is {text}, which YAML takes for {number}, in another base", "Write the decimal number."
        )
    elif node.tag == _STR and node.style is None and _SCIENTIFIC.fullmatch(text):
        mantissa, exponent = re.split("[eE]", text)
        if "." not in mantissa:
            mantissa += ".0"
        sign = exponent if exponent[0] in "+-" else f"+{exponent}"
        yield Problem(
            place,
            f"is {text}, which YAML takes for text, not for a number",
            f"Write {mantissa}e{sign}.",
        )


MAX_INTEGER = 2**63 - 1
"""Largest whole number that every program and file here can hold."""


def no_value(place: Place) -> Problem:
    """Make the problem of a key, or of an element of a list, without a value."""
    if place == ("experiments",):
        return Problem(place, "is empty", "Add an experiment below it.")
    if len(place) == 2 and place[0] == "experiments":
        return Problem(
            place, "is empty", f"Indent its keys below it, or write `{place[1]}: {{}}` to use defaults only."
        )
    if len(place) == 2 and place[0] == "partitions":
        fix = f"Indent its facts below it, or write `{place[1]}: {{}}` if it has only those of the site."
        return Problem(place, "is empty", fix)
    if place[-3:-2] == ("sweep",) and place[-2] in SWEEPABLE_WITH_DEFAULT:
        return Problem(place, "has no value", f"Write {DEFAULT} for what {place[-2]} is when it is left out.")
    return Problem(place, "has no value", "Give it one, or leave the key out for its default.")


def to_plain(value: Any, place: Place, problems: list[Problem], *, keys_as_text: bool) -> Any:
    """Replace the loader's types by ordinary dicts and lists.

    Args:
        value: Values as Snakemake or YAML reads them.
        place: The place of the value.
        problems: Receives keys without a value, and whole numbers that no record can hold.
        keys_as_text: Convert keys that are no text; otherwise omit them, as mistakes of their file.
    """
    if isinstance(value, Mapping):
        return {
            str(key): to_plain(item, (*place, str(key)), problems, keys_as_text=keys_as_text)
            for key, item in value.items()
            if isinstance(key, str) or keys_as_text
        }
    if isinstance(value, (list, tuple)):
        return [
            to_plain(item, (*place, index), problems, keys_as_text=keys_as_text)
            for index, item in enumerate(value)
        ]
    if value is None:
        problems.append(no_value(place))
    elif isinstance(value, int) and abs(value) > MAX_INTEGER:
        text = f"is {format_value(value)}, a whole number beyond {MAX_INTEGER}"
        problems.append(Problem(place, text, "Write a smaller number."))
        return None
    return value
