"""What a test shows, in words: of its docstring, or of its name."""

from __future__ import annotations

import inspect

import pytest


def words_of(item: pytest.Item) -> str:
    """The first paragraph of a test's docstring, or its name in words."""
    function = getattr(item, "function", None)
    docstring = inspect.getdoc(function) if function is not None else None
    if docstring:
        return " ".join(docstring.partition("\n\n")[0].split()).removesuffix(".")
    return item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
