"""Docstrings are sentences that stand by themselves, without the name and the types beside them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workflow" / "scripts" / "scalewise"

LEANING = {
    *("of", "to", "for", "from", "in", "into", "by", "with", "at", "on", "as", "about", "among", "between"),
    *(
        "beside",
        "behind",
        "below",
        "above",
        "after",
        "before",
        "until",
        "since",
        "within",
        "without",
        "under",
    ),
    *("that", "which", "whose", "whom", "who", "what", "where", "why", "how", "when", "while", "because"),
    *("and", "or", "but", "it", "its", "such"),
}
"""First words by which a text hangs on something outside it."""

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$")
ENTRY = re.compile(r"^    (\*{0,2}\w+)(?: \([^)]*\))?: (.*)$")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring of a file, those of constants and fields among them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def leaning(text: str) -> bool:
    words = re.findall(r"[\w']+", text)
    return bool(words) and words[0].lower() in LEANING and not text.startswith(("`", "'", '"'))


def fragments(path: Path) -> list[str]:
    """Docstrings, and their lines on an argument, that begin in the middle of a sentence."""
    found: list[str] = []
    for number, text in docstrings(path):
        place = f"{path.name}:{number}"
        if leaning(text.strip()):
            found.append(f"{place}: {text.strip().splitlines()[0]}")
        section = ""
        first = text.splitlines()[:1]
        lines = first + [line.removeprefix(" " * indentation(text)) for line in text.splitlines()[1:]]
        for line in lines:
            if heading := SECTION.match(line):
                section = heading[1]
            elif section in {"Args", "Attributes"} and (entry := ENTRY.match(line)) and leaning(entry[2]):
                found.append(f"{place}: {entry[1]}: {entry[2]}")
            elif section in {"Returns", "Yields"} and line.strip():
                if leaning(line.strip()):
                    found.append(f"{place}: {section}: {line.strip()}")
                section = ""
    return found


def indentation(text: str) -> int:
    following = [line for line in text.splitlines()[1:] if line.strip()]
    return min((len(line) - len(line.lstrip()) for line in following), default=0)


def test_a_fragment_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'def f(a, b):\n    """Of a run.\n\n    Args:\n        a: of it.\n        b: Seconds.\n\n'
        '    Returns:\n        what is left\n    """\n'
    )

    assert fragments(path) == [
        "module.py:2: Of a run.",
        "module.py:2: a: of it.",
        "module.py:2: Returns: what is left",
    ]


@pytest.mark.parametrize(
    "room", ["plan", "execution", "measure", "ranks", "builtin", "analysis", "watch", "."]
)
def test_docstrings_stand_by_themselves(room: str) -> None:
    scripts = [*PACKAGE.glob("*.py"), *PACKAGE.parent.glob("*.py")]
    paths = sorted((PACKAGE / room).rglob("*.py")) if room != "." else sorted(scripts)

    assert paths
    assert [fragment for path in paths for fragment in fragments(path)] == []
