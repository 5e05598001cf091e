"""Every message that docs/troubleshooting.md quotes is one that the code says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from tests.paths import ROOT, SCRIPTS

PAGE = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
LEAST_LETTERS = 12
"""A message whose longest fixed part is shorter may stand in the code by chance."""


def quoted() -> list[str]:
    """The messages of the page's tables, `...` for what differs."""
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def strings_of(source: str) -> Iterator[str]:
    """Every text in a module but docstrings, with a null character for each value that is put into it."""

    def text(node: ast.expr) -> str:
        match node:
            case ast.Constant(value=str(words)):
                return words
            case ast.JoinedStr(values=parts):
                return "".join(map(text, parts))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return text(left) + text(right)
        return "\0"

    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and id(node) not in docstrings:
            yield text(node)


@cache
def said() -> list[str]:
    """All texts of the workflow's Python code."""
    files = sorted(SCRIPTS.rglob("*.py"))
    return [text for file in files for text in strings_of(file.read_text(encoding="utf-8"))]


def fixed_parts(message: str) -> re.Pattern[str]:
    """Finds texts that have all fixed parts of a message, in their order."""
    return re.compile(".*?".join(map(re.escape, message.split("..."))), re.DOTALL)


def is_said(message: str) -> bool:
    """Whether one text of the code has all fixed parts of a message, in their order."""
    longest, pattern = max(message.split("..."), key=len), fixed_parts(message)
    return any(longest in text and pattern.search(text) for text in said())


@pytest.mark.parametrize("message", quoted())
def test_a_message_of_the_troubleshooting_page_is_in_the_code(message: str) -> None:
    longest = max(map(len, message.split("...")))
    assert longest >= LEAST_LETTERS, f"{message!r} says too little to be found"
    assert is_said(message)
