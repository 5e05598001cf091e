"""Find the files of a user's program by reading it, without running any of it.

Only ``import`` statements are found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from scalewise.config.paths import kind_of
from scalewise.config.program import ProgramSettings

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


def command_for_folder(command: str, folder: str | None) -> str:
    """Return a command's path so that it works in another folder; a name on PATH stays.

    Args:
        command: A path from this folder, or a name on PATH.
        folder: The folder that it runs in; None for this one.
    """
    is_path = "/" in command or command.endswith(".py")
    return str(Path(command).absolute()) if folder is not None and is_path else command


def program_command(settings: ProgramSettings, python: str, arguments: Sequence[str]) -> list[str]:
    """Return interpreter, program and arguments, for the folder that the program runs in.

    Args:
        settings: The program's.
        python: The interpreter if the settings name none.
        arguments: Those of the program, filled in.
    """
    folder = settings.working_directory
    *module, program = program_words(settings.program)
    if folder is not None and not module:
        program = str(Path(program).absolute())
    return [command_for_folder(settings.python or python, folder), *module, program, *arguments]


def program_files(settings: ProgramSettings) -> list[Path]:
    """Find the program's file, then every file outside the installed packages that it imports.

    Empty for a module that is installed.

    Args:
        settings: The program's. Modules, and a relative PYTHONPATH, are relative to its working folder.
    """
    runs_in = Path(settings.working_directory or "")
    added = str(settings.environment.get("PYTHONPATH", "")).split(":")
    folders = [runs_in / folder for folder in added if folder]
    module = module_of(settings.program)
    if module is not None:
        folders = [runs_in, *folders]
        # Python runs the packages first and the module last
        return _with_imports(module_files(folders, module)[::-1], folders)
    path = Path(settings.program)
    if kind_of(path) != "file":
        return [path]  # to read a pipe would wait
    # Python searches the folder of the real file first
    folder = path.resolve().parent if path.is_symlink() else path.parent
    return _with_imports([path], [folder, *folders])


def _with_imports(first: Iterable[Path], folders: Sequence[Path]) -> list[Path]:
    """Find what files import, directly or not, from the folders that Python searches.

    Args:
        first: Files to begin with.
        folders: The part of Python's path that may hold the user's modules.

    Returns:
        The first files, then those that exist of the imported ones, below the folders.
    """
    files = dict.fromkeys(first)
    unread = list(files)
    while unread:
        path = unread.pop()
        for module in _imported(path, _package(path, folders)):
            for file in _files(folders, module):
                if file not in files:
                    files[file] = None
                    unread.append(file)
    return list(files)


def module_files(folders: Sequence[Path], module: str) -> list[Path]:
    """Find the files that ``python -m module`` runs, its packages first; empty if there is no such module."""
    parts = tuple(module.split("."))
    files = list(_files(folders, parts))
    if not files or files[-1].name != "__init__.py":
        return files if files and files[-1].stem == parts[-1] else []
    main = files[-1].with_name("__main__.py")
    return [*files, main] if files[-1].parent.name == parts[-1] and main.is_file() else []


def _package(path: Path, folders: Sequence[Path]) -> tuple[str, ...]:
    """Parts of the name of the package that a file is in; empty for a top-level module or a script."""
    for folder in folders:
        if path.is_relative_to(folder):
            return path.parent.relative_to(folder).parts
    return ()


def _files(folders: Sequence[Path], module: tuple[str, ...]) -> Iterator[Path]:
    """Find the files that importing a module runs: its packages' and its own, if they are in a folder."""
    for length in range(1, len(module) + 1):
        for folder in folders:
            place = folder.joinpath(*module[:length])
            candidates = (place / "__init__.py", place.with_name(f"{place.name}.py"))
            if files := [path for path in candidates if kind_of(path) == "file"]:
                yield from files
                break


def _imported(path: Path, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """List the modules that a file imports, as the parts of their names.

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
        # a name imported from a package may be a module
        yield from ((*module, alias.name) for alias in node.names if alias.name != "*")
        yield module


def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return all imports of a file, also those inside functions.

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
