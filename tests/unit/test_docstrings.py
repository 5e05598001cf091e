"""Docstrings are sentences that can be read without the name and the types."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from tests.paths import SCRIPTS

LEANING = (
    "of|to|for|from|in|into|by|with|at|on|as|about|among|between|beside|behind|below|above|after|before|until|"
    "since|within|without|under|that|which|whose|whom|who|what|where|why|how|when|while|because|and|or|but|it|"
    "its|such"
)
"""First words by which a text hangs on something outside it."""

FRAGMENT = re.compile(
    rf"(?:\A|^    \*{{0,2}}[a-z_]\w*(?: \([^)]*\))?: |^(?:Returns|Yields):\n    )(?i:\b(?:{LEANING})\b).*",
    re.MULTILINE,
)
"""The begin of a docstring, of what is returned, or of a line on an argument."""


def fragments(path: Path) -> list[str]:
    """Docstrings, those of constants and fields among them, that begin in the middle of a sentence."""
    texts = [
        (node.lineno, inspect.cleandoc(node.value.value))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return [
        f"{path.name}:{line}: {' '.join(found[0].split())}"
        for line, text in texts
        for found in FRAGMENT.finditer(text)
    ]


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
    "place",
    [
        "*.py",
        *(
            f"scalewise/{room}"
            for room in ("plan", "execution", "measure", "ranks", "training", "analysis", "*.py")
        ),
    ],
)
def test_docstrings_stand_by_themselves(place: str) -> None:
    paths = sorted(SCRIPTS.glob(place if place.endswith(".py") else f"{place}/**/*.py"))

    assert paths
    assert [fragment for path in paths for fragment in fragments(path)] == []
