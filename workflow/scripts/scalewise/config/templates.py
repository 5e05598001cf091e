"""Templates: text with names, or arithmetic of whole numbers, in braces."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping

_SIGN = re.compile(r"\{\{|\}\}|\$\{(?!\{)|\{([^{}]*)\}|[{}]")
_NAME = re.compile(r"[A-Za-z_][\w.]*")

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}

MOST_CHARACTERS = 200
"""Longest arithmetic in braces: it bounds the size of the result, and how deep parentheses are."""


def in_braces(template: str) -> list[tuple[str, list[str]]]:
    """Return the text of each pair of braces, with the names in it; arithmetic is a text that is no name.

    Raises:
        ValueError: A brace is left open, or something else stands in braces; the message is that part.
    """
    return [(inner, _names(inner)) for _, inner in parts(template) if inner is not None]


def names_in(template: str) -> list[str]:
    """Return the names that stand in braces, those in arithmetic too; raise as ``in_braces`` does."""
    return [name for _, names in in_braces(template) for name in names]


def fill_in(template: str, values: Mapping[str, object]) -> str:
    """Return the template with values in place of the braces.

    Args:
        template: Braces enclose a name, or + - * // and parentheses over names and whole numbers. ``{{`` and
            ``}}`` are braces themselves, and ``${...}`` stays as it is.
        values: Whole numbers, for names in arithmetic.

    Raises:
        KeyError: A name has no value.
        ZeroDivisionError: As ``//`` does.
    """
    try:
        return "".join(
            text if inner is None else str(_value(inner, values)) for text, inner in parts(template)
        )
    except ZeroDivisionError as error:
        raise ZeroDivisionError(f"{template!r} divides by zero with {dict(values)}") from error


def parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield plain text, or an empty one and what stands in braces, from left to right."""
    place = 0
    while found := _SIGN.search(template, place):
        yield template[place : found.start()], None
        place = found.end()
        if found[1] is not None:
            yield "", found[1].strip()
        elif found[0] == "${":
            place = _closing(template, place)
            yield template[found.start() : place], None
        elif len(found[0]) == 2:
            yield found[0][0], None
        else:
            raise ValueError(template[found.start() :])
    yield template[place:], None


def _closing(template: str, place: int) -> int:
    """The place behind the brace that closes one that was opened before ``place``."""
    opened = 1
    for found in re.finditer(r"[{}]", template[place:]):
        opened += 1 if found[0] == "{" else -1
        if not opened:
            return place + found.end()
    raise ValueError(template[place - 2 :])


def _names(inner: str) -> list[str]:
    if _NAME.fullmatch(inner):
        return [inner]
    return [name for operand in _operands(_arithmetic(inner)) if (name := _name_of(operand))]


def _value(inner: str, values: Mapping[str, object]) -> object:
    return values[inner] if _NAME.fullmatch(inner) else _evaluate(_arithmetic(inner), values)


def _arithmetic(inner: str) -> ast.expr:
    """The tree of arithmetic whose operands are names and whole numbers."""
    refusal = ValueError(f"{{{inner}}}")
    if len(inner) > MOST_CHARACTERS:
        raise refusal
    try:
        tree = ast.parse(inner, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refusal from None
    for operand in _operands(tree):
        if not (_name_of(operand) or (isinstance(operand, ast.Constant) and type(operand.value) is int)):
            raise refusal
    return tree


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield from _operands(node.left)
        yield from _operands(node.right)
    else:
        yield node


def _name_of(node: ast.expr) -> str:
    """``devices``, or ``argument.NAME``; empty for anything else."""
    if isinstance(node, ast.Attribute):
        return f"argument.{node.attr}" if _name_of(node.value) == "argument" else ""
    return node.id if isinstance(node, ast.Name) else ""


def _evaluate(node: ast.expr, values: Mapping[str, object]) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluate(node.left, values), _evaluate(node.right, values))
    value = node.value if isinstance(node, ast.Constant) else values[_name_of(node)]
    assert isinstance(value, int)
    return value
