"""Check that the program's file can be run, and find what it writes, without running it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from scalewise.config.catalog.program_files import (
    NOT_PYTHON,
    import_statements,
    module_files,
    module_of,
    program_files,
)
from scalewise.config.paths import explain_missing, invalid_command, kind_of
from scalewise.config.program import ProgramSettings

Refusal = tuple[str, str] | None
"""A clause that names the value and what is wrong, and the fix; None for nothing."""

_WRITERS = re.compile(
    r"\b(?:torch|np|numpy)\.save\w*\(|\bsave_(?:pretrained|checkpoint|state|model|weights|file|image)\("
    r"|\b(?:savefig|imwrite|SummaryWriter|FileHandler|copyfile)\(|\bos\.makedirs\(|\.mkdir\("
    r"|\b\w*Trainer\(|\bTrainingArguments\(|\.fit\(|\bwandb\.init\(|\.to_(?:csv|json|parquet)\("
    r"|\.write_(?:text|bytes)\(|open\([^)]*['\"][wax]b?\+?['\"]"
)
"""Calls that write files, as PyTorch and its frameworks name them."""


def refused_program(settings: ProgramSettings, *, by_this_python: bool) -> Refusal:
    """Return why the program cannot be run; None if it can.

    Args:
        settings: The program's.
        by_this_python: The program runs with this Python, so its modules and its syntax can be checked.
    """
    program = settings.program
    if refusal := _refused_name(settings, by_this_python):
        return refusal
    files = program_files(settings)
    for path in files:
        # Snakemake names them in the command line of a job
        if refusal := invalid_command(str(path)):
            return f"is {program!r}, of which a file {refusal[0]}", refusal[1]
    return _refused_syntax(program, files[0]) if files and by_this_python else None


def _refused_name(settings: ProgramSettings, by_this_python: bool) -> Refusal:
    if settings.program.startswith("-"):
        return _refused_module(settings, by_this_python)
    return _refused_path(settings.program)


def _refused_module(settings: ProgramSettings, by_this_python: bool) -> Refusal:
    program, module = settings.program, module_of(settings.program)
    if module is None or not all(part.isidentifier() for part in module.split(".")):
        return (
            f"is {program!r}, but -m takes the name of one module and nothing else",
            "Write `-m package.train`, and the rest in `arguments`.",
        )
    if by_this_python and not program_files(settings) and not _is_installed(module):
        folder = Path(settings.working_directory or "").absolute()
        return (
            f"is {program!r}, but no module {module} that can be run is in {folder} or installed",
            "Name a module as Python does, from the folder that the program runs in (working_directory), or "
            "the path of a file.",
        )
    return None


def _is_installed(module: str) -> bool:
    """Whether an installed package has the module, by the names of files; nothing is imported."""
    try:
        spec = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None or spec.submodule_search_locations is None:
        return spec is not None
    return bool(module_files([Path(folder).parent for folder in spec.submodule_search_locations], module))


def _refused_path(program: str) -> Refusal:
    if refusal := invalid_command(program):
        return refusal
    path, words = Path(program), program.split()
    kind = kind_of(path)
    if kind == "file":
        return None
    if kind == "folder":
        return (
            f"is {program!r}, which is a folder",
            "Give the path of a Python file in it, or `-m package.train`.",
        )
    if kind is not None:
        return f"is {program!r}, which is no file", "Give the path of a Python file."
    problem = f"is {program!r}, {explain_missing(program)}"
    if len(words) > 1:
        script = next((word for word in words if word.endswith(".py")), "train.py")
        fix = f"Write `program: {script}` only, and its arguments under `arguments`. Scalewise starts it."
        return problem, fix
    scripts = path.parent.glob("*.py") if kind_of(path.parent) == "folder" else ()
    near = difflib.get_close_matches(path.name, [file.name for file in scripts if file.is_file()], n=1)
    if near:
        return problem, f"Did you mean {str(path.with_name(near[0]))!r}?"
    return problem, "Give the path of a Python file, from the folder snakemake runs in."


def _refused_syntax(program: str, path: Path) -> Refusal:
    try:
        import_statements(path)
    except OSError as error:
        return (
            f"is {program!r}, but {str(path)!r} cannot be read ({error.strerror})",
            "Make it readable, or give the path of another Python file.",
        )
    except NOT_PYTHON as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        reason = line + str(error.msg if isinstance(error, SyntaxError) else error)
        return (
            f"is {program!r}, but {str(path)!r} is not Python ({reason})",
            "Correct the file, or name the Python file that it starts.",
        )
    return None


def find_writes(settings: ProgramSettings) -> Iterator[str]:
    """Find calls in the program's files that appear to write a file, such as ``torch.save``."""
    for path in program_files(settings):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for call in _WRITERS.finditer(text):
            yield call[0].rstrip("(").lstrip(".").partition("(")[0]
