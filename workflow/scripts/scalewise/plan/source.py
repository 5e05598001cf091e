"""The configuration as the user typed it: line numbers, and the traps of YAML 1.1.

Snakemake hands over a parsed dictionary. By then a repeated key has silently won, ``yes`` has become
true and ``1e-3`` has become text, so the file itself is read once more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from scalewise.plan.problems import Place, Problem

_TRUE_BOOLEANS = {"true", "false", "True", "False", "TRUE", "FALSE"}
_BOOL, _NULL, _STR, _MERGE, _INT, _FLOAT = (
    f"tag:yaml.org,2002:{kind}" for kind in ("bool", "null", "str", "merge", "int", "float")
)
_COUNT_KEYS: Place = ("slurm", "queue_minutes")
"""The mapping of a site file whose keys are device counts."""
_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


@dataclass
class Source:
    """One configuration file with the line of every key and the mistakes of its spelling.

    Args:
        name: the file as the user named it.
        lines: 1-based line of every place in the file.
        problems: mistakes that only the text shows.
    """

    name: str
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def origin(self, place: Place) -> str:
        """``file:line`` of the place, or of the nearest key above it."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}:{self.lines.get(place, 1)}"


STUDY_HINT = "Begin with `experiments:` and indent the experiments below it."


def read_source(path: Path, hint: str = STUDY_HINT) -> Source:
    """Read a YAML file for its line numbers and its spelling mistakes; never raises on bad YAML.

    Args:
        path: of the file.
        hint: how such a file begins, for one that is empty or not a mapping.
    """
    source = Source(str(path))
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        source.problems.append(Problem((), f"cannot be read ({error.strerror})", "Name a readable file."))
        return source
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        source.problems.append(_syntax_problem(error, source))
        return source
    if root is None:
        source.problems.append(Problem((), "is empty", "Write `experiments:` with one experiment below it."))
    elif not isinstance(root, yaml.MappingNode):
        source.problems.append(Problem((), "is not a mapping of keys to values at its top", hint))
    else:
        source.problems.extend(_walk(root, (), source.lines))
    return source


def _syntax_problem(error: yaml.YAMLError | UnicodeDecodeError, source: Source) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        source.lines[()] = mark.line + 1
    reason = " ".join(str(getattr(error, "problem", None) or error).split())
    if "'\\t'" in reason:
        return Problem((), "has a tab in its indentation", "Indent with spaces.")
    return Problem((), f"is not valid YAML: {reason}", "Mend the line named here or the one above.")


def _walk(node: yaml.Node, place: Place, lines: dict[Place, int]) -> Iterator[Problem]:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            here = (*place, name)
            if name in seen:
                yield Problem(
                    here,
                    f"stands twice, in lines {seen[name]} and {line}",
                    "Keep one of the two; YAML would silently use the last.",
                )
            seen[name] = line
            lines[here] = line
            if key.tag not in {_STR, _MERGE} and not (place == _COUNT_KEYS and key.tag == _INT):
                kind = key.tag.rsplit(":", 1)[-1]
                yield Problem(here, f"is a key that YAML reads as {kind}, not as text", "Put it in quotes.")
            yield from _walk(value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _walk(item, (*place, index), lines)
    elif isinstance(node, yaml.ScalarNode):
        yield from _scalar_problems(node, place)


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
    elif node.tag == _NULL:
        yield Problem(place, "has no value", "Give it one, or leave the key out for its default.")
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
