"""Files that a user's program consists of, found by reading, without running any of it.

Imports made in another way than by an ``import`` are not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from scalewise.plan.config.paths import kind_of
from scalewise.plan.config.program import ProgramSettings

NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""Errors of Python's parser on a file that is not Python."""


def module_of(program: str) -> str | None:
    """``-m package.train`` -> ``package.train``; None for the path of a file."""
    words = program.split()
    return words[1] if words[:1] == ["-m"] and len(words) == 2 else None


def program_words(program: str) -> list[str]:
    """The program as Python's command line takes it: a path, or ``-m`` and a module."""
    module = module_of(program)
    return [program] if module is None else ["-m", module]


def for_folder(command: str, folder: str | None) -> str:
    """A command's path as it is seen from the folder that it runs in; a name on PATH stays.

    Args:
        command: A path from this folder, or a name on PATH.
        folder: None for this folder.
    """
    is_path = "/" in command or command.endswith(".py")
    return str(Path(command).absolute()) if folder is not None and is_path else command


def program_files(settings: ProgramSettings) -> list[Path]:
    """The program's own file first, then every file outside the installed packages that it imports.

    Imports are found by reading; what is imported in another way is not seen. Empty for a module that is
    installed.

    Args:
        settings: The program's. Modules, and a relative PYTHONPATH, are seen from the folder that it runs in.
    """
    runs_in = Path(settings.working_directory or "")
    added = str(settings.environment.get("PYTHONPATH", "")).split(":")
    folders = [runs_in / folder for folder in added if folder]
    module = module_of(settings.program)
    if module is not None:
        folders = [runs_in, *folders]
        own = module_files(folders, module)
        # the module itself comes last of the files that running it runs
        return _with_imports(own[::-1], folders)
    path = Path(settings.program)
    # where the file itself lies, which is what Python looks through first
    folder = path.resolve().parent if path.is_symlink() else path.parent
    return _with_imports([path], [folder, *folders])


def _with_imports(first: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
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
        statements = import_statements(path)
    except (OSError, *NOT_PYTHON):
        return  # a mistake in the program's own file is refused; another file may never be reached
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
            continue
        base = package[: len(package) + 1 - node.level] if node.level else ()
        module = (*base, *(node.module.split(".") if node.module else ()))
        # what is imported from a package may be a module of it
        yield from ((*module, alias.name) for alias in node.names if alias.name != "*")
        yield module


def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return all imports of a file, wherever they stand in it.

    Raises:
        OSError: It cannot be read.
        SyntaxError: It is not Python, as for the other ``NOT_PYTHON``.
    """
    stat = path.stat()
    return _import_statements(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _import_statements(path: Path, _changed: int, _size: int) -> tuple[ast.Import | ast.ImportFrom, ...]:
    tree = ast.parse(path.read_bytes(), filename=str(path))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
