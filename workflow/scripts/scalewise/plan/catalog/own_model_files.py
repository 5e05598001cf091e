"""The files of the user's own model: the one that is named, and those beside it that it imports.

Found by reading, without running the user's code; what is imported in another way than by an ``import``
is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from scalewise.plan.catalog.models import own_model_file


def own_model_files(model: str) -> list[Path]:
    """The file of an own model first, then what it imports from its folder; empty for other models.

    Returns:
        Paths from the working directory, as the model's is; beside its own only of files that are there.
    """
    first = own_model_file(model)
    if first is None:
        return []
    # where the file itself lies, which is what it can import from
    folder = first.resolve().parent if first.is_symlink() else first.parent
    found = {first: None}
    left = [first]
    while left:
        path = left.pop()
        package = path.parent.relative_to(folder).parts if path != first else ()
        for module in _imported(path, package):
            for imported in _files(folder, module):
                if imported not in found:
                    found[imported] = None
                    left.append(imported)
    return list(found)


def _files(folder: Path, module: tuple[str, ...]) -> Iterator[Path]:
    """Files that importing a module runs: its packages, and itself, as far as they lie in a folder."""
    for length in range(1, len(module) + 1):
        place = folder.joinpath(*module[:length])
        candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
        yield from (path for path in candidates if path.is_file())


def _imported(path: Path, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Modules that a file imports, as the parts of their names.

    Args:
        path: The importing file.
        package: Parts of the name of the package that the file is in; a relative import starts there.
    """
    try:
        stat = path.stat()
        statements = _import_statements(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # of the model's own file this is told elsewhere; another one may never be reached
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
            continue
        base = package[: len(package) + 1 - node.level] if node.level else ()
        module = (*base, *(node.module.split(".") if node.module else ()))
        # what is imported from a package may be a module of it
        yield from ((*module, alias.name) for alias in node.names if alias.name != "*")
        yield module


@lru_cache(maxsize=256)
def _import_statements(path: Path, _changed: int, _size: int) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """All of a file, wherever they stand in it; read anew once it has changed."""
    tree = ast.parse(path.read_bytes(), filename=str(path))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
