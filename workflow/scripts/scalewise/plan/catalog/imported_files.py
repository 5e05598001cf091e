"""The files beside a file of Python that it imports, found by reading, without running the user's code.

Imports made in another way than by an ``import`` are not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from scalewise.plan.config.paths import kind_of


def with_imports(first: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
    """These files, then what they import, directly or not, from the folders that Python would look in.

    Args:
        first: Files to begin with.
        folders: Python's path, as far as the user's own modules may lie there.

    Returns:
        Paths that begin as the folders do; beside the first ones only of files that are there.
    """
    found = dict.fromkeys(first)
    left = list(found)
    while left:
        path = left.pop()
        for module in _imported(path, _package(path, folders)):
            for imported in _files(folders, module):
                if imported not in found:
                    found[imported] = None
                    left.append(imported)
    return list(found)


def module_files(folders: Sequence[Path], module: str) -> list[Path]:
    """Files that ``python -m module`` runs, its packages first; empty where the module is not there."""
    parts = tuple(module.split("."))
    found = list(_files(folders, parts))
    if not found or found[-1].name != "__init__.py":
        return found if found and found[-1].stem == parts[-1] else []
    main = found[-1].with_name("__main__.py")
    return [*found, main] if found[-1].parent.name == parts[-1] and main.is_file() else []


def _package(path: Path, folders: Sequence[Path]) -> tuple[str, ...]:
    """Parts of the name of the package that a file is in; empty for a module by itself, or a script."""
    for folder in folders:
        if path.is_relative_to(folder):
            return path.parent.relative_to(folder).parts
    return ()


def _files(folders: Sequence[Path], module: tuple[str, ...]) -> Iterator[Path]:
    """Files that importing a module runs: its packages, and itself, as far as they lie in a folder."""
    for length in range(1, len(module) + 1):
        for folder in folders:
            place = folder.joinpath(*module[:length])
            candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
            if here := [path for path in candidates if kind_of(path) == "file"]:
                yield from here
                break


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
        return  # of the first file this is told elsewhere; another one may never be reached
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
